"""How often an arm does not train: diverged and stalled runs as a rate, with Wilson's interval."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from andrea.verdict.replicates import Replicate

LEVEL = 0.95


@dataclass(frozen=True)
class Stability:
    """Of one arm, its tuning runs or its replicates."""

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

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def measure_stability(outcomes: Sequence[Replicate]) -> Stability:
    """Count, and say how far the count may stray.

    The interval takes the runs for independent and alike. Replicates are (over seeds); tuning runs
    are a choice of rates, over which the rate is an average, and whose interval is descriptive.
    """
    diverged = sum(run.outcome == "diverged" for run in outcomes)
    stalled = sum(run.unstable for run in outcomes) - diverged
    bad = diverged + stalled
    n = bad + sum(run.good for run in outcomes)
    if n == 0:
        return Stability(0, 0, 0, None, None, None)
    from scipy import stats

    found = stats.binomtest(bad, n).proportion_ci(LEVEL, method="wilson")
    return Stability(n, diverged, stalled, bad / n, float(found.low), float(found.high))
