"""Building blocks of figures: inline data, scales and layers that every figure shares."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import theme
from andrea.analysis.formats.machine import format_csv

VegaSpec: TypeAlias = dict[str, Any]
"""A Vega-Lite specification as plain JSON values."""
Channel: TypeAlias = Callable[..., alt.X]
"""Makes a horizontal channel from its field alone: layers that share an axis must all describe it
alike, or Vega-Lite mixes their descriptions.
"""
Layer: TypeAlias = Any
"""A chart, or a layer of one; altair's methods of marks have no types."""
FEW = alt.ExprRef("clamp(round(width / 100), 2, 7)")
"""About how many ticks a horizontal axis has, by the width that the reader's screen leaves it."""
WIDTH = 720
"""Width of a figure in a file, pixels; on the page it fills its box."""
VISIBLE = "indexof(hidden, datum.arm) < 0"
"""Vega expression: the reader has not hidden this arm with the legend."""
FAILED = {"diverged": "cross", "stalled": "triangle-down"}
"""Shape of a run that did not train."""


EFFECT_TITLES = {
    "mean:Q|+.4f": "mean",
    "low:Q|+.4f": "from",
    "high:Q|+.4f": "to",
    "n:Q": "pairs",
}
"""Part of the tooltip of an effect with its interval."""


def inline_data(frame: pd.DataFrame) -> alt.InlineData:
    """Return the rows as CSV: a third of the size of JSON rows.

    Six digits are enough to draw; files keep all.
    """
    kinds = {str(key): "number" for key in frame.columns if is_number_column(frame[key])}
    values = format_csv(frame, "%.6g")
    return alt.InlineData(values=values, format=alt.CsvDataFormat(type="csv", parse=kinds))


def is_number_column(values: pd.Series) -> bool:
    """Return whether a column holds numbers; truth values are none."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def chart_of_visible(frame: pd.DataFrame) -> Layer:
    """Return a chart of these rows, without the arms that the reader has hidden."""
    return alt.Chart(inline_data(frame)).transform_filter(VISIBLE)


def _arm_scale(arms: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=list(arms), range=list(theme.arm_colors(arms).values()))


def arm_color(arms: Sequence[str]) -> alt.Color:
    """Return the arm's colour, in a fixed order."""
    return alt.Color("arm:N", scale=_arm_scale(arms), legend=None)


def arm_fill(arms: Sequence[str]) -> alt.Fill:
    """Return the arm's colour for areas."""
    return alt.Fill("arm:N", scale=_arm_scale(arms), legend=None)


def arm_dash(arms: Sequence[str]) -> alt.StrokeDash:
    """Return dashes for the arms whose colours repeat."""
    dashes = [dash or [1, 0] for dash in theme.arm_dashes(arms).values()]
    return alt.StrokeDash("arm:N", scale=alt.Scale(domain=list(arms), range=dashes), legend=None)


def group_color(colors: Mapping[str, str]) -> alt.Color:
    """Return the colour of groups that stand in the column `arm`, by which the legend hides them.

    Args:
        colors: names of the theme's colours by group.
    """
    shades = [theme.css_color(color) for color in colors.values()]
    return alt.Color("arm:N", scale=alt.Scale(domain=list(colors), range=shades), legend=None)


