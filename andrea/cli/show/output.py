"""Plain text for people, JSON for programs, and files that options name.

Tables are aligned text, the same on a terminal and in a pipe. How numbers are written is
`andrea.text.numbers`'s to say, here as in reports.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from andrea.errors import UserError, disk_full
from andrea.text.numbers import rate, setting


def table(
    rows: Sequence[Sequence[object]], header: Sequence[str], right: Sequence[int] = ()
) -> str:
    """Return rows as columns of aligned text under a header; the columns in `right` are
    right-aligned.
    """
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padded.append(cell.rjust(width) if column in right else cell.ljust(width))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def parameter(path: str, value: object) -> str:
    """Return a searched setting as text: learning rates have three digits, as everywhere."""
    return rate(value) if path == "train.lr" else setting(value)


def size(number: float) -> str:
    """Return a number of bytes in the binary units of memory and disks."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def print_json(value: object) -> None:
    """Print indented JSON on stdout, without NaN."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def stdout_kept_for_json(as_json: bool) -> Iterator[None]:
    """Send whatever is printed in the block to stderr, when stdout is to carry JSON alone."""
    if not as_json:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def require_writable_file(path: Path, option: str) -> None:
    """Refuse a file that could not be written, before anything is computed.

    Raises:
        UserError: it is no place for a file; a device or a pipe would be replaced by it.
    """
    try:
        if path.is_dir():
            raise UserError(f"{option} {path}: is a folder; name a file")
        if path.exists() and not path.is_file():
            raise UserError(f"{option} {path}: a device or pipe; name a file")
        if not path.parent.is_dir():
            raise UserError(f"{option} {path}: there is no folder {path.parent}")
    except OSError as error:
        raise UserError(f"{option} {path}: {error.strerror}; name another file") from error


def save_text(path: Path, content: str, option: str) -> None:
    """Write a file in one step.

    Raises:
        UserError: nothing may be written there.
    """
    from andrea.store.files import write_atomic

    try:
        write_atomic(path, content)
    except OSError as error:
        if disk_full(error):
            raise
        raise UserError(
            f"{option} {path}: cannot be written ({error.strerror}); name another file"
        ) from error
