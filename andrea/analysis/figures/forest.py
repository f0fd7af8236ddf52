"""The forest plot of many studies: an effect per line with its interval, the band of each study's
own ±m behind it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import altair as alt
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import Channel, Layer, VegaSpec, chart_of_visible, tooltips
from andrea.analysis.tables.leaderboard import verdict_words

COLORS = {
    "better": "arm-3",
    "worse": "arm-2",
    "equivalent": "arm-1",
    "inconclusive": "arm-5",
    "without a mean": "muted",
}
"""Verdicts with their colours; the legend's buttons hide the rows of a verdict."""
WIDE = 12
"""From this many times the smallest m on the axis is linear near 0 and logarithmic beyond."""
LINE_HEIGHT = 22
"""Pixels."""


class ForestPlot(NamedTuple):
    """All that the forest plot draws. `line` is the number of a line, as text, from the top."""

    effects: pd.DataFrame
    """line, arm (the group that colours the row), ablation, effect, judged (the verdict in words),
    mean, low, high, n, regime.
    """
    bands: pd.DataFrame
    """line, low, m: the band of ±m of every effect."""
    heads: pd.DataFrame
    """line, head: a line of text above the rows of every study."""
    labels: list[str]
    """Name at every line; empty at heads."""


def verdict_groups(board: pd.DataFrame) -> pd.Series:
    """Return the group of colour of every row."""
    return board["verdict"].where(board["mean"].notna(), "without a mean")


def needs_log_axis(board: pd.DataFrame) -> bool:
    """Return whether the effects differ so much that a linear axis would hide the small ones."""
    largest = board[["low", "high", "mean"]].abs().max().max()
    return bool(largest > WIDE * board["m"].min())


def number_lines(board: pd.DataFrame) -> pd.DataFrame:
    """Return the board with a line of its own above the rows of every study: `line` numbers them,
    `head` is its text.
    """
    parts, number = [], 0
    for (ablation, _), rows in board.groupby(["ablation", "study"], sort=False):
        head = {"line": [number], "head": [f"{ablation}: {rows['regime'].iloc[0]}"], "named": [""]}
        lines = range(number + 1, number + 1 + len(rows))
        parts += [pd.DataFrame(head), rows.assign(line=lines, head="", named=rows["effect"])]
        number += 1 + len(rows)
    return pd.concat(parts, ignore_index=True)


def draw_forest(
    board: pd.DataFrame, groups: pd.Series | None = None, colors: Mapping[str, str] = COLORS
) -> VegaSpec:
    """Return mean and interval of every row, grouped by study.

    Args:
        board: of `leaderboard.board_table`, at least one row.
        groups: the group of every row, which colours it and by which the legend hides it; by
            default its verdict.
        colors: colour of every group.
    """
    plot = _prepare_plot(board.assign(arm=verdict_groups(board) if groups is None else groups))
    labels = marks.label_expression(plot.labels, "toNumber(datum.value)")
    axis = alt.Axis(labelExpr=labels, labelLimit=150, ticks=False, domain=False)
    lines = [str(line) for line in range(len(plot.labels))]
    scale = alt.Scale(domain=lines, padding=0)
    y = alt.Y("line:N", title=None, sort=lines, scale=scale, axis=axis)
    layered = alt.layer(*_plot_layers(plot, y, _effect_axis(board), marks.group_color(colors)))
    return marks.finish_chart(
        layered, LINE_HEIGHT * len(lines), "Effect and interval of every arm of every study."
    )


def _prepare_plot(board: pd.DataFrame) -> ForestPlot:
    lines = number_lines(board)
    labels = list(lines["named"])
    lines["line"] = lines["line"].astype(str)
    is_effect = lines["head"] == ""
    effects = lines[is_effect]
    effects = effects.assign(judged=verdict_words(effects))
    columns = ["line", "arm", "ablation", "effect", "judged", "mean", "low", "high", "n", "regime"]
    bands = effects[["line", "m"]].assign(low=-effects["m"])
    return ForestPlot(effects[columns], bands, lines[~is_effect][["line", "head"]], labels)


def _plot_layers(plot: ForestPlot, y: alt.Y, x: Channel, color: alt.Color) -> list[Layer]:
    """Return the bands of ±m and the line at 0; means with their intervals, and in words the rows
    that have none; the studies' heads.
    """
    titles = {
        "ablation:N": "ablation",
        "effect:N": "arm",
        "judged:N": "verdict",
        **marks.EFFECT_TITLES,
        "regime:N": "regime",
    }
    tooltip = tooltips(titles)
    base = chart_of_visible(plot.effects).encode(y=y, color=color)
    measured = base.transform_filter("isValid(datum.mean)")
    unmeasured = base.transform_filter("!isValid(datum.mean)")
    bands = marks.margin_band(alt.Chart(marks.inline_data(plot.bands)))
    zero = alt.Chart(marks.inline_data(pd.DataFrame({"zero": [0.0]}))).mark_rule(strokeWidth=1.5)
    interval = measured.mark_rule(strokeWidth=5, opacity=0.45, strokeCap="round")
    mean = measured.mark_point(size=55, filled=True, opacity=1)
    width = alt.ExprRef("width")
    words = unmeasured.mark_text(align="left", fontSize=11, fontStyle="italic", limit=width)
    heads = alt.Chart(marks.inline_data(plot.heads)).mark_text(
        align="left", fontSize=11, fontWeight="bold", limit=width, color=theme.css_color("ink")
    )
    return [
        bands.encode(y=y, x=x("low:Q"), x2="m:Q"),
        zero.encode(x=x("zero:Q")),
        interval.encode(x=x("low:Q"), x2="high:Q"),
        mean.encode(x=x("mean:Q"), tooltip=tooltip),
        words.encode(x=alt.value(6), text="judged:N", tooltip=tooltip),
        heads.encode(y=y, x=alt.value(6), text="head:N"),
    ]


def _effect_axis(board: pd.DataFrame) -> Channel:
    """Return the horizontal axis: linear, or where effects are of very different size logarithmic
    beyond the smallest m.
    """
    m = float(board["m"].min())
    ends = [board["low"], board["high"], board["mean"], board["m"], -board["m"], pd.Series([0.0])]
    values = pd.concat(ends).dropna()
    domain = marks.padded_domain(float(values.min()), float(values.max()), 0.04)
    if needs_log_axis(board):
        scale = alt.Scale(type="symlog", constant=m, domain=domain, nice=False)
        axis = alt.Axis(format="+~g", values=_symlog_ticks(domain, m))
    else:
        scale = alt.Scale(domain=domain, nice=False)
        axis = alt.Axis(format="+.3~f", tickCount=marks.FEW)
    title = ["difference to the baseline (nats)", "left is better"]
    return partial(alt.X, scale=scale, title=title, axis=axis)


def _symlog_ticks(domain: Sequence[float], m: float) -> list[float]:
    """Return 0, m, and powers of ten times m as far as the domain goes, on both sides."""
    sizes, size = [], m
    while size < max(abs(end) for end in domain):
        sizes.append(float(f"{size:.1g}"))
        size *= 10 if len(sizes) > 1 else 5
    ticks = [*(-size for size in reversed(sizes)), 0.0, *sizes]
    return [tick for tick in ticks if domain[0] <= tick <= domain[1]]
