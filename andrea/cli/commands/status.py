"""`andrea status`: what ran, what failed and why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from andrea.cli.options import DEFAULT_RUNS, STUDY, Debug, Json, Runs, examples
from andrea.cli.show.output import parameter, print_json, table
from andrea.errors import StudyError, warn
from andrea.text.numbers import count, judged, loss

if TYPE_CHECKING:
    from andrea.records.base import Settings
    from andrea.records.run import RunResult, RunSpec
    from andrea.records.study import StudyInfo
    from andrea.records.verdict import StudyVerdict
    from andrea.store.runs import RunStore
    from andrea.store.studies import StudyFolder

EXAMPLES = examples(
    "andrea status                         all studies, and single runs of andrea train",
    "andrea status norm-placement          the latest study of that name, failed runs with their "
    "reasons",
    "watch -n 5 andrea status --json",
)

MOST_SINGLE_RUNS = 20
"""Runs of no study that are listed, the latest."""
RUN_FIELDS = {"run_id", "arm", "phase", "why", "lr", "seed", "trial", "params"}
"""What `--json` says of a planned run."""
STUDY_COLUMNS = ("study", "phase", "", "runs", "failed", "stalled", "diverged", "outcome")
SINGLE_RUN_COLUMNS = ("single run", "outcome", "loss", "tokens", "finished (UTC)")


def status(
    study: Annotated[str | None, STUDY] = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Studies with their phase, runs done, and what failed, stalled or diverged."""
    from andrea.cli.stores import open_store, open_study

    if study is not None:
        state = read_study_state(*open_study(runs, study))
        print_json(state.to_json()) if as_json else typer.echo(study_as_text(state))
        return
    store = open_store(runs)
    studies, single_runs = read_states(store)
    if as_json:
        states: list[StudyState | SingleRunState] = [*studies, *single_runs]
        print_json([state.to_json() for state in states])
        return
    parts = [studies_table(studies) if studies else f"no studies in {store.root} yet"]
    if single_runs:
        parts.append(single_runs_table(single_runs))
    typer.echo("\n\n".join(parts))


@dataclass(frozen=True)
class SingleRunState:
    """The state of a run that belongs to no study, as of `andrea train`."""

    run_id: str
    outcome: str
    """Of its result; running, failed or interrupted where it has none."""
    reason: str | None
    result: "RunResult | None"

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        about = {"kind": "run", "study": None, "run_id": self.run_id, "outcome": self.outcome}
        names = ("stalled", "loss", "tokens", "finished_at")
        ended = {name: getattr(self.result, name, None) for name in names}
        return {**about, **ended, "reason": self.reason}


@dataclass(frozen=True)
class FailedRun:
    """A planned run whose latest attempt failed."""

    run: "RunSpec"
    reason: str
    log: str | None
    """Path of what its worker printed."""


@dataclass
class StudyState:
    """The state of a study, read from the store alone."""

    folder: str
    info: "StudyInfo"
    live: bool
    phase: str
    total: int
    verdict: "StudyVerdict"
    best: "Settings | None"
    """Dotted settings of a sweep's best trial."""
    labels: dict[str, str]
    """Of arms, by name."""
    done: int = 0
    stalled: int = 0
    diverged: int = 0
    running: "list[RunSpec]" = field(default_factory=list)
    failed: list[FailedRun] = field(default_factory=list)
    not_completed: "list[tuple[RunSpec, str]]" = field(default_factory=list)
    """Runs that stalled or did not complete, with how they ended."""

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        failed = [_run_as_json(end.run, reason=end.reason, log=end.log) for end in self.failed]
        others = [_run_as_json(run, ending=ending) for run, ending in self.not_completed]
        verdicts = [
            verdict.model_dump(include={"arm", "verdict", "cause"})
            for verdict in self.verdict.verdicts
        ]
        return {
            "study": self.folder,
            **self.info.model_dump(include={"kind", "name", "created"}),
            "live": self.live,
            "phase": self.phase,
            "runs": {
                "total": self.total,
                "running": len(self.running),
                "failed": len(self.failed),
                "done": self.done,
                "stalled": self.stalled,
                "diverged": self.diverged,
            },
            "running": [_run_as_json(run) for run in self.running],
            "failed": failed,
            "not_completed": others,
            "verdicts": verdicts,
            "exploratory": self.verdict.exploratory,
            "best": self.best,
            "labels": self.labels,
        }


