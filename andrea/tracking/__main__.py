"""The mirror's own process: `python -m andrea.tracking ORDER`, started by `Mirror`; the order is
JSON.

Lines on stdin: `train ID` (a run is being trained), `fail ID` (its attempt failed), `look` (one has
    finished), `close`
(write the rest and end). Lines on stdout are for the user. The end of stdin means that the
controller was killed: this process then ends at once, and the next mirror clears away what it left.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from andrea.errors import UserError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.priority import Allowance, stand_back, step_forward
from andrea.tracking.published import alone, scratch
from andrea.tracking.subject import Destination, SingleRun, Subject

if TYPE_CHECKING:
    from andrea.tracking.writer import Writer

AFTER_S = 10.0
"""How long a run is trained before W&B shows it: what ends sooner is written at its end."""
EVERY_S = 10.0
"""How long W&B waits for what such a run records, which wandb's service then sends within fifteen
seconds.
"""
AGAIN_S = 60.0
"""After how long the dashboard's address is worth saying again."""
LOOKING = 0.01
"""Of the time, what looking at the runs that are being trained may take: their records are many in
the end.
"""


class _Orders(threading.Thread):
    """Listens to the controller while the main thread is inside wandb."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="orders")
        self.wake = threading.Event()
        self.ended = threading.Event()
        """A run has finished, or failed."""
        self.failed = threading.Event()
        self.closing = threading.Event()
        self.training: dict[str, float] = {}
        """Ids of the runs that are being trained, and since when by the monotonic clock."""

    def run(self) -> None:
        for line in sys.stdin:
            order, _, run_id = line.strip().partition(" ")
            if order == "train":
                self.training.setdefault(run_id, time.monotonic())
            if order == "fail":
                self.training.pop(run_id, None)
                self.failed.set()
            if order == "close":
                self.closing.set()
                step_forward()
            if order != "train":
                self.ended.set()
            self.wake.set()
        os.kill(os.getpid(), signal.SIGKILL)  # wandb's service watches this process and follows

    def trained_for(self, seconds: float, store: RunStore) -> set[str]:
        """Ids of the runs that have been trained for so long and have no result yet."""
        for run_id in list(self.training):
            if store.result(run_id) is not None:
                self.training.pop(run_id, None)
        return {
            run_id
            for run_id, since in list(self.training.items())
            if time.monotonic() - since >= seconds
        }


def _say(line: str) -> None:
    print(line, flush=True)


def main(order: str) -> None:
    """Mirror until the controller closes.

    Args:
        order: `runs` (the store), `study` (a folder) or `run` (an id), and the fields of
            `Destination` as `to`.
    """
    stand_back()
    orders = _Orders()
    orders.start()
    asked = json.loads(order)
    store = RunStore(Path(asked["runs"]), create=False)
    subject: Subject = (
        SingleRun(store, asked["run"]) if asked["run"] else StudyFolder(Path(asked["study"]))
    )
    try:
        with alone(subject, wait_s=10.0, after=orders.closing), scratch(subject):
            from andrea.tracking.service import warm_up
            from andrea.tracking.writer import Writer

            writer = Writer(subject, store, Destination(**asked["to"]), _say)
            try:
                # before the first run has ended: workers start slowly, and leave a core idle
                warm_up()
                _Mirroring(orders, writer, subject, store).until_closed()
            except BaseException:
                # left to itself wandb would tell that the runs that are open have failed
                writer.abandon()
                raise
            writer.end()
    except UserError as error:
        _say(f"W&B: {error}")


class _Mirroring:
    """What the main thread does: runs that have ended at once, what others record now and then, the
    study last.
    """

    def __init__(
        self, orders: _Orders, writer: "Writer", subject: Subject, store: RunStore
    ) -> None:
        self._orders, self._writer, self._subject, self._store = orders, writer, subject, store
        self._allowance = Allowance()
        self._next_look = 0.0
        self._said = -math.inf
        """When the dashboard's address was said."""

    def until_closed(self) -> None:
        """Return when everything is written."""
        orders = self._orders
        while True:
            orders.wake.wait(EVERY_S if orders.training else None)
            orders.wake.clear()
            closing = (
                orders.closing.is_set()
            )  # read before the pass: what it announces is in the store by then
            if orders.ended.is_set():
                orders.ended.clear()
                failed = orders.failed.is_set()
                orders.failed.clear()
                self._writer.write_pending(failed=failed or closing, before_each=self._give_way)
            if closing:
                break
            self._look()
        self._writer.write_study()
        address = self._writer.write_dashboard()
        if address and time.monotonic() - self._said > AGAIN_S:
            _say(f"W&B dashboard: {address}")

    def _look(self) -> None:
        long = self._orders.trained_for(AFTER_S, self._store)
        if not long or time.monotonic() < self._next_look:
            return
        used = time.process_time()
        opened = self._writer.follow(
            [run for run in self._subject.runs() if run["run_id"] in long], self._give_way
        )
        took = (
            0.0 if opened else time.process_time() - used
        )  # to open a run is more than to look at it
        if (
            opened
            and self._said == -math.inf
            and (address := self._writer.write_dashboard(last=False))
        ):
            _say(f"W&B dashboard: {address}")
            self._said = time.monotonic()
        self._next_look = time.monotonic() + max(EVERY_S, took / LOOKING)

    def _give_way(self) -> None:
        self._allowance.wait(self._orders.closing.wait, self._orders.closing.is_set)


if __name__ == "__main__":
    main(sys.argv[1])
