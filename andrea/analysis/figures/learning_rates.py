"""The learning-rate figure: every trial's loss over its rate, the fitted parabolas, the chosen
rates.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import Layer, VegaSpec, chart_of_visible, tooltips
from andrea.records.study import Choice

LEAST = 0.02
"""Nats that the axis of the loss spans at least: below that it would show the noise of one run."""
FAILED = "loss at init"
"""The tick above the dashed line, where runs stand that did not train."""


class LossLevels(NamedTuple):
    """Heights on the axis of the loss, nats."""

    low: float
    """Lower end of the axis."""
    bend: float
    """The dashed line above all that trained."""
    top: float
    """Upper end. The strip above the line has no scale: at its value, the loss of initialisation, a
    run that did not train would press the rest together.
    """


class LearningRatePlot(NamedTuple):
    """All that the figure draws."""

    trials: pd.DataFrame
    """`Study.trials` with a score, and state (outcome or stalled) and drawn (height)."""
    parabolas: pd.DataFrame
    """arm, lr, drawn: samples of what was fitted."""
    chosen: pd.DataFrame
    """arm, lr, drawn, method: an arm's chosen rate."""
    failed_arms: list[str]
    """Arms with a run that did not train."""
    levels: LossLevels


def draw_learning_rates(
    trials: pd.DataFrame, choices: Mapping[str, Choice], arms: Sequence[str]
) -> VegaSpec:
    """Return every trial's loss over its learning rate, the parabola and the chosen rate.

    Args:
        trials: `Study.trials` of the arms, at least one of them good; trials without a score are
            not drawn.
        choices: `Study.choices`.
        arms: in the order of colours.
    """
    plot = _prepare_plot(trials, choices, arms)
    # Midpoints are each arm's own: their rates are in the tooltips, not at the ticks.
    common_grid = plot.trials[plot.trials["why"] != "midpoint"]["lr"].round(12)
    x = marks.rate_axis(common_grid, plot.trials["lr"], "peak learning rate")
    y = _loss_axis(plot.levels, len(plot.failed_arms))
    color = marks.arm_color(arms)
    layers = []
    if plot.failed_arms:
        line = alt.Chart(marks.inline_data(pd.DataFrame({"drawn": [plot.levels.bend]})))
        layers.append(line.mark_rule(strokeDash=[2, 3]).encode(y=y))
    if not plot.parabolas.empty:
        curve = chart_of_visible(plot.parabolas).mark_line(strokeWidth=2, opacity=0.8)
        layers.append(curve.encode(x=x, y=y, color=color, strokeDash=marks.arm_dash(arms)))
    layers.append(_trial_dots(plot.trials).encode(x=x, y=y, color=color))
    if not plot.chosen.empty:
        layers += _chosen_rates(plot.chosen, x, y, arms)
    return marks.finish_chart(
        alt.layer(*layers), 340, "Loss on the tune part over the learning rate, for every arm."
    )


def _prepare_plot(
    trials: pd.DataFrame, choices: Mapping[str, Choice], arms: Sequence[str]
) -> LearningRatePlot:
    points = trials[trials["arm"].isin(arms)].dropna(subset=["score", "lr"]).copy()
    points["state"] = points["outcome"].where(~points["stalled"], "stalled")
    points["drawn"] = points["score"]
    parabolas, chosen = _sample_fits(choices, arms)
    good = pd.concat([points[points["ok"]]["score"], parabolas["drawn"], chosen["drawn"]]).dropna()
    levels = _loss_levels(good)
    failed = ~points["ok"]
    failed_arms = [arm for arm in arms if arm in set(points[failed]["arm"])]
    # A row for each arm: at one rate several arms may have failed.
    for row, arm in enumerate(reversed(failed_arms), start=1):
        height = levels.bend + (levels.top - levels.bend) * row / (len(failed_arms) + 1)
        points.loc[failed & (points["arm"] == arm), "drawn"] = height
    return LearningRatePlot(points, parabolas, chosen, failed_arms, levels)


