"""The page of a traced token: the residual stream drawn from the embedding to the head, and the
logit lens as a grid.

A vector's width is its norm, a branch's colour its cosine with the stream. Every row of the drawing
is a row of a table, which says the same in numbers; the page has no script. Lengths are in pixels.
"""

import itertools
import math
import re
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, TypeAlias

from andrea.analysis.figures import theme
from andrea.analysis.formats.render import SHIPPED, template_environment
from andrea.analysis.trace import sentences as traces
from andrea.text import numbers as text

PathPart: TypeAlias = str | float
"""A command of an SVG path, or a coordinate in pixels."""
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


def render_page(traced: traces.Traced) -> str:
    """Return the page as HTML; every text in it is escaped."""
    steps = traced["steps"]
    norms = [traced["start"]["after"], *(step[key] for step in steps for key in ("after", "added"))]
    largest = max(norms) or 1.0
    unit = WIDEST / largest
    mark = _round_down(largest / 2)
    template = template_environment(SHIPPED).get_template("trace.html.j2")
    moves = traces.movement_title(traced)
    rows = [{**step, "drawing": draw_sublayer(step, unit, moves)} for step in steps]
    for row, below in itertools.pairwise(rows):
        row["drawing"]["forks"] = below["drawing"]["beside"]
        if below["drawing"]["beside"] and below["read"] == row["read"]:
            below["drawing"]["normed"] = False  # one norm, before the fork
    by_block = itertools.groupby(rows, key=itemgetter("block"))
    rendered = template.render(
        traced=traced,
        blocks=[list(block) for _, block in by_block],
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
    return rendered.lstrip()


def draw_sublayer(step: Mapping[str, Any], unit: float, moves: str = "") -> dict[str, Any]:
    """Return the paths of one sublayer.

    Args:
        step: of a trace.
        unit: pixels per unit of norm.
        moves: what besides branches is at the stream, as `traces.movement_title` says it.

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
        stream = [
            _trunk_path(before, before, 0, cut, cut),
            _trunk_path(after, after, top, bottom, HEIGHT),
        ]
    else:
        swell_top, swell_bottom = min(top, JOINS - SWELLS), max(bottom, JOINS + SWELLS)
        if bar:
            swell_top, swell_bottom = JOINS, HEIGHT - 4
        stream = [_trunk_path(before, after, 0, swell_top, HEIGHT, swell_bottom)]
    widest = max(before, after)
    return {
        "stream": stream,
        "branch": _branch_path(wide, (after if off else min(before, after)) / 2),
        "reads": _reading_path(before, beside),
        "box": (BOX, BRANCHES - 9),
        "letter": step["sublayer"][0].upper(),
        "normed": step["read"] is not None
        and abs(step["read"] - step["source"]) > 1e-6 * step["source"],
        "dot": BOX + 15 if beside else TRUNK + before / 2 + 9,
        "bar": (TRUNK - widest / 2 - 5, widest + 10) if bar else None,
        "beside": beside,
        "forks": False,
        "color": cosine_color(step["cosine"]),
    }


def cosine_color(cosine: float | None) -> str:
    """Return grey across the stream, one colour along it, another against it."""
    if text.absent(cosine):
        return theme.css_color("band")
    assert cosine is not None
    percent = round(100 * min(1.0, abs(cosine) / VIVID))
    color, grey = theme.css_color("arm-1" if cosine > 0 else "arm-2"), theme.css_color("band")
    return f"color-mix(in oklab, {color} {percent}%, {grey})"


def _trunk_path(
    before: float, after: float, start: float, top: float, end: float, bottom: float | None = None
) -> str:
    """Return a stretch of the stream from `start` to `end` whose width changes between `top` and
    `bottom`.
    """
    bottom = end if bottom is None else bottom
    middle = (top + bottom) / 2
    left_before, left_after = TRUNK - before / 2, TRUNK - after / 2
    right_before, right_after = TRUNK + before / 2, TRUNK + after / 2
    left_side = [left_before, middle, left_after, middle, left_after, bottom]
    right_side = [right_after, middle, right_before, middle, right_before, top]
    down: list[PathPart] = ["M", left_before, start, "V", top, "C", *left_side, "V", end]
    return _svg_path(*down, "H", right_after, "V", bottom, "C", *right_side, "V", start, "Z")


def _branch_path(wide: float, inside: float) -> str:
    """Return the path from the sublayer, where it is no wider than that, into the stream, whose
    edge is `inside` from its middle.
    """
    narrow = min(wide, 14.0) / 2
    edge, turn = TRUNK + max(0.0, inside - 2), (TRUNK + BOX) / 2 + 8
    upper, lower = JOINS - wide / 2, JOINS + wide / 2
    high, low = BRANCHES - narrow, BRANCHES + narrow
    into_stream: list[PathPart] = [
        "M",
        BOX,
        high,
        "C",
        turn,
        high,
        turn,
        upper,
        edge,
        upper,
        "V",
        lower,
    ]
    return _svg_path(*into_stream, "C", turn, lower, turn, low, BOX, low, "Z")


def _reading_path(before: float, beside: bool) -> str:
    """Return the thin line from the stream to the sublayer; beside another one it comes down from
    the block's start.
    """
    middle = BOX + 9
    into_box: list[PathPart] = [middle, 5, middle, 7, "V", BRANCHES - 9]
    if beside:
        corner: list[PathPart] = ["M", WIDTH - 2, 0, "V", 3, "Q", WIDTH - 2, 5, WIDTH - 4, 5]
        return _svg_path(*corner, "H", middle + 2, "Q", *into_box)
    return _svg_path("M", TRUNK + before / 2, 5, "H", middle - 2, "Q", *into_box)


def _round_down(value: float) -> float:
    """Return the nearest of 1, 2, 5 times a power of ten at or below a positive number."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(step for step in (1.0, 2.0, 5.0) if step * power <= value * (1 + 1e-9)) * power


def _svg_path(*parts: PathPart) -> str:
    """Return commands and coordinates as the data of a path, with two decimals at most."""
    words = [
        part if isinstance(part, str) else f"{part:.2f}".rstrip("0").rstrip(".") for part in parts
    ]
    return re.sub(r" ?([A-Z]) ?", r"\1", " ".join(words))
