"""Executors by name."""

from andrea.errors import UserError
from andrea.execution.executors import Executor, InlineExecutor
from andrea.execution.local import LocalExecutor, visible_devices


def make_executor(name: str, slots: int, device: str = "auto") -> Executor:
    """Return the executor of that name.

    Raises:
        UserError: no such executor, or no slots.
    """
    if slots < 1:
        raise UserError(f"--slots {slots}: at least 1 run at a time")
    if name == "inline":
        if slots != 1:
            raise UserError(
                f"--executor inline runs one run at a time: drop --slots {slots} or use "
                "--executor local"
            )
        return InlineExecutor()
    if name == "local":
        return LocalExecutor(slots, devices=visible_devices(device))
    raise UserError(f"--executor {name}: unknown; there are local, inline")
