"""Errors in one line for the user, read from wandb's exceptions and from the log of its service."""

import contextlib
import json
from pathlib import Path

import wandb

from andrea.tracking.destination import server_url

LOST = (
    *("filestream: fatal error", "file transfer: upload: failed", "sender: failed to log artifact"),
    *("runfiles: ", "runupserter: failed"),
)
"""Beginnings of lines in the log of wandb's service about data that it gave up: `finish` returns as
if all were there.
"""


def first_line(error: Exception) -> str:
    """Return the one line of an error that a user sees."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def explain_error(error: wandb.errors.Error) -> str:
    """Return whether the server was asked, could be reached, or refused, with wandb's own words."""
    message = first_line(error)
    if "returned error 4" in message:
        return f"W&B refused ({message})"
    if isinstance(error, wandb.errors.CommError) and message == "<no message>":
        return "W&B refused to open a run: may this account write to this entity and project?"
    if isinstance(error, wandb.errors.UsageError | wandb.errors.AuthenticationError):
        return f"W&B was not asked ({message})"
    return f"W&B cannot be reached at {server_url()} ({message})"


def explain_setting(error: ValueError) -> str:
    """Return the setting that wandb refuses, and why: pydantic's second and third line."""
    setting, _, reason = "\n".join(str(error).splitlines()[1:3]).partition("\n")
    if not reason:
        return first_line(error)
    return f"{setting}: {reason.strip().partition(' [type=')[0]}"


def lost_data(logs: Path) -> str:
    """Return what wandb's service gave up of a run that it finished, from its log; empty where all
    went well.
    """
    with contextlib.suppress(OSError):
        for line in (logs / "debug-internal.log").read_text(errors="replace").splitlines():
            if any(beginning in line for beginning in LOST):
                entry = json.loads(line)
                parts = [entry["msg"], entry.get("error")]
                return ": ".join(filter(None, parts)).splitlines()[0]
    return ""