def _sample_fits(
    choices: Mapping[str, Choice], arms: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return parabolas sampled over the span of the rates they were fitted to, and the chosen rates
    upon them.
    """
    parabolas, chosen = [], []
    for arm in arms:
        choice = choices.get(arm, Choice())
        fit = choice.fit if choice.method == "vertex" else None
        if fit is not None:
            x = np.linspace(np.log10(min(fit.lrs)), np.log10(max(fit.lrs)), 60)
            drawn = parabola(fit.coefficients, x)
            parabolas.append(pd.DataFrame({"arm": arm, "lr": 10**x, "drawn": drawn}))
        if choice.lr is not None:
            loss = _chosen_loss(choice, choice.lr)
            chosen.append((arm, choice.lr, loss, choice.method or ""))
    columns = ["arm", "lr", "drawn", "method"]
    fitted = pd.concat(parabolas) if parabolas else pd.DataFrame(columns=columns)
    return fitted, pd.DataFrame(chosen, columns=columns)


def _chosen_loss(choice: Choice, lr: float) -> float:
    """Return the loss at the chosen rate: fitted, else measured; NaN where it is neither."""
    if choice.method == "vertex" and choice.fit is not None:
        return float(parabola(choice.fit.coefficients, np.log10(lr)))
    measured = [point.loss for point in choice.points if point.ok and np.isclose(point.lr, lr)]
    return min(measured, default=np.nan)


def parabola(coefficients: Sequence[float], x: Any) -> Any:
    """Return c₀ + c₁ x + c₂ x², x = log₁₀ of the rate."""
    return coefficients[0] + coefficients[1] * x + coefficients[2] * x**2


def _loss_levels(good: pd.Series) -> LossLevels:
    middle = (good.max() + good.min()) / 2
    half = max((good.max() - good.min()) / 2, LEAST / 2)
    low, bend = marks.padded_domain(middle - half, middle + half, 0.1)
    return LossLevels(low, bend, 2 * bend - low)


def _loss_axis(levels: LossLevels, n_failed: int) -> alt.Y:
    """Return the axis of the loss, with a strip above for the rows of that many arms with runs that
    did not train.
    """
    title = "loss on the tune part (nats)"
    low, bend, top = levels
    if not n_failed:
        scale = alt.Scale(domain=[low, bend], nice=False, zero=False)
        return alt.Y("drawn:Q", title=title, scale=scale)
    strip = alt.ExprRef(f"{0.12 + 0.04 * min(n_failed, 6):g} * height")
    scale = alt.Scale(
        domain=[low, bend, top], range=[alt.ExprRef("height"), strip, 0], nice=False, zero=False
    )
    label = f"datum.value > {bend} ? '{FAILED}' : format(datum.value, '.4~g')"
    values = [*marks.round_ticks(low, bend), (bend + top) / 2]
    axis = alt.Axis(values=values, labelExpr=label, labelOverlap=False)
    return alt.Y("drawn:Q", title=title, scale=scale, axis=axis)


def _trial_dots(trials: pd.DataFrame) -> Layer:
    titles = {
        "arm:N": "arm",
        "lr:Q|~r": "learning rate",
        "score:Q|.4f": "loss (tune part)",
        "state:N": "outcome",
        "why:N": "why tried",
    }
    columns = ["arm", "lr", "score", "drawn", "state", "why"]
    dots = chart_of_visible(trials[columns]).mark_point(size=70, strokeWidth=2, filled=False)
    return dots.encode(shape=marks.outcome_shape(), tooltip=tooltips(titles))


def _chosen_rates(chosen: pd.DataFrame, x: alt.X, y: alt.Y, arms: Sequence[str]) -> list[Layer]:
    vertex = chart_of_visible(chosen)
    titles = {
        "arm:N": "arm",
        "lr:Q|~r": "chosen rate",
        "drawn:Q|.4f": "fitted loss",
        "method:N": "how",
    }
    rule = vertex.mark_rule(strokeDash=[3, 3], strokeWidth=1.5)
    diamond = vertex.mark_point(
        size=330, shape="diamond", filled=True, stroke=theme.css_color("paper"), strokeWidth=2
    )
    return [
        rule.encode(x=x, color=marks.arm_color(arms)),
        diamond.encode(x=x, y=y, fill=marks.arm_fill(arms), tooltip=tooltips(titles)),
    ]
