"""The mirror's processes stand back behind training: they run at a low priority, and little.

Nice alone does not do it. Where Linux groups processes by session (autogroups, `man 7 sched`), it
weighs a process against its own session only, and mirror, wandb's service and every worker lead
sessions of their own. Each session has a nice value of its own, which must be raised as well. And
the lowest priority is still 1.5 % of every processor that is busy: more than a study of short runs
needs to be mirrored. So the mirror waits between runs, too.

When the study has ended its user waits for the mirror, which then steps forward: other work on the
machine would starve it. A session's value can be lowered again without privileges; a process's
cannot, so that one stays moderate.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from andrea.store.processes import children, idle_s, processors, used_s

NICE, SESSION_NICE = 10, 19
TRIES, BETWEEN_S = 5, 0.12
"""The kernel lets a user change one session in a tenth of a second."""
SHARE = 0.005
"""Of the processors' time, while all of them are busy."""
IDLE = 0.5
"""Processors with nothing to do, on average since the last look, that the mirror may take without
asking.
"""
LOOK_S = 0.25


_sessions = threading.Lock()


def stand_back() -> None:
    """Give this process a low priority, and with it the threads and children that it starts
    later.
    """
    os.nice(NICE)
    with _sessions:
        _set_session("self", SESSION_NICE)


def step_forward() -> None:
    """Weigh the sessions of this process and of its children like any other. From any thread."""
    with _sessions:
        _set_session("self", 0)
    children_follow()


def children_follow() -> None:
    """Give the sessions that children have begun the priority of this one's, which they do not
    inherit.
    """
    with _sessions:
        own = _session_nice("self")
        if own is not None:
            for pid in children():
                _set_session(str(pid), own)


class Allowance:
    """What the mirror may use of the processors while training wants all of them; more where one is
    idle.

    Nothing waits where the system does not tell which processors idle (not on Linux). A quota of a
    container is no busy processor: below one, the share is that of the whole machine.
    """

    def __init__(self) -> None:
        self._used_s = _used_s()

    def wait(self, pause: Callable[[float], object], enough: Callable[[], bool]) -> None:
        """Wait until what was used since the last call is within the share, or a processor idles.

        Args:
            pause: sleeps for so many seconds, or less.
            enough: whether nothing need be waited for any more.
        """
        used, idle, looked = _used_s(), idle_s(), time.monotonic()
        owed_s = (used - self._used_s) / (SHARE * len(processors()))
        self._used_s = used
        while owed_s > 0 and idle is not None and not enough():
            pause(LOOK_S)
            before, idle = idle, idle_s()
            passed, looked = time.monotonic() - looked, time.monotonic()
            if idle is None or idle - before >= IDLE * passed:
                return
            owed_s -= min(passed, LOOK_S)  # time in which this process was stopped earns nothing


def _session_nice(pid: str) -> int | None:
    """None where there are no such groups, or the process has ended."""
    try:
        return int(Path("/proc", pid, "autogroup").read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return None


def _set_session(pid: str, nice: int) -> None:
    for _ in range(TRIES):
        if _session_nice(pid) in (None, nice):
            return
        try:
            Path("/proc", pid, "autogroup").write_text(str(nice))
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return
            time.sleep(BETWEEN_S)


def _used_s() -> float:
    """Processor time of this process and of its children, wandb's service, that are alive."""
    return time.process_time() + sum(used_s(child) or 0.0 for child in children())
