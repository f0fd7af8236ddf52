"""All parameters of a sweep at once: a line per trial across one axis per parameter, and the two
that matter most.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.importances import TOP, choice
from andrea.analysis.figures.marks import VISIBLE, data, finish, tooltip
from andrea.analysis.figures.sweep import logarithmic
from andrea.text import numbers as text

BEST, REST, LOST = "best quarter", "other trials", "did not train"
GROUPS = {BEST: "arm-2", REST: "arm-1", LOST: "muted"}
"""Trials by what became of them, with their colours; the legend's buttons hide them."""
TICKS = 5
LOSS = "loss"


def groups(trials: pd.DataFrame) -> pd.Series:
    """For every trial with a loss the group it is drawn in; the best quarter is that of all
    finished trials.
    """
    done = trials[trials["loss"].notna()]
    rank = done["loss"].where(done["ok"]).rank(method="first")
    told = np.where(rank <= np.ceil(TOP * len(done)), BEST, REST)
    return pd.Series(np.where(done["ok"], told, LOST), index=done.index)


def legend(trials: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Groups that there are, for `Figure.legend`."""
    found = set(groups(trials))
    return {group: (group, theme.var(color)) for group, color in GROUPS.items() if group in found}


def coordinates(
    trials: pd.DataFrame, names: Sequence[str], space: Mapping[str, Any]
) -> dict[str, Any]:
    """One axis per parameter and one for the loss, a line per trial; the line under the pointer
    stands out.

    Args:
        trials: of `summaries.trial_values`; those without a loss are not drawn.
        names: the parameters, in the order of the axes.
        space: what the sweep searched.
    """
    done = trials[trials["loss"].notna()].copy()
    done["arm"] = groups(trials)
    lines, ticks = [], []
    for place, name in enumerate([*names, LOSS]):
        values = done[name]
        at, scale = _positions(done, name, space)
        told = [text.loss(v) if name == LOSS else choice(v) for v in values]
        part = pd.DataFrame({"place": place, "axis": name, "at": at, "value": told})
        lines.append(
            part.assign(
                trial=done["trial"], arm=done["arm"], loss=done["loss"], outcome=done["outcome"]
            )
        )
        ticks += [{"place": place, "at": where, "tick": label} for where, label in scale]
    drawn = pd.concat(lines, ignore_index=True)
    drawn = drawn.sort_values(
        "arm", key=lambda arms: arms.map([LOST, REST, BEST].index), kind="stable"
    )
    return finish(
        alt.layer(*_layers(drawn, pd.DataFrame(ticks), [*names, LOSS])),
        340,
        "Parallel coordinates of all trials.",
    )


def _layers(drawn: pd.DataFrame, ticks: pd.DataFrame, axes: Sequence[str]) -> list[Any]:
    shown = marks.spelled(
        [name.rpartition(".")[2].replace("_", " ") for name in axes], "round(datum.value)"
    )
    axis = alt.Axis(
        values=list(range(len(axes))),
        labelExpr=shown,
        orient="top",
        grid=True,
        domain=False,
        ticks=False,
        labelFontSize=13,
        labelPadding=12,
    )
    x = alt.X(
        "place:Q",
        title=None,
        axis=axis,
        scale=alt.Scale(domain=[-0.15, len(axes) - 0.55], nice=False),
    )
    y = alt.Y("at:Q", title=None, axis=None, scale=alt.Scale(domain=[-0.04, 1.04], nice=False))
    color = alt.Color("arm:N", scale=alt.Scale(domain=list(GROUPS), range=_colors()), legend=None)
    over = alt.selection_point(name="over", on="pointerover", clear="pointerout", fields=["trial"])
    base = alt.Chart(data(drawn)).transform_filter(VISIBLE)
    followed = {"param": "over", "empty": False}  # nothing pointed at: no line stands out
    # The best quarter is seen through the others, and drawn over them.
    strength = alt.Opacity(
        "arm:O",  # an order, or Vega-Lite warns
        scale=alt.Scale(domain=list(GROUPS), range=[0.9, 0.35, 0.6]),
        legend=None,
        condition={**followed, "value": 1},
    )
    told = {
        "trial:Q": "trial",
        "axis:N": "parameter",
        "value:N": "value",
        "loss:Q|.4f": "loss",
        "outcome:N": "outcome",
    }
    line = base.mark_line(strokeJoin="round").encode(
        x=x,
        y=y,
        color=color,
        detail="trial:N",
        order="place:Q",
        strokeDash=alt.StrokeDash(
            "arm:N",
            scale=alt.Scale(domain=list(GROUPS), range=[[1, 0], [1, 0], [3, 4]]),
            legend=None,
        ),
        strokeWidth={"condition": {**followed, "value": 4}, "value": 1.6},
        opacity=strength,
    )
    dots = base.mark_point(size=34, filled=True).encode(
        x=x, y=y, color=color, opacity=strength, tooltip=tooltip(told)
    )
    label = alt.Chart(data(ticks)).encode(x=x, y=y, text="tick:N")
    at: dict[str, Any] = {"align": "left", "dx": 7, "fontSize": 11}
    halo = label.mark_text(
        **at, color=theme.var("paper"), stroke=theme.var("paper"), strokeWidth=4, opacity=0.8
    )
    # The marks come last: what lies over them would keep the pointer from them.
    return [line, halo, label.mark_text(**at, color=theme.var("ink")), dots.add_params(over)]


def _colors() -> list[str]:
    return [theme.var(color) for color in GROUPS.values()]


def _positions(
    done: pd.DataFrame, name: str, space: Mapping[str, Any]
) -> tuple[pd.Series, list[tuple[float, str]]]:
    """Where every trial meets an axis, from 0 to 1, and the axis's labels. Low losses are at the
    bottom.
    """
    values, log = done[name], name != LOSS and logarithmic(done, name, dict(space))
    if _chosen(values, space.get(name)):
        # Sorted numbers are in their order, whatever else there is by its text.
        kinds = list(dict.fromkeys(choice(value) for value in sorted(values, key=_order)))
        places = {kind: i / max(1, len(kinds) - 1) for i, kind in enumerate(kinds)}
        return values.map(lambda value: places[choice(value)]), [
            (at, kind) for kind, at in places.items()
        ]
    numbers = values.astype(float)
    good = numbers[done["ok"]] if name == LOSS and done["ok"].any() else numbers
    low, high = (marks.near_log if log else marks.near)(float(good.min()), float(good.max()))
    # A trial that did not train lies so far off that the others would shrink to a dot: it stands at
    # the upper end.
    numbers = numbers.clip(low, high)
    marked = marks.ticks_log(low, high) if log else marks.ticks(low, high, TICKS)
    if log:
        return (np.log(numbers) - np.log(low)) / np.log(high / low), [
            (float(np.log(tick / low) / np.log(high / low)), text.rate(tick)) for tick in marked
        ]
    return (numbers - low) / (high - low), [
        ((tick - low) / (high - low), f"{tick:g}") for tick in marked
    ]


def _chosen(values: pd.Series, asked: Any) -> bool:
    """Whether a parameter's values are choices rather than points of a range."""
    if isinstance(asked, dict) and asked.get("choices") is not None:
        return True
    return not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values)


def _order(value: Any) -> tuple[int, float, str]:
    number = (
        isinstance(value, int | float) and not isinstance(value, bool) and not text.absent(value)
    )
    return (0, float(value), "") if number else (1, 0.0, str(value))


def pair(trials: pd.DataFrame, across: str, up: str, space: Mapping[str, Any]) -> dict[str, Any]:
    """Every trial over two parameters, by group: where the best quarter lies together.

    Args:
        trials: of `summaries.trial_values`.
        across, up: names of the two parameters.
        space: what the sweep searched.
    """
    done = trials[trials["loss"].notna()].copy()
    drawn = done[["trial", "loss", "outcome"]].assign(arm=groups(trials))
    for field, name in (("first", across), ("second", up)):
        drawn[field] = (
            done[name].map(choice) if _chosen(done[name], space.get(name)) else done[name]
        )
    told = {
        "trial:Q": "trial",
        "first:N": across.replace(".", " "),
        "second:N": up.replace(".", " "),
    }
    told |= {"loss:Q|.4f": "loss", "outcome:N": "outcome"}
    dots = (
        alt.Chart(data(drawn))
        .transform_filter(VISIBLE)
        .mark_point(size=80, strokeWidth=2, filled=False)
    )
    chart = dots.encode(
        x=_axis(alt.X, "first", done, across, space),
        y=_axis(alt.Y, "second", done, up, space),
        color=alt.Color(
            "arm:N", scale=alt.Scale(domain=list(GROUPS), range=_colors()), legend=None
        ),
        shape=marks.states("outcome"),
        tooltip=tooltip(told),
    )
    return finish(chart, 320, f"Trials over {across} and {up}.")


def _axis(channel: Any, field: str, done: pd.DataFrame, name: str, space: Mapping[str, Any]) -> Any:
    values = done[name]
    if _chosen(values, space.get(name)):
        # A point scale, its values in order; Vega sorts a nominal axis by text.
        order = list(dict.fromkeys(choice(value) for value in sorted(values, key=_order)))
        order = order[::-1] if channel is alt.Y else order
        return channel(f"{field}:N", title=name, sort=order, axis=alt.Axis(labelAngle=0))
    if logarithmic(done, name, dict(space)):
        domain = marks.near_log(float(values.min()), float(values.max()))
        axis = alt.Axis(values=marks.ticks_log(*domain), format="~g")
        return channel(
            f"{field}:Q",
            title=name,
            scale=alt.Scale(type="log", nice=False, domain=domain),
            axis=axis,
        )
    return channel(
        f"{field}:Q",
        title=name,
        scale=alt.Scale(zero=False, padding=16),
        axis=alt.Axis(format="~r"),
    )
