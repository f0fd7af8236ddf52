"""Curves over runs: means and bands at logged steps only, crossings, smoothing by tokens; and fewer
points to draw, chosen and never averaged.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from andrea.errors import UserError

DRAWN = 200
"""Logged steps that a figure draws per curve, about."""


def over_seeds(curves: pd.DataFrame, value: str = "loss") -> pd.DataFrame:
    """Return mean and range over an arm's runs at every step that one of them logged.

    Args:
        curves: rows with arm, run_id, tokens and the value.

    Returns:
        arm, tokens, mean, low (smallest), high (largest), n (runs with a finite value), runs (all
        runs of the arm that logged anything). Where n < runs, because a run diverged or is not
        there yet, mean, low and high are NaN: a mean over the survivors would flatter the arm.
    """
    runs_by_arm = curves.groupby("arm", sort=False)["run_id"].nunique()
    finite = curves.assign(value=curves[value].where(np.isfinite(curves[value])))
    by_step = finite.groupby(["arm", "tokens"], sort=True)["value"]
    grouped = by_step.agg(mean="mean", low="min", high="max", n="count").reset_index()
    grouped["runs"] = grouped["arm"].map(runs_by_arm)
    grouped.loc[grouped["n"] < grouped["runs"], ["mean", "low", "high"]] = np.nan
    return grouped


def paired_differences(curves: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return differences to the baseline's run of the same seed, at steps that both logged.

    Returns:
        arm, seed, run_id, tokens, loss (nats: arm − baseline).
    """
    base = curves[curves["arm"] == baseline][["seed", "tokens", "loss"]]
    arms = curves[curves["arm"] != baseline][["arm", "seed", "run_id", "tokens", "loss"]]
    both = arms.merge(base, on=["seed", "tokens"], suffixes=("", "_baseline"))
    both["loss"] -= both.pop("loss_baseline")
    return both


def thin_curves(curves: pd.DataFrame, points: int = DRAWN) -> pd.DataFrame:
    """Return the rows at a selection of the logged steps, the same for every run.

    Kept are about `points` evenly spaced steps with the first and the last, and for each run its
    largest jump upward and the first step where its loss is not finite: what a reader must not
    miss. Nothing is averaged.
    """
    tokens = np.unique(curves["tokens"].to_numpy(dtype="int64"))
    if len(tokens) <= points:
        return curves
    drawn = set(tokens[np.linspace(0, len(tokens) - 1, points).round().astype(int)])
    for _, run in curves.groupby("run_id", sort=False):
        loss = run["loss"].to_numpy()
        at = run["tokens"].to_numpy(dtype="int64")
        broken = at[~np.isfinite(loss)]
        drawn.update(broken[:1])
        jumps = np.diff(loss)
        if np.isfinite(jumps).any():
            drawn.add(at[1:][int(np.nanargmax(jumps))])
    return curves[curves["tokens"].isin(drawn)]


