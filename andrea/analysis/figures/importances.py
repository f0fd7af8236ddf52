"""Which parameters of a sweep its loss depended on: PED-ANOVA of the finished trials, and the
figure of it.

PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255; Optuna's implementation) compares where a
parameter's values lie in the best quarter of the trials with where they lie in all of them: where
the two agree the parameter did not matter. Only ranks of losses enter, so it makes no difference
with which loss a trial counts that did not train. Nothing is drawn at random but the resamples,
whose generator is seeded.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
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


def why_not(trials: pd.DataFrame, names: Sequence[str]) -> str:
    """Return why there is no importance of parameters; empty where there is one."""
    done = int(trials["loss"].notna().sum())
    if len(names) < 2:
        return "Parameter importance needs two parameters"
    if not trials["ok"].any():
        return "Parameter importance needs a trial that trained"
    if done < FEWEST:
        return f"Parameter importance needs {FEWEST} finished trials; there are {done}"
    return ""


def importances(
    trials: pd.DataFrame, names: Sequence[str], space: Mapping[str, Any]
) -> pd.DataFrame:
    """Shares of importance, the largest first.

    Args:
        trials: of `summaries.trial_values`, of which `why_not` says nothing.
        names: the parameters.
        space: what the sweep searched: by name low, high, log, step, or choices.

    Returns:
        parameter, share (of the sum over the parameters), low and high (central 95 % of the shares
        over resampled
        trials: how much the share hangs on these trials), n (finished trials), good (those that
            trained), best (those
        compared).
    """
    done = trials[trials["loss"].notna()].reset_index(drop=True)
    kinds = {name: _distribution(done[name], space.get(name)) for name in names}
    rows = [
        {name: _value(row[name], kinds[name]) for name in names} for row in done.to_dict("records")
    ]
    losses = done["loss"].to_numpy(dtype="float64")
    shares = _shares(rows, losses, kinds)
    draw = np.random.default_rng(0)
    spread = []
    for _ in range(RESAMPLES):
        at = draw.integers(0, len(rows), len(rows))
        spread.append(_shares([rows[i] for i in at], losses[at], kinds))
    low, high = np.quantile(np.array(spread), [0.025, 0.975], axis=0)
    table = pd.DataFrame({"parameter": list(names), "share": shares, "low": low, "high": high})
    counted = {"n": len(done), "good": int(done["ok"].sum()), "best": int(np.ceil(TOP * len(done)))}
    return (
        table.assign(**counted)
        .sort_values("share", ascending=False, kind="stable")
        .reset_index(drop=True)
    )


def _shares(
    rows: Sequence[Mapping[str, Any]], losses: Any, kinds: "Mapping[str, BaseDistribution]"
) -> list[float]:
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.trial import create_trial

    said = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(
        optuna.logging.ERROR
    )  # it announces every study that is made in memory
    try:
        study = optuna.create_study()
        pairs = zip(rows, losses, strict=True)
        study.add_trials(
            [
                create_trial(params=dict(row), distributions=dict(kinds), value=float(loss))
                for row, loss in pairs
            ]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a resample may have but one value of a parameter
            found = PedAnovaImportanceEvaluator(target_quantile=TOP).evaluate(
                study, params=list(kinds)
            )
    finally:
        optuna.logging.set_verbosity(said)
    total = sum(found.values())
    return [found[name] / total if total else 1 / len(kinds) for name in kinds]


def _distribution(values: pd.Series, asked: Any) -> "BaseDistribution":
    """The range that was searched as Optuna has it; what is no range is a choice, by its text."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    told = asked if isinstance(asked, dict) else {}
    if told.get("low") is None or told.get("high") is None:
        return CategoricalDistribution(
            sorted({choice(value) for value in told.get("choices") or values})
        )
    low, high, step = float(told["low"]), float(told["high"]), told.get("step")
    whole = low.is_integer() and high.is_integer() and bool((values.astype(float) % 1 == 0).all())
    if step is None and whole and not told.get("log"):
        step = 1
    return FloatDistribution(
        low, high, log=bool(told.get("log")), step=None if step is None else float(step)
    )


def _value(value: Any, kind: "BaseDistribution") -> Any:
    from optuna.distributions import CategoricalDistribution

    return choice(value) if isinstance(kind, CategoricalDistribution) else float(value)


def choice(value: Any) -> str:
    """A choice by its text: the same whether pandas has made a float of it, or NaN of nothing."""
    if text.absent(value):
        return "none"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{float(value):.12g}" if number else str(value)


def bars(table: pd.DataFrame) -> dict[str, Any]:
    """A bar per parameter, the range over the resamples across it."""
    shown = table.assign(told=[text.percent(share) for share in table["share"]])
    order = list(table["parameter"])
    x: dict[str, Any] = {
        "scale": alt.Scale(domain=[0, 1], nice=False),
        "title": "share of importance",
    }
    axis = alt.Axis(format="%", tickCount=marks.FEW)
    y = alt.Y("parameter:N", title=None, sort=order, axis=alt.Axis(labelLimit=160, ticks=False))
    words = {
        "parameter:N": "parameter",
        "share:Q|.0%": "share",
        "low:Q|.0%": "resampled from",
        "high:Q|.0%": "to",
        "n:Q": "trials",
    }
    base = alt.Chart(marks.data(shown)).encode(y=y)
    bar = base.mark_bar(color=theme.var("arm-1"), opacity=0.55, size=22)
    rule = base.mark_rule(strokeWidth=2, color=theme.var("ink"))
    layered = alt.layer(
        bar.encode(x=alt.X("share:Q", axis=axis, **x), tooltip=marks.tooltip(words)),
        rule.encode(x=alt.X("low:Q", axis=axis, **x), x2="high:Q"),
    )
    return marks.finish(
        layered, 44 * len(order) + 10, "Share of importance of every parameter, with its spread."
    )