def _run_as_json(run: "RunSpec", **more: str | None) -> dict[str, object]:
    return run.model_dump(mode="json", exclude_unset=True, include=RUN_FIELDS) | more


def read_states(store: "RunStore") -> tuple[list[StudyState], list[SingleRunState]]:
    """Return the states of all studies, oldest first, and of all runs that belong to none."""
    from andrea.store.studies import list_studies

    states: list[StudyState] = []
    planned: set[str] = set()
    for folder in list_studies(store):
        try:
            states.append(read_study_state(store, folder))
        except StudyError as error:  # a damaged study must not hide the others
            warn(str(error))
        planned |= {run.run_id for run in folder.load_runs()}
    single_runs = [
        read_single_run(store, run_id) for run_id in store.ids() if run_id not in planned
    ]
    single_runs.sort(key=_finished_at)
    return states, single_runs


def _finished_at(run: SingleRunState) -> str:
    # A tilde is behind every digit: runs that have not finished come last.
    return (run.result and run.result.finished_at) or "~"


def read_single_run(store: "RunStore", run_id: str) -> SingleRunState:
    """Return the state of a run that belongs to no study."""
    result = store.load_result(run_id)
    if result is not None:
        return SingleRunState(run_id, result.outcome, result.reason, result)
    if store.lease(run_id) is not None:
        return SingleRunState(run_id, "running", None, None)
    failure = store.load_failure(run_id)
    if failure is not None:
        return SingleRunState(run_id, "failed", failure.reason, None)
    return SingleRunState(run_id, "interrupted", None, None)


def read_study_state(store: "RunStore", folder: "StudyFolder") -> StudyState:
    """Return the state of a study.

    Raises:
        StudyError: a file that nothing can make again is damaged.
    """
    from andrea.cli.show.results import arm_labels
    from andrea.records.verdict import StudyVerdict

    best, runs, live = folder.load_best(), folder.load_runs(), folder.live
    state = StudyState(
        folder=folder.path.name,
        info=folder.load_info(),
        live=live,
        phase=_phase(folder, runs, live),
        total=_count_runs(folder, len(runs)),
        verdict=folder.load_verdict() or StudyVerdict(),
        best=best.params if best else None,
        labels=arm_labels(folder),
    )
    for run in runs:
        result = store.load_result(run.run_id)
        if result is not None:
            _add_result(state, run, result)
        elif store.lease(run.run_id) is not None:
            state.running.append(run)
        elif failure := store.load_failure(run.run_id):
            state.failed.append(FailedRun(run, failure.reason, _log_path(store, run.run_id)))
    return state


def _add_result(state: StudyState, run: "RunSpec", result: "RunResult") -> None:
    state.done += 1
    state.stalled += result.stalled
    state.diverged += result.outcome == "diverged"
    ending = "stalled" if result.stalled else result.outcome
    if ending != "completed":
        state.not_completed.append((run, ending))


def _phase(folder: "StudyFolder", runs: "Sequence[RunSpec]", live: bool) -> str:
    if folder.complete and not live:
        return "done"
    current = runs[-1].phase if runs else "planned"
    return current if live else f"{current}, interrupted"


def _count_runs(folder: "StudyFolder", planned: int) -> int:
    """Return the runs of the study: those planned so far, or what its question comes to without
    extensions of the grid, if that is more.
    """
    if folder.complete:
        return planned
    try:
        question, extras = folder.load_question(), folder.load_extras()
    except StudyError:
        return planned
    protocol = question.protocol
    if protocol is None:
        return max(planned, question.trials * question.seeds)
    arms, seeds = len(question.arms), protocol.seeds
    expected = arms * (protocol.trials + seeds)
    if extras.controls:
        expected += 1 + 2 * seeds
    if extras.confirm:
        expected += arms * seeds
    return max(planned, expected)


