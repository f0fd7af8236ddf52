"""The learning-rate figure: every trial's loss over its rate, the fitted parabolas, the chosen rates."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis import marks, theme
from andrea.analysis.marks import VISIBLE, color, dash, data, fill, finish, near, near_log, tooltip

COMPRESSED = "↑ axis compressed"
"""What the figure says where its axis bends."""


def learning_rates(trials: pd.DataFrame, choices: Mapping[str, Any], arms: Sequence[str]) -> dict[str, Any]:
    """Every trial's loss over its learning rate, the parabola and the chosen rate.

    Args:
        trials: `Study.trials` of the arms; trials without a score are not drawn.
        choices: `Study.choices`.
        arms: in the order of colours.
    """
    points = trials[trials["arm"].isin(arms)].dropna(subset=["score", "lr"]).copy()
    points["state"] = points["outcome"].where(~points["stalled"], "stalled")
    fits, chosen = _fits(choices, arms)
    good = pd.concat([points[points["ok"]]["score"], fits["score"], chosen["score"]]).dropna()
    scale = alt.Scale(type="log", nice=False, domain=near_log(points["lr"].min(), points["lr"].max()))
    x = alt.X("lr:Q", title="peak learning rate", scale=scale, axis=_rates(points))
    y, bend = _loss_or_initial(good, points[~points["ok"]]["score"])
    layers = [] if bend is None else _bend(bend, y)
    if not fits.empty:
        curve = alt.Chart(data(fits)).transform_filter(VISIBLE).mark_line(strokeWidth=2, opacity=0.8)
        layers.append(curve.encode(x=x, y=y, color=color(arms), strokeDash=dash(arms)))
    layers.append(_trials(points, arms).encode(x=x, y=y))
    if not chosen.empty:
        layers += _chosen(chosen, x, y, arms)
    return finish(alt.layer(*layers), 340, "Loss on the tune part over the learning rate, for every arm.")


def _trials(points: pd.DataFrame, arms: Sequence[str]) -> Any:
    words = {
        "arm:N": "arm",
        "lr:Q|~r": "learning rate",
        "score:Q|.4f": "loss (tune part)",
        "state:N": "outcome",
        "why:N": "why tried",
    }
    drawn = points[["arm", "lr", "score", "state", "why"]]
    dots = alt.Chart(data(drawn)).transform_filter(VISIBLE).mark_point(size=70, strokeWidth=2, filled=False)
    return dots.encode(color=color(arms), shape=marks.states(), tooltip=tooltip(words))


def _chosen(chosen: pd.DataFrame, x: Any, y: Any, arms: Sequence[str]) -> list[Any]:
    vertex = alt.Chart(data(chosen)).transform_filter(VISIBLE)
    words = {"arm:N": "arm", "lr:Q|~r": "chosen rate", "score:Q|.4f": "fitted loss", "method:N": "how"}
    diamond = vertex.mark_point(size=330, shape="diamond", filled=True, stroke=theme.var("paper"), strokeWidth=2)
    return [
        vertex.mark_rule(strokeDash=[3, 3], strokeWidth=1.5).encode(x=x, color=color(arms)),
        diamond.encode(x=x, y=y, fill=fill(arms), tooltip=tooltip(words)),
    ]


def _fits(choices: Mapping[str, Any], arms: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Parabolas sampled over the span of the rates they were fitted to, and the chosen rates upon them."""
    fits, chosen = [], []
    for arm in arms:
        choice = choices.get(arm) or {}
        lr, vertex = choice.get("lr"), choice.get("method") == "vertex"
        fit: Any = choice.get("fit")
        if vertex:
            x = np.linspace(np.log10(min(fit["lrs"])), np.log10(max(fit["lrs"])), 60)
            fits.append(pd.DataFrame({"arm": arm, "lr": 10**x, "score": parabola(fit["coefficients"], x)}))
        if lr is not None:
            at = [p["loss"] for p in choice.get("points") or [] if p.get("ok") and np.isclose(p["lr"], lr)]
            score = float(parabola(fit["coefficients"], np.log10(lr))) if vertex else min(at, default=np.nan)
            chosen.append({"arm": arm, "lr": lr, "score": score, "method": choice.get("method") or ""})
    empty = pd.DataFrame(columns=["arm", "lr", "score", "method"])
    return pd.concat(fits) if fits else empty, pd.DataFrame(chosen) if chosen else empty


def parabola(coefficients: Sequence[float], x: Any) -> Any:
    """c₀ + c₁ x + c₂ x², x = log₁₀ of the rate."""
    return coefficients[0] + coefficients[1] * x + coefficients[2] * x**2


def _rates(points: pd.DataFrame) -> Any:
    values = sorted(set(points["lr"].round(12)))
    return alt.Axis(values=values, format="~r", labelOverlap="greedy", grid=False, labelSeparation=6)


def _loss_or_initial(good: pd.Series, failed: pd.Series) -> tuple[Any, float | None]:
    """A loss axis, and where it is bent. Trials that did not train stand at the loss of initialisation, far above the
    rest: from the bend on the axis is compressed, so that the differences between the others stay visible."""
    title = "loss on the tune part (nats)"
    if good.empty or failed.empty or failed.max() < good.max() + 2 * (good.max() - good.min()):
        both = pd.concat([good, failed])
        domain = near(both.min(), both.max()) if len(both) else [0.0, 1.0]
        return alt.Y("score:Q", title=title, scale=alt.Scale(domain=domain, nice=False, zero=False)), None
    low, bend = near(good.min(), good.max(), 0.1)
    top = near(bend, failed.max(), 0.12)[1]
    scale = alt.Scale(
        domain=[low, bend, top], range=[alt.ExprRef("height"), alt.ExprRef("0.2 * height"), 0], nice=False, zero=False
    )
    values = [*marks.ticks(low, bend), *sorted(set(failed.round(2)))]
    return alt.Y(
        "score:Q", title=title, scale=scale, axis=alt.Axis(values=values, format=".4~g", labelOverlap=False)
    ), bend


def _bend(at: float, y: Any) -> list[Any]:
    base = alt.Chart(data(pd.DataFrame({"score": [at]})))
    said = base.mark_text(align="right", baseline="bottom", dy=-4, color=theme.var("muted"), fontSize=11)
    return [
        base.mark_rule(strokeDash=[2, 3]).encode(y=y),
        said.encode(x=alt.value("width"), y=y, text=alt.value(COMPRESSED)),
    ]
