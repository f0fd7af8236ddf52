"""What Linux says of processes."""

import os
import subprocess
import sys
import threading
import time

import pytest
from waiting import wait_until

from andrea.store import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def test_a_process_is_known_by_its_start_and_counted_by_its_work() -> None:
    began = processes.start_time(os.getpid())
    before = processes.used_s(os.getpid())
    assert began is not None
    assert before is not None
    while time.process_time() < before + 0.1:
        sum(range(10_000))
    assert processes.start_time(os.getpid()) == began
    assert processes.used_s(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)


def test_children_are_found_whichever_thread_began_them_and_are_nobody_when_they_end() -> None:
    begun: list[subprocess.Popen[bytes]] = []
    started, ended = threading.Event(), threading.Event()

    def begin() -> None:
        begun.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        started.set()
        ended.wait()

    thread = threading.Thread(target=begin)
    thread.start()
    started.wait()
    [child] = begun
    assert child.pid in processes.children()
    assert processes.used_s(child.pid) is not None
    child.kill()
    wait_until(lambda: processes.start_time(child.pid) is None)
    assert processes.used_s(child.pid) is None, "ended, though nobody has waited for it"
    child.communicate()
    ended.set()
    thread.join()
    assert child.pid not in processes.children()


def test_nothing_is_said_of_a_process_that_never_was() -> None:
    assert processes.start_time(None) is None
    assert processes.used_s(2**22 + 1) is None
