"""The mirror's processes stand back behind training: they run at the lowest priority, and little.

Nice alone does not do it. Where Linux groups processes by session (autogroups, `man 7 sched`), it weighs a process
against its own session only, and mirror, wandb's service and every worker lead sessions of their own. Each session
has a nice value of its own, which must be raised as well. And the lowest priority is still 1.5 % of every processor
that is busy: more than a study of short runs needs to be mirrored. So the mirror waits between runs, too.
"""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from andrea.store.processes import children, idle_s, processors, used_s

NICE = 19
TRIES, BETWEEN_S = 5, 0.12
"""The kernel lets a user change one session in a tenth of a second."""
SHARE = 0.005
"""Of the processors' time, while all of them are busy."""
IDLE = 0.5
"""Processors with nothing to do, on average since the last look, that the mirror may take without asking."""
LOOK_S = 0.25


def stand_back() -> None:
    """Give this process the lowest priority, and with it the threads and children that it starts later."""
    os.nice(NICE)
    _lower_session("self")


def children_stand_back() -> None:
    """Lower the sessions that children have begun; a child inherits its parent's nice value, but not its session's."""
    for pid in children():
        _lower_session(str(pid))


class Allowance:
    """What the mirror may use of the processors while training wants all of them; more where one is idle.

    Nothing waits where the system does not tell which processors idle (not on Linux).
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


def _lower_session(pid: str) -> None:
    """Nothing happens where there are no such groups, or the process has ended."""
    path = Path("/proc", pid, "autogroup")
    for _ in range(TRIES):
        try:
            if path.read_text().split()[-1:] == [str(NICE)]:
                return
            path.write_text(str(NICE))
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return
            time.sleep(BETWEEN_S)


def _used_s() -> float:
    """Processor time of this process and of its children, wandb's service, that are alive."""
    return time.process_time() + sum(used_s(child) or 0.0 for child in children())
