"""The mirror of a study in W&B: an observer of the controller that hands all work to a process of
its own.

The run store is the truth and W&B a projection of it: the mirror reads the store alone, and can be
killed, repeated or left out without changing a number. This module imports no wandb.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from andrea.errors import StudyError, UserError
from andrea.records.events import Observer
from andrea.records.run import MetricRecord, RunResult, RunSpec
from andrea.store.interpreters import import_variables
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.text.numbers import plural
from andrea.tracking.destination import Destination, missing_key, sync_command
from andrea.tracking.published import (
    hold_mirror,
    last_written,
    left_open,
    pending_runs,
    scratch_folder,
)
from andrea.tracking.study_run import is_judged
from andrea.tracking.subject import SingleRun, Subject, wandb_folder

ENDED = "W&B mirror: its process has ended"
CLOSE_WAIT_S = 60.0
"""Seconds that the mirror may take, once training has ended, without having written a run."""
SAY_S = 5.0
"""Seconds that the user waits then before a line says for what."""
LISTEN_S = 0.25
"""Seconds between two looks at what the mirror's process says, while its end is waited for."""


def _say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def sync(
    subject: Subject,
    store: RunStore,
    to: Destination,
    say: Callable[[str], None] = _say_on_stderr,
    *,
    checkpoint: bool = False,
) -> int:
    """Write every run that W&B lacks, the study's tables and report and its dashboard, in the
    foreground.

    Args:
        to: mode `online` publishes, also what has an offline copy already; `offline` writes files.
        say: prints a line: one per run, and what went wrong.
        checkpoint: attach the checkpoint of the best run.

    Returns:
        The number of runs written, the study's own among them; 0 when all were there.

    Raises:
        UserError: another mirror writes this study, or there is no key for the server.
        StudyError: the server cannot be reached, or a run cannot be read. The same command given
            again goes on.
    """
    from andrea.tracking.writer import Unreachable, Writer

    with hold_mirror(subject, wait_s=5.0), scratch_folder(subject):
        writer = Writer(subject, store, to, say, background=False)
        try:
            written = writer.write_pending(failed=True)
            written += writer.write_study(checkpoint=checkpoint)
            address = writer.write_dashboard()
            if address:
                say(f"W&B dashboard: {address}")
        except Unreachable as error:
            if trouble := missing_key(to.mode):
                raise UserError(trouble) from error
            raise
        finally:
            writer.end()
    if writer.failed_runs:
        parts = plural(len(writer.failed_runs), "part")
        raise StudyError(f"{parts} of {subject.path.name} could not be mirrored to W&B")
    return written


