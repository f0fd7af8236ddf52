"""Building blocks of figures: inline data, scales and layers that every figure shares."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from andrea.analysis.figures import theme
from andrea.analysis.formats.machine import as_csv

FEW = alt.ExprRef("clamp(round(width / 100), 2, 7)")
"""About how many ticks a horizontal axis has, by the width that the reader's screen leaves it."""
WIDTH = 720
"""Width of a figure in a file, pixels; on the page it fills its box."""
VISIBLE = "indexof(hidden, datum.arm) < 0"
"""Vega expression: the reader has not hidden this arm with the legend."""
FAILED = {"diverged": "cross", "stalled": "triangle-down"}
"""Shape of a run that did not train."""


def data(frame: pd.DataFrame) -> Any:
    """Inline data as CSV: a third of the size of JSON rows. Six digits are enough to draw; files
    keep all.
    """
    kinds = {
        str(key): "number"
        for key in frame.columns
        if pd.api.types.is_numeric_dtype(frame[key]) and not pd.api.types.is_bool_dtype(frame[key])
    }
    values = as_csv(frame, "%.6g")
    return alt.InlineData(values=values, format=alt.CsvDataFormat(type="csv", parse=kinds))


def color(arms: Sequence[str]) -> Any:
    """The arm's colour, in a fixed order."""
    colors = theme.arm_colors(arms)
    return alt.Color(
        "arm:N", scale=alt.Scale(domain=list(arms), range=[colors[a] for a in arms]), legend=None
    )


def fill(arms: Sequence[str]) -> Any:
    """The arm's colour for areas."""
    colors = theme.arm_colors(arms)
    return alt.Fill(
        "arm:N", scale=alt.Scale(domain=list(arms), range=[colors[a] for a in arms]), legend=None
    )


def dash(arms: Sequence[str]) -> Any:
    """Dashes for the arms whose colours repeat."""
    dashes = theme.arm_dashes(arms)
    scale = alt.Scale(domain=list(arms), range=[dashes[a] or [1, 0] for a in arms])
    return alt.StrokeDash("arm:N", scale=scale, legend=None)


def states(column: str = "state", *, trained: bool = True) -> Any:
    """Shape of a run by how it ended, told by a column; `trained`: runs that did train are drawn
    too.
    """
    shapes = {"completed": "circle", **FAILED} if trained else FAILED
    scale = alt.Scale(domain=list(shapes), range=list(shapes.values()))
    return alt.Shape(f"{column}:N", scale=scale, legend=None)


def tokens_axis(tokens: pd.Series) -> Any:
    """The axis along which runs are aligned. Its ends are fixed, so that hiding an arm moves
    nothing.
    """
    scale = alt.Scale(nice=False, domain=[int(tokens.min()), int(tokens.max())])
    axis = alt.Axis(format="~s", grid=False, tickCount=FEW)
    return alt.X("tokens:Q", title="tokens trained", axis=axis, scale=scale)


def near(low: float, high: float, share: float = 0.08) -> list[float]:
    """A domain a little wider than the values, of round ends, so that no mark is cut."""
    pad = (high - low) * share or abs(high) * 0.01 or 1.0
    digits = 2 - math.floor(math.log10(pad))
    return [round(low - pad, digits), round(high + pad, digits)]


def near_log(low: float, high: float) -> list[float]:
    """The same for a logarithmic axis."""
    pad = max((high / low) ** 0.08, 1.05)
    return [float(f"{low / pad:.3g}"), float(f"{high * pad:.3g}")]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About that many round values between two."""
    step = (high - low) / count
    power = 10 ** math.floor(math.log10(step))
    step = power * min((1, 2, 5, 10), key=lambda times: abs(times * power - step))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def ticks_log(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [t for p in powers for d in (1, 2, 5) if low <= (t := float(f"{d}e{p}")) <= high]


def counted(first: int, last: int) -> Any:
    """An axis of whole numbers: every one where they are few, as ticks between would repeat
    them.
    """
    few = (
        {"values": list(range(first, last + 1))}
        if last - first <= 12
        else {"tickCount": FEW, "tickMinStep": 1}
    )
    return alt.Axis(format="d", grid=False, **few)


def spelled(texts: Sequence[str] | Mapping[str, str], at: str) -> str:
    """Vega expression: the text with this number, or of this name.

    Each begins with a blank that is cut off again: Vega stumbles over a literal that is called like
    a property of every object in JavaScript, as `constructor`.
    """
    if isinstance(texts, Mapping):
        return f"slice({json.dumps({name: f' {told}' for name, told in texts.items()})}[{at}], 1)"
    return f"slice({json.dumps([f' {told}' for told in texts])}[{at}], 1)"


def tooltip(fields: Mapping[str, str]) -> list[Any]:
    """Tooltip of `field:type` or `field:type|format` → title."""
    shown = []
    for key, title in fields.items():
        field, _, form = key.partition("|")
        shown.append(
            alt.Tooltip(field, title=title, format=form)
            if form
            else alt.Tooltip(field, title=title)
        )
    return shown


def finish(chart: Any, height: int, description: str) -> dict[str, Any]:
    """The chart as a specification of this house's looks, with the parameter that the legend's
    buttons set.
    """
    spec: dict[str, Any] = (
        chart.add_params(alt.param(name="hidden", value=[]))
        .properties(width=WIDTH, height=height, description=description)
        .to_dict(validate=True)
    )
    spec.pop("$schema", None)
    spec["config"] = theme.config()
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec
