"""Regret: the loss that the choice of a rate may have cost, from the scatter of the tuning runs.

Two equal arms whose rates were chosen with error differ at those rates, and many seeds make that
difference "significant". The verdict therefore sets the regret of both arms against the effect
(docs/method.md, *Regret*).
"""

import functools
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from andrea.verdict.rates import CONVEX, Choice

DRAWS = 2000
QUANTILE = 0.95

Array = NDArray[np.float64]


def estimate_regrets(
    choices: Mapping[str, Choice], *, draws: int = DRAWS, seed: int = 0
) -> dict[str, float | None]:
    """Return the regret of every arm in nats: the 95th percentile of what its rate costs, over
    curves that the noise allows.

    Each draw adds fresh normal noise to the fitted losses at the arm's tuning rates, fits the
    parabola anew, and reads how far above that curve's minimum the chosen rate lies. The noise has
    the scatter of the residuals pooled over all arms; where the curve is no parabola its misfit is
    in that scatter too, so that a crooked curve earns a larger regret. The minimum is sought as far
    as the first rate that diverged or stalled: beside a cliff the best may lie where no good run
    was, and how low the curve falls there is as uncertain as the curve.

    An arm is None where no parabola could be fitted: nothing is known about what its rate cost.

    Args:
        choices: every arm's choice, the baseline's too.
        draws: redrawn curves per arm.
        seed: of the generator; arms are drawn in the order of their names. numpy keeps its normal
            stream within a version only, so numpy's version stands in verdict.json.
    """
    # Pooled, because one arm's parabola leaves one or two degrees of freedom.
    scatter, _ = pooled_scatter(choices)
    # By name: the order in which arms are declared must not change their regrets.
    rng = np.random.default_rng(seed)
    regrets = {arm: _regret_of(choices[arm], scatter, draws, rng) for arm in sorted(choices)}
    return {arm: regrets[arm] for arm in choices}


def pooled_scatter(choices: Mapping[str, Choice]) -> tuple[float, int]:
    """Return the residual standard deviation over all arms in nats, and its degrees of freedom;
    (0, 0) if no arm has any.
    """
    total, freedom = 0.0, 0
    for choice in choices.values():
        fit = choice.fit
        if fit is not None and len(fit.lrs) > 3:
            pairs = zip(fit.lrs, fit.losses, strict=True)
            total += sum((loss - fit.loss_at(lr)) ** 2 for lr, loss in pairs)
            freedom += len(fit.lrs) - 3
    return (math.sqrt(total / freedom), freedom) if freedom else (0.0, 0)


def _regret_of(
    choice: Choice, scatter: float, draws: int, rng: np.random.Generator
) -> float | None:
    if choice.fit is None:
        return None
    x, centre, solver = _least_squares(choice.fit.lrs)
    fitted = np.polyval(choice.fit.coefficients[::-1], x)
    losses = fitted + scatter * rng.standard_normal((draws, len(x)))
    a2, a1, _ = solver @ losses.T

    def curve_at(decades: Array | float) -> Array:
        """Return the height [draws] of the redrawn parabolas, constants left out, so many decades
        from the centre.
        """
        height: Array = (a2 * decades + a1) * decades
        return height

    chosen, low, high = (math.log10(lr) - centre for lr in (choice.lr, *choice.reach))
    # A redrawn curve that is not convex has its minimum at an end, which the last lines compare.
    convex = a2 > CONVEX
    vertex = np.clip(np.where(convex, -a1 / np.where(convex, 2 * a2, 1.0), chosen), low, high)
    lowest = np.minimum(curve_at(vertex), np.minimum(curve_at(low), curve_at(high)))
    return float(np.quantile(np.maximum(curve_at(chosen) - lowest, 0.0), QUANTILE))


@functools.lru_cache(maxsize=256)
def _least_squares(lrs: tuple[float, ...]) -> tuple[Array, float, Array]:
    """Return log10 of the rates [n], their mean, and the matrix [3, n] that turns losses there into
    the coefficients of the parabola about that mean, highest power first.
    """
    x: Array = np.log10(lrs)
    centre = float(x.mean())
    return x, centre, np.asarray(np.linalg.pinv(np.vander(x - centre, 3)), dtype=np.float64)
