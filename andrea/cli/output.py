"""Plain text for people and JSON for programs. Tables are aligned text, the same on a terminal and in a pipe."""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any


def table(rows: Sequence[Sequence[object]], header: Sequence[str], right: Sequence[int] = ()) -> str:
    """Rows as columns of aligned text under a header; the columns in `right` are right-aligned."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def count(number: float) -> str:
    """1234567 as `1.23 M`; whole numbers below ten thousand in full."""
    if number < 10_000:
        return f"{number:.0f}"
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def size(number: float) -> str:
    """Bytes in the binary units of memory and disks."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def duration(seconds: float) -> str:
    """`42 s`, `5 min 10 s`, `3 h 05 min`, `2 d 4 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def number(value: float | None, digits: int = 4) -> str:
    """A loss or a difference; nothing is a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


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
