"""One job: claim a run, train it or resume it, and write its result into the store."""

import contextlib
import traceback
from pathlib import Path

from andrea.config import RunConfig
from andrea.data.prepared import open_prepared
from andrea.errors import reason
from andrea.records.run import RunResult, RunSettings
from andrea.store.runs import Claim, RunBusy, RunStore
from andrea.training.identity import Identity, run_environment
from andrea.training.run import train


def run_job(
    root: Path,
    config: RunConfig,
    data_folder: Path,
    run_id: str,
    identity: Identity,
    *,
    checkpoint_every_s: float = 10.0,
) -> RunResult | None:
    """Train a run, or continue it from its last checkpoint; returns its result.

    A finished run is not trained again: its result is returned. None means that another live
    process trains it. An interrupted run can be resumed; only an exception that is no interrupt is
    recorded as a failure.

    Args:
        config: resolved; `train.threads` applies while the job runs.
        checkpoint_every_s: seconds between checkpoints; changes no number.

    Raises:
        Exception: whatever made the run fail, after `failure.json` says why (if the disk still
            takes it).
    """
    store = RunStore(root)
    if (finished := store.load_result(run_id)) is not None:
        return finished
    try:
        claim = store.claim(run_id)
    except RunBusy:
        return None
    with claim:
        # Another process, or the claim's recovery, may have finished it meanwhile.
        if (finished := store.load_result(run_id)) is not None:
            return finished
        return _train_attempt(claim, config, data_folder, identity, checkpoint_every_s)


def _train_attempt(
    claim: Claim, cfg: RunConfig, data_folder: Path, identity: Identity, checkpoint_every_s: float
) -> RunResult:
    settings = RunSettings(config=cfg.model_dump(mode="json"), identity=identity)
    environment = run_environment(cfg.train.device)
    folder = claim.attempt(settings.to_json(), environment.to_json())
    try:
        result = train(
            cfg,
            open_prepared(data_folder),
            folder,
            attempt=int(folder.suffix[1:]),
            checkpoint_every_s=checkpoint_every_s,
        )
        claim.finish(folder, result.to_json())
    except Exception as error:
        # A full disk refuses this too; the error itself is what must be seen then.
        with contextlib.suppress(OSError):
            claim.fail(folder, reason(error), traceback.format_exc())
        raise
    return result
