"""What Linux tells about processes; elsewhere nothing is known, and every answer says so."""

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


def _stat(pid: int | None) -> list[str]:
    """What Linux says of a process, from its state on; nothing of one that has ended, reaped or
    not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return stat if len(stat) > 19 and stat[0] not in "ZX" else []
