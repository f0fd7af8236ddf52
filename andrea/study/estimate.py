"""About how long a study takes, from a few steps of its baseline on this device."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from andrea.config import RunConfig
from andrea.data.prepared import Prepared

START_S = 0.3
"""Seconds from a free slot to the first step of a run: a process, the data, a model."""


@dataclass(frozen=True)
class Stretch:
    """Runs that start together; the next stretch waits for all of them."""

    runs: Mapping[str, int]
    """Runs by arm."""


def stretches(arms: Sequence[str], trials: int, seeds: int, done: Mapping[str, int]) -> list[Stretch]:
    """The stretches of an ablation without extensions of the grid: grid, midpoints, replicates.

    Args:
        done: runs by arm that the store has already; the earliest stretches are taken to be those.
    """
    midpoints = 2 if trials >= 7 else 0
    left = {arm: done.get(arm, 0) for arm in arms}
    found = []
    for count in (trials - midpoints, midpoints, seeds):
        runs = {}
        for arm in arms:
            known = min(left[arm], count)
            left[arm] -= known
            runs[arm] = count - known
        found.append(Stretch(runs))
    return found


def seconds(plan: Sequence[Stretch], per_run: Mapping[str, float], slots: int) -> float:
    """Seconds with `slots` runs at once: each stretch in whole rounds of its mean run."""
    total = 0.0
    for stretch in plan:
        count = sum(stretch.runs.values())
        if count:
            work = sum(n * per_run[arm] for arm, n in stretch.runs.items())
            total += math.ceil(count / slots) * work / count
    return total


def per_run(
    configs: Mapping[str, RunConfig], flops: Mapping[str, float], baseline: str, prepared: Prepared
) -> dict[str, float]:
    """Seconds of a run of every arm: the baseline's is measured, the others follow by their FLOPs."""
    from andrea.training.calibrate import calibrate

    measured = calibrate(configs[baseline], prepared)
    return {arm: START_S + measured * flops[arm] / flops[baseline] for arm in configs}
