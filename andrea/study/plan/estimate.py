"""About how long a study takes, from a few steps of its baseline on this device."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from andrea.config import RunConfig
from andrea.data.prepared import Prepared
from andrea.study.stages.stage import Forecast

START_S = 0.3
"""Seconds from a free slot to the first step of a run: a process, the data, a model."""


@dataclass(frozen=True)
class Stretch:
    """Runs that start together; the next stretch waits for all of them."""

    runs: Mapping[str, int]
    """Runs by arm."""
    length: float = 1.0
    """Mean tokens of such a run over those of a replicate of the baseline."""


def stretches(
    arms: Sequence[str], forecasts: Sequence[Forecast], done: Mapping[str, int]
) -> list[Stretch]:
    """Return the runs that are left, a stretch for every forecast.

    Args:
        forecasts: of all stages in order.
        done: runs by arm that the store has already; the earliest are taken to be those.
    """
    remaining = {arm: done.get(arm, 0) for arm in arms}
    replicate = next((run.tokens for forecast in forecasts for run in forecast.certain), 1)
    plan = []
    for forecast in forecasts:
        counts = Counter(run.arm for run in forecast.certain)
        mean = forecast.tokens / max(len(forecast.certain), 1)
        runs = {}
        for arm in arms:
            known = min(remaining[arm], counts[arm])
            remaining[arm] -= known
            runs[arm] = counts[arm] - known
        plan.append(Stretch(runs, mean / replicate))
    return plan


def seconds(plan: Sequence[Stretch], per_run: Mapping[str, float], slots: int) -> float:
    """Return the seconds with `slots` runs at once: each stretch in whole rounds of its mean
    run.
    """
    return sum(_stretch_seconds(plan, per_run, slots))


def _stretch_seconds(
    plan: Sequence[Stretch], per_run: Mapping[str, float], slots: int
) -> Iterator[float]:
    for stretch in plan:
        count = sum(stretch.runs.values())
        if count:
            work = sum(n * per_run[arm] for arm, n in stretch.runs.items()) * stretch.length
            yield math.ceil(count / slots) * work / count


def per_run(
    configs: Mapping[str, RunConfig], flops: Mapping[str, float], baseline: str, prepared: Prepared
) -> dict[str, float]:
    """Return the seconds of a run of every arm: the baseline's is measured, the others follow by
    their FLOPs.
    """
    from andrea.training.calibrate import calibrate

    measured = calibrate(configs[baseline], prepared)
    return {arm: START_S + measured * flops[arm] / flops[baseline] for arm in configs}