def _log_path(store: "RunStore", run_id: str) -> str | None:
    current = store.current(run_id)
    path = current and current / "log.txt"
    return str(path) if path and path.exists() else None


def studies_table(states: Sequence[StudyState]) -> str:
    """Return all studies as a table; columns that say nothing are left out."""
    from andrea.cli.show.results import EXPLORATORY

    rows: list[tuple[object, ...]] = []
    for state in states:
        live, runs = "live" if state.live else "", f"{state.done}/{state.total}"
        counts = (len(state.failed), state.stalled, state.diverged)
        rows.append((state.folder, state.phase, live, runs, *counts, outcome_in_words(state)))
    columns = [i for i in range(len(STUDY_COLUMNS)) if any(row[i] for row in rows)]
    header = [STUDY_COLUMNS[i] for i in columns]
    numbers = [header.index(name) for name in STUDY_COLUMNS[3:7] if name in header]
    text = table([[row[i] for i in columns] for row in rows], header, numbers)
    if any(state.verdict.exploratory for state in states):
        text += f"\n\n{EXPLORATORY}"
    return text


def outcome_in_words(state: StudyState) -> str:
    """Return what came out of a study: `post-norm worse`, `2 worse, 1 inconclusive`, `best lr
    0.0047`.
    """
    if state.best:
        settings = [
            f"{path.rpartition('.')[2]} {parameter(path, value)}"
            for path, value in state.best.items()
        ]
        return f"best {', '.join(settings)}"
    if state.info.kind == "sweep":
        return "no good trial" if state.phase == "done" else ""
    verdicts = state.verdict.verdicts
    if len(verdicts) == 1:
        [only] = verdicts
        text = f"{state.labels.get(only.arm, only.arm)} {only.verdict}"
    else:
        counts = Counter(verdict.verdict for verdict in verdicts)
        text = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{text} (exploratory)" if state.verdict.exploratory else text


def study_as_text(state: StudyState) -> str:
    """Return the table's row of a study, then who is at work, what failed and why, and the
    verdicts.
    """
    from andrea.cli.show.display import describe_run

    labels = state.labels
    lines = [studies_table([state])]
    for run in state.running:
        lines.append(f"running: {describe_run(run, labels)}")
    for end in state.failed:
        log = f" (see {end.log})" if end.log else ""
        lines.append(f"failed: {describe_run(end.run, labels)}: {end.reason}{log}")
    for run, ending in state.not_completed:
        lines.append(f"{ending}: {describe_run(run, labels)}")
    for verdict in state.verdict.verdicts:
        arm = labels.get(verdict.arm, verdict.arm)
        lines.append(f"verdict: {arm} is {judged(verdict.verdict, verdict.cause)}")
    if state.phase.endswith("interrupted"):
        lines.append("the command that began it, given again, resumes it")
    return "\n".join(lines)


def single_runs_table(runs: Sequence[SingleRunState]) -> str:
    """Return runs that belong to no study as a table, the latest last."""
    rows = []
    for run in runs[-MOST_SINGLE_RUNS:]:
        if run.result is None:
            rows.append([run.run_id[:12], run.outcome, loss(None), count(None), ""])
            continue
        ending = "stalled" if run.result.stalled else run.outcome
        finished = (run.result.finished_at or "")[:16].replace("T", " ")
        numbers = [loss(run.result.loss), count(run.result.tokens)]
        rows.append([run.run_id[:12], ending, *numbers, finished])
    text = table(rows, SINGLE_RUN_COLUMNS, right=(2, 3))
    if len(runs) > MOST_SINGLE_RUNS:
        text += f"\nand {len(runs) - MOST_SINGLE_RUNS} earlier ones (--json has all)"
    return f"{text}\n`andrea report --kind run ID` shows one"
