"""Opening the runs folder: for reading without making it, for a new study without leaving a trace
of a refused one.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from andrea.errors import UserError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder, find, studies


def reading(runs: Path) -> RunStore:
    """The store under `runs`, without making anything.

    Raises:
        UserError: it cannot be read, or a newer andrea wrote it.
    """
    return RunStore(runs, create=False)


def named(runs: Path, study: str) -> tuple[RunStore, StudyFolder]:
    """The store and one of its studies; said on stderr where the name is that of several.

    Raises:
        UserError: there is no such study.
    """
    store = reading(runs)
    folder = find(store, study)
    same = sum(other.about.get("name") == study for other in studies(store))
    if folder.path.name != study and same > 1:
        print(
            f"{same} studies are named {study}; this is the latest, {folder.path.name}",
            file=sys.stderr,
        )
    return store, folder


@contextlib.contextmanager
def starting(runs: Path) -> Iterator[RunStore]:
    """The store for a command that is about to run something; it is made when it is missing.

    A user's mistake that comes out later (a text that is too short, say) leaves nothing behind: a
    store that was made here and holds nothing is removed again.
    """
    missing = _missing(runs.absolute())
    store = RunStore(runs)
    try:
        yield store
    except UserError:
        if store.created:
            _remove(store, missing)
        raise


def _missing(folder: Path) -> list[Path]:
    """The folders that making this one makes, innermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    return missing


def _remove(store: RunStore, made: list[Path]) -> None:
    """Take away the empty store; whatever another command has put there meanwhile stays, and the
    store with it.
    """
    with contextlib.suppress(OSError):
        if [path.name for path in store.root.iterdir()] == [store.marker.name]:
            store.marker.unlink()
        for folder in made:
            folder.rmdir()
