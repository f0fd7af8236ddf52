"""The child's side of the local executor: one process, one job, which ends with its controller."""

import contextlib
import os
import signal
import sys
import threading
import traceback
from multiprocessing import connection, parent_process
from pathlib import Path

from andrea.execution.executors import classify, perform
from andrea.records.job import Job
from andrea.store.interpreters import ParentCode


def work(
    job: Job,
    run: str,
    device: str | None,
    report: "connection.Connection[object, object]",
    code: ParentCode,
) -> None:
    """Do the job, send `(outcome, reason)`, exit. Whoever gets no message learns the rest from the
    exit code.

    Args:
        device: becomes CUDA_VISIBLE_DEVICES, before anything touches CUDA; None leaves it.
        code: of the controller; this process must run the same.
    """
    _leave_the_terminal()
    threading.Thread(target=_die_with_the_controller, daemon=True, name="watch-controller").start()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    try:
        _redirect(Path(job.run.log))
        other_code = code.enter_child()
        outcome, reason = ("code", other_code) if other_code else perform(job, run)
    except BaseException as error:
        outcome, reason = classify(error)
        # A full disk may refuse the log as well; the message through the pipe still arrives.
        with contextlib.suppress(Exception):
            traceback.print_exc()
    with contextlib.suppress(OSError):
        report.send((outcome, reason))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Not a return: exit handlers of libraries could hang, and the result is in the store already.
    os._exit(0)


def _leave_the_terminal() -> None:
    """A session of its own: Ctrl-C reaches the controller alone, and `killpg` reaches this job's
    children too.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _die_with_the_controller() -> None:
    """Wait for the controller's end, however it ends (the pipe closes even after SIGKILL), and
    follow it.
    """
    controller = parent_process()
    if controller is None:
        return
    connection.wait([controller.sentinel])
    with contextlib.suppress(OSError):
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _redirect(log: Path) -> None:
    """Send everything that this process prints, C libraries included, to the run's log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
