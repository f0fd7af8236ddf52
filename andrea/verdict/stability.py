"""Stability of an arm: the share of its runs that diverged or stalled, with an interval."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    # Loading scipy.stats takes most of a second, and not every command comes here.
    from scipy import stats

    interval = stats.binomtest(bad, n).proportion_ci(LEVEL, method="wilson")
    return Stability(n, diverged, stalled, bad / n, float(interval.low), float(interval.high))
