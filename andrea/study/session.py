"""One command's work on a study of either kind: its ledger and journal, the results so far, and how
the command ended.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from andrea.execution.dispatch import Batch, Dispatcher, Upcoming
from andrea.execution.executors import Executor
from andrea.records.events import Observer
from andrea.records.run import RunResult, RunSpec
from andrea.records.study import Choice
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.ledger import Ledger
from andrea.study.optuna_journal import Journal
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.stages.evidence import Evidence


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
    """The end of a command on a study."""

    complete: bool
    """Everything that was planned has a result and was judged."""
    failed: list[FailedRun] = field(default_factory=list)


class Generation(NamedTuple):
    """Runs that are planned together."""

    title: str
    """Name on the display: `grid`, `extension`, `midpoint`, `replicate`, `control`, …"""
    note: str
    """The reason, in a few words."""
    runs: Sequence[RunSpec]


class Session:
    """One command's work on a study: generations are planned, trained and kept here."""

    def __init__(
        self, folder: StudyFolder, store: RunStore, executor: Executor, watch: Observer
    ) -> None:
        self.study = FrozenStudy(folder, store)
        self.folder, self.watch = folder, watch
        self.ledger = Ledger(folder)
        self.journal = Journal(folder, watch)
        self.results: dict[str, RunResult] = {}
        """By run_id."""
        self.choices: dict[str, Choice] = {}
        """By arm; empty before tuning has ended."""
        self.generation = 0
        """Number of the generation that follows tuning."""
        self.failed: dict[str, str] = {}
        """Reason by run_id, of runs that failed at every try of this command."""
        self.update_journal: Callable[[Session], None] = lambda session: None
        """Brings the Optuna journal to what is planned and known."""
        self._dispatcher = Dispatcher(store, executor, watch, self.study.job)

    def train(self, generation: Generation, upcoming: Upcoming | None = None) -> Batch:
        """Plan a generation, have its runs trained, keep their results.

        Args:
            upcoming: runs of later generations, to start in slots that would otherwise be idle.
        """
        self.ledger.expect(generation.runs, without=self.untuned)
        self.watch.on_phase_started(generation.title, generation.note)
        self.watch.on_runs_planned(generation.runs)
        if self.ledger.caught_up:
            self.update_journal(self)
        batch = self._dispatcher.run(generation.runs, upcoming)
        self.results |= batch.results
        self.failed |= batch.failed
        if self.ledger.caught_up and not batch.failed:
            self.update_journal(self)
        return batch

    def evidence(self, results: Mapping[str, RunResult] | None = None) -> Evidence:
        """Return the runs planned so far and their results.

        Args:
            results: of runs that have ended meanwhile.
        """
        known = {**self.results, **(results or {})}
        return self._evidence(self.ledger.runs, known)

    def evidence_with_waiting(self) -> Evidence:
        """Return the evidence with the runs that earlier commands trained beside the study and this
        one will come to.
        """
        waiting = self.ledger.waiting
        results = dict(self.results)
        for run in waiting:
            result = self.study.store.load_result(run.run_id)
            if result is not None:
                results[run.run_id] = result
        return self._evidence([*self.ledger.runs, *waiting], results)

    def _evidence(self, runs: Sequence[RunSpec], results: Mapping[str, RunResult]) -> Evidence:
        return Evidence(
            self.study, runs, results, self.choices, self.generation, untuned=self.untuned
        )

    @property
    def untuned(self) -> list[str]:
        """Arms of which a tuning run failed: without it they have no learning rate."""
        failed = [run for run in self.ledger.runs if run.run_id in self.failed]
        return sorted({run.arm for run in failed if run.phase == "tune"})

    def summary(self, *, complete: bool) -> Summary:
        """Return how the command ended; what failed is named once, by the first arm that has it."""
        specs = {run.run_id: run for run in reversed(self.ledger.runs)}
        failed = [
            FailedRun(run_id, specs[run_id].arm, specs[run_id].phase, reason)
            for run_id, reason in self.failed.items()
        ]
        return Summary(complete and not failed, failed)
