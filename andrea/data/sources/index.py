"""An index of source files that were read before, so that an unchanged corpus is not read again.

A file counts as unchanged while its size and its times of modification and of change are those
under which its digest was taken (the time of change cannot be set back, as `cp -p` and `touch` do
with the time of modification). A lost index costs one reading of the corpus.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

from andrea.store.files import read_mapping, write_json

SETTLED_NS = 2_000_000_000
"""Clocks of file systems tick coarsely: a file that changed less than this long before it was read
is not indexed.
"""


class FileIndex:
    """`data/sources.json` of a run store: {path: [size, mtime_ns, ctime_ns, digest]}.

    Args:
        root: folder of the store; None keeps no index.
    """

    def __init__(self, root: Path | None) -> None:
        self._path = root / "data" / "sources.json" if root else None
        self._entries = self._read_entries()
        self._added: dict[str, list[Any]] = {}

    def digest_of(self, path: Path, state: os.stat_result) -> str | None:
        """SHA-256 of a file that is unchanged since it was read; None for any other."""
        match self._entries.get(str(path)):
            case [*fields, str(digest)] if fields == _size_and_times(state):
                return digest
        return None

    def add(self, path: Path, state: os.stat_result, digest: str, read_at_ns: int) -> None:
        """Remember the digest of a file whose `state` was taken before it was read."""
        if read_at_ns - max(state.st_mtime_ns, state.st_ctime_ns) > SETTLED_NS:
            self._added[str(path)] = [*_size_and_times(state), digest]

    def save(self) -> None:
        """Write the added entries; a disk that refuses costs one reading next time."""
        if self._added and self._path:
            with contextlib.suppress(OSError):
                write_json(self._path, self._read_entries() | self._added)

    def _read_entries(self) -> dict[str, list[Any]]:
        with contextlib.suppress(OSError):
            return (read_mapping(self._path) if self._path else None) or {}
        return {}


def _size_and_times(state: os.stat_result) -> list[int]:
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
