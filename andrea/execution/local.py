"""The local executor: one child process per job from a fork server that has torch loaded, a device
per slot.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from andrea.errors import StudyError, UserError, disk_full, reason
from andrea.execution.executors import TRAINING
from andrea.execution.worker import work
from andrea.records.job import Job, JobEnd, JobOutcome
from andrea.store.interpreters import ParentCode, same_imports
from andrea.store.processes import start_time, used_s

PRELOAD = ("torch", "andrea.training.job", "andrea.execution.worker")
"""What the fork server imports once; none of it touches CUDA, which does not survive a fork."""

HUNG_S = 1800.0
"""A worker that uses no processor time for so long is hung: stopped, deadlocked, or waiting for a
disk that is gone.
"""
AT_WORK_S = 1.0
"""Processor time that counts as work; the heartbeat of a lease takes less than this in `HUNG_S`."""
LOOK_S = 10.0
"""Most idle time that one look adds: while the controller sleeps too (a suspended machine), nobody
hangs.
"""
UNKNOWN = 255
"""What multiprocessing says of a child when the fork server is gone: it may well be at work still.
"""


@dataclass
class _Child:
    job: Job
    process: ForkServerProcess
    report: Any
    slot: int
    used_s: float = 0.0
    """Processor time at its last sign of work."""
    idle_s: float = 0.0
    """Time since then."""

    @property
    def orphaned(self) -> bool:
        """Whether its fork server died: only the pipe of its report says when it ends."""
        return self.process.exitcode == UNKNOWN


class LocalExecutor:
    """Runs jobs in child processes of this machine.

    Args:
        slots: jobs at once.
        devices: values of CUDA_VISIBLE_DEVICES, given to the slots in turn; empty leaves the
            variable alone.
        hung_s: seconds without processor time after which a job is killed and counts as failed.
        run: what a job calls, `module:function`.
    """

    def __init__(
        self,
        slots: int,
        devices: list[str] | None = None,
        hung_s: float = HUNG_S,
        run: str = TRAINING,
        preload: tuple[str, ...] = PRELOAD,
    ) -> None:
        self.slots = slots
        self._devices, self._hung_s, self._run = devices or [], hung_s, run
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._code = ParentCode.of_this_process()
        self._children: list[_Child] = []
        self._last_check = time.monotonic()

    def submit(self, job: Job) -> None:
        """Start the job in a free slot.

        Raises:
            StudyError: no process can be started.
        """
        slot = min(set(range(self.slots)) - {child.slot for child in self._children})
        device = self._devices[slot % len(self._devices)] if self._devices else None
        process, receive = self._start(job, device)
        self._children.append(_Child(job, process, receive, slot))

    def _start(self, job: Job, device: str | None) -> tuple[ForkServerProcess, Any]:
        """A process for the job and the pipe of its report. A fork server that was killed is
        started again.
        """
        tries = 4
        while True:
            receive, send = self._context.Pipe(duplex=False)
            name = f"run-{job.run.run_id[:8]}"
            process = self._context.Process(
                target=work, args=(job, self._run, device, send, self._code), name=name
            )
            try:
                # The first job starts the fork server, whose imports all workers share.
                with same_imports():
                    process.start()
                return process, receive
            except (EOFError, OSError) as error:
                receive.close()
                tries -= 1
                if disk_full(error):
                    raise
                if not tries:
                    raise StudyError(
                        f"no worker process can be started ({reason(error)})"
                    ) from error
                time.sleep(0.2)  # the killed server's socket must be gone before another can start
            finally:
                send.close()

    def wait(self, timeout: float) -> list[JobEnd]:
        """Jobs that ended within `timeout` seconds; returns as soon as one does."""
        # Both are watched: the exit of the process and, since a long reason could fill the pipe,
        # its message.
        watched = [child.report for child in self._children]
        watched += [child.process.sentinel for child in self._children if not child.orphaned]
        if watched:
            connection.wait(watched, timeout=max(0.0, timeout))
        elif timeout > 0:
            time.sleep(timeout)
        self._note_activity()
        return [end for end in map(self._ended, list(self._children)) if end is not None]

    def _note_activity(self) -> None:
        """Note which children used processor time since the last call."""
        now = time.monotonic()
        passed = min(now - self._last_check, LOOK_S)
        self._last_check = now
        for child in self._children:
            used = used_s(child.process.pid)
            child.idle_s += passed
            if used is None or used - child.used_s >= AT_WORK_S:
                child.used_s, child.idle_s = used or 0.0, 0.0

    def _ended(self, child: _Child) -> JobEnd | None:
        message: tuple[JobOutcome, str] | None = None
        closed = False
        if child.report.poll():
            try:
                message = child.report.recv()
            except (EOFError, OSError):
                closed = True
        if message is None and (child.process.is_alive() or (child.orphaned and not closed)):
            if child.idle_s < self._hung_s:
                return None
            message = ("failed", f"hung: the worker used no processor time for {self._hung_s:g} s")
            _kill(child)
        self._forget(child)
        outcome, why = message or ("failed", _cause_of_death(child.process.exitcode))
        return JobEnd(child.job, outcome, why)

    def _forget(self, child: _Child) -> None:
        child.process.join(timeout=5)
        if child.process.is_alive():
            _kill(child)
        if child.orphaned:
            # Nobody tells its exit, and its end of the pipe closes a little before its lease is
            # nobody's.
            deadline = time.monotonic() + 5
            while start_time(child.process.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
        child.report.close()
        self._children.remove(child)

    def cancel(self) -> None:
        """Kill every job and wait until all are gone. Checkpoints make it safe at any moment."""
        for child in self._children:
            _kill(child, wait=False)
        for child in list(self._children):
            self._forget(child)


def visible_devices(device: str) -> list[str]:
    """One CUDA_VISIBLE_DEVICES value per GPU that this process may use; none on a CPU.

    Raises:
        UserError: `cuda` is asked for and there is none.
    """
    if device == "cpu":
        return []
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        names = [name.strip() for name in listed.split(",") if name.strip()]
    else:
        import torch

        names = [str(number) for number in range(torch.cuda.device_count())]
    if device == "cuda" and not names:
        raise UserError("--device cuda: there is no CUDA device here; use --device cpu or auto")
    return names


def _kill(child: _Child, *, wait: bool = True) -> None:
    """SIGKILL to the job's process group, or to the process alone where it has not made its group
    yet.
    """
    process = child.process
    if process.pid is None or not (process.is_alive() or child.orphaned):
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
    if wait:
        process.join(timeout=5)


def _cause_of_death(exitcode: int | None) -> str:
    """Why a process that sent no message is gone."""
    if exitcode is None or exitcode >= 0:
        return f"the worker left without a word (exit status {exitcode})"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = "; the system may be out of memory" if name == "SIGKILL" else ""
    return f"the worker was ended by {name}{hint}"
