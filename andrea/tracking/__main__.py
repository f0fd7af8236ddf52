"""The mirror's own process: `python -m andrea.tracking ORDER`, started by `Mirror`; the order is
JSON.

Lines on stdin: `train ID` (a run is being trained), `fail ID` (its attempt failed), `look` (one has
finished), `close` (write the rest and end). Lines on stdout are for the user. The end of stdin
means that the controller was killed: this process then ends at once, and the next mirror clears
away what it left.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING

from andrea.errors import UserError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.destination import Destination
from andrea.tracking.priority import lower_priority, restore_priority
from andrea.tracking.published import hold_mirror, scratch_folder
from andrea.tracking.subject import SingleRun, Subject

if TYPE_CHECKING:
    from andrea.tracking.writer import Writer

AFTER_S = 10.0
"""Seconds of training before W&B shows a run: what ends sooner is written at its end."""
EVERY_S = 10.0
"""Seconds between two looks at the runs that are being trained; wandb's service sends what is new
within fifteen more.
"""
AGAIN_S = 60.0
"""Seconds after which the dashboard's address is worth printing again."""
LOOKING = 0.01
"""Share of the time that these looks may take: the records of a run are many in the end."""


class _Mirroring:
    """The work of the main thread: runs that have ended at once, what others record now and then,
    the study last.
    """

    def __init__(
        self, orders: "Queue[str]", writer: "Writer", subject: Subject, store: RunStore
    ) -> None:
        self._orders, self._writer, self._subject, self._store = orders, writer, subject, store
        self._training: dict[str, float] = {}
        """Start by id of the runs that are being trained, by the monotonic clock."""
        self._next_look = 0.0
        self._address_printed: float | None = None
        """Time at which the dashboard's address was printed, by the monotonic clock."""

    def write_until_closed(self) -> None:
        """Return when everything is written."""
        closing = False
        while not closing:
            # What an order announces is in the store by then.
            orders = self._take_orders()
            closing = "close" in orders
            if orders & {"look", "fail", "close"}:
                self._writer.write_pending(failed=bool(orders & {"fail", "close"}))
            if not closing:
                self._follow_training()
        self._writer.write_study()
        address = self._writer.write_dashboard()
        printed = self._address_printed
        if address and (printed is None or time.monotonic() - printed > AGAIN_S):
            _print_line(f"W&B dashboard: {address}")

    def _take_orders(self) -> set[str]:
        """Wait for an order, at most until the next look is due; return the first words of all that
        have come.
        """
        orders = set()
        with contextlib.suppress(Empty):
            line = self._orders.get(timeout=EVERY_S)
            while True:
                order, _, run_id = line.partition(" ")
                orders.add(order)
                if order == "train":
                    self._training.setdefault(run_id, time.monotonic())
                elif order == "fail":
                    self._training.pop(run_id, None)
                line = self._orders.get_nowait()
        return orders

    def _follow_training(self) -> None:
        for run_id in list(self._training):
            if self._store.load_result(run_id) is not None:
                del self._training[run_id]
        now = time.monotonic()
        shown = {run_id for run_id, since in self._training.items() if now - since >= AFTER_S}
        if not shown or now < self._next_look:
            return
        used_before = time.process_time()
        # A run may be trained before its line is in runs.jsonl: a later look finds it.
        specs = [spec for spec in self._subject.load_runs() if spec.run_id in shown]
        opened = self._writer.follow(specs)
        # To open a run takes more than to look at it, and happens once.
        look_s = 0.0 if opened else time.process_time() - used_before
        if opened and self._address_printed is None:
            address = self._writer.write_dashboard(last=False)
            if address:
                _print_line(f"W&B dashboard: {address}")
                self._address_printed = time.monotonic()
        self._next_look = time.monotonic() + max(EVERY_S, look_s / LOOKING)


def _listen(orders: "Queue[str]", closing: threading.Event) -> None:
    """Take the controller's orders while the main thread is inside wandb."""
    for line in sys.stdin:
        orders.put(line.strip())
        if line.strip() == "close":
            closing.set()
            # Somebody waits for the rest now.
            restore_priority()
    # The end of stdin: the controller was killed. wandb's service watches this process and follows.
    os.kill(os.getpid(), signal.SIGKILL)


def _print_line(line: str) -> None:
    print(line, flush=True)


def main(order: str) -> None:
    """Mirror until the controller closes.

    Args:
        order: `runs` (the store), `study` (a folder) or `run` (an id), and the fields of
            `Destination` as `to`.
    """
    # Before the import of wandb, which takes a second of a processor.
    lower_priority()
    orders, closing = Queue[str](), threading.Event()
    threading.Thread(target=_listen, args=(orders, closing), daemon=True).start()
    fields = json.loads(order)
    store = RunStore(Path(fields["runs"]), create=False)
    subject: Subject = StudyFolder(Path(fields["study"]))
    if fields["run"]:
        subject = SingleRun(store, fields["run"])
    try:
        with hold_mirror(subject, wait_s=10.0, after=closing), scratch_folder(subject):
            from andrea.tracking.service import warm_up
            from andrea.tracking.writer import Writer

            writer = Writer(subject, store, Destination(**fields["to"]), _print_line)
            try:
                # Before the first run has ended: workers start slowly, and leave a core idle.
                warm_up()
                _Mirroring(orders, writer, subject, store).write_until_closed()
            except BaseException:
                # Left to itself wandb would tell that the runs that are open have failed.
                writer.abandon()
                raise
            writer.end()
    except UserError as error:
        _print_line(f"W&B: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
