"""About how long a study takes, from a few steps of its baseline on this device."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from andrea.config import RunConfig
from andrea.data.prepared import Prepared
from andrea.study.stages.stage import Forecast
from andrea.verdict.rates import FULL_TRIALS

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
    arms: Sequence[str],
    trials: int,
    seeds: int,
    done: Mapping[str, int],
    extras: Sequence[Forecast] = (),
    tokens: int = 1,
) -> list[Stretch]:
    """Return the stretches of an ablation without extensions of the grid.

    Args:
        done: runs by arm that the store has already; the earliest stretches are taken to be those.
        extras: controls and the like.
        tokens: of a replicate of the baseline.
    """
    midpoints = 2 if trials >= FULL_TRIALS else 0
    remaining = {arm: done.get(arm, 0) for arm in arms}
    expected = [(dict.fromkeys(arms, n), 1.0) for n in (trials - midpoints, midpoints, seeds)]
    for extra in extras:
        counts = Counter(run.arm for run in extra.certain)
        expected.append((dict(counts), extra.mean_tokens(tokens) / tokens))
    plan = []
    for counted, length in expected:
        runs = {}
        for arm in arms:
            known = min(remaining[arm], counted.get(arm, 0))
            remaining[arm] -= known
            runs[arm] = counted.get(arm, 0) - known
        plan.append(Stretch(runs, length))
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
