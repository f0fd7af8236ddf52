"""Who starts jobs. An executor knows nothing of studies: it is given a job and says how the job
ended.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from andrea.errors import UserError, disk_full, reason

TRAINING = "andrea.training.job:run_job"
"""What a job calls, as `module:function`; the signature is that of `run_job`."""

Outcome = Literal["done", "failed", "busy", "disk", "killed"]


@dataclass(frozen=True)
class Job:
    """One run for an executor; plain values only, so that it crosses a process boundary.

    `config` is the resolved `RunConfig` as a dict, `variants` the script of the user's own variants
    (or None), `log` the file that catches what a worker prints.
    """

    run_id: str
    root: str
    config: dict[str, Any]
    data_folder: str
    identity: dict[str, Any]
    log: str
    variants: str | None = None


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    `done`: the store has the result. `failed`: exception, crash, timeout. `busy`: another process
        holds the run.
    `disk`: the disk is full. `killed`: cancelled by us. Only `failed` counts as a try.
    """

    job: Job
    outcome: Outcome
    reason: str = ""


class Executor(Protocol):
    """Starts jobs, at most `slots` at once."""

    slots: int

    def submit(self, job: Job) -> None:
        """Start a job; the caller keeps to `slots`."""

    def wait(self, timeout: float) -> list[JobEnd]:
        """The jobs that ended, after at most `timeout` seconds; may be empty."""

    def cancel(self) -> None:
        """End every job now; nothing of them is left running when this returns."""


class InlineExecutor:
    """Runs each job in this process while `wait` is called: one at a time, easy to debug."""

    slots = 1

    def __init__(self, run: str = TRAINING) -> None:
        self._run = run
        self._jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        """Keep the job for the next `wait`."""
        self._jobs.append(job)

    def wait(self, timeout: float) -> list[JobEnd]:
        """Run the waiting job to its end, however long that takes.

        Raises:
            KeyboardInterrupt: Ctrl-C; the run resumes from its last checkpoint when the command is
                given again.
        """
        if not self._jobs:
            time.sleep(timeout)
            return []
        job = self._jobs.pop(0)
        try:
            outcome, reason = perform(job, self._run)
        except Exception as error:
            outcome, reason = classify(error)
        return [JobEnd(job, outcome, reason)]

    def cancel(self) -> None:
        """Forget the jobs that were not begun."""
        self._jobs.clear()


def make_executor(name: str, slots: int, device: str = "auto") -> Executor:
    """The executor of that name.

    Raises:
        UserError: no such executor, or no slots.
    """
    if slots < 1:
        raise UserError(f"--slots {slots}: at least 1 run at a time")
    if name == "inline":
        if slots != 1:
            raise UserError(
                f"--executor inline runs one run at a time: drop --slots {slots} or use --executor "
                "local"
            )
        return InlineExecutor()
    if name == "local":
        from andrea.execution.local import LocalExecutor, visible_devices

        return LocalExecutor(slots, devices=visible_devices(device))
    raise UserError(f"--executor {name}: unknown; there are local, inline")


def perform(job: Job, run: str) -> tuple[Outcome, str]:
    """Run one job in this process; says `done`, or `busy` when another process holds the run.

    Raises:
        Exception: whatever made the run fail.
    """
    # The user's own variants must be known before the config that names them is validated.
    if job.variants:
        load_variants(Path(job.variants))
    from andrea.config import RunConfig

    module, _, function = run.partition(":")
    call: Callable[..., Any] = getattr(importlib.import_module(module), function)
    config = RunConfig.model_validate(job.config)
    result = call(Path(job.root), config, Path(job.data_folder), job.run_id, job.identity)
    return ("done", "") if result is not None else ("busy", "another process trains this run")


def load_variants(script: Path) -> None:
    """Register the user's own variants in this process."""
    from andrea.catalogue import load_user_variants

    load_user_variants(script)


def classify(error: BaseException) -> tuple[Outcome, str]:
    """The outcome and one line of reason for what a job raised."""
    full = disk_full(error)
    return ("disk", str(full)) if full else ("failed", reason(error))
