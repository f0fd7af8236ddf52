"""Gets a set of runs done: found in the store, trained by the executor, or waited for while another
process trains.
"""

import contextlib
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from andrea.errors import StudyError
from andrea.execution.executors import Executor, Job, JobEnd
from andrea.execution.tail import Tail
from andrea.records.events import Observer, Run
from andrea.store.files import read_mapping
from andrea.store.runs import RunBusy, RunStore

TRIES = 3
"""Attempts at a run per command: crashes and out-of-memory are retried twice, then listed as
failed.
"""
POLL_S = 0.5
MIN_FREE_BYTES = 1 << 20


@dataclass
class Batch:
    """What became of a set of runs."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By run_id."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reason by run_id, of runs that failed at every try."""


class Dispatcher:
    """Runs sets of runs on an executor. It knows nothing that the store does not, but for the tries
    of this command.
    """

    def __init__(
        self, store: RunStore, executor: Executor, observer: Observer, job: Callable[[Run], Job]
    ) -> None:
        self._store, self._executor, self._observer, self._job = store, executor, observer, job
        self._tries: Counter[str] = Counter()
        self._polled = 0.0

    def run(self, runs: Sequence[Run]) -> Batch:
        """Bring every run to its result, or to its last failure.

        Runs with the same id are one run. The order in which they end changes nothing.

        Raises:
            StudyError: the disk is full.
        """
        self._batch = Batch()
        self._runs = {run["run_id"]: run for run in reversed(runs)}
        self._running: dict[str, Tail] = {}
        self._elsewhere: list[str] = []
        # What the store has is told first and together.
        wanted = dict.fromkeys(run["run_id"] for run in runs)
        self._pending = deque(run_id for run_id in wanted if not self._found(run_id, reused=True))
        while self._pending or self._running or self._elsewhere:
            self._fill()
            if self._running or self._elsewhere:
                for end in self._executor.wait(POLL_S):
                    self._ended(end)
                self._poll()
        return self._batch

    def _fill(self) -> None:
        while self._pending and len(self._running) < self._executor.slots:
            run_id = self._pending.popleft()
            if self._found(run_id, reused=True):
                continue
            if self._held_elsewhere(run_id):
                continue
            self._tries[run_id] += 1
            self._running[run_id] = Tail(self._store, run_id)
            self._observer.started({**self._runs[run_id], "attempt": self._tries[run_id]})
            self._executor.submit(self._job(self._runs[run_id]))

    def _found(self, run_id: str, *, reused: bool) -> bool:
        result = self._store.result(run_id)
        if result is None and self._result_left_by_a_kill(run_id):
            result = self._store.result(run_id)
        if result is None:
            return False
        _tidy(self._store.log(run_id), self._store.folder(run_id))
        self._batch.results[run_id] = result
        self._observer.finished({**self._runs[run_id], "reused": reused}, result)
        return True

    def _result_left_by_a_kill(self, run_id: str) -> bool:
        """A kill between the result and the rename left a finished attempt; claiming the run
        finishes it.
        """
        if not any(
            read_mapping(attempt / "result.json") for attempt in self._store.attempts(run_id)
        ):
            return False
        with contextlib.suppress(RunBusy), self._store.claim(run_id):
            return True
        return False

    def _held_elsewhere(self, run_id: str) -> bool:
        holder = self._store.lease(run_id)
        if holder is None:
            return False
        self._elsewhere.append(run_id)
        self._observer.say(
            f"run {run_id[:12]} is being trained by process {holder['pid']} on {holder['host']}: "
            "waiting for it"
        )
        return True

    def _ended(self, end: JobEnd) -> None:
        run_id = end.job.run_id
        tail = self._running.pop(run_id)
        self._report(run_id, tail)
        # The store decides, not the message: a worker may die after its result.
        if self._found(run_id, reused=False):
            return
        if end.outcome == "busy":
            self._tries[run_id] -= 1
            self._elsewhere.append(run_id)
            return
        if end.outcome == "disk" or shutil.disk_usage(self._store.root).free < MIN_FREE_BYTES:
            raise StudyError(disk_message(self._store.root, end.reason))
        reason = end.reason or "ended without a result"
        self._record(end.job, reason)
        self._observer.failed({**self._runs[run_id], "attempt": self._tries[run_id]}, reason)
        if self._tries[run_id] < TRIES:
            self._pending.append(run_id)
        else:
            self._batch.failed[run_id] = reason

    def _record(self, job: Job, reason: str) -> None:
        """Leave the reason where `andrea status` finds it; a worker that was killed could not."""
        with contextlib.suppress(RunBusy), self._store.claim(job.run_id) as claim:
            attempts = self._store.attempts(job.run_id)
            attempt = (
                attempts[-1]
                if attempts
                else claim.attempt({"config": job.config, "identity": job.identity}, {})
            )
            if not (attempt / "failure.json").exists():
                claim.fail(attempt, reason, _last_lines(Path(job.log)))

    def _poll(self) -> None:
        now = time.monotonic()
        if now - self._polled < POLL_S:
            return
        self._polled = now
        for run_id, tail in self._running.items():
            self._report(run_id, tail)
        for run_id in list(self._elsewhere):
            if self._found(run_id, reused=True):
                self._elsewhere.remove(run_id)
            elif self._store.lease(run_id) is None:
                self._elsewhere.remove(run_id)
                self._pending.append(run_id)

    def _report(self, run_id: str, tail: Tail) -> None:
        for record in tail.read():
            self._observer.progress(self._runs[run_id], record)


def disk_message(root: Path, reason: str = "") -> str:
    """The one line for a full disk."""
    said = f" ({reason})" if reason else ""
    return f"no space left for {root}{said}: free some and give the same command again; it goes on where it stopped"


def _last_lines(log: Path, size: int = 4000) -> str:
    try:
        return log.read_bytes()[-size:].decode(errors="replace")
    except OSError:
        return ""


def _tidy(log: Path, folder: Path) -> None:
    """A finished run keeps what its workers printed, if they printed anything."""
    with contextlib.suppress(OSError):
        if log.stat().st_size:
            log.replace(folder / "worker.log")
        else:
            log.unlink()
