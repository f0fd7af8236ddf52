"""The one process that owns a study: plans, has runs done, decides, writes what came out.

Everything is derived from the protocol and the store, generation by generation, and each generation waits for all of
its runs. So neither slots nor kills change a number, and to resume is to derive everything once more.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from andrea.errors import StudyError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study import tuning
from andrea.study.dispatch import Batch, Dispatcher, disk_message
from andrea.study.events import Observer, Observers, Run
from andrea.study.executors import Executor, disk_full
from andrea.study.frozen import FrozenStudy
from andrea.study.judgement import verdicts
from andrea.study.ledger import Ledger, Replanned
from andrea.study.trials import Journal, Trial
from andrea.verdict.seeds import replication_seed, tuning_seed
from andrea.verdict.tuning import Decision, next_step


@dataclass(frozen=True)
class FailedRun:
    """A run that failed at every try of this command; the next command tries again."""

    run_id: str
    arm: str
    phase: str
    reason: str

    def __str__(self) -> str:
        return f"{self.run_id[:12]} ({self.arm}, {self.phase}): {self.reason}"


@dataclass(frozen=True)
class Summary:
    """How a command on a study ended."""

    complete: bool
    """Whether everything that was planned has a result and was judged."""
    failed: list[FailedRun] = field(default_factory=list)


def run_study(folder: StudyFolder, store: RunStore, executor: Executor, observers: Sequence[Observer] = ()) -> Summary:
    """Run a frozen study to its end, or take it up where it stopped.

    Writes runs.jsonl, choices.json and verdict.json (a sweep: best.json) and the Optuna journal. Returns incomplete
    when runs failed at every try.

    Raises:
        UserError: another controller is at it, or it was frozen on another platform.
        StudyError: the disk is full.
        KeyboardInterrupt: Ctrl-C; all workers are gone, and the same command resumes.
    """
    watch = Observers(observers)
    with folder.held():
        try:
            return _run(Desk(folder, store, executor, watch))
        except Replanned:
            # It is done: what torch or the machine became since does not matter.
            if not _done(folder):
                raise
            watch.say(f"study {folder.path.name} is complete; it was run on another platform")
            return Summary(True)
        except OSError as error:
            if not disk_full(error):
                raise
            raise StudyError(disk_message(store.root, str(error))) from error
        finally:
            executor.cancel()


class Desk:
    """What both kinds of study work with."""

    def __init__(self, folder: StudyFolder, store: RunStore, executor: Executor, watch: Observer) -> None:
        self.study = FrozenStudy(folder, store)
        self.folder, self.watch = folder, watch
        self.ledger = Ledger(folder)
        self.journal = Journal(folder, watch)
        self.results: dict[str, dict[str, Any]] = {}
        self.project: Callable[[Desk], None] = lambda desk: None
        """Brings the Optuna journal to what is planned and known."""
        self._dispatcher = Dispatcher(store, executor, watch, self.study.job)

    def do(self, phase: str, note: str, runs: list[Run]) -> Batch:
        """Plan a generation, have it done, keep its results."""
        self.ledger.expect(runs)
        self.watch.phase(phase, note)
        self.watch.planned(runs)
        if self.ledger.caught_up:
            self.project(self)
        batch = self._dispatcher.run(runs)
        self.results |= batch.results
        if self.ledger.caught_up and not batch.failed:
            self.project(self)
        return batch

    def incomplete(self, batch: Batch) -> Summary:
        """The study stops here: what comes next depends on runs that failed."""
        runs = {run["run_id"]: run for run in self.ledger.runs}
        failed = [
            FailedRun(run_id, runs[run_id]["arm"], runs[run_id]["phase"], reason)
            for run_id, reason in batch.failed.items()
        ]
        return Summary(False, failed)


def _run(desk: Desk) -> Summary:
    desk.study.require_data()
    if desk.study.kind == "sweep":
        from andrea.study.search import search

        return search(desk)
    return ablate(desk)


def _done(folder: StudyFolder) -> bool:
    ended = folder.read("verdict.json") or folder.read("best.json") or {}
    return bool(ended.get("complete"))


def ablate(desk: Desk) -> Summary:
    """Tune every arm alike, replicate every arm at its rate on the same fresh seeds, judge."""
    study, desk.project = desk.study, _project
    decision = _decide(desk)
    while decision.phase != "done":
        tried = Counter(run["arm"] for run in desk.ledger.runs)
        rows = tuning.generation(decision, study.arms, tried)
        runs = [study.run(row, tuning_seed(0)) for row in rows]
        batch = desk.do(decision.phase, decision.note, runs)
        if batch.failed:
            return desk.incomplete(batch)
        decision = _decide(desk)
    choices = tuning.choices(decision, study.arms, desk.ledger.runs, desk.results)
    desk.folder.write("choices.json", choices)
    replicates = _replicates(study, choices, decision.generation)
    batch = Batch()
    if replicates:
        note = f"{study.protocol.seeds} fresh seeds, the same in every arm"
        batch = desk.do("replicate", note, replicates)
    found = verdicts(study, choices, replicates, desk.results)
    desk.folder.write("verdict.json", found)
    if found["exploratory"] and not study.resolved["exploratory"]:
        desk.folder.write("resolved.json", {**study.resolved, "exploratory": True})
    if batch.failed:
        return desk.incomplete(batch)
    return Summary(bool(found["complete"]))


def _decide(desk: Desk) -> Decision:
    found = tuning.points(desk.study.arms, desk.ledger.runs, desk.results)
    return next_step(found, desk.study.protocol, baseline=desk.study.baseline)


def _replicates(study: FrozenStudy, choices: Mapping[str, Mapping[str, Any]], generation: int) -> list[Run]:
    """Seed by seed through all arms that have a rate, so that pairs end together; none without a baseline's rate."""
    if choices[str(study.baseline)]["lr"] is None:
        return []
    runs = []
    for i in range(study.protocol.seeds):
        for arm in study.arms:
            if choices[arm]["lr"] is not None:
                row = {"arm": arm, "phase": "replicate", "why": "replicate", "lr": choices[arm]["lr"]}
                row |= {"trial": None, "generation": generation}
                runs.append(study.run(row, replication_seed(i)))
    return runs


def _project(desk: Desk) -> None:
    """The Optuna journal of an ablation: one study per arm, its rates enqueued in order."""
    from optuna.distributions import FloatDistribution

    space = {"train.lr": FloatDistribution(1e-9, 1e3, log=True)}
    trials = []
    for run in (run for run in desk.ledger.runs if run["phase"] == "tune"):
        result = desk.results.get(run["run_id"])
        asked = {"why": run["why"], "generation": run["generation"], "seed": run["seed"]}
        value = None if result is None else tuning.score(result)
        told = {} if result is None else told_attributes(result)
        params = {"train.lr": run["lr"]}
        trials.append(Trial(run["arm"], run["trial"], run["run_id"], params, value, asked, told))
    desk.journal.project(dict.fromkeys(desk.study.arms, space), trials)


def told_attributes(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the journal says beside the value: NaN is never a value without a reason."""
    good = tuning.is_good(result)
    told = {"outcome": result["outcome"], "stalled": result["stalled"]}
    return told if good else {**told, "scored_as": "loss at initialisation", "reason": result.get("reason")}
