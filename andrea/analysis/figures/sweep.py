"""The figures of a sweep: its history and a slice along every parameter."""

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import Layer, VegaSpec, tooltips
from andrea.records.study import SearchedRange

LOSS_TITLE = "loss on the tune part (nats)"


def draw_history(trials: pd.DataFrame) -> VegaSpec:
    """Return every trial's loss in order, and the best so far.

    Args:
        trials: of `summaries.sweep_trials`; trials without a loss are not drawn.
    """
    drawn = _drawn_trials(trials).sort_values("trial")
    best = drawn[["trial"]].assign(best=drawn["loss"].where(drawn["ok"]).cummin()).dropna()
    x = alt.X("trial:Q", title="trial", axis=alt.Axis(format="d", tickMinStep=1, grid=False))
    steps = alt.Chart(marks.inline_data(best)).mark_line(
        interpolate="step-after", strokeWidth=2, color=theme.css_color("arm-2")
    )
    layered = alt.layer(
        steps.encode(x=x, y=alt.Y("best:Q", title=LOSS_TITLE)),
        _trial_dots(drawn, {}).encode(x=x, y=_loss_axis(drawn)),
    )
    return marks.finish_chart(layered, 300, "Loss of every trial, and the best so far.")


def draw_slice(trials: pd.DataFrame, name: str, log: bool) -> VegaSpec:
    """Return every trial's loss over one parameter, later trials darker.

    Args:
        trials: of `summaries.sweep_trials`.
        name: dotted name of the parameter.
        log: its axis is logarithmic.
    """
    drawn = _drawn_trials(trials).assign(value=trials[name])
    if marks.is_number_column(drawn["value"]):
        kind = {"type": "log", "nice": False} if log else {"zero": False}
        axis = alt.Axis(format="~r", grid=False, tickCount=marks.FEW)
        x = alt.X("value:Q", title=name, scale=alt.Scale(padding=16, **kind), axis=axis)
    else:
        drawn["value"] = drawn["value"].astype(str)
        x = alt.X("value:N", title=name, axis=alt.Axis(grid=False, labelAngle=0))
    opacity = alt.Opacity("trial:Q", scale=alt.Scale(range=[0.35, 1]), legend=None)
    dots = _trial_dots(drawn, {"value:N": name.replace(".", " ")})
    chart = dots.encode(x=x, y=_loss_axis(drawn), opacity=opacity)
    return marks.finish_chart(chart, 260, f"Loss of every trial over {name}.")


def searched_on_log_scale(
    trials: pd.DataFrame, name: str, space: Mapping[str, SearchedRange]
) -> bool:
    """Return whether the sweep searched this parameter on a log scale."""
    values = trials[name]
    positive = pd.api.types.is_numeric_dtype(values) and bool((values > 0).all())
    return positive and space.get(name, SearchedRange()).log


def _drawn_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with a loss, and `shown`, their height: a trial that did not train stands
    at the upper edge, its value in the tooltip.
    """
    drawn = trials.dropna(subset=["loss"]).copy()
    good = drawn["loss"][drawn["ok"]]
    drawn["shown"] = drawn["loss"]
    if len(good):
        _, edge = marks.padded_domain(float(good.min()), float(good.max()), 0.12)
        drawn["shown"] = drawn["loss"].clip(upper=edge)
    return drawn


def _loss_axis(drawn: pd.DataFrame) -> alt.Y:
    low, high = (drawn["shown"].min(), drawn["shown"].max()) if len(drawn) else (0.0, 1.0)
    domain = marks.padded_domain(float(low), float(high), 0.05)
    scale = alt.Scale(domain=domain, nice=False, zero=False)
    return alt.Y("shown:Q", title=LOSS_TITLE, scale=scale)


def _trial_dots(drawn: pd.DataFrame, more_titles: Mapping[str, str]) -> Layer:
    titles = {"trial:Q": "trial", "loss:Q|.4f": "loss", "outcome:N": "outcome", **more_titles}
    columns = ["trial", "loss", "shown", "outcome", *(key.split(":")[0] for key in more_titles)]
    finite = drawn[columns].replace([np.inf], np.nan)
    dots = alt.Chart(marks.inline_data(finite)).mark_point(
        size=70, strokeWidth=2, color=theme.css_color("arm-1")
    )
    return dots.encode(shape=marks.outcome_shape("outcome"), tooltip=tooltips(titles))
