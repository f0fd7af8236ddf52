"""How much the loss of an arm depends on its learning rate (Wortsman et al. 2023): one number
beside the curve.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from andrea.verdict.rates import Point

FEWEST = 3
"""Rates below which a mean over the grid says nothing about a curve."""


@dataclass(frozen=True)
class Sensitivity:
    """Of one arm, over the rates that all arms have tried."""

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

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def measure_sensitivity(points: Sequence[Point], grid: Sequence[float]) -> Sensitivity:
    """Learning-rate sensitivity of an arm over a grid that it shares with the others.

    Args:
        points: the arm's tuning runs, their losses `capped`; rates outside the grid (midpoints) are
            left out, since every arm has its own.
        grid: `common_grid` of all arms.

    Refused (value None, with the reason): fewer than three common rates, or one at which this arm
    has no result.
    """
    rates = sorted(grid)
    if len(rates) < FEWEST:
        common = f"{len(rates)} rate{'' if len(rates) == 1 else 's'}"
        return Sensitivity(
            None, rates, reason=f"the arms have {common} in common, fewer than {FEWEST}"
        )
    at = {point.lr: point.loss for point in points}
    if lacking := [rate for rate in rates if rate not in at]:
        return Sensitivity(
            None, rates, reason=f"no result at rate {', '.join(f'{rate:g}' for rate in lacking)}"
        )
    losses = [at[rate] for rate in rates]
    best = min(losses)
    return Sensitivity(
        math.fsum(loss - best for loss in losses) / len(rates), rates, losses, best, len(rates)
    )


def cap_loss(loss: float | None, initial: float) -> float:
    """min(loss, loss at initialisation) in nats; a loss that is not finite, or none, is that at
    initialisation.
    """
    return min(loss, initial) if loss is not None and math.isfinite(loss) else initial


def common_grid(grids: Iterable[Sequence[float]]) -> list[float]:
    """The rates that every arm's grid holds, ascending; arms with a center of their own may share
    none.
    """
    every = [set(rates) for rates in grids]
    return sorted(set.intersection(*every)) if every else []
