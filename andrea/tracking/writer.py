"""Writes runs with wandb, which only it, service, refusals and dashboards import: no controller,
and no training.
"""

import errno
import re
import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import wandb

from andrea.errors import StudyError
from andrea.records.run import RunSpec
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.destination import Destination, save_last_destination, sync_command
from andrea.tracking.priority import match_children
from andrea.tracking.projection import AXES, Projection, RunProjection, project_run
from andrea.tracking.published import (
    Entry,
    ending_stamp,
    load_entry,
    pending_runs,
    remove_unnamed,
    save_entry,
)
from andrea.tracking.refusals import explain_error, explain_setting, first_line, lost_data
from andrea.tracking.service import (
    FINISH_TIMEOUT_S,
    abandon_service,
    end_service,
    run_settings,
    timeout_s,
    wandb_environment,
)
from andrea.tracking.study_run import StudyProjection, pending_study, study_id
from andrea.tracking.subject import SingleRun, Subject, study_key, wandb_folder, wandb_id

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors that stop every run, not one: the disk is full or takes nothing."""

T = TypeVar("T")


class Unreachable(StudyError):
    """The W&B server did not answer in time, or refused."""


class Misconfigured(StudyError):
    """wandb refuses what a WANDB_ variable says: no run can be written, online or offline."""


@dataclass
class _OpenRun:
    """A W&B run that has begun and not ended."""

    run: wandb.Run
    early: bool
    """It began before the training had ended."""
    sent: int | None = None
    """Number of rows that wandb has; None before the first is to be sent."""


class Writer:
    """Writes what W&B lacks of one study.

    Online a run is resumed under its id and gets the rows that the server does not have: however
    often it was begun before, by whom and how far, it ends with each row once. One that is being
    trained stays open between two looks.

    Args:
        say: prints a line per thing that went wrong; nothing here raises because of one run.
        background: in the mirror's process, whose stderr is its log: tracebacks go there, and an
            unreachable server turns the rest offline. Else it raises `Unreachable`.
    """

    def __init__(
        self,
        subject: Subject,
        store: RunStore,
        to: Destination,
        say: Callable[[str], None],
        *,
        background: bool = True,
    ) -> None:
        self._subject, self._store, self._to = subject, store, to
        self._say, self._background = say, background
        self._key = study_key(subject)
        self._environment = partial(wandb_environment, wandb_folder(subject))
        self._open: dict[str, _OpenRun] = {}
        """By id in W&B."""
        self._has_given_up = self._has_said_address = False
        self.failed_runs: set[str] = set()
        """Ids of the W&B runs that could not be written; not tried again."""
        save_last_destination(subject, to)

    def write_pending(self, *, failed: bool = False) -> int:
        """Write what has ended and is not mirrored yet; returns the number of runs written.

        In the foreground a line is said per run.

        Args:
            failed: also runs whose last attempt failed.
        """
        written = 0
        with self._environment():
            pending = pending_runs(self._subject, self._store, self._to, failed=failed)
            for spec in pending:
                run, name = wandb_id(self._key, spec.run_id), f"run {spec.run_id[:12]}"
                if run in self.failed_runs:
                    continue
                if self._contain(run, name, partial(self._write_run, spec)):
                    written += 1
                    if not self._background:
                        self._say(f"W&B {self._to.mode}: {name} ({written}/{len(pending)})")
        return written

    def follow(self, training: Sequence[RunSpec]) -> int:
        """Send what runs have recorded that are being trained; returns how many are shown from now
        on.

        Online alone: an offline copy is always of a whole run.
        """
        open_before = set(self._open)
        with self._environment():
            for spec in training:
                run = wandb_id(self._key, spec.run_id)
                if self._to.mode == "online" and run not in self.failed_runs:
                    self._contain(run, f"run {spec.run_id[:12]}", partial(self._follow_run, spec))
        return len(self._open.keys() - open_before)

    def end(self) -> None:
        """End wandb's service. Runs that are open still were interrupted: W&B calls them crashed
        until they go on.
        """
        if self._open:
            self.abandon()
        else:
            end_service()

    def abandon(self) -> None:
        """Give up the runs that are open: wandb's service holds on to their ids, and a half-written
        one is no use.
        """
        abandon_service([open_run.run for open_run in self._open.values()])
        self._open.clear()

    def write_study(self, *, checkpoint: bool = False) -> bool:
        """Write the own run of a study that was judged; True where W&B did not have it so."""
        folder = self._subject
        if not isinstance(folder, StudyFolder):
            return False

        def write() -> bool:
            projection = pending_study(folder, self._store, self._to, checkpoint=checkpoint)
            if projection is None:
                return False
            # Tables of an earlier copy.
            shutil.rmtree(wandb_folder(folder) / "data", ignore_errors=True)
            fill = partial(_fill_study, projection)
            self._write_whole(projection, fill, exit_code=0, stamp=projection.stamp)
            return True

        with self._environment():
            return bool(self._contain(study_id(folder), "the table of verdicts", write))

    def write_dashboard(self, *, last: bool = True) -> str | None:
        """Save the study's workspace; returns its address, or None where there is no server or it
        failed.

        Args:
            last: say what went wrong; before, there will be another time.
        """
        folder = self._subject
        if self._to.mode == "offline" or not isinstance(folder, StudyFolder):
            return None
        from andrea.tracking.dashboards import save_workspace

        save = partial(save_workspace, folder, self._to)
        with self._environment():
            if last:
                return self._contain("dashboard", "the dashboard", save)
            try:
                return save()
            except Exception:
                # Into the mirror's log: another try follows.
                traceback.print_exc()
                return None

    def _contain(self, run: str, name: str, write: Callable[[], T]) -> T | None:
        """Return what `write` returns; None where the W&B run could not be written, which is said.

        Raises:
            Unreachable, Misconfigured, OSError: in the foreground, what stops every run.
        """
        if self._has_given_up:
            return None
        try:
            return write()
        except Exception as error:
            no_room = isinstance(error, OSError) and error.errno in NO_ROOM
            if not no_room and not isinstance(error, Unreachable | Misconfigured):
                self._say_failed(run, name, error)
                return None
            if not self._background:
                raise
            if not isinstance(error, Unreachable):
                self._has_given_up = True
                command = sync_command(self._subject, self._to.mode)
                self._say(f"{error}; W&B gets no more: mend it, then `{command}`")
                return None
            command = sync_command(self._subject, "online")
            self._say(f"{error}; mirroring offline, publish later with `{command}`")
        self._to = replace(self._to, mode="offline")
        # An offline copy would be sent after the rows that the server has.
        entry = load_entry(self._subject, run)
        if entry is not None and entry.has_rows:
            return None
        return self._contain(run, name, write)

    def _say_failed(self, run: str, name: str, error: Exception) -> None:
        self.failed_runs.add(run)
        line = f"W&B: {name} is not mirrored: {first_line(error)}"
        if self._background:
            traceback.print_exception(error)
            line += f"; `{sync_command(self._subject, self._to.mode)}` tries again"
        self._say(line)

    def _write_run(self, spec: RunSpec) -> bool:
        projection = project_run(self._subject, self._store, spec, self._to.tags)
        stamp = ending_stamp(self._store, spec.run_id) or ""
        if self._to.mode == "offline" and projection.summary["outcome"] == "failed":
            # Sent with `wandb sync`, the rows of a later attempt would come after these.
            projection = replace(projection, history=[])
        fill = partial(self._fill_run, projection)
        self._write_whole(projection, fill, exit_code=projection.exit_code, stamp=stamp)
        return True

    def _follow_run(self, spec: RunSpec) -> None:
        projection = project_run(self._subject, self._store, spec, self._to.tags)
        if self._to.mode == "offline" or not projection.history:
            return
        try:
            open_run = self._open.get(projection.id) or self._begin(projection, early=True)
            self._send_rows(projection, open_run)
            self._require_taken(open_run.run)
        except BaseException:
            self.abandon()
            raise

    def _fill_run(self, projection: RunProjection, open_run: _OpenRun) -> None:
        sent, rows = self._send_rows(projection, open_run), len(projection.history)
        if sent > rows and projection.summary["outcome"] != "failed":
            self._say(
                f"W&B: run {projection.id} has {sent} rows on the server and {rows} in the store: "
                "another version of andrea wrote them, or an attempt on a GPU that went further"
            )
        if open_run.early:
            # The training may have gone on elsewhere, in another attempt.
            open_run.run.tags = tuple(projection.tags)
            config = cast("Any", open_run.run.config)
            config.update(projection.config, allow_val_change=True)
        open_run.run.summary.update(projection.summary)

    def _send_rows(self, projection: RunProjection, open_run: _OpenRun) -> int:
        """Send the rows that wandb does not have yet; returns how many it has then."""
        run = open_run.run
        if open_run.sent is None:
            run.define_metric("tokens")
            for axis in AXES:
                run.define_metric(axis, step_metric="tokens")
            open_run.sent = run.starting_step
        for number, row in enumerate(projection.history[open_run.sent :], open_run.sent):
            values = {
                metric: as_histogram(value) if isinstance(value, list) else value
                for metric, value in row.items()
            }
            # At once: the last row's values must not follow the summary's.
            run.log(values, step=number, commit=True)
            open_run.sent = number + 1
        return open_run.sent

    def _write_whole(
        self,
        projection: Projection,
        fill: Callable[[_OpenRun], None],
        exit_code: int,
        stamp: str,
    ) -> None:
        """Write a run from its beginning, or from where it is open, to its end."""
        try:
            # A run that was shown while it was trained is open already.
            open_run = self._open.get(projection.id) or self._begin(projection)
            fill(open_run)
            self._finish(open_run.run, exit_code)
        except BaseException:
            self.abandon()
            remove_unnamed(self._subject, projection.id)
            raise
        del self._open[projection.id]
        # Last: whatever is killed before this is written again.
        entry = Entry(mode=self._to.mode, where=self._to.where, stamp=stamp)
        if self._to.mode == "offline":
            entry = entry.model_copy(update={"folder": Path(open_run.run.dir).parent.name})
        save_entry(self._subject, projection.id, entry)
        remove_unnamed(self._subject, projection.id)

    def _begin(self, projection: Projection, *, early: bool = False) -> _OpenRun:
        remove_unnamed(self._subject, projection.id)
        run = self._init_run(projection)
        open_run = self._open[projection.id] = _OpenRun(run, early)
        if self._background:
            # wandb's service, begun with the first run and after every error.
            match_children()
        if self._to.mode == "online":
            save_entry(self._subject, projection.id, Entry(mode="begun"))
            # A study has a dashboard instead.
            if isinstance(self._subject, SingleRun) and not self._has_said_address:
                self._say(f"W&B run: {run.url}")
                self._has_said_address = True
        return open_run

    def _init_run(self, projection: Projection) -> wandb.Run:
        online = self._to.mode == "online"
        try:
            return wandb.init(
                project=self._to.project,
                entity=self._to.entity or None,
                id=projection.id,
                name=projection.name,
                group=projection.group,
                job_type=projection.job_type,
                tags=projection.tags,
                config=projection.config,
                # An id that is begun anew would get all its rows a second time.
                resume="allow" if online else None,
                dir=self._subject.path,
                # Several runs are open at once.
                reinit="create_new",
                settings=run_settings(self._to.mode),
            )
        except ValueError as error:
            message = f"wandb refuses its settings ({explain_setting(error)})"
            raise Misconfigured(message) from error
        except wandb.errors.Error as error:
            if not online:
                raise
            if "deleted" in str(error):
                message = "it was deleted in W&B, which keeps the ids of deleted runs"
                raise StudyError(message) from error
            raise Unreachable(explain_error(error)) from error

    def _finish(self, run: wandb.Run, exit_code: int) -> None:
        try:
            run.finish(exit_code=exit_code)
        except TimeoutError as error:
            if self._to.mode == "offline":
                raise
            waited_s = timeout_s("FINISH_TIMEOUT", FINISH_TIMEOUT_S)
            raise Unreachable(f"W&B took no data for {waited_s:g} s") from error
        self._require_taken(run)

    def _require_taken(self, run: wandb.Run) -> None:
        """Raise where wandb has given up some of the run's data, which it does not say itself."""
        if self._to.mode == "online" and (error := lost_data(Path(run.dir).with_name("logs"))):
            raise Unreachable(f"W&B refused some data ({error})")


