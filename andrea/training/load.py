"""The trained model of a run, found in the store by the run's id."""

from pathlib import Path

from andrea.config import RunConfig, build
from andrea.errors import UserError, nearest, warn
from andrea.model.folder import model_with_weights
from andrea.model.gpt import GPT
from andrea.store.runs import RunStore
from andrea.training import checkpoint


def load_run_model(store: RunStore, run: str) -> tuple[GPT, RunConfig, Path]:
    """Load the trained model of a finished run on the CPU, its configuration, and the folder of its
    data.

    Args:
        run: id of the run, or a prefix that only one run has.

    Raises:
        UserError: no such run, several, one that has not finished, or one whose checkpoint is
            damaged.
    """
    run_id = find_run(store, run)
    folder = store.folder(run_id)
    settings, result = store.load_settings(run_id), store.load_result(run_id)
    if settings is None or result is None or not settings.config or not settings.identity:
        message = f"run {run_id[:12]} in {store.root} has lost its config or result; train it again"
        raise UserError(message)
    if result.outcome != "completed":
        warn(
            f"run {run_id[:12]} {result.outcome} ({result.reason}): its weights are those of its "
            "last step"
        )
    cfg = build(RunConfig, settings.config, str(folder / "config.json"))
    try:
        state = checkpoint.load(folder / "checkpoint")
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"{folder}: the run has no checkpoint") from None
    except checkpoint.CheckpointError as error:
        raise UserError(f"{folder / 'checkpoint'}: {error}") from error
    model = model_with_weights(cfg.model, state["model"], str(folder / "checkpoint"))
    return model, cfg, store.root / "data" / str(settings.identity["data"])


def find_run(store: RunStore, run: str) -> str:
    """Return the id of the finished run that begins with `run`.

    Raises:
        UserError: there is none, or there are several.
    """
    matching = store.ids(run) if run else []
    finished = [run_id for run_id in matching if store.folder(run_id).is_dir()]
    if len(finished) == 1:
        return finished[0]
    if finished:
        message = f"{len(finished)} runs in {store.root} begin with {run}: give more of the id"
        raise UserError(message)
    if matching:
        raise UserError(
            f"run {run} in {store.root} has not finished; the command that started it finishes it"
        )
    short_ids = [run_id[:12] for run_id in store.ids() if store.folder(run_id).is_dir()]
    hint = "`andrea status STUDY --json` lists the runs of a study"
    if len(short_ids) < 8:
        hint = nearest(run[:12], short_ids)
    raise UserError(f"no run {run!r} in {store.root}; {hint}")
