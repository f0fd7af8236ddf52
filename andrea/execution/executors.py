"""The executor protocol: who starts jobs. An executor knows nothing of studies: it is given a job
and says how the job ended.
"""

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from andrea.catalogue import load_user_variants
from andrea.errors import disk_full, reason
from andrea.records.job import Job, JobEnd, JobOutcome

TRAINING = "andrea.training.job:run_job"
"""What a job calls, as `module:function`; the signature is that of `run_job`."""


class Executor(Protocol):
    """Starts jobs, at most `slots` at once."""

    slots: int

    def submit(self, job: Job) -> None:
        """Start a job; the caller keeps to `slots`."""

    def wait(self, timeout: float) -> list[JobEnd]:
        """Return the jobs that ended, after at most `timeout` seconds; may be empty."""

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
            outcome, why = perform(job, self._run)
        except Exception as error:
            outcome, why = classify(error)
        return [JobEnd(job, outcome, why)]

    def cancel(self) -> None:
        """Forget the jobs that were not begun."""
        self._jobs.clear()


def perform(job: Job, function: str) -> tuple[JobOutcome, str]:
    """Train a job's run in this process; return `done`, or `busy` when another process holds it.

    Args:
        function: `module:function`, called with root, config, data folder, run id and identity.

    Raises:
        Exception: whatever made the run fail.
    """
    # The user's own variants must be known before the config that names them is validated.
    if job.variants:
        load_user_variants(Path(job.variants))
    from andrea.config import RunConfig

    module, _, name = function.partition(":")
    call: Callable[..., Any] = getattr(importlib.import_module(module), name)
    run = job.run
    config = RunConfig.model_validate(run.config)
    result = call(Path(job.root), config, Path(job.data_folder), run.run_id, run.identity)
    if result is None:
        return "busy", "another process trains this run"
    return "done", ""


def classify(error: BaseException) -> tuple[JobOutcome, str]:
    """Return the outcome and one line of reason for what a job raised."""
    full = disk_full(error)
    return ("disk", str(full)) if full else ("failed", reason(error))