def as_histogram(profile: list[float]) -> wandb.Histogram:
    """Return a value per layer as a histogram with a bin per layer: W&B draws it over tokens as
    layers against time.

    A table would do as well, but online every table is an artifact, with a new name at every
    mirroring.
    """
    return wandb.Histogram(np_histogram=(np.array(profile), np.arange(len(profile) + 1) - 0.5))


def _fill_study(projection: StudyProjection, open_run: _OpenRun) -> None:
    """Tables go into the summary: in the history every mirroring would add a row."""
    run = open_run.run
    run.summary.update(projection.summary)
    for key, table in projection.tables.items():
        run.summary[key] = wandb.Table(
            columns=[*table.columns], data=[*table.rows], allow_mixed_types=True
        )
    if projection.files:
        _attach(run, f"{projection.group}-report", "report", projection.files)
    if projection.checkpoint is not None:
        folder = projection.checkpoint.parent
        files = {name: folder / name for name in ("checkpoint", "config.json")}
        _attach(run, f"{projection.group}-best", "model", files)


def _attach(run: wandb.Run, name: str, kind: str, files: dict[str, Path]) -> None:
    """Files as an artifact; content that the server has already makes no new version."""
    # A study may be named `a+b`, which W&B takes for no name.
    artifact = wandb.Artifact(re.sub(r"[^A-Za-z0-9_.-]", "-", name), kind)
    for inside, path in files.items():
        artifact.add_file(str(path), inside, skip_cache=True, policy="immutable")
    run.log_artifact(artifact)
