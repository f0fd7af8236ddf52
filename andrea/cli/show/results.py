"""What came out of a study: the verdict table or the best config, and the report."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea.cli.show.beside import beside, by_note, confirmation
from andrea.cli.show.output import parameter, table
from andrea.store.usual import runs_option
from andrea.text.numbers import NOTHING, count, loss

if TYPE_CHECKING:
    from andrea.store.runs import RunStore
    from andrea.store.studies import StudyFolder

COLUMNS = ("arm", "verdict", "difference", "interval", "n", "lr")
EFFECTS = ("effect", "verdict", "difference", "interval", "n")

EXPLORATORY = "exploratory: some runs were there before the study's protocol was frozen"


def labels(folder: "StudyFolder") -> dict[str, str]:
    """What the arms of a study are called, by name."""
    arms = (folder.read("resolved.json") or {}).get("arms", {})
    return {name: told.get("label") or name for name, told in arms.items()}


def outcome(folder: "StudyFolder", store: "RunStore") -> dict[str, Any]:
    """The outcome as JSON: verdict.json and the chosen rates, or the trials and the best config."""
    about = folder.about
    head = {"study": folder.path.name, "folder": str(folder.path), "kind": about.get("kind")}
    if about.get("kind") == "sweep":
        best = {
            key: value for key, value in (folder.read("best.json") or {}).items() if key != "trials"
        }
        if best.get("params"):
            best["command"] = train_command(folder, store)
        return {**head, "best": best or None, "trials": trials(folder, store)}
    return {**head, **(folder.read("verdict.json") or {}), "choices": folder.read("choices.json")}


def outcome_text(folder: "StudyFolder", store: "RunStore") -> str:
    """The outcome for people."""
    if folder.about.get("kind") == "sweep":
        return sweep_text(folder, store)
    from andrea.cli.show.verdict_table import effect_table, verdict_table

    called, judged = labels(folder), folder.read("verdict.json") or {}
    again = confirmation(judged)
    verdicts = [
        {
            **row,
            "arm": called.get(row["arm"], row["arm"]),
            "confirmation": again.get(row["arm"], ""),
        }
        for row in verdict_table(folder)
    ]
    columns = (*COLUMNS, *(("confirmation",) if again else ()))
    rows = [[row[column] for column in columns] for row in verdicts]
    # Notes are sentences: beside the table they would wrap in the middle of it.
    notes = by_note((row["arm"], row["note"]) for row in verdicts if row["note"])
    if judged.get("exploratory"):
        notes.append(EXPLORATORY)
    lines = [table(rows, columns, right=(2, 4)), _rules(folder)]
    if effects := effect_table(folder):
        lines += [
            "",
            table([[row[column] for column in EFFECTS] for row in effects], EFFECTS, right=(2, 4)),
        ]
        told = {row["note"] for row in verdicts}
        bare = [row for row in effects if row["difference"] == NOTHING and row["note"] not in told]
        notes += by_note((row["effect"], row["note"]) for row in bare)
    return "\n".join([*lines, *beside(judged, called), *([""] if notes else []), *notes])


def _rules(folder: "StudyFolder") -> str:
    """What the verdicts were judged by: the smallest effect of interest, pairs, tokens of a run."""
    rules = folder.protocol()["protocol"]
    text = f"m = {rules['m']:g} nats; n = {rules['seeds']} pairs"
    for arm in (folder.read("resolved.json") or {}).get("arms", {}).values():
        batch = arm["config"]["train"]["batch_size"] * arm["config"]["model"]["context"]
        return f"{text}; {count(arm['config']['train']['tokens'] // batch * batch)} tokens a run"
    return text


def trials(folder: "StudyFolder", store: "RunStore") -> list[dict[str, Any]]:
    """The trials of a sweep in order: best.json's, or what the store has of them so far."""
    best = folder.read("best.json")
    if best:
        found: list[dict[str, Any]] = best["trials"]
        return found
    from andrea.study.stages.tune import score

    rows = []
    for run in folder.runs():
        result = store.result(run["run_id"])
        row = {key: run.get(key) for key in ("trial", "params", "run_id")} | {
            "loss": result and score(result)
        }
        rows.append(row | {key: (result or {}).get(key) for key in ("outcome", "stalled")})
    return rows


