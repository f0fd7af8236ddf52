"""What Linux tells about processes and processors; elsewhere nothing is known, and every answer
says so.
"""

import contextlib
import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def start_time(pid: int | None) -> str | None:
    """Start time of a process in clock ticks since boot, so that a reused pid is not taken for its
    predecessor.

    None for one that has ended, even where nobody has reaped it: an orphan's new parent may never
    do so.
    """
    stat = _stat(pid)
    return stat[19] if stat else None


def used_s(pid: int | None) -> float | None:
    """Processor time that a process has used; None where it has ended or the system does not
    tell.
    """
    stat = _stat(pid)
    return (int(stat[11]) + int(stat[12])) / _TICKS_PER_S if stat else None


def children() -> list[int]:
    """The children of this process, whichever thread began them."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def processors() -> set[int]:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def idle_s() -> float | None:
    """How long these processors have had nothing to do since the machine started, together; None
    where nobody tells.
    """
    mine = {f"cpu{number}" for number in processors()}
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        return sum(int(row[4]) + int(row[5]) for row in rows if row[0] in mine) / _TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return None


def _stat(pid: int | None) -> list[str]:
    """What Linux says of a process, from its state on; nothing of one that has ended, reaped or
    not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return stat if len(stat) > 19 and stat[0] not in "ZX" else []
