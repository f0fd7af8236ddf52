"""Statistics of paired differences (arm − baseline, in nats of loss; negative is better).

scipy does the work; what is here are the edges: standard deviation 0, Holm's step-down, and what n
pairs can see.
"""

import functools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import scipy  # its parts load when they are used: most commands judge nothing

ROUNDING = 1e-12
"""Nats below which a spread or a mean is float rounding, not noise: such differences count as
constant.
"""
POWER = 0.8
"""Chance of seeing an effect that `pairs_needed` and `smallest_visible` ask for."""
MOST_PAIRS = 10_000
"""More pairs than this is no advice."""

Alternative = Literal["two-sided", "less", "greater"]


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean; None of no values."""
    return math.fsum(values) / len(values) if len(values) else None


def sd_of(values: Sequence[float]) -> float | None:
    """Return the standard deviation with n − 1; None below two values."""
    return _mean_and_sd(values)[1] if len(values) > 1 else None


def t_test_p(
    differences: Sequence[float], about: float = 0.0, alternative: Alternative = "two-sided"
) -> float:
    """Return p of a one-sample t test of the mean against `about` (as `scipy.stats.ttest_1samp`).

    Without spread there is nothing to test against: p is 1 where the mean does not contradict the
    null, else 0.

    Raises:
        ValueError: fewer than two differences.
    """
    mean, error = _mean_and_error(differences)
    deviation = mean - about
    excess = {"two-sided": abs(deviation), "greater": deviation, "less": -deviation}[alternative]
    if error == 0:
        return 0.0 if excess > ROUNDING else 1.0
    tail = float(scipy.special.stdtr(len(differences) - 1, -excess / error))
    return 2 * tail if alternative == "two-sided" else tail


def p_beyond_regret(differences: Sequence[float], regret: float) -> float:
    """Return the two-sided p with |mean| − regret for a mean; 1 where the regret is the larger."""
    mean = math.fsum(differences) / len(differences)
    if abs(mean) <= regret:
        return 1.0
    return t_test_p(differences, math.copysign(regret, mean))


def tost_p(differences: Sequence[float], margin: float) -> float:
    """Return p of two one-sided t tests that the mean lies inside ±margin (Schuirmann 1987).

    It is 1 where the margin is not above 0.
    """
    if margin <= 0:
        return 1.0
    return max(t_test_p(differences, -margin, "greater"), t_test_p(differences, margin, "less"))


def t_interval(differences: Sequence[float], alpha: float) -> tuple[float, float]:
    """Return the two-sided t interval of the mean at level 1 − alpha; a point without spread.

    Raises:
        ValueError: fewer than two differences.
    """
    mean, error = _mean_and_error(differences)
    half = error * critical_t(len(differences), alpha)
    return mean - half, mean + half


@functools.lru_cache(maxsize=4096)
def critical_t(n: int, alpha: float) -> float:
    """Return the two-sided critical value of t with n − 1 degrees of freedom."""
    return float(-scipy.special.stdtrit(n - 1, alpha / 2))


def _mean_and_error(differences: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error; the error is 0 where the spread is rounding."""
    n = len(differences)
    if n < 2:
        raise ValueError("a test needs at least two differences")
    mean, sd = _mean_and_sd(differences)
    return mean, sd / math.sqrt(n) if sd > ROUNDING else 0.0


def _mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return both of at least two values."""
    # Exact sums: the order of the values changes nothing.
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted by the step-down procedure of Holm (1979), in the order given."""
    adjusted = [1.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def t_test_power(effect: float, n: int, alpha: float) -> float:
    """Return the chance that a two-sided paired t test with n pairs sees an effect.

    Args:
        effect: in standard deviations of the differences.
        n: pairs.
        alpha: level of the test.
    """
    bound, shift = critical_t(n, alpha), abs(effect) * math.sqrt(n)
    upper = 1 - float(scipy.special.nctdtr(n - 1, shift, bound))
    lower = float(scipy.special.nctdtr(n - 1, shift, -bound))
    # Far out scipy gives nan: for the near side that is certainty, for the far side nothing.
    if math.isnan(upper):
        upper = 1.0
    if math.isnan(lower):
        lower = 0.0
    return min(1.0, upper + lower)


def pairs_needed(effect: float, sd: float, alpha: float) -> int | None:
    """Return the fewest pairs that see an effect with 80 % power; None if no sensible number does.

    Args:
        effect: the smallest that matters, in nats, set beforehand. The effect just seen would turn
            "no verdict" into advice to go on until there is one.
        sd: standard deviation of the differences, nats.
        alpha: level of the test.
    """
    if effect <= 0:
        return None
    if sd <= ROUNDING:
        return 2
    # With a known sd a normal test would do with this many; the t test needs a few more, never
    # fewer.
    quantiles = float(scipy.special.ndtri(1 - alpha / 2) + scipy.special.ndtri(POWER))
    normal = (quantiles * sd / effect) ** 2
    if normal >= MOST_PAIRS:
        return None
    n = max(2, math.ceil(normal))
    while t_test_power(effect / sd, n, alpha) < POWER:
        n += 1
    return n


@functools.lru_cache(maxsize=256)
def visible_effect(n: int, alpha: float) -> float:
    """Return the smallest effect, in sd of differences, that n pairs see with 80 % power."""
    # Loading scipy.optimize and scipy.stats takes most of a second, and few commands come here.
    from scipy import optimize

    high = 1.0
    while t_test_power(high, n, alpha) < POWER:
        high *= 2

    def excess_power(effect: float) -> float:
        return t_test_power(effect, n, alpha) - POWER

    return float(optimize.brentq(excess_power, 0.0, high, xtol=1e-6))


def fisher_p(bad: int, good: int, other_bad: int, other_good: int) -> float:
    """Return Fisher's exact two-sided p that two arms fail equally often."""
    from scipy import stats

    return float(stats.fisher_exact(np.array([[bad, good], [other_bad, other_good]])).pvalue)