def sweep_text(folder: "StudyFolder", store: "RunStore") -> str:
    """A table of trials, best first, and the command that trains the best config."""
    from andrea.verdict.replicates import is_good_run

    every = trials(folder, store)
    every.sort(
        key=lambda t: (
            not is_good_run(t["outcome"], t["stalled"], t["loss"]),
            t["loss"] is None,
            t["loss"] or 0.0,
        )
    )
    names = list(dict.fromkeys(name for trial in every for name in trial["params"]))
    rows = [
        [
            t["trial"],
            *(parameter(n, t["params"].get(n)) for n in names),
            loss(t["loss"]),
            _ending(t),
        ]
        for t in every
    ]
    text = table(rows, ("trial", *names, "objective", "ending"), right=range(len(names) + 2))
    best = folder.read("best.json") or {}
    if best.get("params"):
        text += f"\n\nbest: trial {best['trial']}, loss {loss(best['loss'])}\n{train_command(folder, store)}"
    return text


def train_command(folder: "StudyFolder", store: "RunStore") -> str:
    """`andrea train …` with whatever makes it the best trial's config, every digit of it."""
    from andrea.cli.settings import run_config
    from andrea.config import dotted, merge

    [arm] = folder.read("resolved.json")["arms"].values()
    preset = folder.protocol().get("preset") or "tiny"
    known = dotted(run_config(preset, []).model_dump(mode="json"))
    asked = dotted(merge(arm["asked"], folder.read("best.json")["params"]))
    parts = ["andrea", "train", "--preset", preset]
    own = folder.read("resolved.json").get("variants")
    parts += ["--variants", str(folder.path / own)] if own else []
    # Seed and evaluated part are those of a sweep's trial unless somebody says otherwise.
    differ = {
        k: v for k, v in asked.items() if k not in ("seed", "data.eval_part") and v != known[k]
    }
    parts += [
        part for key, value in differ.items() for part in ("--set", f"{key}={_as_given(value)}")
    ]
    return shlex.join([*parts, *runs_option(store.root)])


def _as_given(value: Any) -> str:
    """A value as `--set` reads it back."""
    from andrea.config import parse_value

    return value if isinstance(value, str) and parse_value(value) == value else json.dumps(value)


def _ending(trial: dict[str, Any]) -> str:
    from andrea.verdict.replicates import is_good_run

    ending = "stalled" if trial["stalled"] else str(trial["outcome"] or "open")
    bad = trial["outcome"] and not is_good_run(trial["outcome"], trial["stalled"], trial["loss"])
    return f"{ending}, scored as at initialisation" if bad else ending


def report_kind(folder: "StudyFolder") -> str:
    """The report that a study gets when nobody names one."""
    return "sweep" if folder.about.get("kind") == "sweep" else "comparison"


def make(
    store: "RunStore",
    folder: "StudyFolder",
    formats: Sequence[str] | None,
    out: Path | None,
    kind: str,
) -> list[Path]:
    """Build a report from the store, in all formats where none are named; the first path is the
    page.
    """
    from andrea.analysis.formats.build import make_report
    from andrea.catalogue import find_file

    return list(make_report(store, folder, formats, find_file("reports", kind), out))


def write_report(folder: "StudyFolder", store: "RunStore") -> Path | None:
    """The page that a study ends with. A report that fails costs a warning: the runs are in the
    store.
    """
    try:
        paths = make(store, folder, None, None, report_kind(folder))
    except Exception as error:
        line = " ".join(f"warning: no report ({type(error).__name__}: {error})".split())
        print(
            f"{line}; `andrea report {folder.path.name}` builds it from the store", file=sys.stderr
        )
        return None
    return paths[0] if paths else None
