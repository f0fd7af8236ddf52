"""The learning rate of an arm: a common half-decade grid, two midpoints, the vertex of a parabola.

Everything here is a pure function of the points measured so far (docs/method.md, *Tuning*). x is
log10 of the learning rate throughout; losses are in nats per token. A learning rate is called `lr`
where it is one of a point or a choice, and a rate of a grid is a rate.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_jsonable_python

Side = Literal["low", "high"]

FULL_TRIALS = 7
"""Five grid rates and two midpoints: the least that the vertex needs. Below it the rate is *hardly
tuned*.
"""

CONVEX = 1e-9
"""Curvature in nats per squared decade that counts as more than rounding."""

_SPARSE_GRIDS: dict[int, tuple[int, ...]] = {
    1: (0,),
    2: (-1, 1),
    3: (-2, 0, 2),
    4: (-2, -1, 0, 1),
    5: (-2, -1, 0, 1, 2),
    6: (-3, -2, -1, 0, 1, 2),
}
"""Rates of a grid below `FULL_TRIALS`, in half decades from the center."""


@dataclass(frozen=True)
class Point:
    """One finished tuning run."""

    lr: float
    loss: float
    """Final loss on the tune part; the loss at initialisation if the run diverged or stalled."""
    ok: bool = True
    """False: diverged or stalled. Such a point counts as tried, never as best, and never enters a
    fit.
    """

    def __post_init__(self) -> None:
        if not math.isfinite(self.loss):
            raise ValueError(
                f"loss at lr {self.lr} is {self.loss}: score what diverged by the loss at "
                "initialisation"
            )


@dataclass(frozen=True)
class Parabola:
    """Least-squares parabola `c0 + c1 x + c2 x²` in x = log10 lr."""

    coefficients: tuple[float, float, float]
    lrs: tuple[float, ...]
    losses: tuple[float, ...]

    def loss_at(self, lr: float) -> float:
        """Return the fitted loss at a rate."""
        c0, c1, c2 = self.coefficients
        x = math.log10(lr)
        return c0 + c1 * x + c2 * x * x


@dataclass(frozen=True)
class Choice:
    """The rate at which an arm is replicated, and how it was found."""

    lr: float
    method: Literal["vertex", "argmin"]
    note: str
    """Empty, or why it is the argmin, clamped, or at an edge."""
    edge: Side | None
    """Side of the grid at which the best point still lies after every extension: the verdict is
    inconclusive.
    """
    fit: Parabola | None
    """The parabola of the vertex; for an argmin the one through its window where there is one (it
    gives the regret).
    """
    hardly_tuned: bool
    grid: tuple[float, ...]
    """The arm's grid, extensions included."""
    window: tuple[Point, ...]
    """Good points between the best grid point's two neighbours: what the choice was made from."""
    reach: tuple[float, float]
    """Rates between which the arm's best may lie: the window, stretched to the first bad rate where
    one ends it.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values: dict[str, Any] = to_jsonable_python(self)
        return values


def round_rate(x: float) -> float:
    """Round to three significant digits: what a config states and a reader can copy."""
    return float(f"{x:.3g}")


def rate_grid(trials: int, center: float) -> list[float]:
    """Return the grid round a center, ascending, half a decade apart.

    `trials - 2` rates from 7 trials on (two stay for the midpoints). Fewer trials take that many
    evenly spaced rates: one, or two half a decade either side, or three a decade apart, or four to
    six neighbours. An even number has its extra rate on the low side, where nothing diverges.

    Raises:
        ValueError: no trial, or a rate that is not positive.
    """
    if trials < 1:
        raise ValueError(f"trials must be at least 1, not {trials}")
    if trials < FULL_TRIALS:
        steps: Sequence[int] = _SPARSE_GRIDS[trials]
    else:
        low = -((trials - 2) // 2)
        steps = range(low, low + trials - 2)
    middle = log10_rate(center)
    return [round_rate(10 ** (middle + step / 2)) for step in steps]


@functools.lru_cache(maxsize=4096)
def log10_rate(lr: float) -> float:
    """Return log10 of a rate, exact for a rounded half decade.

    So 0.00316 is followed by 0.01 and not by 0.00999.

    Raises:
        ValueError: the rate is not a positive number.
    """
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"a learning rate must be positive, not {lr}")
    x = math.log10(lr)
    nearest = round(2 * x) / 2
    return nearest if round_rate(10**nearest) == round_rate(lr) else x


def best_point(points: Sequence[Point]) -> Point | None:
    """Return the good point with the lowest loss; ties go to the lower rate; None without one."""
    good = [point for point in points if point.ok]
    return min(good, key=lambda point: (point.loss, point.lr), default=None)


def points_on_grid(points: Sequence[Point], rates: Sequence[float]) -> list[Point]:
    """Return the points that lie on the grid, ascending (midpoints left out)."""
    return _sort_by_rate(point for point in points if point.lr in rates)


def edge_of_best(points: Sequence[Point], rates: Sequence[float]) -> Side | None:
    """Return the side of the grid at which the best grid point lies, or None.

    A diverged or stalled neighbour is a neighbour: the optimum is bracketed by it. Below three
    rates every point is at an edge, which says nothing: None.
    """
    top = best_point(points_on_grid(points, rates))
    if top is None or len(rates) < 3:
        return None
    if top.lr == min(rates):
        return "low"
    return "high" if top.lr == max(rates) else None


def rate_beyond(rates: Sequence[float], side: Side) -> float:
    """Return the rate half a decade beyond the grid's `side`."""
    if side == "low":
        return round_rate(10 ** (log10_rate(min(rates)) - 0.5))
    return round_rate(10 ** (log10_rate(max(rates)) + 0.5))


