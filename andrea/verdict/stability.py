"""Stability of an arm: the share of its runs that diverged or stalled, with an interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import scipy  # its parts load when they are used: most commands judge nothing

from andrea.verdict.replicates import Replicate

LEVEL = 0.95


@dataclass(frozen=True)
class Stability:
    """Stability of one arm, of its tuning runs or its replicates."""

    n: int
    """Runs that ended by themselves: completed with a loss, or diverged. What crashed or is missing
    is no result.
    """
    diverged: int
    stalled: int
    rate: float | None
    """(diverged + stalled) / n; None without a run."""
    low: float | None
    """Wilson's (1927) interval at 95 %: inside 0 and 1, and of some width at 0 of n."""
    high: float | None


def measure_stability(runs: Sequence[Replicate]) -> Stability:
    """Return the share of runs that did not train, with Wilson's interval.

    The interval takes the runs for independent and alike. Replicates are (over seeds); tuning runs
    are a choice of rates, over which the rate is an average, and whose interval is descriptive.
    """
    diverged = sum(run.outcome == "diverged" for run in runs)
    stalled = sum(run.unstable for run in runs) - diverged
    bad = diverged + stalled
    n = bad + sum(run.good for run in runs)
    if n == 0:
        return Stability(0, 0, 0, None, None, None)
    low, high = wilson_interval(bad, n)
    return Stability(n, diverged, stalled, bad / n, low, high)


def wilson_interval(bad: int, n: int) -> tuple[float, float]:
    """Return the interval of a share at `LEVEL` (Wilson 1927; Newcombe 1998, method 3).

    It is `scipy.stats.binomtest(bad, n).proportion_ci(LEVEL, "wilson")` to the last bit, without
    the seconds that loading scipy.stats takes at the end of every study.
    """
    share = bad / n
    z = float(scipy.special.ndtri(0.5 + 0.5 * LEVEL))
    denominator = 2 * (n + z**2)
    center = (2 * n * share + z**2) / denominator
    half_width = z / denominator * math.sqrt(4 * n * share * (1 - share) + z**2)
    low = 0.0 if bad == 0 else center - half_width
    high = 1.0 if bad == n else center + half_width
    return low, high
