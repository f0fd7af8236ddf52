"""Opening the runs folder: for reading without making it, for a new study without leaving a trace
of a refused one.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from andrea.errors import UserError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder, find_study, list_studies


def open_store(runs: Path) -> RunStore:
    """Return the store under `runs`, without making anything.

    Raises:
        UserError: it cannot be read, or a newer andrea wrote it.
    """
    return RunStore(runs, create=False)


def open_study(runs: Path, study: str) -> tuple[RunStore, StudyFolder]:
    """Return the store and one of its studies; a note on stderr says where the name is that of
    several.

    Raises:
        UserError: there is no such study.
    """
    store = open_store(runs)
    folder = find_study(store, study)
    if folder.path.name != study:
        namesakes = sum(other.load_info().name == study for other in list_studies(store))
        if namesakes > 1:
            line = f"{namesakes} studies are named {study}; this is the latest, {folder.path.name}"
            print(line, file=sys.stderr)
    return store, folder


@contextlib.contextmanager
def starting_store(runs: Path) -> Iterator[RunStore]:
    """Open the store for a command that is about to run something; it is made when it is missing.

    A user's mistake that comes out later (a text that is too short, say) leaves nothing behind: a
    store that was made here and holds nothing is removed again.
    """
    new_folders = _missing_folders(runs.absolute())
    store = RunStore(runs)
    try:
        yield store
    except UserError:
        if store.created:
            _remove_if_empty(store, new_folders)
        raise


def _missing_folders(folder: Path) -> list[Path]:
    """Return the folders that making this one makes, innermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    return missing


def _remove_if_empty(store: RunStore, new_folders: list[Path]) -> None:
    """Remove the store and the folders that were made for it.

    Whatever another command has put there meanwhile stays, and the store with it.
    """
    with contextlib.suppress(OSError):
        if [path.name for path in store.root.iterdir()] == [store.marker.name]:
            store.marker.unlink()
        for folder in new_folders:
            folder.rmdir()
