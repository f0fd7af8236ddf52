"""The figures of a sweep: its history and a slice along every parameter."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import data, finish, near, tooltip


def history(trials: pd.DataFrame) -> dict[str, Any]:
    """Every trial's loss in order, and the best so far.

    Args:
        trials: of `summaries.sweep_trials`; trials without a loss are not drawn.
    """
    drawn = _drawn(trials)
    best = drawn.sort_values("trial").assign(best=lambda t: t["loss"].where(t["ok"]).cummin())[
        ["trial", "best"]
    ]
    x = alt.X("trial:Q", title="trial", axis=alt.Axis(format="d", tickMinStep=1, grid=False))
    y = alt.Y("shown:Q", title="loss on the tune part (nats)", scale=_scale(drawn))
    steps = alt.Chart(data(best.dropna())).mark_line(
        interpolate="step-after", strokeWidth=2, color=theme.var("arm-2")
    )
    layers = [steps.encode(x=x, y=alt.Y("best:Q", title="loss on the tune part (nats)"))]
    return finish(
        alt.layer(*layers, _dots(drawn).encode(x=x, y=y)),
        300,
        "Loss of every trial, and the best so far.",
    )


def piece(trials: pd.DataFrame, name: str, log: bool) -> dict[str, Any]:
    """Every trial's loss over one parameter, later trials darker.

    Args:
        trials: of `summaries.sweep_trials`.
        name: dotted name of the parameter.
        log: whether its axis is logarithmic.
    """
    drawn = _drawn(trials).assign(value=trials[name])
    y = alt.Y("shown:Q", title="loss on the tune part (nats)", scale=_scale(drawn))
    if pd.api.types.is_numeric_dtype(drawn["value"]) and not pd.api.types.is_bool_dtype(
        drawn["value"]
    ):
        scale = (
            alt.Scale(type="log", nice=False, padding=16)
            if log
            else alt.Scale(zero=False, padding=16)
        )
        x = alt.X(
            "value:Q",
            title=name,
            scale=scale,
            axis=alt.Axis(format="~r", grid=False, tickCount=marks.FEW),
        )
    else:
        drawn["value"] = drawn["value"].astype(str)
        x = alt.X("value:N", title=name, axis=alt.Axis(grid=False, labelAngle=0))
    opacity = alt.Opacity("trial:Q", scale=alt.Scale(range=[0.35, 1]), legend=None)
    return finish(
        _dots(drawn, name).encode(x=x, y=y, opacity=opacity),
        260,
        f"Loss of every trial over {name}.",
    )


def logarithmic(trials: pd.DataFrame, name: str, space: dict[str, Any]) -> bool:
    """Whether the sweep searched this parameter on a log scale."""
    asked = space.get(name)
    values = trials[name]
    positive = pd.api.types.is_numeric_dtype(values) and bool((values > 0).all())
    return positive and bool(isinstance(asked, dict) and asked.get("log"))


def _drawn(trials: pd.DataFrame) -> pd.DataFrame:
    """What can be drawn: a trial that did not train stands at the upper edge, its value in the
    tooltip.
    """
    drawn = trials.dropna(subset=["loss"]).copy()
    good = drawn["loss"][drawn["ok"]]
    drawn["shown"] = drawn["loss"].clip(upper=_edge(good)) if len(good) else drawn["loss"]
    return drawn


def _edge(good: pd.Series) -> float:
    return near(float(good.min()), float(good.max()), 0.12)[1]


def _scale(drawn: pd.DataFrame) -> Any:
    low = float(drawn["shown"].min()) if len(drawn) else 0.0
    high = float(drawn["shown"].max()) if len(drawn) else 1.0
    return alt.Scale(domain=near(low, high, 0.05), nice=False, zero=False)


def _dots(drawn: pd.DataFrame, name: str | None = None) -> Any:
    words = {"trial:Q": "trial", "loss:Q|.4f": "loss", "outcome:N": "outcome"}
    keys = ["trial", "loss", "shown", "outcome"]
    if name is not None:
        words["value:N"] = name.replace(".", " ")
        keys.append("value")
    dots = alt.Chart(data(drawn[keys].replace([np.inf], np.nan)))
    drawn_as = dots.mark_point(size=70, strokeWidth=2, color=theme.var("arm-1"))
    return drawn_as.encode(shape=marks.states("outcome"), tooltip=tooltip(words))
