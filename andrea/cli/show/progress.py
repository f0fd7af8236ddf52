"""The progress of a study in numbers, apart from how they are shown."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from andrea.records.run import MetricRecord, RunSpec

SHORTEST_PACE_S = 2.0
"""Seconds below which a pace means nothing: reports are read twice a second."""
SMALLEST_PACE_RUNS = 0.5
"""Trained runs below which a pace means nothing."""


@dataclass
class RunningJob:
    """A run that is being trained."""

    run: RunSpec
    started_at: float
    """By the clock of `StudyProgress`, seconds."""
    first_tokens: int | None = None
    """Tokens at its first report: more than 0 where it was resumed; None before it reports."""
    tokens: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None

    def trained_share(self, budget: int) -> float:
        """Return the part of the run's tokens that is trained, 0 to 1.

        Args:
            budget: tokens of a run, where it has none of its own, as a ruler has.
        """
        return self._share(self.tokens, budget)

    def newly_trained_share(self, budget: int) -> float:
        """Return the part of it that was trained since its first report."""
        return self._share(self.tokens - (self.first_tokens or 0), budget)

    def _share(self, tokens: int, budget: int) -> float:
        planned = budget if self.run.tokens is None else self.run.tokens
        return min(1.0, tokens / planned) if planned else 0.0


@dataclass
class StudyProgress:
    """Runs planned, running and ended, and how long the rest takes."""

    expected: int
    """Runs that the plan counts; extensions of the grid may add more."""
    budget: int
    """Tokens of one run."""
    estimate_s: float | None
    """Duration of what the store does not have by the plan's calibration, used until runs have
    shown their own pace. Their clock starts at the first report: before it, workers load torch.
    """
    clock: Callable[[], float] = time.monotonic
    """The time in seconds."""
    phase: str = ""
    running: dict[str, RunningJob] = field(default_factory=dict)
    _planned: set[str] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)
    _reused: set[str] = field(default_factory=set)
    _trained_runs: float = 0.0
    _first_report_at: float | None = None

    @property
    def total(self) -> int:
        """Runs of the study as far as is known."""
        return max(self.expected, len(self._planned))

    @property
    def reused(self) -> int:
        """Runs that the store had already."""
        return len(self._reused)

    @property
    def done(self) -> int:
        """Runs with a result, those of an earlier command included."""
        return len(self._ended)

    def add_runs(self, runs: Iterable[RunSpec]) -> None:
        """Count runs that are planned."""
        self._planned.update(run.run_id for run in runs)

    def start_run(self, run: RunSpec) -> None:
        """Count a run that begins, or begins again after a crash."""
        self._planned.add(run.run_id)
        self.running[run.run_id] = RunningJob(run, self.clock())

    def update_run(self, run: RunSpec, record: MetricRecord) -> None:
        """Take in a record of metrics.jsonl."""
        job = self.running.get(run.run_id)
        if job is None:
            return
        if self._first_report_at is None:
            self._first_report_at = self.clock()
        job.tokens = record.tokens
        if job.first_tokens is None:
            job.first_tokens = record.tokens
        if record.kind == "train":
            job.loss, job.tokens_per_s = record.loss, record.tokens_per_s

    def finish_run(self, run: RunSpec) -> float | None:
        """Count a run that has its result.

        Returns:
            The seconds that it took here; None when it was in the store already.
        """
        job = self.running.pop(run.run_id, None)
        self._planned.add(run.run_id)
        if job is None and run.run_id not in self._ended:
            self._reused.add(run.run_id)
        self._ended.add(run.run_id)
        if job is None:
            return None
        if self._first_report_at is None:
            self._first_report_at = job.started_at
        resumed_share = (job.first_tokens or 0) / self.budget if self.budget else 0.0
        self._trained_runs += 1 - resumed_share
        return self.clock() - job.started_at

    def drop_run(self, run: RunSpec) -> None:
        """Take a run that failed from those that are running; it stays open."""
        self.running.pop(run.run_id, None)

    def remaining_s(self) -> float | None:
        """Return the seconds until the study is done, at the pace so far; None when nothing is
        known.
        """
        jobs = list(self.running.values())
        trained = self._trained_runs + sum(job.newly_trained_share(self.budget) for job in jobs)
        started = sum(job.trained_share(self.budget) for job in jobs)
        open_runs = self.total - self.done - started
        elapsed = 0.0
        if self._first_report_at is not None:
            elapsed = self.clock() - self._first_report_at
        if trained >= SMALLEST_PACE_RUNS and elapsed >= SHORTEST_PACE_S:
            return elapsed / trained * open_runs
        if self.estimate_s is None:
            return None
        # The estimate is of what the store did not have.
        return self.estimate_s * open_runs / max(1, self.total - self.reused)
