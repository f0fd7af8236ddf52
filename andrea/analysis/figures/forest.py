"""The forest plot of many studies: an effect per line with its interval, the band of each study's
own ±m behind it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import VISIBLE, data, near, tooltip
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
ROW = 22
"""Height of a line, pixels."""


def groups(board: pd.DataFrame) -> pd.Series:
    """The group of colour of every row."""
    return board["verdict"].where(board["mean"].notna(), "without a mean")


def legend(by: pd.Series, colors: Mapping[str, str] = COLORS) -> dict[str, tuple[str, str]]:
    """Groups that there are, for `Figure.legend`."""
    found = set(by)
    return {group: (group, theme.var(color)) for group, color in colors.items() if group in found}


def stretched(board: pd.DataFrame) -> bool:
    """Whether the effects differ so much that a linear axis would hide the small ones."""
    ends = board[["low", "high", "mean"]].abs().max().max()
    return bool(ends > WIDE * board["m"].min())


def lines(board: pd.DataFrame) -> pd.DataFrame:
    """The board with a line of its own above the rows of every study: `line` numbers them, `head`
    is its text.
    """
    parts, number = [], 0
    for (ablation, _), rows in board.groupby(["ablation", "study"], sort=False):
        head = {"line": [number], "head": [f"{ablation}: {rows['regime'].iloc[0]}"], "named": [""]}
        numbered = rows.assign(
            line=range(number + 1, number + 1 + len(rows)), head="", named=rows["effect"]
        )
        parts += [pd.DataFrame(head), numbered]
        number += 1 + len(rows)
    told: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return told


def forest(
    board: pd.DataFrame, by: pd.Series | None = None, colors: Mapping[str, str] = COLORS
) -> dict[str, Any]:
    """Mean and interval of every row, grouped by study.

    Args:
        board: of `board.board_table`, at least one row.
        by: the group of every row, which colours it and by which the legend hides it; by default
            its verdict.
        colors: colour of every group.
    """
    told = lines(board.assign(arm=groups(board) if by is None else by))
    shown = marks.spelled(list(told["named"]), "toNumber(datum.value)")
    axis = alt.Axis(labelExpr=shown, labelLimit=150, ticks=False, domain=False)
    order = [str(line) for line in told["line"]]
    told["line"] = order
    y = alt.Y("line:N", title=None, sort=order, scale=alt.Scale(domain=order, padding=0), axis=axis)
    layered = alt.layer(*_layers(told, y, _across(board), colors))
    return marks.finish(
        layered, ROW * len(order), "Effect and interval of every arm of every study."
    )


def _layers(told: pd.DataFrame, y: Any, x: dict[str, Any], colors: Mapping[str, str]) -> list[Any]:
    """The bands of ±m and the line at 0; means with their intervals, what has none in words; the
    studies' heads.
    """
    base = alt.Chart(data(_drawn(told))).transform_filter(VISIBLE).encode(y=y)
    color = alt.Color(
        "arm:N",
        scale=alt.Scale(domain=list(colors), range=[theme.var(c) for c in colors.values()]),
        legend=None,
    )
    words = {
        "ablation:N": "ablation",
        "effect:N": "arm",
        "judged:N": "verdict",
        "mean:Q|+.4f": "mean",
        "low:Q|+.4f": "from",
        "high:Q|+.4f": "to",
        "n:Q": "pairs",
        "regime:N": "regime",
    }
    measured, rest = (
        base.transform_filter("isValid(datum.mean)"),
        base.transform_filter("!isValid(datum.mean)"),
    )
    bands = alt.Chart(data(told[told["head"] == ""][["line", "m"]].assign(low=lambda t: -t["m"])))
    heads = alt.Chart(data(told[told["head"] != ""][["line", "head"]]))
    return [
        bands.mark_rect(opacity=0.16, color=theme.var("band")).encode(
            y=y, x=alt.X("low:Q", **x), x2="m:Q"
        ),
        alt.Chart(data(pd.DataFrame({"zero": [0.0]})))
        .mark_rule(strokeWidth=1.5)
        .encode(x=alt.X("zero:Q", **x)),
        measured.mark_rule(strokeWidth=5, opacity=0.45, strokeCap="round").encode(
            x=alt.X("low:Q", **x), x2="high:Q", color=color
        ),
        measured.mark_point(size=55, filled=True, opacity=1).encode(
            x=alt.X("mean:Q", **x), color=color, tooltip=tooltip(words)
        ),
        rest.mark_text(
            align="left", fontSize=11, fontStyle="italic", limit=alt.ExprRef("width")
        ).encode(x=alt.value(6), text="judged:N", color=color, tooltip=tooltip(words)),
        heads.mark_text(
            align="left",
            fontSize=11,
            fontWeight="bold",
            limit=alt.ExprRef("width"),
            color=theme.var("ink"),
        ).encode(y=y, x=alt.value(6), text="head:N"),
    ]


def _drawn(told: pd.DataFrame) -> pd.DataFrame:
    rows = told[told["head"] == ""]
    rows = rows.assign(judged=verdict_words(rows))
    return rows[
        ["line", "arm", "ablation", "effect", "judged", "mean", "low", "high", "n", "regime"]
    ]


def _across(board: pd.DataFrame) -> dict[str, Any]:
    """The horizontal axis: linear, or where effects are of very different size logarithmic beyond
    the smallest m.
    """
    m = float(board["m"].min())
    ends = pd.concat(
        [board["low"], board["high"], board["mean"], board["m"], -board["m"], pd.Series([0.0])]
    ).dropna()
    title = ["difference to the baseline (nats)", "left is better"]
    domain = near(float(ends.min()), float(ends.max()), 0.04)
    if not stretched(board):
        scale = alt.Scale(domain=domain, nice=False)
        return {
            "scale": scale,
            "title": title,
            "axis": alt.Axis(format="+.3~f", tickCount=marks.FEW),
        }
    scale = alt.Scale(type="symlog", constant=m, domain=domain, nice=False)
    return {
        "scale": scale,
        "title": title,
        "axis": alt.Axis(format="+~g", values=_ticks(domain, m)),
    }


def _ticks(domain: Sequence[float], m: float) -> list[float]:
    """0, m, and powers of ten times m as far as the domain goes, on both sides."""
    sizes, size = [], m
    while size < max(abs(end) for end in domain):
        sizes.append(float(f"{size:.1g}"))
        size *= 10 if len(sizes) > 1 else 5
    return [
        tick
        for tick in (*(-s for s in reversed(sizes)), 0.0, *sizes)
        if domain[0] <= tick <= domain[1]
    ]
