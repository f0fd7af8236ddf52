"""One job: claim a run, train it or resume it, and write its result into the store.

`python -m andrea.training.job JOB.json` trains the job of a file in a process of its own. Its exit
status is that of the andrea command.
"""

import contextlib
import sys
import traceback
from pathlib import Path

from andrea.config import RunConfig, build
from andrea.data.prepared import open_prepared
from andrea.errors import AndreaError, StudyError, UserError, reason
from andrea.records.run import RunResult, RunSettings
from andrea.schema import Frozen
from andrea.store.files import read_mapping
from andrea.store.runs import Claim, RunBusy, RunStore
from andrea.training.identity import Identity, run_environment
from andrea.training.run import train


class JobFile(Frozen):
    """The arguments of `run_job` as a JSON file holds them."""

    root: Path
    """The run store."""
    config: RunConfig
    """Resolved."""
    data_folder: Path
    """Where the data were prepared."""
    run_id: str
    """Digest of the identity."""
    identity: Identity
    """Everything that determines the run's numbers."""
    checkpoint_every_s: float = 10.0
    """Seconds of wall time between checkpoints; changes no number."""


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
    claim: Claim,
    cfg: RunConfig,
    data_folder: Path,
    identity: Identity,
    checkpoint_every_s: float,
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


def run_job_file(path: Path) -> None:
    """Train the job in a file.

    Raises:
        UserError: there is no job in the file.
        StudyError: another process trains the run.
        Exception: whatever made the run fail.
    """
    content = read_mapping(path)
    if content is None:
        raise UserError(f"{path}: {'not a job in JSON' if path.exists() else 'no such file'}")
    job = build(JobFile, content, str(path))
    if run_job(**dict(job)) is None:
        raise StudyError(f"run {job.run_id[:12]} is being trained by another process")


def main(arguments: list[str]) -> int:
    """Return 0 when the run is done, 1 when it failed or is trained elsewhere, 2 without a job."""
    try:
        if len(arguments) != 1:
            raise UserError("usage: python -m andrea.training.job JOB.json")
        run_job_file(Path(arguments[0]))
    except AndreaError as error:
        print(f"andrea: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"andrea: {reason(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
