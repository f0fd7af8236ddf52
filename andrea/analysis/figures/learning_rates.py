"""The learning-rate figure: every trial's loss over its rate, the fitted parabolas, the chosen
rates.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import (
    VISIBLE,
    color,
    dash,
    data,
    fill,
    finish,
    near,
    near_log,
    tooltip,
)
from andrea.records.study import Choice

LEAST = 0.02
"""Nats that the axis of the loss spans at least: below that it would show the noise of one run."""
FAILED = "loss at init"
"""The tick above the dashed line, where runs stand that did not train."""


def learning_rates(
    trials: pd.DataFrame, choices: Mapping[str, Choice], arms: Sequence[str]
) -> dict[str, Any]:
    """Every trial's loss over its learning rate, the parabola and the chosen rate.

    Args:
        trials: `Study.trials` of the arms, at least one of them good; trials without a score are
            not drawn.
        choices: `Study.choices`.
        arms: in the order of colours.
    """
    points = trials[trials["arm"].isin(arms)].dropna(subset=["score", "lr"]).copy()
    points["state"] = points["outcome"].where(~points["stalled"], "stalled")
    fits, chosen = _fits(choices, arms)
    good = pd.concat([points[points["ok"]]["score"], fits["drawn"], chosen["drawn"]]).dropna()
    scale = alt.Scale(
        type="log", nice=False, domain=near_log(points["lr"].min(), points["lr"].max())
    )
    x = alt.X("lr:Q", title="peak learning rate", scale=scale, axis=_rates(points))
    failed = [arm for arm in arms if arm in set(points[~points["ok"]]["arm"])]
    low, bend, top = _levels(good)
    y = _loss(low, bend, top, len(failed))
    points["drawn"] = points["score"]
    for i, arm in enumerate(
        reversed(failed)
    ):  # a row each: at one rate several arms may have failed
        points.loc[~points["ok"] & (points["arm"] == arm), "drawn"] = bend + (top - bend) * (
            i + 1
        ) / (len(failed) + 1)
    dashed = (
        alt.Chart(data(pd.DataFrame({"drawn": [bend]}))).mark_rule(strokeDash=[2, 3]).encode(y=y)
    )
    layers = [dashed] if failed else []
    if not fits.empty:
        curve = (
            alt.Chart(data(fits)).transform_filter(VISIBLE).mark_line(strokeWidth=2, opacity=0.8)
        )
        layers.append(curve.encode(x=x, y=y, color=color(arms), strokeDash=dash(arms)))
    layers.append(_trials(points, arms).encode(x=x, y=y))
    if not chosen.empty:
        layers += _chosen(chosen, x, y, arms)
    return finish(
        alt.layer(*layers), 340, "Loss on the tune part over the learning rate, for every arm."
    )


def _trials(points: pd.DataFrame, arms: Sequence[str]) -> Any:
    words = {
        "arm:N": "arm",
        "lr:Q|~r": "learning rate",
        "score:Q|.4f": "loss (tune part)",
        "state:N": "outcome",
        "why:N": "why tried",
    }
    drawn = points[["arm", "lr", "score", "drawn", "state", "why"]]
    dots = (
        alt.Chart(data(drawn))
        .transform_filter(VISIBLE)
        .mark_point(size=70, strokeWidth=2, filled=False)
    )
    return dots.encode(color=color(arms), shape=marks.states(), tooltip=tooltip(words))


def _chosen(chosen: pd.DataFrame, x: Any, y: Any, arms: Sequence[str]) -> list[Any]:
    vertex = alt.Chart(data(chosen)).transform_filter(VISIBLE)
    words = {
        "arm:N": "arm",
        "lr:Q|~r": "chosen rate",
        "drawn:Q|.4f": "fitted loss",
        "method:N": "how",
    }
    diamond = vertex.mark_point(
        size=330, shape="diamond", filled=True, stroke=theme.var("paper"), strokeWidth=2
    )
    return [
        vertex.mark_rule(strokeDash=[3, 3], strokeWidth=1.5).encode(x=x, color=color(arms)),
        diamond.encode(x=x, y=y, fill=fill(arms), tooltip=tooltip(words)),
    ]


def _fits(choices: Mapping[str, Choice], arms: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Parabolas sampled over the span of the rates they were fitted to, and the chosen rates upon
    them.
    """
    fits, chosen = [], []
    for arm in arms:
        choice = choices.get(arm, Choice())
        lr, fit = choice.lr, choice.fit if choice.method == "vertex" else None
        if fit is not None:
            x = np.linspace(np.log10(min(fit.lrs)), np.log10(max(fit.lrs)), 60)
            drawn = parabola(fit.coefficients, x)
            fits.append(pd.DataFrame({"arm": arm, "lr": 10**x, "drawn": drawn}))
        if lr is not None:
            measured = [p.loss for p in choice.points if p.ok and np.isclose(p.lr, lr)]
            loss = min(measured, default=np.nan)
            if fit is not None:
                loss = float(parabola(fit.coefficients, np.log10(lr)))
            chosen.append({"arm": arm, "lr": lr, "drawn": loss, "method": choice.method or ""})
    empty = pd.DataFrame(columns=["arm", "lr", "drawn", "method"])
    return pd.concat(fits) if fits else empty, pd.DataFrame(chosen) if chosen else empty


def parabola(coefficients: Sequence[float], x: Any) -> Any:
    """c₀ + c₁ x + c₂ x², x = log₁₀ of the rate."""
    return coefficients[0] + coefficients[1] * x + coefficients[2] * x**2


def _rates(points: pd.DataFrame) -> Any:
    """Ticks at the common grid; midpoints, each arm's own, are in the tooltips."""
    values = sorted(set(points[points["why"] != "midpoint"]["lr"].round(12)))
    return alt.Axis(
        values=values, format="~r", labelOverlap="greedy", grid=False, labelSeparation=12
    )


def _levels(good: pd.Series) -> tuple[float, float, float]:
    """Lower end of the axis, the dashed line above what trained, and the upper end, which has no
    scale: what did not train would press the rest together if it stood at its value, the loss of
    initialisation.
    """
    middle, half = (good.max() + good.min()) / 2, max((good.max() - good.min()) / 2, LEAST / 2)
    low, bend = near(middle - half, middle + half, 0.1)
    return low, bend, 2 * bend - low


def _loss(low: float, bend: float, top: float, failed: int) -> Any:
    """The axis of the loss, with a strip above for the rows of that many arms with runs that did
    not train.
    """
    title = "loss on the tune part (nats)"
    if not failed:
        return alt.Y(
            "drawn:Q", title=title, scale=alt.Scale(domain=[low, bend], nice=False, zero=False)
        )
    strip = alt.ExprRef(f"{0.12 + 0.04 * min(failed, 6):g} * height")
    scale = alt.Scale(
        domain=[low, bend, top], range=[alt.ExprRef("height"), strip, 0], nice=False, zero=False
    )
    label = f"datum.value > {bend} ? '{FAILED}' : format(datum.value, '.4~g')"
    values = [*marks.ticks(low, bend), (bend + top) / 2]
    return alt.Y(
        "drawn:Q",
        title=title,
        scale=scale,
        axis=alt.Axis(values=values, labelExpr=label, labelOverlap=False),
    )
