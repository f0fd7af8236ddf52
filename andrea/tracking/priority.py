"""The mirror's low priority while others train.

Nice alone does not do it. Where Linux groups processes by session (autogroups, `man 7 sched`), it
weighs a process against its own session only, and mirror, wandb's service and every worker lead
sessions of their own. Each session has a nice value of its own, which must be raised as well.
docs/log.md (2026-11-30, 2026-12-01) has what that was measured to change.

When the study has ended its user waits for the mirror, and other work on the machine would starve
it: its session's value is put back. A process's cannot be without privileges, so that one stays
moderate.
"""

import errno
import os
import threading
import time
from pathlib import Path

from andrea.store.processes import children

NICE, SESSION_NICE = 10, 19
TRIES, BETWEEN_S = 5, 0.12
"""The kernel lets a user change one session in a tenth of a second."""

_lock = threading.Lock()


def lower_priority() -> None:
    """Give this process a low priority, and with it the threads and children that it starts
    later.
    """
    os.nice(NICE)
    with _lock:
        _set_session_nice("self", SESSION_NICE)


def restore_priority() -> None:
    """Weigh the sessions of this process and of its children like any other. From any thread."""
    with _lock:
        _set_session_nice("self", 0)
    match_children()


def match_children() -> None:
    """Give the sessions that children have begun the priority of this one's, which they do not
    inherit.
    """
    with _lock:
        nice = _session_nice("self")
        if nice is not None:
            for pid in children():
                _set_session_nice(str(pid), nice)


def _session_nice(pid: str) -> int | None:
    """Return None where there are no such groups, or the process has ended."""
    try:
        return int(Path("/proc", pid, "autogroup").read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return None


def _set_session_nice(pid: str, nice: int) -> None:
    for _ in range(TRIES):
        if _session_nice(pid) in (None, nice):
            return
        try:
            Path("/proc", pid, "autogroup").write_text(str(nice))
        except OSError as error:
            # EAGAIN: another session of this user was changed just now.
            if error.errno != errno.EAGAIN:
                return
            time.sleep(BETWEEN_S)
