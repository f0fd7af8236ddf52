"""Processes and processors, as Linux tells; elsewhere every function returns None or nothing."""

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


def processors() -> set[int]:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def idle_s() -> float | None:
    """Return the seconds that these processors were idle since the machine started, together; None
    where the system does not tell.
    """
    mine = {f"cpu{number}" for number in processors()}
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        return sum(int(row[4]) + int(row[5]) for row in rows if row[0] in mine) / _TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return None


def _stat(pid: int | None) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none of a process that has ended,
    reaped or not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return stat if len(stat) > 19 and stat[0] not in "ZX" else []
