"""`andrea status`: what ran, what failed and why."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli import complete
from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, examples
from andrea.errors import StudyError, warn

if TYPE_CHECKING:
    from andrea.store.runs import RunStore
    from andrea.store.studies import StudyFolder

EXAMPLES = examples(
    "andrea status                         all studies, and single runs of andrea train",
    "andrea status norm-placement          the latest study of that name, failed runs with their "
    "reasons",
    "watch -n 5 andrea status --json",
)


SINGLE = 20
"""Runs of no study that are listed, the latest."""
LABEL = ("run_id", "arm", "phase", "why", "lr", "seed", "trial", "params")


def status(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            autocompletion=complete.studies,
            help="Folder name of a study, or its bare name: the latest.",
        ),
    ] = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Studies with their phase, runs done, and what failed, stalled or diverged."""
    from andrea.cli.show.output import print_json
    from andrea.cli.stores import named, reading

    if study is not None:
        store, folder = named(runs, study)
        state = summarise(store, folder)
        print_json(state) if as_json else typer.echo(one(state))
        return
    from andrea.store.studies import studies

    store = reading(runs)
    states: list[dict[str, Any]] = []
    planned: set[str] = set()
    for folder in studies(store):
        try:
            states.append(summarise(store, folder))
        except StudyError as error:  # a damaged study must not hide the others
            warn(str(error))
        planned |= {str(run["run_id"]) for run in folder.runs()}
    single = [alone(store, run_id) for run_id in store.ids() if run_id not in planned]
    single.sort(key=lambda run: run["finished_at"] or "~")  # what is not finished comes last
    if as_json:
        print_json([*states, *single])
        return
    told = [every(states) if states else f"no studies in {store.root} yet"]
    typer.echo("\n\n".join([*told, *([singles(single)] if single else [])]))


def alone(store: "RunStore", run_id: str) -> dict[str, Any]:
    """The state of a run that belongs to no study, as of `andrea train`, as JSON."""
    result = store.result(run_id) or {}
    told: dict[str, Any] = {"kind": "run", "study": None, "run_id": run_id}
    told |= {
        key: result.get(key)
        for key in ("outcome", "stalled", "loss", "tokens", "reason", "finished_at")
    }
    if not result:
        live, failure = store.lease(run_id) is not None, store.failure(run_id)
        told["outcome"] = "running" if live else "failed" if failure else "interrupted"
        told["reason"] = failure.get("reason") if failure and not live else None
    return told


def singles(runs: list[dict[str, Any]]) -> str:
    """Runs that belong to no study as a table, the latest last."""
    from andrea.cli.show.output import table
    from andrea.text.numbers import count, loss

    rows = []
    for run in runs[-SINGLE:]:
        ending = "stalled" if run["stalled"] else run["outcome"]
        finished = str(run["finished_at"] or "")[:16].replace("T", " ")
        rows.append([run["run_id"][:12], ending, loss(run["loss"]), count(run["tokens"]), finished])
    more = f"\nand {len(runs) - SINGLE} earlier ones (--json has all)" if len(runs) > SINGLE else ""
    listed = table(rows, ("single run", "outcome", "loss", "tokens", "finished (UTC)"), (2, 3))
    return f"{listed}{more}\n`andrea report --kind run ID` shows one"


def summarise(store: "RunStore", folder: "StudyFolder") -> dict[str, Any]:
    """The state of a study as JSON, read from the store alone."""
    from andrea.cli.show.results import labels

    about, live, verdict = folder.about, folder.live, folder.read("verdict.json") or {}
    counts: Counter[str] = Counter()
    failed, at_work, ends = [], [], []
    planned = folder.runs()
    for run in planned:
        label: dict[str, Any] = {key: run[key] for key in LABEL if key in run}
        result = store.result(run["run_id"])
        if result is not None:
            counts["done"] += 1
            counts["stalled"] += bool(result.get("stalled"))
            counts["diverged"] += result.get("outcome") == "diverged"
            if result.get("stalled") or result.get("outcome") != "completed":
                ends.append(
                    {
                        **label,
                        "ending": "stalled" if result.get("stalled") else result.get("outcome"),
                    }
                )
            continue
        if store.lease(run["run_id"]) is not None:
            at_work.append(label)
        elif failure := store.failure(run["run_id"]):
            failed.append(
                {**label, "reason": failure.get("reason"), "log": _log(store, run["run_id"])}
            )
    return {
        "study": folder.path.name,
        "kind": about.get("kind"),
        "name": about.get("name"),
        "created": about.get("created"),
        "live": live,
        "phase": _phase(folder, planned, live),
        "runs": {
            "total": _total(folder, len(planned)),
            "running": len(at_work),
            "failed": len(failed),
            **{key: counts[key] for key in ("done", "stalled", "diverged")},
        },
        "running": at_work,
        "failed": failed,
        "not_completed": ends,
        "verdicts": [
            {key: v.get(key) for key in ("arm", "verdict", "cause")}
            for v in verdict.get("verdicts", [])
        ],
        "exploratory": bool(verdict.get("exploratory")),
        "best": (folder.read("best.json") or {}).get("params"),
        "labels": labels(folder),
    }


