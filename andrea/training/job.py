"""One job: claim a run, train it or take it up where it was left, write its result into the store."""

import contextlib
import traceback
from pathlib import Path
from typing import Any

from andrea.config import RunConfig
from andrea.data.prepared import open_prepared
from andrea.errors import reason
from andrea.schema import Frozen
from andrea.store.runs import Claim, RunBusy, RunStore
from andrea.training.identity import env
from andrea.training.run import train


class Job(Frozen):
    """What another process needs to know to train one run; JSON on the command line of `python -m
    andrea.training`.
    """

    root: Path
    """The run store."""
    config: RunConfig
    """Resolved."""
    data_folder: Path
    """Where the data were prepared."""
    run_id: str
    """Digest of the identity."""
    identity: dict[str, Any]
    """What determines the run's numbers."""
    checkpoint_every_s: float = 10.0
    """Seconds of wall time between checkpoints; changes no number."""

    def run(self) -> dict[str, Any] | None:
        """`run_job` with these arguments."""
        return run_job(
            self.root,
            self.config,
            self.data_folder,
            self.run_id,
            self.identity,
            checkpoint_every_s=self.checkpoint_every_s,
        )


def run_job(
    root: Path,
    cfg: RunConfig,
    data_folder: Path,
    run_id: str,
    identity: dict[str, Any],
    *,
    checkpoint_every_s: float = 10.0,
) -> dict[str, Any] | None:
    """Train a run, or continue it from its last checkpoint; returns its result.

    A finished run is not trained again: its result is returned. None means that another live
        process is at it.
    Whatever stops a run leaves it resumable; only an exception that is no interrupt is recorded as
    a failure.

    Args:
        cfg: resolved; `train.threads` applies while the job runs.
        checkpoint_every_s: seconds between checkpoints; changes no number.

    Raises:
        Exception: whatever made the run fail, after `failure.json` says why (if the disk still
            takes it).
    """
    store = RunStore(root)
    done = store.result(run_id)
    if done is not None:
        return done
    try:
        claim = store.claim(run_id)
    except RunBusy:
        return None
    with claim:
        done = store.result(
            run_id
        )  # finished by another process meanwhile, or by the claim's recovery
        if done is not None:
            return done
        return _attempt(claim, cfg, data_folder, identity, checkpoint_every_s)


def _attempt(
    claim: Claim,
    cfg: RunConfig,
    data_folder: Path,
    identity: dict[str, Any],
    checkpoint_every_s: float,
) -> dict[str, Any]:
    described = {"config": cfg.model_dump(mode="json"), "identity": identity}
    folder = claim.attempt(described, env(cfg.train.device))
    try:
        result = train(
            cfg,
            open_prepared(data_folder),
            folder,
            attempt=int(folder.suffix[1:]),
            checkpoint_every_s=checkpoint_every_s,
        )
        claim.finish(folder, result)
    except Exception as error:
        # A full disk refuses this too; the error itself is what must be seen then.
        with contextlib.suppress(OSError):
            claim.fail(folder, reason(error), traceback.format_exc())
        raise
    return result
