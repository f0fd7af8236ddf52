"""Files that survive a kill: atomic replacement, appended lines, locks."""

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from andrea.errors import StudyError, warn


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace `path` in one step: a reader sees the old content or the new, never a part."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` in one step when the block ends, and is removed when it
    raises.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON atomically. NaN is refused."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, remedy: str = "delete it and give the command again") -> Any:
    """Return the JSON in a file; None where there is no file.

    Raises:
        StudyError: the file is damaged; says which, how, and the remedy.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StudyError(f"{path}: damaged, not JSON ({error}); {remedy}") from error


def read_mapping(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None where there is no file or it is damaged. For
    files that can be made again.
    """
    try:
        values = read_json(path)
    except StudyError:
        return None
    return values if isinstance(values, dict) else None


def read_lines(path: Path, needed: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the records of a JSON-lines file.

    A torn last line, which a kill in the middle of a write leaves, is dropped. Any other damaged
    line, or one that lacks a needed key, is skipped with a warning.
    """
    lines = [line for line in _whole_lines(path) if line.strip()]
    records = [record for line in lines if (record := parse_record(line, needed)) is not None]
    if len(records) < len(lines):
        warn(f"{path}: damaged lines skipped: {len(lines) - len(records)}")
    return records


def parse_record(line: bytes, needed: Collection[str] = ()) -> dict[str, Any] | None:
    """Return the record in a line; None where it is damaged or lacks a needed key."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.keys() >= set(needed) else None


def cut_damaged_lines(path: Path, needed: Collection[str] = ()) -> int | None:
    """Cut a JSON-lines file before its first damaged line, atomically, and return that line's
    number, from 1; None where no line is damaged.
    """
    lines = _whole_lines(path)
    for number, line in enumerate(lines):
        if line.strip() and parse_record(line, needed) is None:
            write_atomic(path, b"".join(lines[:number]))
            return number + 1
    return None


def _whole_lines(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write a JSON-lines file atomically. NaN is refused."""
    write_atomic(path, "".join(map(_line, records)))


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one record in one flushed write, after cutting off a torn last line."""
    with path.open("ab+") as file:
        end = cut_torn_line(path)
        file.seek(end)
        file.write(_line(record).encode())


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def cut_torn_line(path: Path) -> int:
    """Truncate a file of lines at its last newline, and return its new size in bytes."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        start = size
        while start > 0:
            step = min(4096, start)
            file.seek(start - step)
            newline = file.read(step).rfind(b"\n")
            if newline >= 0:
                start = start - step + newline + 1
                break
            start -= step
        if start != size:
            file.truncate(start)
        return start


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True, make_folder: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which the kernel frees when this process ends, however it
    ends.

    The holder may remove the file; a waiting process then locks the new one.

    Raises:
        BlockingIOError: `wait` is false and another process holds it.
    """
    while True:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.fstat(file.fileno()).st_nlink:
                yield
                return


def is_locked(path: Path) -> bool:
    """Return whether a process holds `locked(path)`. Writes nothing, but a `wait=False` at that
    very moment fails.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
