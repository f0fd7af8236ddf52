"""Opening the runs folder: for reading without making it, for a new study without leaving a trace of a refused one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from andrea.errors import UserError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder, find


def reading(runs: Path) -> RunStore:
    """The store under `runs`, without making anything.

    Raises:
        UserError: it cannot be read, or a newer andrea wrote it.
    """
    return RunStore(runs, create=False)


def named(runs: Path, study: str) -> tuple[RunStore, StudyFolder]:
    """The store and one of its studies.

    Raises:
        UserError: there is no such study.
    """
    store = reading(runs)
    return store, find(store, study)


@contextlib.contextmanager
def starting(runs: Path) -> Iterator[RunStore]:
    """The store for a command that is about to run something; it is made when it is missing.

    A user's mistake that comes out later (a text that is too short, say) leaves nothing behind: what was made here is
    removed again, unless somebody has put runs or studies into it.
    """
    missing = _missing(runs.absolute())
    try:
        yield RunStore(runs)
    except UserError:
        _remove(missing, runs.absolute())
        raise


def _missing(folder: Path) -> list[Path]:
    """The folders that making this one makes, innermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    return missing


def _remove(made: list[Path], root: Path) -> None:
    if not made or any((root / kept).exists() for kept in ("runs", "studies")):
        return
    with contextlib.suppress(OSError):
        for leftover in [*root.rglob("*")][::-1]:
            leftover.rmdir() if leftover.is_dir() else leftover.unlink()
        for folder in made:
            folder.rmdir()
