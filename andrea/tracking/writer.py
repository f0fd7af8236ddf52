"""Writes whole runs with wandb: the only module that imports it, never inside a controller or a training."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import wandb

from andrea.errors import StudyError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.ledger import WandbMode, clear, pending, record
from andrea.tracking.projection import AXES, Projection, project_run

INIT_TIMEOUT_S = 10
FINISH_TIMEOUT_S = 30
OF_ANOTHER_RUN = ("RUN_ID", "RESUME", "NAME", "RUN_GROUP", "JOB_TYPE", "TAGS", "NOTES", "SWEEP_ID", "DIR", "SERVICE")
"""WANDB_* variables that describe one run or one process; account, server, entity and project stay."""


class Unreachable(StudyError):
    """The W&B server did not answer in time, or refused."""


class Writer:
    """Writes the finished runs of one study that W&B lacks.

    Args:
        say: told one line per thing that went wrong; nothing here raises because of one run.
        background: in the mirror's process, whose stderr is its log: tracebacks go there, and an unreachable server
            turns the rest offline. Else it raises `Unreachable`.
    """

    def __init__(
        self,
        folder: StudyFolder,
        store: RunStore,
        mode: WandbMode,
        project: str,
        say: Callable[[str], None],
        *,
        background: bool = True,
    ) -> None:
        self._folder, self._store, self._project = folder, store, project
        self._mode, self._say, self._background = mode, say, background
        self.failed: set[str] = set()
        """Ids of the runs that could not be written; not tried again."""

    def write_pending(self, progress: Callable[[str], None] | None = None) -> int:
        """Write what is finished and not mirrored yet; returns the number of runs written."""
        written = 0
        with _other_runs_forgotten():
            for planned in pending(self._folder, self._store, self._mode):
                if planned["run_id"] in self.failed:
                    continue
                if self._write_contained(planned):
                    written += 1
                    if progress:
                        progress(f"W&B {self._mode}: run {planned['run_id'][:12]} ({written})")
        return written

    def _write_contained(self, planned: dict[str, Any]) -> bool:
        try:
            self._write(project_run(self._folder, self._store, planned))
        except Unreachable as error:
            if not self._background:
                raise
            later = f"andrea sync {self._folder.path.name} --online"
            self._say(f"{error}; mirroring offline, publish later with `{later}`")
            self._mode = "offline"
            return self._write_contained(planned)
        except Exception as error:
            if self._background:
                traceback.print_exc()
            self.failed.add(planned["run_id"])
            self._say(f"W&B: run {planned['run_id'][:12]} is not mirrored: {first_line(error)}")
            return False
        return True

    def _write(self, run: Projection) -> None:
        clear(self._folder, run.id)
        try:
            open_run = self._open(run)
            self._fill(open_run, run)
            self._finish(open_run, run)
        except BaseException:
            end_service()  # it holds on to the run's id, and a half-written run is no use
            clear(self._folder, run.id)
            raise
        name = Path(open_run.dir).parent.name
        record(self._folder, run.id, {"mode": self._mode, "folder": name, "rows": len(run.history)})
        clear(self._folder, run.id)

    def _fill(self, open_run: wandb.Run, run: Projection) -> None:
        for axis in AXES:
            open_run.define_metric(axis, step_metric="tokens")
        for row in run.history:
            open_run.log({key: profile(v) if isinstance(v, list) else v for key, v in row.items()})
        open_run.summary.update(run.summary)

    def _open(self, run: Projection) -> wandb.Run:
        try:
            return wandb.init(
                mode=self._mode,
                project=self._project,
                id=run.id,
                name=run.name,
                group=run.group,
                job_type=run.job_type,
                tags=run.tags,
                config=run.config,
                dir=self._folder.path,
                reinit="create_new",
                settings=_settings(),
            )
        except wandb.errors.Error as error:
            if self._mode == "offline":
                raise
            raise Unreachable(f"W&B cannot be reached ({first_line(error)})") from error

    def _finish(self, open_run: wandb.Run, run: Projection) -> None:
        try:
            open_run.finish(exit_code=run.exit_code)
        except TimeoutError as error:
            if self._mode == "offline":
                raise
            raise Unreachable(f"W&B took no data for {FINISH_TIMEOUT_S} s") from error


def profile(values: list[float]) -> wandb.Histogram:
    """A value per layer as a histogram with a bin per layer: W&B draws it over tokens as layers against time.

    A table would do as well, but online every table is an artifact, with a new name at every mirroring.
    """
    return wandb.Histogram(np_histogram=(np.array(values), np.arange(len(values) + 1) - 0.5))


def end_service() -> None:
    """End wandb's service process, which would outlive its last run."""
    wandb.teardown()


def first_line(error: Exception) -> str:
    """The one line of an error that a user sees."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _settings() -> wandb.Settings:
    return wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        init_timeout=INIT_TIMEOUT_S,
        finish_timeout=FINISH_TIMEOUT_S,
        finish_timeout_raises=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        x_transaction_log_flush_interval=1.0,
    )


@contextlib.contextmanager
def _other_runs_forgotten() -> Iterator[None]:
    """wandb reads its environment at every init: a WANDB_RUN_ID left in the shell would merge all runs into one."""
    kept = {name: os.environ.pop(name) for name in (f"WANDB_{part}" for part in OF_ANOTHER_RUN) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
