"""About how long a study takes, from a few steps of its baseline on this device."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from andrea.config import RunConfig
from andrea.data.prepared import Prepared
from andrea.study.plan.extras import Extra

START_S = 0.3
"""Seconds from a free slot to the first step of a run: a process, the data, a model."""


@dataclass(frozen=True)
class Stretch:
    """Runs that start together; the next stretch waits for all of them."""

    runs: Mapping[str, int]
    """Runs by arm."""
    length: float = 1.0
    """Tokens of such a run over those of a replicate, in the mean."""


def stretches(
    arms: Sequence[str],
    trials: int,
    seeds: int,
    done: Mapping[str, int],
    beside: Sequence[Extra] = (),
) -> list[Stretch]:
    """The stretches of an ablation without extensions of the grid: grid, midpoints, replicates,
    what is beside them.

    Args:
        beside: controls and the like.
        done: runs by arm that the store has already; the earliest stretches are taken to be those.
    """
    midpoints = 2 if trials >= 7 else 0
    left = {arm: done.get(arm, 0) for arm in arms}
    counts = [(dict.fromkeys(arms, count), 1.0) for count in (trials - midpoints, midpoints, seeds)]
    counts += [(Counter(run.arm for run in extra.sure), extra.length) for extra in beside]
    found = []
    for wanted, length in counts:
        runs = {}
        for arm in arms:
            known = min(left[arm], wanted.get(arm, 0))
            left[arm] -= known
            runs[arm] = wanted.get(arm, 0) - known
        found.append(Stretch(runs, length))
    return found


def seconds(plan: Sequence[Stretch], per_run: Mapping[str, float], slots: int) -> float:
    """Seconds with `slots` runs at once: each stretch in whole rounds of its mean run."""
    total = 0.0
    for stretch in plan:
        count = sum(stretch.runs.values())
        if count:
            work = sum(n * per_run[arm] for arm, n in stretch.runs.items()) * stretch.length
            total += math.ceil(count / slots) * work / count
    return total


def per_run(
    configs: Mapping[str, RunConfig], flops: Mapping[str, float], baseline: str, prepared: Prepared
) -> dict[str, float]:
    """Seconds of a run of every arm: the baseline's is measured, the others follow by their FLOPs."""
    from andrea.training.calibrate import calibrate

    measured = calibrate(configs[baseline], prepared)
    return {arm: START_S + measured * flops[arm] / flops[baseline] for arm in configs}
