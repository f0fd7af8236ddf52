"""Gets a set of runs done: found in the store, trained by the executor, or waited for while another
process trains.
"""

import contextlib
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from andrea.errors import StudyError
from andrea.execution.executors import Executor
from andrea.execution.tail import Tail
from andrea.records.events import Observer
from andrea.records.job import Job, JobEnd, JobRun
from andrea.records.run import RunResult, RunSpec
from andrea.store.files import read_mapping
from andrea.store.runs import RunBusy, RunStore

TRIES = 3
"""Attempts at a run per command: crashes and out-of-memory are retried twice, then listed as
failed.
"""
POLL_S = 0.5
MIN_FREE_BYTES = 1 << 20

Upcoming = Callable[[Mapping[str, RunResult]], Iterable[RunSpec]]
"""Runs that will be planned whatever else comes out, from the results of the runs at hand."""


@dataclass
class Batch:
    """The outcome of a set of runs."""

    results: dict[str, RunResult] = field(default_factory=dict)
    """By run_id."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reason by run_id, of runs that failed at every try."""


class Dispatcher:
    """Runs sets of runs on an executor. It knows nothing that the store does not, but for the tries
    of this command.

    Runs of a later set may start early, in slots that would otherwise be idle: they keep running
    when the set at hand is done, and are found when their own set is run.
    """

    def __init__(
        self,
        store: RunStore,
        executor: Executor,
        observer: Observer,
        make_job: Callable[[RunSpec], Job],
    ) -> None:
        self._store, self._executor = store, executor
        self._observer, self._make_job = observer, make_job
        self._tries: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self._last_poll = 0.0
        self._specs: dict[str, RunSpec] = {}
        self._running: dict[str, Tail] = {}
        self._elsewhere: list[str] = []

    def run(self, runs: Sequence[RunSpec], upcoming: Upcoming | None = None) -> Batch:
        """Bring every run to its result, or to its last failure.

        Runs with the same id are one run. The order in which they end changes nothing.

        Args:
            upcoming: runs to start in idle slots; they are not waited for.

        Raises:
            StudyError: the disk is full, or andrea's own files have changed meanwhile.
        """
        self._batch = Batch()
        self._wanted = {run.run_id: run for run in reversed(runs)}
        self._specs |= self._wanted
        # Results that the store has are announced first and together.
        in_order = dict.fromkeys(run.run_id for run in runs)
        missing = [run_id for run_id in in_order if not self._collect(run_id, reused=True)]
        self._pending = deque(run_id for run_id in missing if not self._resume_waiting(run_id))
        while not self._is_done(missing):
            self._fill_slots()
            if upcoming is not None:
                self._start_early(upcoming)
            if self._running or self._elsewhere:
                for end in self._executor.wait(POLL_S):
                    self._handle_end(end)
                self._poll()
        return self._batch

    def _is_done(self, run_ids: Iterable[str]) -> bool:
        ended = self._batch.results.keys() | self._batch.failed.keys()
        return ended.issuperset(run_ids)

    def _resume_waiting(self, run_id: str) -> bool:
        """Return whether nothing has to be started for a run: it runs already, or it started early
        and failed at every try.
        """
        if run_id in self._running or run_id in self._elsewhere:
            return True
        if self._tries[run_id] >= TRIES and run_id in self._reasons:
            self._batch.failed[run_id] = self._reasons[run_id]
            return True
        return False

    def _fill_slots(self) -> None:
        while self._pending and len(self._running) < self._executor.slots:
            run_id = self._pending.popleft()
            if not self._collect(run_id, reused=True) and not self._is_held_elsewhere(run_id):
                self._start(run_id)

    def _start_early(self, upcoming: Upcoming) -> None:
        """Give slots that would be idle to runs of later sets."""
        if self._pending or len(self._running) >= self._executor.slots:
            return
        for run in upcoming(self._batch.results):
            if len(self._running) >= self._executor.slots:
                return
            busy = run.run_id in self._running or run.run_id in self._elsewhere
            if busy or run.run_id in self._wanted or self._tries[run.run_id]:
                continue
            # Leases and earlier results are looked at only when it is the run's turn.
            if self._store.current(run.run_id) is None:
                self._specs[run.run_id] = run
                self._start(run.run_id)

    def _start(self, run_id: str) -> None:
        run = self._specs[run_id]
        self._tries[run_id] += 1
        self._running[run_id] = Tail(self._store, run_id)
        self._observer.on_run_started(run, self._tries[run_id])
        self._executor.submit(self._make_job(run))

    def _collect(self, run_id: str, *, reused: bool) -> bool:
        """Take the run's result from the store; return whether there is one."""
        result = self._store.load_result(run_id)
        if result is None and self._finish_killed_attempt(run_id):
            result = self._store.load_result(run_id)
        if result is None:
            return False
        _tidy(self._store.log(run_id), self._store.folder(run_id))
        if run_id in self._wanted:
            self._batch.results[run_id] = result
        self._observer.on_run_finished(self._specs[run_id], result, reused=reused)
        return True

    def _finish_killed_attempt(self, run_id: str) -> bool:
        """Claim a run whose attempt was killed between its result and the rename: that
        finishes it.
        """
        attempts = self._store.attempts(run_id)
        if not any(read_mapping(attempt / "result.json") for attempt in attempts):
            return False
        with contextlib.suppress(RunBusy), self._store.claim(run_id):
            return True
        return False

    def _is_held_elsewhere(self, run_id: str) -> bool:
        holder = self._store.lease(run_id)
        if holder is None:
            return False
        self._elsewhere.append(run_id)
        self._observer.on_message(
            f"run {run_id[:12]} is being trained by process {holder.pid} on {holder.host}: "
            "waiting for it"
        )
        return True

    def _handle_end(self, end: JobEnd) -> None:
        run_id = end.job.run.run_id
        tail = self._running.pop(run_id)
        self._report_metrics(run_id, tail)
        # The store decides, not the message: a worker may die after its result.
        if self._collect(run_id, reused=False):
            return
        if end.outcome == "busy":
            self._tries[run_id] -= 1
            self._elsewhere.append(run_id)
            return
        if end.outcome == "code":
            raise StudyError(
                f"{end.reason}; nothing is trained by other code than the command's own: give the "
                "same command again"
            )
        if end.outcome == "disk" or shutil.disk_usage(self._store.root).free < MIN_FREE_BYTES:
            raise StudyError(disk_message(self._store.root, end.reason))
        self._handle_failure(end.job.run, end.reason or "ended without a result")

    def _handle_failure(self, run: JobRun, reason: str) -> None:
        self._record_failure(run, reason)
        run_id, attempt = run.run_id, self._tries[run.run_id]
        self._observer.on_run_failed(self._specs[run_id], reason, attempt)
        if attempt < TRIES:
            self._pending.append(run_id)
            return
        self._reasons[run_id] = reason
        if run_id in self._wanted:
            self._batch.failed[run_id] = reason

    def _record_failure(self, run: JobRun, reason: str) -> None:
        """Leave the reason where `andrea status` finds it; a worker that was killed could not."""
        with contextlib.suppress(RunBusy), self._store.claim(run.run_id) as claim:
            attempts = self._store.attempts(run.run_id)
            if attempts:
                attempt = attempts[-1]
            else:
                attempt = claim.attempt({"config": run.config, "identity": run.identity}, {})
            if not (attempt / "failure.json").exists():
                claim.fail(attempt, reason, _last_lines(Path(run.log)))

    def _poll(self) -> None:
        now = time.monotonic()
        if now - self._last_poll < POLL_S:
            return
        self._last_poll = now
        for run_id, tail in self._running.items():
            self._report_metrics(run_id, tail)
        for run_id in list(self._elsewhere):
            if self._collect(run_id, reused=True):
                self._elsewhere.remove(run_id)
            elif self._store.lease(run_id) is None:
                self._elsewhere.remove(run_id)
                self._pending.append(run_id)

    def _report_metrics(self, run_id: str, tail: Tail) -> None:
        for record in tail.read():
            self._observer.on_metrics(self._specs[run_id], record)


def disk_message(root: Path, reason: str = "") -> str:
    """Return the one line for a full disk."""
    detail = f" ({reason})" if reason else ""
    return (
        f"no space left for {root}{detail}: free some and give the same command again; it goes on "
        "where it stopped"
    )


def _last_lines(log: Path, size: int = 4000) -> str:
    try:
        return log.read_bytes()[-size:].decode(errors="replace")
    except OSError:
        return ""


def _tidy(log: Path, folder: Path) -> None:
    """Keep what the workers of a finished run printed, if they printed anything."""
    with contextlib.suppress(OSError):
        if log.stat().st_size:
            log.replace(folder / "worker.log")
        else:
            log.unlink()
