"""Processes, as Linux tells; elsewhere every function returns None or nothing."""

import contextlib
import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def start_time(pid: int | None) -> str | None:
    """Return the start time of a process in clock ticks since boot: it tells a reused pid from its
    predecessor.

    None for one that has ended, reaped or not: an orphan's new parent may never reap it.
    """
    stat = _stat(pid)
    return stat[19] if stat else None


def used_s(pid: int | None) -> float | None:
    """Return the processor time in seconds that a process has used; None where it has ended."""
    stat = _stat(pid)
    return (int(stat[11]) + int(stat[12])) / _TICKS_PER_S if stat else None


def children() -> list[int]:
    """Return the pids of the children of this process, whichever thread started them."""
    pids: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += map(int, path.read_text().split())
    return pids


def _stat(pid: int | None) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none of a process that has ended,
    reaped or not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return stat if len(stat) > 19 and stat[0] not in "ZX" else []
