"""The page of a traced token: the residual stream drawn from the embedding to the head, and the
logit lens as a grid.

A vector's width is its norm, a branch's colour its cosine with the stream. Every row of the drawing
is a row of a table, which says the same in numbers; the page has no script. Lengths are in pixels.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

from andrea.analysis.figures import theme
from andrea.analysis.formats.render import SHIPPED, environment
from andrea.analysis.trace import sentences as traces
from andrea.text import numbers as text

WIDTH, HEIGHT = 106, 60
"""Of the drawing of one sublayer."""
TRUNK = 28
"""Where the middle of the stream is."""
WIDEST = 44
"""Width of the largest norm."""
BOX = 84
"""Left edge of the sublayer."""
BRANCHES, JOINS = 20, 41
"""Heights at which a branch leaves its sublayer and enters the stream."""
SWELLS = 10
"""The stream takes at least this much, above and below, to change its width."""
THIN = 1.5
"""The least width: what is there is seen."""
VIVID = 0.5
"""Cosine at which a colour is full."""


def page(traced: traces.Traced) -> str:
    """The page as HTML; every text in it is escaped."""
    steps = traced["steps"]
    norms = [traced["start"]["after"], *(step[key] for step in steps for key in ("after", "added"))]
    largest = max(norms) or 1.0
    unit = WIDEST / largest
    mark = _round(largest / 2)
    template = environment(SHIPPED).get_template("trace.html.j2")
    moves = traces.moves(traced)
    rows = [{**step, "drawing": drawing(step, unit, moves)} for step in steps]
    for row, below in itertools.pairwise(rows):
        row["drawing"]["forks"] = below["drawing"]["beside"]
        if below["drawing"]["beside"] and below["read"] == row["read"]:
            below["drawing"]["normed"] = False  # one norm, before the fork
    made = template.render(
        traced=traced,
        blocks=[
            [row for row in rows if row["block"] == block]
            for block in dict.fromkeys(r["block"] for r in rows)
        ],
        first=max(THIN, traced["start"]["after"] * unit),
        last=max(THIN, traced["stream"] * unit),
        mark={"norm": text.short(mark), "width": mark * unit},
        trunk=TRUNK,
        size=(WIDTH, HEIGHT),
        variables=theme.page_stylesheet(),
        words=traces,
        short=text.short,
        count=text.count,
    )
    return made.lstrip()


def drawing(step: Mapping[str, Any], unit: float, moves: str = "") -> dict[str, Any]:
    """Paths of one sublayer.

    Args:
        step: of a trace.
        unit: pixels per unit of norm.
        moves: what besides branches is at the stream, as `traces.moves` says it.

    Returns:
        `stream` (paths), `branch`, `reads` (a line), `box` (left, top), `letter`, `normed` (whether
        what it reads was normalized), `dot` (where the circle that says so stands), `bar` (left and
        width of a norm on the stream, or None), `beside` (whether it reads what the sublayer above
        it read), `forks` (whether the one below does so), `color`.
    """
    before, after, wide = (max(THIN, step[key] * unit) for key in ("before", "after", "added"))
    beside = step["source"] != step["before"]
    top, bottom = max(4.0, JOINS - wide / 2), min(float(HEIGHT), JOINS + wide / 2)
    off, bar = moves == traces.REMOVES and step["moved"] > 0, moves == traces.MOVES
    if off:
        cut = max(5.0, top - 6)
        stream = [_trunk(before, before, 0, cut, cut), _trunk(after, after, top, bottom, HEIGHT)]
    else:
        swells = (
            (JOINS, HEIGHT - 4) if bar else (min(top, JOINS - SWELLS), max(bottom, JOINS + SWELLS))
        )
        stream = [_trunk(before, after, 0, swells[0], HEIGHT, swells[1])]
    widest = max(before, after)
    return {
        "stream": stream,
        "branch": _branch(wide, (after if off else min(before, after)) / 2),
        "reads": _reads(before, beside),
        "box": (BOX, BRANCHES - 9),
        "letter": step["sublayer"][0].upper(),
        "normed": step["read"] is not None
        and abs(step["read"] - step["source"]) > 1e-6 * step["source"],
        "dot": BOX + 15 if beside else TRUNK + before / 2 + 9,
        "bar": (TRUNK - widest / 2 - 5, widest + 10) if bar else None,
        "beside": beside,
        "forks": False,
        "color": color(step["cosine"]),
    }


def color(cosine: float | None) -> str:
    """Grey across the stream, one colour along it, another against it."""
    if text.absent(cosine):
        return theme.css_color("band")
    assert cosine is not None
    full = round(100 * min(1.0, abs(cosine) / VIVID))
    return (
        f"color-mix(in oklab, {theme.css_color('arm-1' if cosine > 0 else 'arm-2')} {full}%, "
        f"{theme.css_color('band')})"
    )


def _trunk(
    before: float, after: float, start: float, top: float, end: float, bottom: float | None = None
) -> str:
    """A stretch of the stream from `start` to `end` whose width changes between `top` and
    `bottom`.
    """
    bottom = end if bottom is None else bottom
    middle = (top + bottom) / 2
    left = [TRUNK - width / 2 for width in (before, after)]
    right = [TRUNK + width / 2 for width in (before, after)]
    return (
        f"M{_n(left[0])} {_n(start)}V{_n(top)}"
        f"C{_n(left[0])} {_n(middle)} {_n(left[1])} {_n(middle)} {_n(left[1])} "
        f"{_n(bottom)}V{_n(end)}"
        f"H{_n(right[1])}V{_n(bottom)}"
        f"C{_n(right[1])} {_n(middle)} {_n(right[0])} {_n(middle)} {_n(right[0])} "
        f"{_n(top)}V{_n(start)}Z"
    )


def _branch(wide: float, inside: float) -> str:
    """From the sublayer, where it is no wider than that, into the stream, whose edge is `inside`
    from its middle.
    """
    narrow = min(wide, 14.0) / 2
    edge, turn = TRUNK + max(0.0, inside - 2), (TRUNK + BOX) / 2 + 8
    upper, lower = JOINS - wide / 2, JOINS + wide / 2
    high, low = _n(BRANCHES - narrow), _n(BRANCHES + narrow)
    return (
        f"M{BOX} {high}C{_n(turn)} {high} {_n(turn)} {_n(upper)} {_n(edge)} {_n(upper)}"
        f"V{_n(lower)}C{_n(turn)} {_n(lower)} {_n(turn)} {low} {BOX} {low}Z"
    )


def _reads(before: float, beside: bool) -> str:
    """The thin line from the stream to the sublayer; beside another one it comes down from the
    block's start.
    """
    middle = BOX + 9
    if beside:
        return (
            f"M{WIDTH - 2} 0V3Q{WIDTH - 2} 5 {WIDTH - 4} 5H{middle + 2}Q{middle} 5 {middle} "
            f"7V{BRANCHES - 9}"
        )
    return f"M{_n(TRUNK + before / 2)} 5H{middle - 2}Q{middle} 5 {middle} 7V{BRANCHES - 9}"


def _round(value: float) -> float:
    """The nearest of 1, 2, 5 times a power of ten at or below a positive number."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(step for step in (1.0, 2.0, 5.0) if step * power <= value * (1 + 1e-9)) * power


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
