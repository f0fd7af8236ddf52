"""Regret: how much loss the choice of a rate may have cost, from the scatter of the tuning runs alone.

Two equal arms whose rates were chosen with error differ at those rates, and many seeds make that difference
"significant". The verdict therefore sets the regret of both arms against the effect (docs/method.md, *Regret*).
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from andrea.verdict.rates import CONVEX, Choice

DRAWS = 2000
QUANTILE = 0.95

Array = NDArray[np.float64]


def regrets(choices: Mapping[str, Choice], *, draws: int = DRAWS, seed: int = 0) -> dict[str, float | None]:
    """The regret of every arm in nats: the 95th percentile, over redrawn choices, of fitted loss above its minimum.

    Each draw adds fresh normal noise to the fitted losses at the arm's tuning rates, repeats the choice (vertex or
    argmin, as was done) and reads the original parabola there. The noise has the scatter of the residuals pooled over
    all arms; where the curve is no parabola its misfit is in that scatter too, so that a crooked curve earns a larger
    regret. The minimum is sought as far as the first rate that diverged or stalled: beside a cliff the best may lie
    where no good run was.

    An arm is None where no parabola could be fitted: nothing is known about what its rate cost.

    Args:
        choices: every arm's choice, the baseline's too.
        draws: redrawn choices per arm.
        seed: of the generator; arms are drawn in the order of their names. numpy keeps its normal stream within a
            version only, so numpy's version stands in verdict.json.
    """
    scatter, _ = pooled_scatter(choices)
    rng = np.random.default_rng(seed)
    found = {arm: _regret(choices[arm], scatter, draws, rng) for arm in sorted(choices)}
    return {arm: found[arm] for arm in choices}


def pooled_scatter(choices: Mapping[str, Choice]) -> tuple[float, int]:
    """Residual standard deviation over all arms in nats, and its degrees of freedom; (0, 0) if no arm has any."""
    total, freedom = 0.0, 0
    for choice in choices.values():
        if choice.fit is not None and len(choice.fit.lrs) > 3:
            pairs = zip(choice.fit.lrs, choice.fit.losses, strict=True)
            total += sum((loss - choice.fit.at(lr)) ** 2 for lr, loss in pairs)
            freedom += len(choice.fit.lrs) - 3
    return (math.sqrt(total / freedom), freedom) if freedom else (0.0, 0)


def _regret(choice: Choice, scatter: float, draws: int, rng: np.random.Generator) -> float | None:
    if choice.fit is None:
        return None
    x = np.log10(choice.fit.lrs)
    _, c1, c2 = choice.fit.coefficients
    fitted = np.polyval(choice.fit.coefficients[::-1], x)
    losses = fitted + scatter * rng.standard_normal((draws, len(x)))
    redrawn = _vertices(x, losses) if choice.method == "vertex" else x[np.argmin(losses, axis=1)]
    low, high = np.log10(choice.reach)
    lowest = np.clip(-c1 / (2 * c2), low, high)
    above = c2 * (redrawn - lowest) * (redrawn + lowest + c1 / c2)
    return float(np.quantile(np.maximum(above, 0.0), QUANTILE))


def _vertices(x: Array, losses: Array) -> Array:
    """Vertex [draws] of the parabola through every row of `losses` [draws, len(x)], clamped; argmin if not convex."""
    centred = x - x.mean()
    a2, a1, _ = np.linalg.pinv(np.vander(centred, 3)) @ losses.T
    convex = a2 > CONVEX
    vertex = np.where(convex, -a1 / np.where(convex, 2 * a2, 1.0), centred[np.argmin(losses, axis=1)])
    clamped: Array = np.clip(vertex, centred.min(), centred.max()) + x.mean()
    return clamped
