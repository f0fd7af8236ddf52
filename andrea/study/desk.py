"""What both kinds of study work with: the frozen study, its ledger and journal, the results so far,
how it ended.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from andrea.execution.dispatch import Batch, Dispatcher
from andrea.execution.executors import Executor
from andrea.records.events import Observer, Run
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.ledger import Ledger
from andrea.study.optuna_journal import Journal
from andrea.study.plan.frozen import FrozenStudy


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


class Desk:
    """Where a generation is planned, done and kept."""

    def __init__(
        self, folder: StudyFolder, store: RunStore, executor: Executor, watch: Observer
    ) -> None:
        self.study = FrozenStudy(folder, store)
        self.folder, self.watch = folder, watch
        self.ledger = Ledger(folder)
        self.journal = Journal(folder, watch)
        self.results: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        """Reason by run_id, of runs that failed at every try of this command."""
        self.project: Callable[[Desk], None] = lambda desk: None
        """Brings the Optuna journal to what is planned and known."""
        self._dispatcher = Dispatcher(store, executor, watch, self.study.job)

    def do(self, phase: str, note: str, runs: list[Run]) -> Batch:
        """Plan a generation, have it done, keep its results."""
        self.ledger.expect(runs, without=self.untuned)
        self.watch.phase(phase, note)
        self.watch.planned(runs)
        if self.ledger.caught_up:
            self.project(self)
        batch = self._dispatcher.run(runs)
        self.results |= batch.results
        self.failed |= batch.failed
        if self.ledger.caught_up and not batch.failed:
            self.project(self)
        return batch

    def known(self) -> tuple[list[Run], dict[str, dict[str, Any]]]:
        """Lines and results so far, with what earlier commands have done beside the study and this
        one will find.
        """
        waiting = self.ledger.waiting
        results = {
            r["run_id"]: told
            for r in waiting
            if (told := self.study.store.result(r["run_id"])) is not None
        }
        return [*self.ledger.runs, *waiting], self.results | results

    @property
    def untuned(self) -> list[str]:
        """Arms of which a tuning run failed: without it they have no rate."""
        return sorted(
            {
                r["arm"]
                for r in self.ledger.runs
                if r["phase"] == "tune" and r["run_id"] in self.failed
            }
        )

    def summary(self, *, complete: bool) -> Summary:
        """How the command ended; what failed is named once, by the first arm that has it."""
        runs = {run["run_id"]: run for run in reversed(self.ledger.runs)}
        failed = [
            FailedRun(i, runs[i]["arm"], runs[i]["phase"], reason)
            for i, reason in self.failed.items()
        ]
        return Summary(complete and not failed, failed)