def group_legend(groups: Iterable[str], colors: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the groups that there are, for `Figure.legend`, in the order of the colours."""
    present = set(groups)
    return {
        group: (group, theme.css_color(color))
        for group, color in colors.items()
        if group in present
    }


def outcome_shape(column: str = "state", *, trained: bool = True) -> alt.Shape:
    """Return the shape of a run by how it ended.

    Args:
        column: of the outcome.
        trained: runs that did train are drawn too.
    """
    shapes = {"completed": "circle", **FAILED} if trained else FAILED
    scale = alt.Scale(domain=list(shapes), range=list(shapes.values()))
    return alt.Shape(f"{column}:N", scale=scale, legend=None)


def margin_band(chart: Layer) -> Layer:
    """Return the mark of the band of ±m, behind everything else."""
    return chart.mark_rect(opacity=0.16, color=theme.css_color("band"))


def tokens_axis(tokens: pd.Series) -> alt.X:
    """Return the axis along which runs are aligned. Its ends are fixed, so that hiding an arm moves
    nothing.
    """
    scale = alt.Scale(nice=False, domain=[int(tokens.min()), int(tokens.max())])
    axis = alt.Axis(format="~s", grid=False, tickCount=FEW)
    return alt.X("tokens:Q", title="tokens trained", axis=axis, scale=scale)


def rate_axis(rates: Iterable[float], span: pd.Series, title: str) -> alt.X:
    """Return the axis of peak learning rates, logarithmic.

    Args:
        rates: that have a tick.
        span: all rates that are drawn.
        title: of the axis.
    """
    axis = alt.Axis(
        values=sorted(set(rates)),
        format="~r",
        labelOverlap="greedy",
        grid=False,
        labelSeparation=12,
    )
    return alt.X("lr:Q", title=title, scale=log_scale(span.min(), span.max()), axis=axis)


def linear_scale(domain: Sequence[float]) -> alt.Scale:
    """Return a scale with exactly these ends."""
    return alt.Scale(domain=list(domain), nice=False, zero=False)


def log_scale(low: float, high: float) -> alt.Scale:
    """Return a logarithmic scale a little wider than the values."""
    return alt.Scale(type="log", nice=False, domain=padded_log_domain(low, high))


def padded_domain(low: float, high: float, share: float = 0.08) -> list[float]:
    """Return a domain a little wider than the values, of round ends, so that no mark is cut."""
    pad = (high - low) * share or abs(high) * 0.01 or 1.0
    digits = 2 - math.floor(math.log10(pad))
    return [round(low - pad, digits), round(high + pad, digits)]


def padded_log_domain(low: float, high: float) -> list[float]:
    """Return such a domain for a logarithmic axis."""
    pad = max((high / low) ** 0.08, 1.05)
    return [float(f"{low / pad:.3g}"), float(f"{high * pad:.3g}")]


def evenly_spaced(total: int, most: int) -> np.ndarray:
    """Return the places of at most that many of `total` things, evenly spaced, with both ends."""
    return np.unique(np.linspace(0, total - 1, min(total, most)).round().astype(int))


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about that many round values between two."""
    step = (high - low) / count
    power = 10 ** math.floor(math.log10(step))
    step = power * min((1, 2, 5, 10), key=lambda times: abs(times * power - step))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten between two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]


def integer_axis(first: int, last: int) -> alt.Axis:
    """Return an axis of whole numbers with a tick at each where they are few.

    Where the program chose ticks among few numbers, ticks between them would repeat the labels.
    """
    if last - first <= 12:
        return alt.Axis(format="d", grid=False, values=list(range(first, last + 1)))
    return alt.Axis(format="d", grid=False, tickCount=FEW, tickMinStep=1)


def label_expression(texts: Sequence[str] | Mapping[str, str], key: str) -> str:
    """Return the Vega expression for the text with the number, or of the name, that `key` is.

    Each begins with a blank that is cut off again: Vega stumbles over a literal that is called like
    a property of every object in JavaScript, as `constructor`.
    """
    if isinstance(texts, Mapping):
        literal = json.dumps({name: f" {label}" for name, label in texts.items()})
    else:
        literal = json.dumps([f" {label}" for label in texts])
    return f"slice({literal}[{key}], 1)"


def tooltips(titles: Mapping[str, str]) -> list[alt.Tooltip]:
    """Return the tooltip of titles by `field:type` or `field:type|format`."""
    parts = []
    for key, title in titles.items():
        field, _, number_format = key.partition("|")
        part = alt.Tooltip(field, title=title)
        parts.append(part.format(number_format) if number_format else part)
    return parts


def finish_chart(chart: Layer, height: int, description: str) -> VegaSpec:
    """Return the chart as a specification of this house's looks, with the parameter that the
    legend's buttons set.
    """
    spec: VegaSpec = (
        chart.add_params(alt.param(name="hidden", value=[]))
        .properties(width=WIDTH, height=height, description=description)
        .to_dict(validate=True)
    )
    spec.pop("$schema", None)
    spec["config"] = theme.vega_config()
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec
