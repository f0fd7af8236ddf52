"""Plain text for people and JSON for programs. Tables are aligned text, the same on a terminal and
in a pipe.

How numbers are written is `andrea.text.numbers`'s to say, here as in reports.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from andrea.text.numbers import rate, setting


def table(
    rows: Sequence[Sequence[object]], header: Sequence[str], right: Sequence[int] = ()
) -> str:
    """Rows as columns of aligned text under a header; the columns in `right` are right-aligned."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = (
            c.rjust(w) if i in right else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def parameter(path: str, value: Any) -> str:
    """A searched setting: learning rates to three digits, as everywhere."""
    return rate(value) if path == "train.lr" else setting(value)


def size(number: float) -> str:
    """Bytes in the binary units of memory and disks."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def print_json(value: Any) -> None:
    """Indented JSON on stdout, without NaN."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def stdout_kept_for_json(wanted: bool) -> Iterator[None]:
    """Send whatever is printed in here to stderr, when stdout is to carry JSON alone."""
    if not wanted:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield
