"""All parameters of a sweep at once: a line per trial across one axis per parameter, and the two
that matter most.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.importances import TOP, choice_text
from andrea.analysis.figures.marks import Layer, VegaSpec, chart_of_visible, tooltips
from andrea.analysis.figures.sweep import searched_on_log_scale
from andrea.records.study import SearchedRange
from andrea.text import numbers as text

BEST, REST, LOST = "best quarter", "other trials", "did not train"
GROUPS = {BEST: "arm-2", REST: "arm-1", LOST: "muted"}
"""Groups of trials with their colours; the legend's buttons hide them."""
TICKS = 5
LOSS = "loss"


def trial_groups(trials: pd.DataFrame) -> pd.Series:
    """Return for every trial with a loss the group it is drawn in; the best quarter is that of all
    finished trials.
    """
    finished = trials[trials["loss"].notna()]
    rank = finished["loss"].where(finished["ok"]).rank(method="first")
    trained = np.where(rank <= np.ceil(TOP * len(finished)), BEST, REST)
    return pd.Series(np.where(finished["ok"], trained, LOST), index=finished.index)


class ParallelPlot(NamedTuple):
    """All that the parallel coordinates draw."""

    points: pd.DataFrame
    """place, axis, at, value, trial, arm (the trial's group), loss, outcome: where every trial
    meets every axis.
    """
    ticks: pd.DataFrame
    """place, at, tick: labels at the axes."""
    axes: list[str]
    """Names of the axes from left to right."""


class AxisPositions(NamedTuple):
    """Where the trials meet one axis, from 0 (bottom) to 1."""

    at: pd.Series
    ticks: list[tuple[float, str]]
    """Place and label."""


def draw_parallel_coordinates(
    trials: pd.DataFrame, names: Sequence[str], space: Mapping[str, SearchedRange]
) -> VegaSpec:
    """Return one axis per parameter and one for the loss, a line per trial; the line under the
    pointer stands out.

    Args:
        trials: of `summaries.sweep_trials`; those without a loss are not drawn.
        names: the parameters, in the order of the axes.
        space: the ranges that the sweep searched.
    """
    plot = _prepare_plot(trials, names, space)
    layered = alt.layer(*_plot_layers(plot))
    return marks.finish_chart(layered, 340, "Parallel coordinates of all trials.")


def _prepare_plot(
    trials: pd.DataFrame, names: Sequence[str], space: Mapping[str, SearchedRange]
) -> ParallelPlot:
    finished = trials[trials["loss"].notna()]
    shared = finished[["trial"]].assign(
        arm=trial_groups(trials), loss=finished["loss"], outcome=finished["outcome"]
    )
    axes = [*names, LOSS]
    parts, ticks = [], []
    for place, name in enumerate(axes):
        positions = axis_positions(finished, name, space)
        values = finished[name].map(text.loss if name == LOSS else choice_text)
        part = pd.DataFrame({"place": place, "axis": name, "at": positions.at, "value": values})
        parts.append(part.join(shared))
        ticks += [(place, at, label) for at, label in positions.ticks]
    # The best quarter is drawn over the others.
    points = pd.concat(parts, ignore_index=True).sort_values(
        "arm", key=lambda groups: groups.map([LOST, REST, BEST].index), kind="stable"
    )
    return ParallelPlot(points, pd.DataFrame(ticks, columns=["place", "at", "tick"]), axes)


def _plot_layers(plot: ParallelPlot) -> list[Layer]:
    n_axes = len(plot.axes)
    short_names = [name.rpartition(".")[2].replace("_", " ") for name in plot.axes]
    axis = alt.Axis(
        values=list(range(n_axes)),
        labelExpr=marks.label_expression(short_names, "round(datum.value)"),
        orient="top",
        grid=True,
        domain=False,
        ticks=False,
        labelFontSize=13,
        labelPadding=12,
    )
    x_scale = alt.Scale(domain=[-0.15, n_axes - 0.55], nice=False)
    x = alt.X("place:Q", title=None, axis=axis, scale=x_scale)
    y = alt.Y("at:Q", title=None, axis=None, scale=alt.Scale(domain=[-0.04, 1.04], nice=False))
    color = marks.group_color(GROUPS)
    over = alt.selection_point(name="over", on="pointerover", clear="pointerout", fields=["trial"])
    followed = {"param": "over", "empty": False}  # nothing pointed at: no line stands out
    opacity = alt.Opacity(
        "arm:O",  # an order, or Vega-Lite warns
        scale=alt.Scale(domain=list(GROUPS), range=[0.9, 0.35, 0.6]),
        legend=None,
        condition={**followed, "value": 1},
    )
    dashes = alt.Scale(domain=list(GROUPS), range=[[1, 0], [1, 0], [3, 4]])
    titles = {
        "trial:Q": "trial",
        "axis:N": "parameter",
        "value:N": "value",
        "loss:Q|.4f": "loss",
        "outcome:N": "outcome",
    }
    base = chart_of_visible(plot.points).encode(x=x, y=y, color=color, opacity=opacity)
    line = base.mark_line(strokeJoin="round").encode(
        detail="trial:N",
        order="place:Q",
        strokeDash=alt.StrokeDash("arm:N", scale=dashes, legend=None),
        strokeWidth={"condition": {**followed, "value": 4}, "value": 1.6},
    )
    dots = base.mark_point(size=34, filled=True).encode(tooltip=tooltips(titles))
    ticks = alt.Chart(marks.inline_data(plot.ticks)).encode(x=x, y=y, text="tick:N")
    paper, ink = theme.css_color("paper"), theme.css_color("ink")
    halo = ticks.mark_text(
        align="left", dx=7, fontSize=11, color=paper, stroke=paper, strokeWidth=4, opacity=0.8
    )
    label = ticks.mark_text(align="left", dx=7, fontSize=11, color=ink)
    # The marks come last: anything over them would keep the pointer from them.
    return [line, halo, label, dots.add_params(over)]


def axis_positions(
    finished: pd.DataFrame, name: str, space: Mapping[str, SearchedRange]
) -> AxisPositions:
    """Return where every trial meets an axis, and the axis's labels. Low losses are at the
    bottom.
    """
    values = finished[name]
    if _is_choice(values, space.get(name)):
        choices = _sorted_choices(values)
        places = {choice: i / max(1, len(choices) - 1) for i, choice in enumerate(choices)}
        return AxisPositions(
            values.map(choice_text).map(places), [(at, choice) for choice, at in places.items()]
        )
    numbers = values.astype(float)
    trained = numbers[finished["ok"]]
    good = trained if name == LOSS and len(trained) else numbers
    log = name != LOSS and searched_on_log_scale(finished, name, space)
    domain = (marks.padded_log_domain if log else marks.padded_domain)(
        float(good.min()), float(good.max())
    )
    # A trial that did not train lies so far off that the others would shrink to a dot: it stands at
    # the upper end.
    numbers = numbers.clip(*domain)
    if not log:
        low, high = domain
        ticks = marks.round_ticks(low, high, TICKS)
        labels = [((tick - low) / (high - low), f"{tick:g}") for tick in ticks]
        return AxisPositions((numbers - low) / (high - low), labels)
    low, high = domain
    width = np.log(high / low)
    labels = [
        (float(np.log(tick / low) / width), text.rate(tick)) for tick in marks.log_ticks(low, high)
    ]
    return AxisPositions((np.log(numbers) - np.log(low)) / width, labels)


def _is_choice(values: pd.Series, searched: SearchedRange | None) -> bool:
    """Return whether a parameter's values are choices rather than points of a range."""
    if searched is not None and searched.choices is not None:
        return True
    return not marks.is_number_column(values)


def _sorted_choices(values: pd.Series) -> list[str]:
    """Return the distinct choices as text: numbers in their order, then the rest by its text."""

    def sort_key(value: Any) -> tuple[bool, float, str]:
        if isinstance(value, bool) or not isinstance(value, int | float) or text.absent(value):
            return True, 0.0, str(value)
        return False, float(value), ""

    return list(dict.fromkeys(choice_text(value) for value in sorted(values, key=sort_key)))


def draw_pair(
    trials: pd.DataFrame, across: str, up: str, space: Mapping[str, SearchedRange]
) -> VegaSpec:
    """Return every trial over two parameters, by group: where the best quarter lies together.

    Args:
        trials: of `summaries.sweep_trials`.
        across, up: names of the two parameters.
        space: the ranges that the sweep searched.
    """
    finished = trials[trials["loss"].notna()]
    drawn = finished[["trial", "loss", "outcome"]].assign(arm=trial_groups(trials))
    for field, name in (("first", across), ("second", up)):
        values = finished[name]
        drawn[field] = values.map(choice_text) if _is_choice(values, space.get(name)) else values
    titles = {
        "trial:Q": "trial",
        "first:N": across.replace(".", " "),
        "second:N": up.replace(".", " "),
        "loss:Q|.4f": "loss",
        "outcome:N": "outcome",
    }
    dots = chart_of_visible(drawn).mark_point(size=80, strokeWidth=2, filled=False)
    chart = dots.encode(
        x=alt.X(**_pair_axis("first", finished, across, space)),
        y=alt.Y(**_pair_axis("second", finished, up, space)),
        color=marks.group_color(GROUPS),
        shape=marks.outcome_shape("outcome"),
        tooltip=tooltips(titles),
    )
    return marks.finish_chart(chart, 320, f"Trials over {across} and {up}.")


def _pair_axis(
    field: str, finished: pd.DataFrame, name: str, space: Mapping[str, SearchedRange]
) -> VegaSpec:
    """Return the arguments of the channel that shows a parameter."""
    values = finished[name]
    if _is_choice(values, space.get(name)):
        # A point scale, its values in order; Vega sorts a nominal axis by text.
        choices = _sorted_choices(values)
        order = choices if field == "first" else choices[::-1]
        return {
            "shorthand": f"{field}:N",
            "title": name,
            "sort": order,
            "axis": alt.Axis(labelAngle=0),
        }
    if searched_on_log_scale(finished, name, space):
        domain = marks.padded_log_domain(float(values.min()), float(values.max()))
        scale = alt.Scale(type="log", nice=False, domain=domain)
        axis = alt.Axis(values=marks.log_ticks(*domain), format="~g")
    else:
        scale, axis = alt.Scale(zero=False, padding=16), alt.Axis(format="~r")
    return {"shorthand": f"{field}:Q", "title": name, "scale": scale, "axis": axis}
