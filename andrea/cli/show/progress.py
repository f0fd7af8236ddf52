"""What a study is doing right now: the numbers behind the progress display, apart from how they are
shown.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LEAST_S = 2.0
"""Seconds below which a pace says nothing: reports are read twice a second."""


@dataclass
class Job:
    """A run that is being trained."""

    run: Mapping[str, Any]
    started: float
    before: int | None = None
    """Tokens at its first report: more than 0 where it was resumed; None before it reports."""
    tokens: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None

    def share(self, budget: int) -> float:
        """Part of the run's tokens that is trained, 0 to 1.

        Args:
            budget: tokens of a run, where it has none of its own, as a ruler has.
        """
        own = self.run.get("tokens", budget)
        return min(1.0, self.tokens / own) if own else 0.0

    def own_share(self, budget: int) -> float:
        """The part of it that was trained since its first report."""
        own = self.run.get("tokens", budget)
        return min(1.0, (self.tokens - (self.before or 0)) / own) if own else 0.0


class Board:
    """Runs planned, running and ended, and how long the rest takes.

    Args:
        expected: runs that the plan counts; extensions of the grid may add more.
        budget: tokens of one run.
        estimate_s: duration of what the store does not have by the plan's calibration, used until
            runs have shown their own pace. Their clock starts at the first report: before it,
            workers load torch.
    """

    def __init__(
        self,
        expected: int,
        budget: int,
        estimate_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget, self._expected, self._estimate, self._clock = (
            budget,
            expected,
            estimate_s,
            clock,
        )
        self._known: set[str] = set()
        self._ended: set[str] = set()
        self._reused: set[str] = set()
        self._trained = 0.0
        self._first: float | None = None
        self.running: dict[str, Job] = {}
        self.failures = 0
        self.phase = ""

    @property
    def total(self) -> int:
        """Runs of the study as far as is known."""
        return max(self._expected, len(self._known))

    @property
    def reused(self) -> int:
        """Runs that the store had already."""
        return len(self._reused)

    @property
    def done(self) -> int:
        """Runs with a result, those of an earlier command included."""
        return len(self._ended)

    def planned(self, runs: Iterable[Mapping[str, Any]]) -> None:
        """Runs that belong to the study."""
        self._known.update(str(run["run_id"]) for run in runs)

    def started(self, run: Mapping[str, Any]) -> None:
        """A run begins, or begins again after a crash."""
        self._known.add(str(run["run_id"]))
        self.running[str(run["run_id"])] = Job(run, self._clock())

    def progress(self, run: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """A record of metrics.jsonl came in."""
        job = self.running.get(str(run["run_id"]))
        if job is None:
            return
        self._first = self._clock() if self._first is None else self._first
        job.tokens = int(record.get("tokens", job.tokens))
        job.before = job.tokens if job.before is None else job.before
        if record.get("kind") == "train":
            job.loss, job.tokens_per_s = record.get("loss"), record.get("tokens_per_s")

    def finished(self, run: Mapping[str, Any]) -> float | None:
        """A run has its result; returns the seconds it took here, None when it was in the store
        already.
        """
        run_id = str(run["run_id"])
        job = self.running.pop(run_id, None)
        self._known.add(run_id)
        if job is None and run_id not in self._ended:
            self._reused.add(run_id)
        self._ended.add(run_id)
        if job is None:
            return None
        self._first = job.started if self._first is None else self._first
        self._trained += 1 - (job.before or 0) / self.budget if self.budget else 1.0
        return self._clock() - job.started

    def failed(self, run: Mapping[str, Any]) -> None:
        """A run broke; it stays open."""
        self.running.pop(str(run["run_id"]), None)
        self.failures += 1

    def left_s(self) -> float | None:
        """Seconds until the study is done, at the pace so far; None when nothing is known."""
        jobs = list(self.running.values())
        trained = self._trained + sum(job.own_share(self.budget) for job in jobs)
        open_runs = self.total - self.done - sum(job.share(self.budget) for job in jobs)
        spent = 0.0 if self._first is None else self._clock() - self._first
        if trained < 0.5 or spent < LEAST_S:
            share = open_runs / max(1, self.total - len(self._reused))
            return None if self._estimate is None else self._estimate * share
        return spent / trained * open_runs
