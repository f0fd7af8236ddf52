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
from typing import Any, cast

import numpy as np
import wandb

from andrea.errors import StudyError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking import published as ledger
from andrea.tracking.priority import children_follow
from andrea.tracking.projection import AXES, Projection, project_run
from andrea.tracking.refusals import first_line, lost, refusal, why
from andrea.tracking.service import (
    FINISH_TIMEOUT_S,
    abandon_service,
    end_service,
    environment,
    seconds,
    settings,
)
from andrea.tracking.study_run import JOB_TYPE, StudyProjection, pending_study, study_id
from andrea.tracking.subject import (
    Destination,
    SingleRun,
    Subject,
    sync_command,
    wandb_folder,
    wandb_id,
)

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What stops every run, not one: a disk that is full or takes nothing."""


class Unreachable(StudyError):
    """The W&B server did not answer in time, or refused."""


class Misconfigured(StudyError):
    """wandb refuses what a WANDB_ variable says: no run can be written, online or offline."""


@dataclass
class _Open:
    """A W&B run that has begun and not ended."""

    run: wandb.Run
    early: bool
    """Whether it began before the run had ended."""
    sent: int | None = None
    """How many rows wandb has, once a row was to be sent."""


class Writer:
    """Writes what W&B lacks of one study.

    Online a run is resumed under its id and gets the rows that the server does not have: however
    often it was begun before, by whom and how far, it ends with each row once. One that is being
    trained stays open between two looks.

    Args:
        say: told one line per thing that went wrong; nothing here raises because of one run.
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
        ledger.remember(subject, to)
        self._given_up = self._addressed = False
        self.failed: set[str] = set()
        """Ids of the runs that could not be written; not tried again."""
        self._open: dict[str, _Open] = {}
        """By their ids."""

    def write_pending(
        self,
        progress: Callable[[str], None] | None = None,
        *,
        failed: bool = False,
        before_each: Callable[[], None] = lambda: None,
    ) -> int:
        """Write what has ended and is not mirrored yet; returns the number of runs written.

        Args:
            failed: also runs whose last attempt failed.
            before_each: called before each run is written.
        """
        written = 0
        with environment():
            waiting = ledger.pending(self._subject, self._store, self._to, failed=failed)
            for planned in waiting:
                run, name = (
                    wandb_id(self._subject, planned["run_id"]),
                    f"run {planned['run_id'][:12]}",
                )
                if run in self.failed:
                    continue
                before_each()
                if self._contained(run, name, partial(self._write_run, planned)):
                    written += 1
                    if progress:
                        progress(f"W&B {self._to.mode}: {name} ({written}/{len(waiting)})")
        return written

    def follow(
        self, training: Sequence[dict[str, Any]], before_each: Callable[[], None] = lambda: None
    ) -> int:
        """Send what runs have recorded that are being trained; returns how many are shown from now
        on.

        Online alone: an offline copy is always of a whole run.
        """
        before = set(self._open)
        with environment():
            for planned in training:
                run = wandb_id(self._subject, planned["run_id"])
                if self._to.mode == "online" and run not in self.failed:
                    before_each()
                    self._contained(
                        run, f"run {planned['run_id'][:12]}", partial(self._follow, planned)
                    )
        return len(self._open.keys() - before)

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
        abandon_service([begun.run for begun in self._open.values()])
        self._open.clear()

    def write_study(self, *, checkpoint: bool = False) -> bool:
        """Write the own run of a study that was judged, where it is not as it was; True where it
        was written.
        """
        if not isinstance(self._subject, StudyFolder):
            return False
        folder, written = self._subject, list[str]()

        def write() -> None:
            if told := pending_study(folder, self._store, self._to, checkpoint=checkpoint):
                self._write_report(told)
                written.append(told.id)

        with environment():
            self._contained(study_id(folder), "the table of verdicts", write)
        return bool(written)

    def write_dashboard(self, *, last: bool = True) -> str | None:
        """Save the study's workspace; returns where it is, or None where there is no server or it
        failed.

        Args:
            last: what went wrong is said; before, there will be another time.
        """
        if self._to.mode == "offline" or not isinstance(self._subject, StudyFolder):
            return None
        from andrea.tracking.dashboards import save

        folder, address = self._subject, list[str]()

        def write() -> None:
            try:
                address.append(save(folder, self._to))
            except Exception:
                if last:
                    raise
                traceback.print_exc()  # into the mirror's log

        with environment():
            self._contained("dashboard", "the dashboard", write)
        return address[0] if address else None

    def _contained(self, run: str, what: str, write: Callable[[], None]) -> bool:
        """Whether the W&B run `run` was written; what went wrong is said."""
        if self._given_up:
            return False
        try:
            write()
        except (Misconfigured, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_ROOM:
                return self._failed(run, what, error)
            if not self._background:
                raise
            self._given_up = True
            self._say(
                f"{error}; W&B gets no more: mend it, then "
                f"`{sync_command(self._subject, self._to.mode)}`"
            )
            return False
        except Unreachable as error:
            if not self._background:
                raise
            later = sync_command(self._subject, "online")
            self._say(f"{error}; mirroring offline, publish later with `{later}`")
            self._to = Destination("offline", self._to.project, self._to.entity, self._to.tags)
            return not ledger.has_rows(self._subject, run) and self._contained(run, what, write)
        except Exception as error:
            return self._failed(run, what, error)
        return True

    def _failed(self, run: str, what: str, error: Exception) -> bool:
        if self._background:
            traceback.print_exc()
        self.failed.add(run)
        later = (
            f"; `{sync_command(self._subject, self._to.mode)}` tries again"
            if self._background
            else ""
        )
        self._say(f"W&B: {what} is not mirrored: {first_line(error)}{later}")
        return False

    def _write_run(self, planned: dict[str, Any]) -> None:
        run = project_run(self._subject, self._store, planned, self._to.tags)
        stamp = ledger.stamp(self._store, planned["run_id"]) or ""
        if self._to.mode == "offline" and run.summary.get("outcome") == "failed":
            run = replace(
                run, history=[]
            )  # sent with `wandb sync`, the rows of a later attempt would come after them
        self._write(run, run.job_type, partial(self._fill, run), run.exit_code, stamp)

    def _follow(self, planned: dict[str, Any]) -> None:
        run = project_run(self._subject, self._store, planned, self._to.tags)
        if self._to.mode == "offline" or not run.history:
            return
        try:
            begun = self._open.get(run.id) or self._begin(run, run.job_type, early=True)
            self._send(run, begun)
            self._require_taken(begun.run)
        except BaseException:
            self.abandon()
            raise

    def _fill(self, run: Projection, begun: _Open) -> None:
        sent = self._send(run, begun)
        if sent > len(run.history) and run.summary.get("outcome") != "failed":
            self._say(
                f"W&B: run {run.id} has {sent} rows on the server and {len(run.history)} in the "
                "store: another version of andrea wrote them, or an attempt on a GPU that went "
                "further"
            )
        if begun.early:  # perhaps in an earlier attempt, elsewhere
            begun.run.tags, config = tuple(run.tags), cast("Any", begun.run.config)
            config.update(run.config, allow_val_change=True)
        begun.run.summary.update(run.summary)

    def _send(self, run: Projection, begun: _Open) -> int:
        """Send the rows that wandb does not have yet; returns how many it has then."""
        if begun.sent is None:
            begun.run.define_metric("tokens")
            for axis in AXES:
                begun.run.define_metric(axis, step_metric="tokens")
            begun.sent = begun.run.starting_step
        for at, row in enumerate(run.history[begun.sent :], begun.sent):
            values = {key: profile(v) if isinstance(v, list) else v for key, v in row.items()}
            begun.run.log(
                values, step=at, commit=True
            )  # at once: the last row's values must not follow the summary's
            begun.sent = at + 1
        return begun.sent

    def _write_report(self, told: StudyProjection) -> None:
        shutil.rmtree(
            wandb_folder(self._subject) / "data", ignore_errors=True
        )  # tables of an earlier copy
        self._write(told, JOB_TYPE, partial(_fill_report, told), 0, told.stamp)

    def _write(
        self,
        told: Projection | StudyProjection,
        job_type: str,
        fill: Callable[[_Open], None],
        exit_code: int,
        stamp: str,
    ) -> None:
        """One whole run."""
        try:
            begun = self._open.get(told.id) or self._begin(told, job_type)
            fill(begun)
            self._finish(begun.run, exit_code)
        except BaseException:
            self.abandon()
            ledger.clear(self._subject, told.id)
            raise
        del self._open[told.id]
        done = {"mode": self._to.mode, "where": self._to.where, "stamp": stamp}
        copy = {"folder": Path(begun.run.dir).parent.name} if self._to.mode == "offline" else {}
        ledger.record(self._subject, told.id, done | copy)
        ledger.clear(self._subject, told.id)

    def _begin(
        self, told: Projection | StudyProjection, job_type: str, *, early: bool = False
    ) -> _Open:
        ledger.clear(self._subject, told.id)
        open_run = self._init(told, job_type)
        self._open[told.id] = _Open(open_run, early)
        if self._background:
            children_follow()  # wandb's service, begun with the first run and after every error
        if self._to.mode == "online":
            ledger.record(self._subject, told.id, {"mode": "begun"})
            if isinstance(self._subject, SingleRun) and not self._addressed:
                self._say(f"W&B run: {open_run.url}")  # a study has a dashboard
                self._addressed = True
        return self._open[told.id]

    def _init(self, told: Projection | StudyProjection, job_type: str) -> wandb.Run:
        online = self._to.mode == "online"
        try:
            return wandb.init(
                project=self._to.project,
                entity=self._to.entity or None,
                id=told.id,
                name=told.name,
                group=told.group,
                job_type=job_type,
                tags=told.tags,
                config=told.config,
                resume="allow" if online else None,
                dir=self._subject.path,
                reinit="create_new",
                settings=settings(self._to.mode),
            )
        except ValueError as error:
            raise Misconfigured(f"wandb refuses its settings ({refusal(error)})") from error
        except wandb.errors.Error as error:
            if not online:
                raise
            if "deleted" in str(error):
                raise StudyError(
                    "it was deleted in W&B, which keeps the ids of deleted runs"
                ) from error
            raise Unreachable(why(error)) from error

    def _finish(self, open_run: wandb.Run, exit_code: int) -> None:
        try:
            open_run.finish(exit_code=exit_code)
        except TimeoutError as error:
            if self._to.mode == "offline":
                raise
            raise Unreachable(
                f"W&B took no data for {seconds('FINISH_TIMEOUT', FINISH_TIMEOUT_S):g} s"
            ) from error
        self._require_taken(open_run)

    def _require_taken(self, open_run: wandb.Run) -> None:
        """Raise where wandb has given up some of the run's data, which it does not say itself."""
        if self._to.mode == "online" and (given_up := lost(Path(open_run.dir).with_name("logs"))):
            raise Unreachable(f"W&B refused some data ({given_up})")


def profile(values: list[float]) -> wandb.Histogram:
    """A value per layer as a histogram with a bin per layer: W&B draws it over tokens as layers
    against time.

    A table would do as well, but online every table is an artifact, with a new name at every
    mirroring.
    """
    return wandb.Histogram(np_histogram=(np.array(values), np.arange(len(values) + 1) - 0.5))


def _fill_report(told: StudyProjection, begun: _Open) -> None:
    """Tables go into the summary: in the history every mirroring would add a row."""
    open_run = begun.run
    open_run.summary.update(told.summary)
    for key, table in told.tables.items():
        open_run.summary[key] = wandb.Table(
            columns=[*table.columns], data=[*table.rows], allow_mixed_types=True
        )
    if told.files:
        _attach(open_run, f"{told.group}-report", "report", told.files)
    if told.checkpoint is not None:
        files = {name: told.checkpoint.with_name(name) for name in ("checkpoint", "config.json")}
        _attach(open_run, f"{told.group}-best", "model", files)


def _attach(open_run: wandb.Run, name: str, kind: str, files: dict[str, Path]) -> None:
    """Files as an artifact; content that the server has already makes no new version."""
    artifact = wandb.Artifact(
        re.sub(r"[^A-Za-z0-9_.-]", "-", name), kind
    )  # a study may be named `a+b`
    for inside, path in files.items():
        artifact.add_file(str(path), inside, skip_cache=True, policy="immutable")
    open_run.log_artifact(artifact)
