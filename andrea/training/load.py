"""The model that a run left behind, found by the run's id in the store."""

from pathlib import Path

from andrea.config import RunConfig, build
from andrea.errors import UserError, nearest, warn
from andrea.model.folder import filled
from andrea.model.gpt import GPT
from andrea.store.runs import RunStore
from andrea.training import checkpoint


def load_run_model(store: RunStore, run: str) -> tuple[GPT, RunConfig, Path]:
    """The trained model of a finished run on the CPU, its configuration, and the folder of its
    data.

    Args:
        run: id of the run, or a beginning that only one has.

    Raises:
        UserError: no such run, several, one that has not finished, or one whose checkpoint is
            damaged.
    """
    run_id = find_run(store, run)
    folder = store.folder(run_id)
    config, result = store.config(run_id), store.result(run_id)
    if (
        config is None
        or result is None
        or not {"config", "identity"} <= config.keys()
        or "outcome" not in result
    ):
        raise UserError(
            f"run {run_id[:12]} in {store.root} has lost its config or result; train it again"
        )
    if result["outcome"] != "completed":
        warn(
            f"run {run_id[:12]} {result['outcome']} ({result.get('reason')}): its weights are "
            "those of its last step"
        )
    cfg = build(RunConfig, config["config"], str(folder / "config.json"))
    try:
        state = checkpoint.load(folder / "checkpoint")
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"{folder}: the run has no checkpoint") from None
    except checkpoint.CheckpointError as error:
        raise UserError(f"{folder / 'checkpoint'}: {error}") from error
    model = filled(cfg.model, state["model"], str(folder / "checkpoint"))
    return model, cfg, store.root / "data" / str(config["identity"]["data"])


def find_run(store: RunStore, run: str) -> str:
    """The id of the finished run that begins so.

    Raises:
        UserError: there is none, or there are several.
    """
    begun = store.beginning(run) if run else []
    found = [run_id for run_id in begun if store.folder(run_id).is_dir()]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{len(found)} runs in {store.root} begin with {run}: give more of the id")
    if begun:
        raise UserError(
            f"run {run} in {store.root} has not finished; the command that started it finishes it"
        )
    known = [run_id[:12] for run_id in store.ids() if store.folder(run_id).is_dir()]
    hint = (
        nearest(run[:12], known)
        if len(known) < 8
        else "`andrea status STUDY --json` lists the runs of a study"
    )
    raise UserError(f"no run {run!r} in {store.root}; {hint}")
