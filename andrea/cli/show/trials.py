"""The trials of a sweep, and the command that trains its best config."""

import json
import shlex

from andrea.cli.settings import build_run_config
from andrea.cli.show.output import parameter, table
from andrea.config import dotted, merge, parse_value
from andrea.records.study import SweepTrial
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.store.usual import runs_option
from andrea.text.numbers import loss
from andrea.verdict.replicates import is_good_run

CHOSEN_BY_TRIALS = ("seed", "data.eval_part")
"""Settings that `andrea train` sets as a sweep's trial does, unless somebody says otherwise."""


def best_as_json(folder: StudyFolder, store: RunStore) -> dict[str, object] | None:
    """Return best.json without the trials, with the command that trains the best config."""
    best = folder.load_best()
    if best is None:
        return None
    values = best.to_json()
    values.pop("trials", None)
    if best.params:
        values["command"] = train_command(folder, store)
    return values or None


def load_trials(folder: StudyFolder, store: RunStore) -> list[SweepTrial]:
    """Return the trials of a sweep in order: those of best.json, or what the store has of them so
    far.
    """
    best = folder.load_best()
    if best is not None:
        return best.trials
    trials = []
    for run in folder.load_runs():
        result = store.load_result(run.run_id)
        trials.append(
            SweepTrial(
                trial=run.trial or 0,
                params=run.params or {},
                run_id=run.run_id,
                loss=result.score if result else None,
                outcome=result.outcome if result else None,
                stalled=result.stalled if result else None,
            )
        )
    return trials


def trials_as_text(folder: StudyFolder, store: RunStore) -> str:
    """Return a table of trials, best first, and the command that trains the best config."""
    trials = sorted(load_trials(folder, store), key=_rank)
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    rows = []
    for trial in trials:
        params = [parameter(name, trial.params.get(name)) for name in names]
        rows.append([trial.trial, *params, loss(trial.loss), _ending(trial)])
    text = table(rows, ("trial", *names, "objective", "ending"), right=range(len(names) + 2))
    best = folder.load_best()
    if best is None or not best.params:
        return text
    return (
        f"{text}\n\nbest: trial {best.trial}, loss {loss(best.loss)}\n"
        f"{train_command(folder, store)}"
    )


def _rank(trial: SweepTrial) -> tuple[bool, bool, float]:
    """Return a key that sorts good trials first, then by loss."""
    return not _is_good(trial), trial.loss is None, trial.loss or 0.0


def _is_good(trial: SweepTrial) -> bool:
    return is_good_run(trial.outcome or "", trial.stalled, trial.loss)


def _ending(trial: SweepTrial) -> str:
    ending = "stalled" if trial.stalled else trial.outcome or "open"
    scored_as_untrained = trial.outcome and not _is_good(trial)
    return f"{ending}, scored as at initialisation" if scored_as_untrained else ending


def train_command(folder: StudyFolder, store: RunStore) -> str:
    """Return `andrea train …` with whatever makes it the best trial's config, every digit of it.

    Raises:
        StudyError: the study has lost what it was resolved to.
    """
    resolved, best = folder.load_resolved(), folder.load_best()
    if resolved is None:
        raise folder.damaged("resolved.json", "missing")
    [arm] = resolved.arms.values()
    preset = folder.load_question().preset or "tiny"
    of_preset = dotted(build_run_config(preset, []).model_dump(mode="json"))
    of_trial = dotted(merge(arm.asked, (best and best.params) or {}))
    parts = ["andrea", "train", "--preset", preset]
    if resolved.variants:
        parts += ["--variants", str(folder.path / resolved.variants)]
    for path, value in of_trial.items():
        if path not in CHOSEN_BY_TRIALS and value != of_preset[path]:
            parts += ["--set", f"{path}={_as_setting(value)}"]
    return shlex.join([*parts, *runs_option(store.root)])


def _as_setting(value: object) -> str:
    """Return a value as `--set` reads it back."""
    return value if isinstance(value, str) and parse_value(value) == value else json.dumps(value)
