"""The mirror's own process: `python -m andrea.tracking STUDY RUNS MODE PROJECT`, started by `Mirror`.

Lines on stdin: `look` (a run has finished), `close` (write the rest and end). Lines on stdout are for the user.
The end of stdin without `close` means that the controller was killed: this process then ends at once, and the
next mirror clears away what it left.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from andrea.errors import UserError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.ledger import WandbMode, alone
from andrea.tracking.projection import folder_of

NICE = 10


class _Orders(threading.Thread):
    """Listens to the controller while the main thread is inside wandb."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="orders")
        self.wake = threading.Event()
        self.closing = False

    def run(self) -> None:
        for line in sys.stdin:
            self.closing = self.closing or line.strip() == "close"
            self.wake.set()
        if not self.closing:
            os.kill(os.getpid(), signal.SIGKILL)  # wandb's service watches this process and follows


def _say(line: str) -> None:
    print(line, flush=True)


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[None]:
    """wandb's temporary files lie here, where the next mirror finds and removes those of a killed one."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    tempfile.tempdir = os.environ["WANDB_DATA_DIR"] = str(path)
    yield
    shutil.rmtree(path, ignore_errors=True)


def main(study: str, root: str, mode: str, project: str) -> None:
    """Mirror until the controller closes."""
    os.nice(NICE)  # training goes first
    orders = _Orders()
    orders.start()
    folder, store = StudyFolder(Path(study)), RunStore(Path(root), create=False)
    try:
        with alone(folder, wait_s=10.0), _scratch(folder_of(folder) / "scratch"):
            from andrea.tracking.writer import Writer, end_service

            writer = Writer(folder, store, cast(WandbMode, mode), project, _say)
            while True:
                orders.wake.wait()
                orders.wake.clear()
                closing = orders.closing  # read before the pass: what `close` announces is in the store by then
                writer.write_pending()
                if closing:
                    break
            end_service()
    except UserError as error:
        _say(f"W&B: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
