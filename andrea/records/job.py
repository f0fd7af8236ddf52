"""A job: what an executor starts. Plain values only, so that it crosses a process boundary."""

from dataclasses import dataclass, field
from typing import Literal

from andrea.records.base import Settings

Layout = Literal["solo"]
"""How the runs of a job share a program: `solo` trains one run."""
JobOutcome = Literal["done", "failed", "busy", "disk", "code", "killed"]


@dataclass(frozen=True)
class JobRun:
    """One run of a job."""

    run_id: str
    config: Settings
    """The resolved `RunConfig`."""
    identity: Settings
    """What the run's id digests."""
    log: str
    """File that catches what a worker prints."""


@dataclass(frozen=True)
class Resources:
    """What a job occupies while it runs."""

    slots: int = 1
    """Of the executor's slots; on a machine with GPUs a slot has one."""


@dataclass(frozen=True)
class Job:
    """Runs that are trained together."""

    runs: tuple[JobRun, ...]
    root: str
    """The run store's root folder."""
    data_folder: str
    variants: str | None = None
    """Script of the user's own variants, if there is one."""
    layout: Layout = "solo"
    resources: Resources = field(default_factory=Resources)

    @property
    def run(self) -> JobRun:
        """The run of a job that has a single one."""
        (run,) = self.runs
        return run


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    `done`: the store has the results. `failed`: exception, crash, timeout. `busy`: another process
    holds the run. `disk`: the disk is full. `code`: the worker would run other code than the
    controller. `killed`: cancelled by us. Only `failed` counts as a try.
    """

    job: Job
    outcome: JobOutcome
    reason: str = ""
