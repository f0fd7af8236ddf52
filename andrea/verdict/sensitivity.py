"""Learning-rate sensitivity of an arm (Wortsman et al. 2023): one number beside its rate curve."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from andrea.verdict.rates import Point

FEWEST = 3
"""Rates below which a mean over the grid says nothing about a curve."""


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivity of one arm, over the rates that all arms have tried."""

    value: float | None
    """Mean over the common grid of min(loss, loss at initialisation), less their least, in nats;
    None: refused.
    """
    rates: list[float] = field(default_factory=list)
    """The common grid, ascending."""
    losses: list[float] = field(default_factory=list)
    """min(loss, loss at initialisation) at these rates, nats; empty where refused."""
    best: float | None = None
    """The least of `losses`."""
    n: int = 0
    """Runs: one tuning seed at every rate, hence no interval."""
    reason: str = ""


def measure_sensitivity(points: Sequence[Point], grid: Sequence[float]) -> Sensitivity:
    """Measure the sensitivity of an arm over a grid that it shares with the others.

    Args:
        points: the arm's tuning runs, their losses capped by `cap_loss`; rates outside the grid
            (midpoints) are left out, since every arm has its own.
        grid: `common_grid` of all arms.

    Refused (value None, with the reason): fewer than three common rates, or one at which this arm
    has no result.
    """
    rates = sorted(grid)
    n = len(rates)
    if n < FEWEST:
        common = f"{n} rate" if n == 1 else f"{n} rates"
        reason = f"the arms have {common} in common, fewer than {FEWEST}"
        return Sensitivity(None, rates, reason=reason)
    loss_at = {point.lr: point.loss for point in points}
    lacking = [f"{rate:g}" for rate in rates if rate not in loss_at]
    if lacking:
        return Sensitivity(None, rates, reason=f"no result at rate {', '.join(lacking)}")
    # Less the arm's own best: an arm that is worse throughout is not more sensitive for that.
    losses = [loss_at[rate] for rate in rates]
    best = min(losses)
    excess = math.fsum(loss - best for loss in losses) / n
    return Sensitivity(excess, rates, losses, best, n)


def cap_loss(loss: float | None, initial: float) -> float:
    """Return min(loss, loss at initialisation) in nats; the latter where no loss is finite."""
    return min(loss, initial) if loss is not None and math.isfinite(loss) else initial


def common_grid(grids: Iterable[Sequence[float]]) -> list[float]:
    """Return the rates that every arm's grid holds, ascending; arms with a center of their own may
    share none.
    """
    sets = [set(rates) for rates in grids]
    return sorted(set.intersection(*sets)) if sets else []
