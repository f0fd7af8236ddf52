"""Small tables behind a report: arms by themselves, costs, what differs, what is missing."""

from typing import Any

import numpy as np
import pandas as pd

from andrea.analysis.load import Study
from andrea.analysis.tables.frames import RUNS, UNFINISHED
from andrea.config import dotted
from andrea.records.base import Settings


def mean_interval(values: pd.Series, level: float = 0.95) -> tuple[float, float]:
    """Return Student's t interval of the mean; NaN below two values."""
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        return float("nan"), float("nan")
    half = float(stdtrit(n - 1, 0.5 + level / 2)) * float(values.std(ddof=1)) / float(np.sqrt(n))
    return float(values.mean()) - half, float(values.mean()) + half


def sd_interval(sd: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the chi-squared interval of a standard deviation over n values; NaN below two."""
    from scipy.special import chdtri

    if n < 2:
        return float("nan"), float("nan")
    tail = (1 - level) / 2
    low, high = (float(np.sqrt((n - 1) / chdtri(n - 1, p))) for p in (tail, 1 - tail))
    return sd * low, sd * high


def final_losses(study: Study) -> pd.DataFrame:
    """Return one row per arm over its replicates: arm, n (good runs), planned, mean, low, high (95
    % interval of the mean), sd, sd_low, sd_high (its 95 % interval), bpb, initial.

    An arm of which a replicate diverged, stalled or is not there yet has no mean: it would be over
    the survivors.
    """
    columns = ["mean", "low", "high", "sd", "sd_low", "sd_high", "bpb", "initial"]
    replicates = study.replicates()
    rows = []
    for arm in study.arms:
        runs = replicates[replicates["arm"] == arm]
        good = runs[runs["ok"]]
        row: dict[str, Any] = {"arm": arm, "n": len(good), "planned": len(runs)}
        if 0 < len(good) == len(runs):
            row |= _loss_statistics(good)
        rows.append(row)
    return pd.DataFrame(rows, columns=["arm", "n", "planned", *columns])


def _loss_statistics(runs: pd.DataFrame) -> dict[str, float]:
    sd = float(runs["loss"].std(ddof=1)) if len(runs) > 1 else np.nan
    low, high = mean_interval(runs["loss"])
    sd_low, sd_high = sd_interval(sd, len(runs))
    return {
        "mean": runs["loss"].mean(),
        "low": low,
        "high": high,
        "sd": sd,
        "sd_low": sd_low,
        "sd_high": sd_high,
        "bpb": runs["bpb"].mean(),
        "initial": runs["initial_loss"].mean(),
    }


def cost_table(study: Study) -> pd.DataFrame:
    """Return one row per arm: arm, parameters, flops_per_token, and over its finished replicates n,
    flops (whole training), seconds and tokens_per_s (mean and sd), peak_memory_bytes (largest).
    """
    replicates = study.replicates()
    completed = replicates[replicates["outcome"] == "completed"]
    rows = []
    for arm in study.arms:
        resolved = study.resolved_arm(arm)
        runs = completed[completed["arm"] == arm]
        rows.append(
            {
                "arm": arm,
                "parameters": sum(resolved.parameters.values()) or None,
                "flops_per_token": resolved.flops_per_token,
                "n": len(runs),
                "flops": runs["flops"].mean(),
                "seconds": runs["seconds"].mean(),
                "seconds_sd": runs["seconds"].std(ddof=1),
                "tokens_per_s": runs["tokens_per_s"].mean(),
                "tokens_per_s_sd": runs["tokens_per_s"].std(ddof=1),
                "peak_memory_bytes": runs["peak_memory_bytes"].max(),
            }
        )
    return pd.DataFrame(rows)


def parameter_table(study: Study) -> pd.DataFrame:
    """Return parameters by group, one row per arm, with `total` and `against` (total over the
    baseline's, less 1).
    """
    rows = [{"arm": arm, **study.resolved_arm(arm).parameters} for arm in study.arms]
    table = pd.DataFrame(rows)
    groups = [key for key in table.columns if key != "arm"]
    table[groups] = table[groups].fillna(0).astype("int64")
    table["total"] = table[groups].sum(axis=1)
    base = float(table["total"].iloc[0]) if len(table) else 0.0
    table["against"] = table["total"] / base - 1 if base else np.nan
    return table


def planned_tokens(config: Settings) -> int | None:
    """Return the tokens that a run of this configuration trains, in whole batches; None where it
    does not say.
    """
    train, model = config.get("train") or {}, config.get("model") or {}
    if not train.get("tokens"):
        return None
    batch = (train.get("batch_size") or 1) * (model.get("context") or 1)
    return int(train["tokens"] // batch * batch)


def size_table(study: Study) -> pd.DataFrame:
    """Return one row per arm: arm, parameters, flops_per_token, setting (what was solved for, or
    empty), was and became of it, params_against and flops_against (over the baseline's, less 1).
    """
    rows = []
    for arm in study.arms:
        resolved = study.resolved_arm(arm)
        flops = resolved.flops_per_token
        row: dict[str, object] = {
            "arm": arm,
            "parameters": sum(resolved.parameters.values()) or np.nan,
            "flops_per_token": np.nan if flops is None else flops,
            "setting": "",
            "was": None,
            "became": None,
        }
        if solved := resolved.solved:
            row |= {"setting": solved.setting, "was": solved.was, "became": solved.became}
        rows.append(row)
    table = pd.DataFrame(
        rows, columns=["arm", "parameters", "flops_per_token", "setting", "was", "became"]
    )
    base = table[table["arm"] == study.baseline]
    for name, quantity in (("params_against", "parameters"), ("flops_against", "flops_per_token")):
        table[name] = table[quantity] / float(base[quantity].iloc[0]) - 1 if len(base) else np.nan
    return table


def settings_that_differ(study: Study) -> pd.DataFrame:
    """Return the resolved settings that are not the same in every arm (setting, one column per
    arm), the learning rate apart.
    """
    by_arm = {arm: dotted(study.resolved_arm(arm).config) for arm in study.arms}
    paths = dict.fromkeys(path for settings in by_arm.values() for path in settings)
    rows = []
    for path in paths:
        values = {arm: by_arm[arm].get(path) for arm in study.arms}
        first = values[study.arms[0]]
        if path not in ("train.lr", "seed") and any(value != first for value in values.values()):
            rows.append({"setting": path} | {arm: str(value) for arm, value in values.items()})
    return pd.DataFrame(rows, columns=["setting", *study.arms])


def progress_table(study: Study) -> pd.DataFrame:
    """Return runs by arm and phase: arm, phase, planned, done, running, failed, missing."""
    outcome = study.runs["outcome"]
    counts = study.runs[["arm", "phase"]].assign(planned=1, done=~outcome.isin(UNFINISHED))
    for unfinished in UNFINISHED:
        counts[unfinished] = outcome == unfinished
    return counts.groupby(["arm", "phase"], sort=False).sum().reset_index()


def untrained_runs(study: Study) -> pd.DataFrame:
    """Return runs that diverged or stalled, by arm and phase: arm, phase, runs, diverged, stalled,
    rates (list of floats).
    """
    rows = []
    for (arm, phase), runs in study.runs.groupby(["arm", "phase"], sort=False):
        diverged, stalled = runs["outcome"] == "diverged", runs["stalled"]
        if diverged.any() or stalled.any():
            row = {"arm": arm, "phase": phase, "runs": len(runs), "diverged": int(diverged.sum())}
            rates = sorted(set(runs[diverged | stalled]["lr"].dropna()))
            rows.append(row | {"stalled": int(stalled.sum()), "rates": rates})
    return pd.DataFrame(rows, columns=["arm", "phase", "runs", "diverged", "stalled", "rates"])


def count_still_falling(study: Study, run_ids: pd.Series) -> int:
    """Count the runs that fell in evaluated loss by more than m in the last third of their
    tokens.
    """
    evaluated = study.part("curves", ["run_id", "tokens", "loss"], kind="eval", run_id=run_ids)
    end = evaluated.groupby("run_id")["tokens"].transform("max")
    late = evaluated[evaluated["tokens"] >= end * 2 / 3]
    by_run = late.sort_values("tokens").groupby("run_id")["loss"]
    return int((by_run.first() - by_run.last() > (study.m or 0.0)).sum())


def sweep_trials(study: Study) -> pd.DataFrame:
    """Return one row per trial of a sweep, in order: trial, generation, loss (mean score over its
    runs; NaN until all are there), n (finished runs), runs, ok (every run completed and learned),
    outcome (the worst), run_id (the first), and its parameters by dotted name.
    """
    names = parameter_names(study)
    rows = []
    for trial, runs in study.trials.groupby("trial", sort=True):
        done = ~runs["outcome"].isin(UNFINISHED)
        bad = runs[~runs["ok"]]
        worst = (bad if len(bad) else runs).iloc[0]
        row = {
            "trial": trial,
            "generation": worst["generation"],
            "n": int(done.sum()),
            "runs": len(runs),
        }
        row["loss"] = runs["score"].mean() if done.all() else np.nan
        row["ok"] = bool(runs["ok"].all())
        row["outcome"] = "stalled" if worst["stalled"] else worst["outcome"]
        row["run_id"] = runs["run_id"].iloc[0]
        rows.append(row | {name: runs[name].iloc[0] for name in names})
    columns = ["trial", "generation", "n", "runs", "loss", "ok", "outcome", "run_id", *names]
    return pd.DataFrame(rows, columns=columns)


def parameter_names(study: Study) -> list[str]:
    """Return dotted names of what a sweep searches."""
    return [str(name) for name in study.trials.columns if name not in RUNS and name != "score"]
