"""Tuning step by step: a pure function from all points so far to the next generation of runs.

The controller calls `next_step` with every finished tuning run, starts the runs that it names, and
calls it again. Nothing is remembered in between, so a killed study decides the same when it is
resumed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from andrea.verdict.protocol import Protocol
from andrea.verdict.rates import (
    FULL_TRIALS,
    Choice,
    Point,
    Side,
    best_point,
    choose_rate,
    edge_of_best,
    midpoint_rates,
    points_on_grid,
    rate_beyond,
    rate_grid,
)

Phase = Literal["grid", "extension", "midpoint", "done"]


@dataclass(frozen=True)
class Decision:
    """The next generation, or the end of tuning."""

    phase: Phase
    generation: int
    """0 for the grid, then one more for every extension, and for the midpoints."""
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Runs of this generation that `arms` has no point of, by arm, ascending; empty when done."""
    grids: dict[str, list[float]] = field(default_factory=dict)
    """The grid of every arm, extensions included: the same one but for arms with a center of their
    own.
    """
    choices: dict[str, Choice] = field(default_factory=dict)
    """When done: the rate of every arm that has one."""
    untrainable: list[str] = field(default_factory=list)
    """Arms without one good trial on the first grid: *unstable* (the baseline: *invalid*). No rate,
    no replicates.
    """
    note: str = ""
    """For the log: why this generation."""


def next_step(
    arms: Mapping[str, Sequence[Point]],
    protocol: Protocol,
    *,
    baseline: str | None = None,
    centers: Mapping[str, float] | None = None,
) -> Decision:
    """Decide the next generation of tuning runs.

    Args:
        arms: every declared arm (the baseline too) and its finished tuning runs, in any order;
            diverged and stalled runs as `Point(lr, initial_loss, ok=False)`. A run that crashed is
            no point: its rate is asked for again.
        protocol: the frozen protocol.
        baseline: if named and without a good trial, tuning ends at once: nothing can be compared.
        centers: middle of the grid of arms that declared their own; the others have the protocol's.
            Every arm has as many rates, as far apart, and as many extensions.

    The grid is extended for every arm that trains, by half a decade at each side where the best of
    any arm lies (both sides in one generation if two arms pull apart), in at most
    `protocol.extensions` generations. An arm whose best is still at an edge gets no midpoints: its
    verdict is *inconclusive (rate at edge)* already.
    """
    own_centers = centers or {}
    grids = {arm: rate_grid(protocol.trials, own_centers.get(arm, protocol.center)) for arm in arms}
    missing = _missing_rates(arms, grids)
    if missing:
        count = len(next(iter(grids.values())))
        note = f"{count} rates per arm" if centers else f"{count} rates common to all arms"
        return Decision("grid", 0, missing, grids, note=note)
    trainable = {arm: points for arm, points in arms.items() if _best_on_grid(points, grids[arm])}
    untrainable = [arm for arm in arms if arm not in trainable]
    if baseline in untrainable:
        return Decision("done", 0, {}, grids, {}, untrainable, "the baseline has no good trial")
    # Every arm's grid grows where any arm's best is at an edge: no arm is searched where another
    # is not.
    generation = 0
    while generation < protocol.extensions and (pulls := _arms_at_edges(trainable, grids)):
        generation += 1
        longer = {arm: _extend_grid(rates, pulls) for arm, rates in grids.items()}
        missing = _missing_rates(trainable, longer)
        grids = longer
        if missing:
            notes = [f"best of {', '.join(who)} at the {side} edge" for side, who in pulls.items()]
            note = "; ".join(notes)
            return Decision("extension", generation, missing, grids, {}, untrainable, note)
    # Too few trials for a vertex have no use for midpoints either.
    hardly_tuned = protocol.trials < FULL_TRIALS
    if not hardly_tuned:
        generation += 1
        midpoints = {arm: _midpoints(points, grids[arm]) for arm, points in trainable.items()}
        missing = _missing_rates(trainable, midpoints)
        if missing:
            note = "two midpoints round the best of each arm"
            return Decision("midpoint", generation, missing, grids, {}, untrainable, note)
    choices = {
        arm: choose_rate(points, grids[arm], hardly_tuned=hardly_tuned)
        for arm, points in trainable.items()
    }
    return Decision("done", generation + 1, {}, grids, choices, untrainable)


def _best_on_grid(points: Sequence[Point], rates: Sequence[float]) -> Point | None:
    return best_point(points_on_grid(points, rates))


def _arms_at_edges(
    arms: Mapping[str, Sequence[Point]], grids: Mapping[str, Sequence[float]]
) -> dict[Side, list[str]]:
    """Return the arms whose best lies at an edge of their grid, by side."""
    at_edges: dict[Side, list[str]] = {}
    for arm, points in arms.items():
        side = edge_of_best(points, grids[arm])
        if side:
            at_edges.setdefault(side, []).append(arm)
    return at_edges


def _extend_grid(rates: Sequence[float], sides: Collection[Side]) -> list[float]:
    """Return the grid with the rate half a decade beyond it at each of these sides."""
    return sorted([*rates, *(rate_beyond(rates, side) for side in sides)])


def _midpoints(points: Sequence[Point], rates: Sequence[float]) -> list[float]:
    best = _best_on_grid(points, rates)
    if best is None or edge_of_best(points, rates):
        return []
    return midpoint_rates(rates, best.lr)


def _missing_rates(
    arms: Mapping[str, Sequence[Point]], planned: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """Return the planned rates that have no point yet; arms that lack none are left out."""
    missing = {}
    for arm, points in arms.items():
        tried = {point.lr for point in points}
        lacking = [rate for rate in planned[arm] if rate not in tried]
        if lacking:
            missing[arm] = lacking
    return missing
