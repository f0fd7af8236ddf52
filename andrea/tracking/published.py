"""The runs of a study that W&B has: `<study>/wandb/mirrored.json`, written after each whole run.

A folder of an offline run that the ledger does not name is what a killed mirror left, and is
written again. A run that was begun online and did not end is completed online alone: an offline
copy sent with `wandb sync` would come after the rows that the server has, and double them.
"""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from andrea.errors import UserError
from andrea.records.base import Record
from andrea.records.run import RunSpec
from andrea.store.files import locked, read_mapping, write_json
from andrea.store.runs import RunStore
from andrea.tracking.destination import Destination
from andrea.tracking.subject import Subject, study_key, wandb_folder, wandb_id


class Entry(Record):
    """One W&B run in mirrored.json."""

    mode: Literal["offline", "online", "begun"]
    """`begun`: a server has the beginning, and no end."""
    where: str | None = None
    """`Destination.where`."""
    stamp: str | None = None
    """The ending that was mirrored (`ending_stamp`)."""
    folder: str | None = None
    """wandb's folder of an offline copy."""

    @property
    def has_rows(self) -> bool:
        """A server has rows of the run, perhaps not all: an offline copy would be sent after
        them.
        """
        return self.mode != "offline"


def load_entries(subject: Subject) -> dict[str, Entry]:
    """Return the entries by W&B id, without damaged ones."""
    path = _ledger_path(subject)
    entries = {run: _parse(values, path, run) for run, values in _read_ledger(path).items()}
    return {run: entry for run, entry in entries.items() if entry is not None}


def load_entry(subject: Subject, run: str) -> Entry | None:
    """Return the entry of one W&B run; None where it is missing or damaged: the run is looked at
    again.
    """
    path = _ledger_path(subject)
    return _parse(_read_ledger(path).get(run), path, run)


def save_entry(subject: Subject, run: str, entry: Entry) -> None:
    """Write down what W&B has of the run, in one step."""
    path = _ledger_path(subject)
    write_json(path, {**_read_ledger(path), run: entry.to_json()})


def _ledger_path(subject: Subject) -> Path:
    return wandb_folder(subject) / "mirrored.json"


def _read_ledger(path: Path) -> dict[str, object]:
    return read_mapping(path) or {}


def _parse(values: object, path: Path, run: str) -> Entry | None:
    entry = Entry.from_json(values, f"{path}, {run}")
    if entry is None or not (entry.has_rows or entry.folder):
        return None
    return entry


def is_done(subject: Subject, entry: Entry | None, to: Destination, stamp: str) -> bool:
    """Return whether W&B has the run as it ended, in the place where it should be."""
    if entry is None or entry.stamp not in (None, stamp):
        return False
    same_place = entry.where in (None, to.where)
    if to.mode == "online":
        return same_place and entry.mode == "online"
    if entry.folder is None:
        return entry.has_rows
    return same_place and (wandb_folder(subject) / entry.folder).is_dir()


def pending_runs(
    subject: Subject, store: RunStore, to: Destination, *, failed: bool = False
) -> list[RunSpec]:
    """Return the runs that ended and are not mirrored as they ended, in the order of the plan.

    A published run needs no offline copy; an offline copy does not count as published.

    Args:
        failed: also the runs without a result whose last attempt failed and which nobody trains.
    """
    pending = []
    for spec, entry in _runs_with_entries(subject):
        if to.mode == "offline" and entry is not None and entry.has_rows:
            continue
        stamp = ending_stamp(store, spec.run_id, failed=failed)
        if stamp is not None and not is_done(subject, entry, to, stamp):
            pending.append(spec)
    return pending


def unique_runs(subject: Subject) -> list[RunSpec]:
    """Return the planned runs in order, each at its first line: trials may share a run."""
    runs: dict[str, RunSpec] = {}
    for spec in subject.load_runs():
        runs.setdefault(spec.run_id, spec)
    return list(runs.values())


def _runs_with_entries(subject: Subject) -> list[tuple[RunSpec, Entry | None]]:
    """Return the planned runs in order, each once, with its entry of mirrored.json."""
    entries, key = load_entries(subject), study_key(subject)
    return [(spec, entries.get(wandb_id(key, spec.run_id))) for spec in unique_runs(subject)]


def left_open(subject: Subject, store: RunStore) -> int:
    """Return how many runs have ended of which a server has the beginning and no end."""
    count = 0
    for spec, entry in _runs_with_entries(subject):
        if entry is not None and entry.mode == "begun":
            count += ending_stamp(store, spec.run_id) is not None
    return count


def ending_stamp(store: RunStore, run_id: str, *, failed: bool = True) -> str | None:
    """Return words for how a run ended, unlike those for any later ending; None where it has not.

    Args:
        failed: an attempt that failed is an ending while nobody trains the run.
    """
    result = store.load_result(run_id)
    if result is not None:
        return f"{result.outcome} {result.finished_at or ''}"
    failure = store.load_failure(run_id) if failed else None
    if failure is None or store.lease(run_id) is not None:
        return None
    # The attempt's number tells it from the next one, which may fail for the same reason.
    attempt = store.current(run_id) or store.folder(run_id)
    return f"failed {failure.reason} {attempt.suffix}"


def last_written(subject: Subject) -> int:
    """Return when the last W&B run was begun or written, in nanoseconds; 0 before the first."""
    try:
        return _ledger_path(subject).stat().st_mtime_ns
    except OSError:
        return 0


def remove_unnamed(subject: Subject, run: str) -> None:
    """Remove wandb's folders of this run that the ledger does not name: halves, and what a later
    copy replaced.
    """
    entry = load_entry(subject, run)
    for path in wandb_folder(subject).glob(f"*run-*-{run}"):
        if entry is None or path.name != entry.folder:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def hold_mirror(
    subject: Subject, wait_s: float, after: threading.Event | None = None
) -> Iterator[None]:
    """Be the only mirror of this study. A mirror whose controller was killed needs a moment to end.

    Args:
        wait_s: how long to wait for another one.
        after: the event from which on the wait counts; by default it counts from now.

    Raises:
        UserError: another one is still there.
    """
    path = wandb_folder(subject)
    path.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(path / "mirror.lock", wait=False))
                break
            except BlockingIOError as error:
                # While others train nobody waits for this mirror.
                if after is not None and not after.is_set():
                    deadline = time.monotonic() + wait_s
                if time.monotonic() > deadline:
                    raise UserError(
                        f"study {subject.path.name} is being mirrored to W&B by another command; "
                        "wait for it to end"
                    ) from error
                time.sleep(0.1)
        yield


@contextlib.contextmanager
def scratch_folder(subject: Subject) -> Iterator[None]:
    """Keep wandb's temporary files in the study's folder, where the next mirror removes those of a
    killed one.
    """
    path = wandb_folder(subject) / "scratch"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    before, tempfile.tempdir = tempfile.tempdir, str(path)
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(path, ignore_errors=True)
