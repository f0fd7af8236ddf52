"""The mirror's processes stand back behind training.

Nice alone does not do it: where Linux groups processes by session (autogroups, `man 7 sched`), it weighs a process
against its own session only, and mirror, wandb's service and every worker lead sessions of their own. Each session
has a nice value of its own, which must be raised as well.
"""

import contextlib
import errno
import os
import time
from pathlib import Path

NICE = 19
"""The lowest priority: beside training that wants every core, 1.5 % of one."""
TRIES, BETWEEN_S = 5, 0.12
"""The kernel lets a user change one session in a tenth of a second."""


def stand_back() -> None:
    """Give this process the lowest priority, and with it the threads and children that it starts later."""
    os.nice(NICE)
    _lower_session("self")


def children_stand_back() -> None:
    """Lower the sessions that children have begun; a child inherits its parent's nice value, but not its session's."""
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in path.read_text().split():
                _lower_session(pid)


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
