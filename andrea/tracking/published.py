"""Which runs of a study W&B has: `<study>/wandb/mirrored.json`, written after each whole run.

A folder of an offline run that the ledger does not name is what a killed mirror left, and is
written again. A run that was begun online and did not end is completed online alone: an offline
copy sent with `wandb sync` would come after the rows that the server has, and double them.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from andrea.errors import UserError
from andrea.store.files import locked, read_mapping, write_json
from andrea.store.runs import RunStore
from andrea.tracking.subject import Destination, Subject, wandb_folder, wandb_id

_PLACES = ("WANDB_DATA_DIR", "WANDB_CACHE_DIR")
"""Where wandb puts its copies of tables and artifacts."""


def pending(
    subject: Subject, store: RunStore, to: Destination, *, failed: bool = False
) -> list[dict[str, Any]]:
    """The runs of the study with something to tell that is not mirrored yet, in the order of the
    plan.

    A published run needs no offline copy; an offline copy does not count as published.

    Args:
        failed: also the runs without a result whose last attempt failed and which nobody is at.
    """
    known = _entries(subject)
    planned = {record["run_id"]: record for record in reversed(subject.runs())}
    found = []
    for run_id, record in reversed(planned.items()):
        ended, entry = stamp(store, run_id, failed=failed), known.get(wandb_id(subject, run_id))
        sent = to.mode == "offline" and _has_rows(entry)
        if ended is not None and not sent and not is_done(subject, entry, to, ended):
            found.append(record)
    return found


def left_open(subject: Subject, store: RunStore) -> int:
    """How many runs have ended that a server has the beginning of, and no end."""
    known = {run for run, told in _entries(subject).items() if told["mode"] == "begun"}
    ids = {planned["run_id"] for planned in subject.runs()} if known else set()
    return sum(
        wandb_id(subject, run_id) in known and stamp(store, run_id) is not None for run_id in ids
    )


def stamp(store: RunStore, run_id: str, *, failed: bool = True) -> str | None:
    """What a run came to, told apart from what it may come to later; None where there is nothing to
    mirror.
    """
    result = store.result(run_id)
    if result is not None:
        return f"{result.get('outcome')} {result.get('finished_at', '')}"
    failure = store.failure(run_id) if failed else None
    if failure is None or store.lease(run_id) is not None:
        return None
    attempt = store.current(run_id)
    return f"failed {failure.get('reason')} {attempt.suffix if attempt else ''}"


def entry(subject: Subject, run: str) -> dict[str, Any] | None:
    """What the ledger says of a W&B run."""
    found: dict[str, Any] | None = _entries(subject).get(run)
    return found


def has_rows(subject: Subject, run: str) -> bool:
    """Whether a server has rows of the run, perhaps not all: an offline copy would be sent after
    them.
    """
    return _has_rows(entry(subject, run))


def _has_rows(entry: dict[str, Any] | None) -> bool:
    return entry is not None and entry["mode"] in ("online", "begun")


def record(subject: Subject, run: str, entry: dict[str, Any]) -> None:
    """Write down what W&B has of the run `run`, in one step."""
    known = _entries(subject)
    write_json(wandb_folder(subject) / "mirrored.json", {**known, run: entry})


def last_written(subject: Subject) -> int:
    """When the last W&B run was begun or written, in nanoseconds; 0 before the first."""
    try:
        return (wandb_folder(subject) / "mirrored.json").stat().st_mtime_ns
    except OSError:
        return 0


def is_done(subject: Subject, entry: dict[str, Any] | None, to: Destination, stamp: str) -> bool:
    """Whether what the ledger has of a run is the run as it ended, where it should be."""
    if entry is None or entry.get("stamp", stamp) != stamp:
        return False
    here = bool(entry.get("where", to.where) == to.where)
    if to.mode == "online":
        return here and bool(entry["mode"] == "online")
    if entry["mode"] in ("online", "begun"):
        return True
    return here and (wandb_folder(subject) / entry["folder"]).is_dir()


def remember(subject: Subject, to: Destination) -> None:
    """Write down where this study is mirrored to: a later command that does not say goes on
    there.
    """
    told = {"project": to.project, "entity": to.entity, "tags": list(to.tags)}
    if remembered(subject) != told:
        write_json(wandb_folder(subject) / "destination.json", told)


def remembered(subject: Subject) -> dict[str, Any]:
    """Where this study was mirrored to last; what is damaged or never was is left out."""
    told = read_mapping(wandb_folder(subject) / "destination.json") or {}
    kinds = {"project": str, "entity": str, "tags": list}
    return {key: told[key] for key, kind in kinds.items() if isinstance(told.get(key), kind)}


def clear(subject: Subject, run: str) -> None:
    """Remove wandb's folders of this run that the ledger does not name: halves, and what a later
    copy replaced.
    """
    named = (entry(subject, run) or {}).get("folder")
    for path in wandb_folder(subject).glob(f"*run-*-{run}"):
        if path.name != named:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def alone(subject: Subject, wait_s: float, after: threading.Event | None = None) -> Iterator[None]:
    """Be the only mirror of this study. A mirror whose controller was killed needs a moment to end.

    Args:
        wait_s: how long to wait for another one.
        after: from when on; by default from now.

    Raises:
        UserError: another one is at it still.
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
def scratch(subject: Subject) -> Iterator[None]:
    """wandb's temporary files lie in the study's folder, where the next mirror removes those of a
    killed one.

    Its copies of tables (`data`) stay: offline runs refer to them.
    """
    path = wandb_folder(subject) / "scratch"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    before = tempfile.tempdir, {name: os.environ.get(name) for name in _PLACES}
    tempfile.tempdir = str(path)
    os.environ.update({name: str(wandb_folder(subject) / "data") for name in _PLACES})
    try:
        yield
    finally:
        tempfile.tempdir = before[0]
        for name, value in before[1].items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        shutil.rmtree(path, ignore_errors=True)


def _entries(subject: Subject) -> dict[str, Any]:
    """A damaged entry is none: its run is looked at again."""
    known = read_mapping(wandb_folder(subject) / "mirrored.json") or {}
    return {run: told for run, told in known.items() if isinstance(told, dict) and _is_whole(told)}


def _is_whole(told: dict[str, Any]) -> bool:
    kept = told.get("mode") == "offline" and isinstance(told.get("folder"), str)
    return kept or told.get("mode") in ("online", "begun")
