"""Curves over runs: means and bands at logged steps only, and fewer points to draw, chosen and never averaged."""

import numpy as np
import pandas as pd

DRAWN = 200
"""Logged steps that a figure draws per curve, about."""


def over_seeds(curves: pd.DataFrame, value: str = "loss") -> pd.DataFrame:
    """Mean and range over an arm's runs at every step that one of them logged.

    Args:
        curves: rows with arm, run_id, tokens and the value.

    Returns:
        arm, tokens, mean, low (smallest), high (largest), n (runs with a finite value), runs (all runs of the arm that
        logged anything). Where n < runs, because a run diverged or is not there yet, mean, low and high are NaN: a mean
        over the survivors would flatter the arm.
    """
    of_arm = curves.groupby("arm", sort=False)["run_id"].nunique()
    finite = curves.assign(value=curves[value].where(np.isfinite(curves[value])))
    grouped = finite.groupby(["arm", "tokens"], sort=True)["value"].agg(["mean", "min", "max", "count"]).reset_index()
    grouped.columns = pd.Index(["arm", "tokens", "mean", "low", "high", "n"])
    grouped["runs"] = grouped["arm"].map(of_arm)
    grouped.loc[grouped["n"] < grouped["runs"], ["mean", "low", "high"]] = np.nan
    return grouped


def paired(curves: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Differences to the baseline's run of the same seed, at steps that both logged.

    Returns:
        arm, seed, run_id, tokens, loss (nats: arm − baseline).
    """
    base = curves[curves["arm"] == baseline][["seed", "tokens", "loss"]]
    arms = curves[curves["arm"] != baseline][["arm", "seed", "run_id", "tokens", "loss"]]
    both = arms.merge(base, on=["seed", "tokens"], suffixes=("", "_baseline"))
    both["loss"] -= both.pop("loss_baseline")
    return both


def thin(curves: pd.DataFrame, points: int = DRAWN) -> pd.DataFrame:
    """The rows at a selection of the logged steps, the same for every run.

    Kept are about `points` evenly spaced steps with the first and the last, and for each run its largest jump upward
    and the first step where its loss is not finite: what a reader must not miss. Nothing is averaged.
    """
    tokens = np.unique(curves["tokens"].to_numpy(dtype="int64"))
    if len(tokens) <= points:
        return curves
    kept = set(tokens[np.linspace(0, len(tokens) - 1, points).round().astype(int)])
    for _, run in curves.groupby("run_id", sort=False):
        loss = run["loss"].to_numpy()
        at = run["tokens"].to_numpy(dtype="int64")
        broken = at[~np.isfinite(loss)]
        kept.update(broken[:1])
        jumps = np.diff(loss)
        if np.isfinite(jumps).any():
            kept.add(at[1:][int(np.nanargmax(jumps))])
    return curves[curves["tokens"].isin(kept)]


def ends(curves: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Where the curves of diverged and stalled runs end: arm, seed, run_id, tokens and loss of the last finite value,
    state (diverged or stalled)."""
    lost = runs[(runs["outcome"] == "diverged") | runs["stalled"]]
    finite = curves[np.isfinite(curves["loss"]) & curves["run_id"].isin(lost["run_id"])]
    last = (
        finite.sort_values("tokens").groupby("run_id", sort=False).tail(1)[["arm", "seed", "run_id", "tokens", "loss"]]
    )
    states = dict(zip(lost["run_id"], np.where(lost["stalled"], "stalled", "diverged"), strict=True))
    marked: pd.DataFrame = last.assign(state=last["run_id"].map(states))
    return marked