def _phase(folder: "StudyFolder", planned: list[dict[str, Any]], live: bool) -> str:
    if folder.complete and not live:
        return "done"
    current = str(planned[-1].get("phase") or "planned") if planned else "planned"
    return current if live else f"{current}, interrupted"


def _total(folder: "StudyFolder", planned: int) -> int:
    """Runs of the study: those planned so far, or what its protocol comes to without extensions of
    the grid.
    """
    if folder.complete:
        return planned
    try:
        asked = folder.protocol()
        if asked["kind"] == "sweep":
            return max(planned, int(asked["trials"] * asked["seeds"]))
        rules = asked["protocol"]
        seeds, arms = int(rules["seeds"]), len(asked["arms"])
        beside = folder.read("asked.json") or {}
        more = (1 + 2 * seeds if beside.get("controls") else 0) + (
            arms * seeds if beside.get("confirm") else 0
        )
        return max(planned, arms * (int(rules["trials"]) + seeds) + more)
    except (StudyError, LookupError, TypeError):
        return planned


def _log(store: "RunStore", run_id: str) -> str | None:
    current = store.current(run_id)
    return (
        str(current / "log.txt") if current is not None and (current / "log.txt").exists() else None
    )


def every(states: list[dict[str, Any]]) -> str:
    """All studies as a table; columns that say nothing are left out."""
    from andrea.cli.show.output import table
    from andrea.cli.show.results import EXPLORATORY

    rows = []
    for state in states:
        runs = state["runs"]
        rows.append(
            [
                state["study"],
                state["phase"],
                "live" if state["live"] else "",
                f"{runs['done']}/{runs['total']}",
                runs["failed"],
                runs["stalled"],
                runs["diverged"],
                came_out(state),
            ]
        )
    header = ("study", "phase", "", "runs", "failed", "stalled", "diverged", "outcome")
    told = [i for i in range(len(header)) if any(row[i] for row in rows)]
    right = [at for at, i in enumerate(told) if 3 <= i <= 6]
    text = table([[row[i] for i in told] for row in rows], [header[i] for i in told], right)
    return text + (f"\n\n{EXPLORATORY}" if any(state["exploratory"] for state in states) else "")


def came_out(state: dict[str, Any]) -> str:
    """What came out of a study in a few words: `post-norm worse`, `2 worse, 1 inconclusive`, `best
    lr 0.0047`.
    """
    from andrea.cli.show.output import parameter

    if state["best"]:
        return "best " + ", ".join(
            f"{k.rpartition('.')[2]} {parameter(k, v)}" for k, v in state["best"].items()
        )
    if state["kind"] == "sweep":
        return "no good trial" if state["phase"] == "done" else ""
    verdicts = state["verdicts"]
    if len(verdicts) == 1:
        text = f"{state['labels'].get(verdicts[0]['arm'], verdicts[0]['arm'])} {verdicts[0]['verdict']}"
    else:
        text = ", ".join(
            f"{n} {verdict}" for verdict, n in Counter(v["verdict"] for v in verdicts).items()
        )
    return f"{text} (exploratory)" if state["exploratory"] else text


def one(state: dict[str, Any]) -> str:
    """One study: the table's row, then who is at work, what failed and why, and the verdicts."""
    from andrea.cli.show.display import describe

    labels = state["labels"]
    lines = [every([state])]
    lines += [f"running: {describe(run, labels)}" for run in state["running"]]
    for run in state["failed"]:
        lines.append(
            f"failed: {describe(run, labels)}: {run['reason']}"
            + (f" (see {run['log']})" if run["log"] else "")
        )
    lines += [f"{run['ending']}: {describe(run, labels)}" for run in state["not_completed"]]
    for v in state["verdicts"]:
        cause = f" ({v['cause']})" if v["cause"] else ""
        lines.append(f"verdict: {labels.get(v['arm'], v['arm'])} is {v['verdict']}{cause}")
    if state["phase"].endswith("interrupted"):
        lines.append("the command that began it, given again, resumes it")
    return "\n".join(lines)
