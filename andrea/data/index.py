"""Which source files were read before, and their digests then: a corpus that nobody touched is not
read again.

A file counts as untouched while its size and its times of modification and of change are those
under which its digest was taken (the latter cannot be set back, as `cp -p` and `touch` do with the
former). Losing the index costs a reading.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

from andrea.store.files import read_mapping, write_json

SETTLED_NS = 2_000_000_000
"""Clocks of file systems tick coarsely: a file changed less than this before it was read is not
noted.
"""


class Index:
    """`data/sources.json` of a run store: {path: [size, mtime_ns, ctime_ns, digest]}."""

    def __init__(self, root: Path | None) -> None:
        self._path = root / "data" / "sources.json" if root else None
        self._known = self._read()
        self._new: dict[str, list[Any]] = {}

    def digest(self, path: Path, state: os.stat_result) -> str | None:
        """SHA-256 of a file that was read before and is as it was then."""
        match self._known.get(str(path)):
            case [*times, str(digest)] if times == _times(state):
                return digest
        return None

    def note(self, path: Path, state: os.stat_result, digest: str, read_at_ns: int) -> None:
        """Remember a file that was looked at (`state`) before it was read."""
        if read_at_ns - max(state.st_mtime_ns, state.st_ctime_ns) > SETTLED_NS:
            self._new[str(path)] = [*_times(state), digest]

    def save(self) -> None:
        """Write what is new; a disk that refuses it costs a reading next time and nothing else."""
        if self._new and self._path:
            with contextlib.suppress(OSError):
                write_json(self._path, self._read() | self._new)

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            return (read_mapping(self._path) if self._path else None) or {}
        return {}


def _times(state: os.stat_result) -> list[int]:
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
