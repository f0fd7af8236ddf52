"""The mirror's own process: `python -m andrea.tracking ORDER`, started by `Mirror`; the order is JSON.

Lines on stdin: `look` (a run has finished), `close` (write the rest and end). Lines on stdout are for the user.
The end of stdin means that the controller was killed: this process then ends at once, and the next mirror clears
away what it left.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from andrea.errors import UserError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.ledger import alone, scratch
from andrea.tracking.priority import Allowance, stand_back, step_forward
from andrea.tracking.subject import Destination, SingleRun, Subject


class _Orders(threading.Thread):
    """Listens to the controller while the main thread is inside wandb."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="orders")
        self.wake = threading.Event()
        self.closing = threading.Event()

    def run(self) -> None:
        for line in sys.stdin:
            if line.strip() == "close":
                self.closing.set()
                step_forward()
            self.wake.set()
        os.kill(os.getpid(), signal.SIGKILL)  # wandb's service watches this process and follows


def _say(line: str) -> None:
    print(line, flush=True)


def main(order: str) -> None:
    """Mirror until the controller closes.

    Args:
        order: `runs` (the store), `study` (a folder) or `run` (an id), and the fields of `Destination` as `to`.
    """
    stand_back()
    orders = _Orders()
    orders.start()
    asked = json.loads(order)
    store = RunStore(Path(asked["runs"]), create=False)
    subject: Subject = SingleRun(store, asked["run"]) if asked["run"] else StudyFolder(Path(asked["study"]))
    try:
        with alone(subject, wait_s=10.0, after=orders.closing), scratch(subject):
            from andrea.tracking.writer import Writer, end_service, warm_up

            writer = Writer(subject, store, Destination(**asked["to"]), _say)
            warm_up()  # before the first run has ended: workers start slowly, and leave a core idle
            allowance = Allowance()

            def give_way() -> None:
                allowance.wait(orders.closing.wait, orders.closing.is_set)

            while True:
                orders.wake.wait()
                orders.wake.clear()
                closing = orders.closing.is_set()  # read before the pass: what it announces is in the store by then
                writer.write_pending(failed=closing, before_each=give_way)
                if closing:
                    break
            writer.write_study()
            address = writer.write_dashboard()
            if address:
                _say(f"W&B dashboard: {address}")
            end_service()
    except UserError as error:
        _say(f"W&B: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