def last_of_lost(curves: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the ends of the curves of diverged and stalled runs: arm, seed, run_id, tokens and
    loss of the last finite value, state (diverged or stalled).
    """
    lost = runs[(runs["outcome"] == "diverged") | runs["stalled"]]
    finite = curves[np.isfinite(curves["loss"]) & curves["run_id"].isin(lost["run_id"])]
    by_run = finite.sort_values("tokens").groupby("run_id", sort=False)
    last = by_run.tail(1)[["arm", "seed", "run_id", "tokens", "loss"]]
    is_stalled = last["run_id"].isin(lost.loc[lost["stalled"], "run_id"])
    marked: pd.DataFrame = last.assign(state=np.where(is_stalled, "stalled", "diverged"))
    return marked


def find_crossings(
    curves: pd.DataFrame, level: float | Mapping[str, float], value: str = "loss"
) -> pd.DataFrame:
    """Return the tokens at which every run's evaluated loss first comes down to a level.

    Linear between the two neighbouring evaluations that enclose the crossing; nothing is
    extrapolated.

    Args:
        curves: rows with arm, seed, run_id, tokens and the value; rows of kind `train` are left
            out.
        level: nats, one for all runs or by run_id; a run without one never comes down to it.
        value: column of the value.

    Returns:
        One row per run: arm, seed, run_id, level; tokens (float: NaN where the run never comes down
            to the level, and
        where the evaluation before was not finite, so that nobody knows since when); before and
        after (tokens of the two evaluations; before is NaN where the first evaluation is at the
        level already, tokens is then that one's); n (finite evaluations of the run).
    """
    rows = []
    for run in _by_run(curves, "eval"):
        at = run["tokens"].to_numpy(dtype="float64")
        values = run[value].to_numpy(dtype="float64")
        values = np.where(np.isfinite(values), values, np.nan)
        arm, seed, run_id = run[["arm", "seed", "run_id"]].iloc[0]
        goal = float(level.get(run_id, np.nan) if isinstance(level, Mapping) else level)
        crossing = _crossing(at, values, goal)
        rows.append((arm, seed, run_id, goal, *crossing, int(np.isfinite(values).sum())))
    return pd.DataFrame(
        rows, columns=["arm", "seed", "run_id", "level", "tokens", "before", "after", "n"]
    )


def _crossing(at: Any, values: Any, level: float) -> tuple[float, float, float]:
    below = np.flatnonzero(values <= level)
    if not len(below):
        return np.nan, np.nan, np.nan
    first = int(below[0])
    if first == 0:
        return at[0], np.nan, at[0]
    share = (values[first - 1] - level) / (values[first - 1] - values[first])
    return at[first - 1] + share * (at[first] - at[first - 1]), at[first - 1], at[first]


def smooth_losses(curves: pd.DataFrame, tokens: int, value: str = "loss") -> pd.DataFrame:
    """Return training loss as its mean over the last `tokens` tokens, at the logged steps.

    A training record is the mean since the record before, so it weighs with the tokens between the
    two that lie in the window: how often was logged makes no difference. Before that many
    tokens are trained the window begins at the start. Values stand at logged steps only. A
    window that touches a record without a finite loss has none.

    Args:
        curves: every logged row, not a selection, with arm, run_id, tokens and the value; rows of
            kind `eval`, which are no means over tokens, are left out.
        tokens: width of the window.
        value: column of the value.

    Returns:
        The rows with the value smoothed, and: width (tokens of the window), covered (tokens of it
            that were trained).

    Raises:
        UserError: the width is not above 0.
    """
    if not tokens > 0:
        raise UserError(f"a smoothing window of {tokens} tokens: it must be above 0")
    parts = [_smoothed(run, float(tokens), value) for run in _by_run(curves, "train")]
    return pd.concat(parts) if parts else curves.head(0).assign(width=0, covered=0)


def _smoothed(run: pd.DataFrame, width: float, value: str) -> pd.DataFrame:
    at, losses = run["tokens"].to_numpy(dtype="float64"), run[value].to_numpy(dtype="float64")
    finite = np.isfinite(losses)
    # Sums of differences to the run's mean: the digits of a long sum are kept for what differs.
    middle = float(losses[finite].mean()) if finite.any() else 0.0
    edges = np.concatenate([[0.0], at])
    total = np.concatenate(
        [[0.0], np.cumsum(np.where(finite, losses - middle, 0.0) * np.diff(edges))]
    )
    since = np.maximum(at - width, 0.0)
    covered = at - since
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = middle + (np.interp(at, edges, total) - np.interp(since, edges, total)) / covered
    broken = np.concatenate([[0], np.cumsum(~finite)])
    first, last = np.searchsorted(at, since, side="right"), np.searchsorted(at, at, side="right")
    mean = np.where(broken[last] > broken[first], np.nan, mean)
    # A window inside one record, and a record that covers no token, are what the record says.
    alone = (since >= edges[:-1]) & (last - first <= 1)
    return run.assign(
        **{value: np.where(alone, losses, mean)}, width=int(width), covered=covered.astype("int64")
    )


def _by_run(curves: pd.DataFrame, kind: str) -> Iterator[pd.DataFrame]:
    """Yield the rows of one kind, run by run in order of tokens; a run that stands twice in the
    plan twice.
    """
    if "kind" in curves:
        curves = curves[curves["kind"] == kind]
    keys = [key for key in ("arm", "phase", "run_id") if key in curves]
    for _, run in curves.groupby(keys, sort=False):
        yield run.sort_values("tokens", kind="stable")