def midpoint_rates(rates: Sequence[float], lr: float) -> list[float]:
    """Return the rates halfway (in log) between a grid rate and its grid neighbours, ascending."""
    low, high = neighbour_rates(rates, lr)
    neighbours = [rate for rate in (low, high) if rate is not None]
    return [round_rate(10 ** ((log10_rate(lr) + log10_rate(rate)) / 2)) for rate in neighbours]


def neighbour_rates(rates: Sequence[float], lr: float) -> tuple[float | None, float | None]:
    """Return the grid rates below and above a grid rate; None beyond the grid."""
    below = max((rate for rate in rates if rate < lr), default=None)
    above = min((rate for rate in rates if rate > lr), default=None)
    return below, above


def fit_parabola(points: Sequence[Point]) -> Parabola | None:
    """Fit a parabola by least squares; None below three distinct rates, or if not convex."""
    lrs, losses = tuple(p.lr for p in points), tuple(p.loss for p in points)
    if len(set(lrs)) < 3:
        return None
    import numpy as np

    x = np.log10(lrs)
    # Centred and scaled: the normal equations in raw log10 lr lose digits.
    shift = float(x.mean())
    a2, a1, a0 = (float(c) for c in np.polyfit(x - shift, losses, 2))
    if not a2 > CONVEX:
        return None
    coefficients = (a0 - a1 * shift + a2 * shift**2, a1 - 2 * a2 * shift, a2)
    return Parabola(coefficients, lrs, losses)


def choose_rate(
    points: Sequence[Point], rates: Sequence[float], *, hardly_tuned: bool = False
) -> Choice:
    """Choose the rate of an arm from all its points: the vertex, or the argmin where there is no
    vertex to trust.

    Args:
        points: every finished tuning run of the arm.
        rates: its grid, extensions included.
        hardly_tuned: the protocol has too few trials for midpoints: argmin, whatever the points
            look like.

    Raises:
        ValueError: no good point on the grid (such an arm is unstable and gets no rate).
    """
    top = best_point(points_on_grid(points, rates))
    if top is None:
        raise ValueError("no good point on the grid: this arm has no rate")
    low, high = neighbour_rates(rates, top.lr)
    inside = [point for point in points if (low or top.lr) <= point.lr <= (high or top.lr)]
    window = tuple(_sort_by_rate(point for point in inside if point.ok))
    # Diverged and stalled points are left out of the fit: such a cliff is no part of the valley.
    side = edge_of_best(points, rates)
    fit = fit_parabola(window)
    common = (side, fit, hardly_tuned, tuple(rates), window, _find_reach(inside, window))
    lowest = best_point(points)
    assert lowest is not None
    reason = _explain_argmin(window, fit, side, hardly_tuned)
    if reason or fit is None:
        return Choice(lowest.lr, "argmin", reason, *common)
    # Clamped: outside its points a parabola says nothing.
    _, c1, c2 = fit.coefficients
    vertex = -c1 / (2 * c2)
    first, last = math.log10(window[0].lr), math.log10(window[-1].lr)
    note = "" if first <= vertex <= last else "vertex clamped to the span of the points"
    lr = round_rate(10 ** min(max(vertex, first), last))
    return Choice(lr, "vertex", note, *common)


def _sort_by_rate(points: Iterable[Point]) -> list[Point]:
    return sorted(points, key=lambda point: point.lr)


def _find_reach(inside: Sequence[Point], window: Sequence[Point]) -> tuple[float, float]:
    """Return the window's ends, each stretched to the first bad rate beyond it."""
    first, last = window[0].lr, window[-1].lr
    below = max((point.lr for point in inside if point.lr < first), default=first)
    above = min((point.lr for point in inside if point.lr > last), default=last)
    return below, above


def _explain_argmin(
    window: Sequence[Point], fit: Parabola | None, side: Side | None, hardly_tuned: bool
) -> str:
    """Return why the vertex cannot be trusted; empty where it can."""
    if side:
        return f"best at the {side} edge of the grid"
    if hardly_tuned:
        return "rate hardly tuned: too few trials for midpoints"
    if len(window) < 4:
        points = "point" if len(window) == 1 else "points"
        return f"the best rate tried was taken: only {len(window)} usable {points} for a fit"
    if fit is None:
        return "the best rate tried was taken: the losses round it are not convex"
    return ""
