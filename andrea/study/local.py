"""The local executor: one child process per job from a fork server that has torch loaded, a device per slot."""

import contextlib
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from andrea.errors import UserError
from andrea.study.executors import TRAINING, Job, JobEnd, Outcome
from andrea.study.worker import work

PRELOAD = ("torch", "andrea.training.job", "andrea.study.worker")
"""What the fork server imports once; none of it touches CUDA, which does not survive a fork."""


@dataclass
class _Child:
    job: Job
    process: ForkServerProcess
    report: Any
    slot: int
    deadline: float | None


class LocalExecutor:
    """Runs jobs in child processes of this machine.

    Args:
        slots: jobs at once.
        devices: values of CUDA_VISIBLE_DEVICES, given to the slots in turn; empty leaves the variable alone.
        timeout_s: seconds after which a job is killed and counts as failed; None never.
        run: what a job calls, `module:function`.
    """

    def __init__(
        self,
        slots: int,
        devices: list[str] | None = None,
        timeout_s: float | None = None,
        run: str = TRAINING,
        preload: tuple[str, ...] = PRELOAD,
    ) -> None:
        self.slots = slots
        self._devices, self._timeout_s, self._run = devices or [], timeout_s, run
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._children: list[_Child] = []

    def submit(self, job: Job) -> None:
        """Start the job in a free slot."""
        slot = min(set(range(self.slots)) - {child.slot for child in self._children})
        device = self._devices[slot % len(self._devices)] if self._devices else None
        receive, send = self._context.Pipe(duplex=False)
        process = self._context.Process(target=work, args=(job, self._run, device, send), name=f"run-{job.run_id[:8]}")
        process.start()
        send.close()
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        self._children.append(_Child(job, process, receive, slot, deadline))

    def wait(self, timeout: float) -> list[JobEnd]:
        """Jobs that ended within `timeout` seconds; returns as soon as one does."""
        now = time.monotonic()
        deadlines = [child.deadline - now for child in self._children if child.deadline is not None]
        # Both are watched: the exit of the process and, since a long reason could fill the pipe, its message.
        watched = [w for child in self._children for w in (child.process.sentinel, child.report)]
        if watched:
            connection.wait(watched, timeout=max(0.0, min([timeout, *deadlines])))
        elif timeout > 0:
            time.sleep(timeout)
        return [end for end in map(self._ended, list(self._children)) if end is not None]

    def _ended(self, child: _Child) -> JobEnd | None:
        message: tuple[Outcome, str] | None = None
        if child.report.poll():
            with contextlib.suppress(EOFError, OSError):
                message = child.report.recv()
        if message is None and child.process.is_alive():
            if child.deadline is None or time.monotonic() < child.deadline:
                return None
            message = ("failed", f"timed out after {self._timeout_s:g} s")
            _kill(child.process)
        self._forget(child)
        outcome, reason = message or ("failed", _death(child.process.exitcode))
        return JobEnd(child.job, outcome, reason)

    def _forget(self, child: _Child) -> None:
        child.process.join(timeout=5)
        if child.process.is_alive():
            _kill(child.process)
        child.report.close()
        self._children.remove(child)

    def cancel(self) -> None:
        """Kill every job and wait until all are gone. Checkpoints make it safe at any moment."""
        for child in self._children:
            _kill(child.process, wait=False)
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


def _kill(process: ForkServerProcess, *, wait: bool = True) -> None:
    """SIGKILL to the job's process group, or to the process alone where it has not made its group yet."""
    if process.pid is None or not process.is_alive():
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
    if wait:
        process.join(timeout=5)


def _death(exitcode: int | None) -> str:
    """Why a process that sent no message is gone."""
    if exitcode is None or exitcode >= 0:
        return f"the worker left without a word (exit status {exitcode})"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = "; the system may be out of memory" if name == "SIGKILL" else ""
    return f"the worker was ended by {name}{hint}"