class Mirror(Observer):
    """An observer of a study: writes each run to W&B some time after it has finished, online while
    it is trained too.

    Nothing it does waits for W&B but `close`. No fault of its own reaches the controller: each is
    one line to `warn`.

    Args:
        warn: prints a line that the user must see; called by the thread that observes.
    """

    def __init__(
        self,
        subject: Subject,
        store: RunStore,
        to: Destination,
        warn: Callable[[str], None],
    ) -> None:
        self._subject, self._store = subject, store
        self._warn = warn
        self._to = self._require_key(to)
        self._process: subprocess.Popen[bytes] | None = None
        self._has_work = self._has_ended = False
        self._unread = b""
        # Runs that were shown online and have ended offline get no copy: said once, at the end.
        self._reminds = to.mode == "offline"

    def _require_key(self, to: Destination) -> Destination:
        """Return files instead of a server that will ask for a key."""
        trouble = missing_key(to.mode)
        if trouble is None:
            return to
        later = sync_command(self._subject, "online")
        self._warn(f"{trouble}; mirroring offline, publish later with `{later}`")
        return replace(to, mode="offline")

    def on_run_started(self, run: RunSpec, attempt: int) -> None:
        """Start the mirror's process with the first run: it imports wandb while the workers import
        torch. Online it shows what is being trained.
        """
        self._contain(lambda: self._announce(f"train {run.run_id}"))

    def on_metrics(self, run: RunSpec, record: MetricRecord) -> None:
        """Listen; the mirror's process follows the store by itself."""
        self.listen()

    def listen(self) -> None:
        """Pass on what the mirror's process has said, without waiting."""
        process = self._process
        if process is not None:
            self._contain(lambda: self._relay(process))

    def on_run_failed(self, run: RunSpec, reason: str, attempt: int) -> None:
        """Online a run that is shown says so, until it goes on; else it is mirrored when it has a
        result.
        """
        self._contain(lambda: self._announce(f"fail {run.run_id}"))

    def on_run_finished(self, run: RunSpec, result: RunResult, *, reused: bool) -> None:
        """Tell the mirror's process to look into the store. For what was there before, none is
        started.
        """
        if self._process is not None or not reused:
            self._contain(self._announce_look)

    def close(self, wait_s: float | None = None) -> None:
        """Let the mirror write the rest and end its process. May be called twice.

        Args:
            wait_s: at most so many seconds; by default as long as runs are being written.
        """
        self._contain(lambda: self._close(wait_s))
        self._contain(self._remind)

    def _contain(self, work: Callable[[], None]) -> None:
        """An error of the tracker never changes an outcome: it ends the mirror, not the study."""
        try:
            work()
        except Exception as error:
            self._give_up(f"W&B mirror: {str(error) or type(error).__name__}")

    def _announce(self, order: str) -> None:
        process = self._live_process()
        if process is not None and self._to.mode == "online":
            _send_order(process, order)

    def _announce_look(self) -> None:
        process = self._live_process()
        if process is not None:
            self._has_work = True
            _send_order(process, "look")
            self._relay(process)

    def _live_process(self) -> "subprocess.Popen[bytes] | None":
        """Return the mirror's process, started where there is none; None once the mirror ended."""
        if self._has_ended:
            return None
        if self._process is None:
            self._process = self._start()
        elif self._process.poll() is not None:
            self._give_up(ENDED)
        return self._process

    def _start(self) -> "subprocess.Popen[bytes]":
        folder = wandb_folder(self._subject)
        folder.mkdir(parents=True, exist_ok=True)
        order = {
            "runs": str(self._store.root),
            "study": str(self._subject.path.absolute()),
            "run": self._subject.run_id if isinstance(self._subject, SingleRun) else None,
            "to": asdict(self._to),
        }
        with (folder / "mirror.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "andrea.tracking", json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env={**os.environ, **import_variables(), "WANDB_ERROR_REPORTING": "false"},
                # Ctrl-C is the controller's to handle.
                start_new_session=True,
            )
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def _relay(self, process: "subprocess.Popen[bytes]") -> None:
        """Pass on what the mirror's process has said so far, without waiting."""
        assert process.stdout is not None
        while chunk := process.stdout.read(65536):
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._warn(line.decode(errors="replace"))

    def _close(self, wait_s: float | None) -> None:
        if self._has_ended:
            return
        # With a limit of time no new process is started.
        may_start = self._process is not None or wait_s is None
        if not may_start or not (self._has_work or self._is_work_left()):
            self._end()
            return
        process = self._live_process()
        if process is None:
            return
        _send_order(process, "close")
        try:
            if wait_s is None:
                status = self._wait_while_writing(process)
            else:
                status = self._wait(process, wait_s)
        except subprocess.TimeoutExpired as late:
            fault = "nothing written for" if wait_s is None else "not done after"
            self._give_up(f"W&B mirror: {fault} {late.timeout:g} s")
            return
        except KeyboardInterrupt:
            self._give_up("W&B mirror: interrupted")
            raise
        if status:
            log = wandb_folder(self._subject) / "mirror.log"
            self._give_up(f"W&B mirror: ended with status {status}, see {log}")
        self._end()

    def _wait_while_writing(self, process: "subprocess.Popen[bytes]") -> int:
        """Return the exit status of a process that writes what is left, 0 where the user would not
        wait for it: nothing but W&B is left to do.

        Raises:
            subprocess.TimeoutExpired: it has written no run for `CLOSE_WAIT_S` seconds.
        """
        later = sync_command(self._subject, self._to.mode)
        try:
            return self._wait(process, SAY_S)
        except KeyboardInterrupt:
            self._warn(f"W&B: the rest is left to `{later}`")
            return 0
        except subprocess.TimeoutExpired:
            name = self._subject.path.name
            self._warn(f"W&B: writing what is left of {name}; Ctrl-C leaves it to `{later}`")
        while True:
            written = last_written(self._subject)
            try:
                return self._wait(process, CLOSE_WAIT_S)
            except KeyboardInterrupt:
                return 0
            except subprocess.TimeoutExpired:
                if last_written(self._subject) == written:
                    raise

    def _wait(self, process: "subprocess.Popen[bytes]", wait_s: float) -> int:
        """Return the exit status of a process that is listened to meanwhile.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return process.wait(max(0.0, min(LISTEN_S, deadline - time.monotonic())))
            except subprocess.TimeoutExpired as still:
                if time.monotonic() >= deadline:
                    raise subprocess.TimeoutExpired(still.cmd, wait_s) from None
            self._relay(process)

    def _remind(self) -> None:
        reminds, self._reminds = self._reminds, False
        if reminds and (count := left_open(self._subject, self._store)):
            later = sync_command(self._subject, "online")
            runs = plural(count, "run")
            self._warn(f"W&B: {runs} begun online and ended offline; complete with `{later}`")

    def _is_work_left(self) -> bool:
        """Return whether a process is worth starting, without computing what the study's own run
        would say.
        """
        if isinstance(self._subject, StudyFolder) and is_judged(self._subject):
            return True
        return bool(pending_runs(self._subject, self._store, self._to, failed=True))

    def _give_up(self, reason: str) -> None:
        self._end()
        later = sync_command(self._subject, self._to.mode)
        self._warn(f"{reason}; no result is lost, mirror it with `{later}`")

    def _end(self) -> None:
        """End the process if it has not ended, pass on its last words and close its pipes."""
        self._has_ended = True
        # First, so that a fault of what follows does not lead here again with the same process.
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._relay(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _send_order(process: "subprocess.Popen[bytes]", order: str) -> None:
    assert process.stdin is not None
    # The pipe is full: the process looks at all runs anyway when it reads what is in it.
    with contextlib.suppress(BlockingIOError):
        os.write(process.stdin.fileno(), f"{order}\n".encode())
