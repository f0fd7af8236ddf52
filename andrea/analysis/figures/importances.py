"""Importance of a sweep's parameters: PED-ANOVA of the finished trials, and the figure of it.

PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255; Optuna's implementation) compares where a
parameter's values lie in the best quarter of the trials with where they lie in all of them: where
the two agree the parameter did not matter. Only ranks of losses enter, so it makes no difference
with which loss a trial counts that did not train. Nothing is drawn at random but the resamples,
whose generator is seeded.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import VegaSpec
from andrea.records.study import SearchedRange
from andrea.text import numbers as text

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FEWEST = 20
"""Finished trials below which no importance is told: with 12 the parameter that decides everything
comes first in nine sweeps of ten, with 20 in nineteen of twenty, and one without any effect gets
more than a third in one of twenty (`tests/test_report_sweep.py` measures it).
"""
TOP = 0.25
"""Share of the trials that are the best: five of twenty."""
RESAMPLES = 100
"""Draws of as many trials with replacement, for the spread."""


def reason_without_importance(trials: pd.DataFrame, names: Sequence[str]) -> str:
    """Return why there is no importance of parameters; empty where there is one."""
    n_finished = int(trials["loss"].notna().sum())
    if len(names) < 2:
        return "Parameter importance needs two parameters"
    if not trials["ok"].any():
        return "Parameter importance needs a trial that trained"
    if n_finished < FEWEST:
        return f"Parameter importance needs {FEWEST} finished trials; there are {n_finished}"
    return ""


def importance_shares(
    trials: pd.DataFrame, names: Sequence[str], space: Mapping[str, SearchedRange]
) -> pd.DataFrame:
    """Return shares of importance, the largest first.

    Args:
        trials: of `summaries.sweep_trials`, enough for `reason_without_importance`.
        names: the parameters.
        space: the ranges that the sweep searched, by name.

    Returns:
        parameter, share (of the sum over the parameters), low and high (central 95 % of the shares
        over resampled trials: how much the share hangs on these trials), n (finished trials), good
        (those that trained), best (those compared).
    """
    finished = trials[trials["loss"].notna()].reset_index(drop=True)
    kinds = {
        name: optuna_distribution(finished[name], space.get(name, SearchedRange()))
        for name in names
    }
    parameters = optuna_parameters(finished, kinds)
    losses = finished["loss"].to_numpy(dtype="float64")
    shares = ped_anova(parameters, losses, kinds)
    generator = np.random.default_rng(0)
    resampled = []
    for _ in range(RESAMPLES):
        at = generator.integers(0, len(parameters), len(parameters))
        resampled.append(ped_anova([parameters[i] for i in at], losses[at], kinds))
    low, high = np.quantile(np.array(resampled), [0.025, 0.975], axis=0)
    table = pd.DataFrame({"parameter": list(names), "share": shares, "low": low, "high": high})
    table["n"] = len(finished)
    table["good"] = int(finished["ok"].sum())
    table["best"] = int(np.ceil(TOP * len(finished)))
    return table.sort_values("share", ascending=False, kind="stable", ignore_index=True)


def optuna_distribution(values: pd.Series, searched: SearchedRange) -> "BaseDistribution":
    """Return the range that was searched as Optuna has it; without a range a choice among texts."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    low, high, step = searched.low, searched.high, searched.step
    if low is None or high is None:
        choices = searched.choices or values
        return CategoricalDistribution(sorted({choice_text(value) for value in choices}))
    ends_whole = low.is_integer() and high.is_integer()
    if step is None and ends_whole and not searched.log and (values.astype(float) % 1 == 0).all():
        step = 1.0
    return FloatDistribution(low, high, log=searched.log, step=step)


def optuna_parameters(
    trials: pd.DataFrame, kinds: "Mapping[str, BaseDistribution]"
) -> list[dict[str, float | str]]:
    """Return the parameters of every trial, as their distributions take them."""
    from optuna.distributions import CategoricalDistribution

    columns = {}
    for name, kind in kinds.items():
        of_choice = isinstance(kind, CategoricalDistribution)
        columns[name] = trials[name].map(choice_text) if of_choice else trials[name].astype(float)
    rows: list[Any] = pd.DataFrame(columns, columns=list(kinds)).to_dict("records")
    return rows


def ped_anova(
    parameters: Sequence[Mapping[str, float | str]],
    losses: np.ndarray,
    kinds: "Mapping[str, BaseDistribution]",
) -> list[float]:
    """Return the share of importance of every parameter; shares add up to 1."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.trial import create_trial

    with _quiet_optuna():
        study = optuna.create_study()
        for row, loss in zip(parameters, losses, strict=True):
            trial = create_trial(params=dict(row), distributions=dict(kinds), value=float(loss))
            study.add_trial(trial)
        evaluator = PedAnovaImportanceEvaluator(target_quantile=TOP)
        found = evaluator.evaluate(study, params=list(kinds))
    total = sum(found.values())
    return [found[name] / total if total else 1 / len(kinds) for name in kinds]


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep Optuna from announcing every study that is made in memory."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a resample may have but one value of a parameter
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def choice_text(value: object) -> str:
    """Return a choice as text: the same whether pandas has made a float of it, or NaN of None."""
    if text.absent(value):
        return "none"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{float(value):.12g}"
    return str(value)


def draw_importances(shares: pd.DataFrame) -> VegaSpec:
    """Return a bar per parameter, the range over the resamples across it."""
    rows = shares.assign(told=shares["share"].map(text.percent))
    order = list(rows["parameter"])
    scale = alt.Scale(domain=[0, 1], nice=False)
    axis = alt.Axis(format="%", tickCount=marks.FEW)
    title = "share of importance"
    x_share, x_low = (
        alt.X(f"{key}:Q", scale=scale, title=title, axis=axis) for key in ("share", "low")
    )
    y = alt.Y("parameter:N", title=None, sort=order, axis=alt.Axis(labelLimit=160, ticks=False))
    titles = {
        "parameter:N": "parameter",
        "share:Q|.0%": "share",
        "low:Q|.0%": "resampled from",
        "high:Q|.0%": "to",
        "n:Q": "trials",
    }
    base = alt.Chart(marks.inline_data(rows)).encode(y=y)
    bar = base.mark_bar(color=theme.css_color("arm-1"), opacity=0.55, size=22)
    spread = base.mark_rule(strokeWidth=2, color=theme.css_color("ink"))
    layered = alt.layer(
        bar.encode(x=x_share, tooltip=marks.tooltips(titles)),
        spread.encode(x=x_low, x2="high:Q"),
    )
    return marks.finish_chart(
        layered, 44 * len(order) + 10, "Share of importance of every parameter, with its spread."
    )
