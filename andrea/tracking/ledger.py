"""Which runs of a study W&B has: `<study>/wandb/mirrored.json`, written after each whole run.

A folder of an offline run that the ledger does not name is what a killed mirror left, and is written again.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import Any, Literal

from andrea.errors import UserError
from andrea.store.files import locked, read_mapping, write_json
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.projection import folder_of, wandb_id

WandbMode = Literal["offline", "online"]


def pending(folder: StudyFolder, store: RunStore, mode: WandbMode) -> list[dict[str, Any]]:
    """The finished runs of the study that are not mirrored yet, in the order of the plan.

    A published run needs no offline copy; an offline copy does not count as published.
    """
    known = _entries(folder)
    planned = {record["run_id"]: record for record in reversed(folder.runs())}
    return [
        record
        for run_id, record in reversed(planned.items())
        if store.result(run_id) is not None and not _done(folder, known.get(wandb_id(folder, run_id)), mode)
    ]


def record(folder: StudyFolder, run: str, entry: dict[str, Any]) -> None:
    """Write down that the W&B run `run` is complete, in one step."""
    known = _entries(folder)
    write_json(folder_of(folder) / "mirrored.json", {**known, run: entry})


def clear(folder: StudyFolder, run: str) -> None:
    """Remove wandb's folders of this run that the ledger does not name: halves, and what a later copy replaced."""
    named = _entries(folder).get(run, {}).get("folder")
    for path in folder_of(folder).glob(f"*run-*-{run}"):
        if path.name != named:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def alone(folder: StudyFolder, wait_s: float) -> Iterator[None]:
    """Be the only mirror of this study. A mirror whose controller was killed needs a moment to end.

    Raises:
        UserError: another one is at it still.
    """
    path = folder_of(folder)
    path.mkdir(exist_ok=True)
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(path / "mirror.lock", wait=False))
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"study {folder.path.name} is being mirrored to W&B by another command; wait for it to end"
                    ) from error
                time.sleep(0.1)
        yield


def _entries(folder: StudyFolder) -> dict[str, Any]:
    return read_mapping(folder_of(folder) / "mirrored.json") or {}


def _done(folder: StudyFolder, entry: dict[str, Any] | None, mode: WandbMode) -> bool:
    if entry is None:
        return False
    if entry["mode"] == "online":
        return True
    return mode == "offline" and (folder_of(folder) / entry["folder"]).is_dir()
