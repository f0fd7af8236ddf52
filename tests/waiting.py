"""Waiting for what other processes do: as soon as it is done, and with an end.

No test's outcome may depend on how fast a machine is, so the end is far away: it is for what never
happens.
"""

import time
from collections.abc import Callable

PATIENT_S = 120.0


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Return as soon as the condition is true.

    Raises:
        AssertionError: it is false for so long that it will never be true.
    """
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < deadline, f"in vain for {PATIENT_S:g} s: {what or condition}"
        time.sleep(0.01)
