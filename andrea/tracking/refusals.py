"""What went wrong, in one line for the user: read from wandb's errors and from the log of its
service.
"""

import contextlib
import json
from pathlib import Path

import wandb

from andrea.tracking.subject import server

LOST = (
    *("filestream: fatal error", "file transfer: upload: failed", "sender: failed to log artifact"),
    *("runfiles: ", "runupserter: failed"),
)
"""How wandb's service begins a line of its log about data that it gave up: `finish` returns as if
all were there.
"""


def first_line(error: Exception) -> str:
    """The one line of an error that a user sees."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def why(error: wandb.errors.Error) -> str:
    """What a server that cannot be reached is told apart by from one that answers no."""
    said = first_line(error)
    if "returned error 4" in said:
        return f"W&B refused ({said})"
    if isinstance(error, wandb.errors.CommError) and said == "<no message>":
        return "W&B refused to open a run: may this account write to this entity and project?"
    if isinstance(error, (wandb.errors.UsageError, wandb.errors.AuthenticationError)):
        return f"W&B was not asked ({said})"
    return f"W&B cannot be reached at {server()} ({said})"


def refusal(error: ValueError) -> str:
    """Which setting, and why: pydantic says it in its second and third line."""
    setting, _, told = "\n".join(str(error).splitlines()[1:3]).partition("\n")
    return f"{setting}: {told.strip().partition(' [type=')[0]}" if told else first_line(error)


def lost(logs: Path) -> str:
    """What wandb's service gave up of a run that it finished, from its log; empty where all went
    well.
    """
    with contextlib.suppress(OSError):
        for line in (logs / "debug-internal.log").read_text(errors="replace").splitlines():
            if any(beginning in line for beginning in LOST):
                told = json.loads(line)
                return first_line(
                    Exception(": ".join(filter(None, [told["msg"], told.get("error")])))
                )
    return ""
