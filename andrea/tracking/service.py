"""wandb's service: its settings and environment, its start and end."""

import contextlib
import logging
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import wandb

from andrea.store.processes import children
from andrea.tracking.destination import WandbMode

INIT_TIMEOUT_S = 10.0
FINISH_TIMEOUT_S = 30.0
"""Seconds that a server may take; WANDB_INIT_TIMEOUT and WANDB_FINISH_TIMEOUT say otherwise."""
OFFLINE_TIMEOUT_S = 120.0
"""Seconds that wandb's own service may take, which gets little of a processor that is busy with
training.
"""
OF_ANOTHER_RUN = (
    *("RUN_ID", "RESUME", "NAME", "RUN_GROUP", "JOB_TYPE", "TAGS", "NOTES", "SWEEP_ID"),
    # The mirror sets these itself.
    *("DIR", "SERVICE", "MODE"),
)
"""WANDB_* variables that describe one run or one process; account, server, entity and project stay.
"""


def warm_up() -> None:
    """Import what wandb imports at its first run and its first row."""
    import pandas  # noqa: F401
    import wandb.apis.public  # noqa: F401


def end_service() -> None:
    """End wandb's service process, which would outlive its last run."""
    _teardown(0)


def abandon_service(open_runs: Iterable[wandb.Run] = ()) -> None:
    """Kill wandb's service: what it has not sent is lost, and W&B gets no end of the open runs.

    Ended well it would report that they finished. Where the system does not list a process's
    children (not on Linux) it reports that they failed.
    """
    for run in open_runs:
        # The thread in which a run asks the service for the state of the network would fail with a
        # traceback later.
        if checker := getattr(run, "_run_status_checker", None):
            checker.stop()
    arguments = b"\0--pid\0%d" % os.getpid()
    for child in children():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/cmdline").read_bytes().rstrip(b"\0").endswith(arguments):
                os.kill(child, signal.SIGKILL)
    _teardown(1)


def _teardown(exit_code: int) -> None:
    # Of a service that was killed wandb says that the connection is lost, or exits as it did.
    with contextlib.suppress(OSError, wandb.errors.Error, SystemExit):
        wandb.teardown(exit_code=exit_code)


def timeout_s(variable: str, default: float) -> float:
    """Return the seconds of WANDB_<variable>, where it is a number."""
    try:
        return float(os.environ[f"WANDB_{variable}"])
    except (KeyError, ValueError):
        return default


def _stop_nothing() -> None:
    """Ignore *Stop run* in W&B, which would stop the mirror, by Ctrl-C, and not the training."""


def run_settings(mode: WandbMode) -> wandb.Settings:
    """Return the settings that a run is opened with."""
    online = mode == "online"
    init_s, finish_s = INIT_TIMEOUT_S, FINISH_TIMEOUT_S
    if not online:
        init_s = finish_s = OFFLINE_TIMEOUT_S
    return wandb.Settings(
        mode=mode,
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        init_timeout=timeout_s("INIT_TIMEOUT", init_s),
        finish_timeout=timeout_s("FINISH_TIMEOUT", finish_s),
        finish_timeout_raises=True,
        # What these would record stands in the store already, or is no part of a run.
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        x_transaction_log_flush_interval=1.0,
        stop_fn=_stop_nothing,
        # The store is the copy; one of wandb's could be sent twice.
        x_skip_transaction_log=online,
    )


@contextlib.contextmanager
def wandb_environment(folder: Path) -> Iterator[None]:
    """Keep wandb silent, and from it the variables that describe one run.

    wandb reads its environment at every init: a WANDB_RUN_ID left in the shell would merge all runs
    into one.

    Args:
        folder: where copies of tables and artifacts stay (`data`): offline runs refer to them.
    """
    before, raises = dict(os.environ), logging.raiseExceptions
    # A full disk takes no log of wandb's either, which would print a page of traceback.
    logging.raiseExceptions = False
    for part in OF_ANOTHER_RUN:
        os.environ.pop(f"WANDB_{part}", None)
    os.environ.setdefault("WANDB_HTTP_TIMEOUT", f"{INIT_TIMEOUT_S:.0f}")
    os.environ["WANDB_SILENT"] = "true"
    for place in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        os.environ[place] = str(folder / "data")
    try:
        yield
    finally:
        logging.raiseExceptions = raises
        os.environ.clear()
        os.environ.update(before)
