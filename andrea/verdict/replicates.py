"""Evidence that a verdict rests on: the replicates of every arm, and what became of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from andrea.verdict import paired
from andrea.verdict.rates import Side

Fates = dict[str, int]
"""Planned runs by fate: good, diverged, stalled, failed, missing; every run has exactly one."""


def is_good_run(outcome: str, stalled: bool | None, loss: float | None) -> bool:
    """Return true if a run completed, learned something and has a finite loss.

    Only then is its loss a measurement.
    """
    return outcome == "completed" and not stalled and loss is not None and math.isfinite(loss)


@dataclass(frozen=True)
class Replicate:
    """The end of one replication run."""

    loss: float | None
    """Final loss on the verdict part, in nats per token."""
    outcome: str = "completed"
    """completed, diverged, or another word (failed): then it is not a result."""
    stalled: bool = False
    digest: str | None = None
    """Of the evaluated tokens."""

    @property
    def unstable(self) -> bool:
        """Diverged or stalled: a result, and never averaged."""
        return self.outcome == "diverged" or (self.outcome == "completed" and self.stalled)

    @property
    def good(self) -> bool:
        """Completed, learned something and has a finite loss."""
        return is_good_run(self.outcome, self.stalled, self.loss)

    @property
    def fate(self) -> str:
        """A key of `Fates`: good, diverged, stalled or failed."""
        if self.unstable:
            return "diverged" if self.outcome == "diverged" else "stalled"
        return "good" if self.good else "failed"


Replicates = Mapping[int, Replicate]
"""By seed. A planned seed that is absent is a missing run."""


@dataclass(frozen=True)
class ArmData:
    """An arm as the judge sees it."""

    name: str
    runs: Replicates = field(default_factory=dict)
    edge: Side | None = None
    """Side of the grid at which the tuned rate lies, if at one."""
    regret: float | None = 0.0
    """Nats that the choice of the rate may have cost (`regret.regrets`); None: unknown."""
    hardly_tuned: bool = False
    """Fewer trials than the full design."""
    untrainable: bool = False
    """No tuning run of this arm was good: it has no rate and no replicates."""
    exploratory: bool = False
    """Some of its runs, tuning or replicate, are older than the freeze of the protocol."""


@dataclass(frozen=True)
class ArmSummary:
    """An arm by itself: its level, its noise over seeds, and what became of its runs."""

    arm: str
    n: int
    """Good runs, over which mean and sd are taken."""
    mean: float | None
    sd: float | None
    counts: Fates


@dataclass(frozen=True)
class Difference:
    """A contrast at one seed, for two arms the difference arm − baseline, in nats.

    Negative is better.
    """

    seed: int
    difference: float


def count_fates(arm: ArmData, seeds: Sequence[int]) -> Fates:
    """Count the planned runs of an arm by what became of them."""
    counts = {"good": 0, "diverged": 0, "stalled": 0, "failed": 0, "missing": 0}
    for seed in seeds:
        run = arm.runs.get(seed)
        counts["missing" if run is None else run.fate] += 1
    return counts


def count_unstable(fates: Fates) -> int:
    """Return the number of runs that diverged or stalled."""
    return fates["diverged"] + fates["stalled"]


def summarise_arm(arm: ArmData, seeds: Sequence[int]) -> ArmSummary:
    """Summarise an arm over the planned seeds.

    The report states the baseline's standard deviation as the noise of the study.
    """
    runs = [arm.runs[seed] for seed in seeds if seed in arm.runs]
    losses = [run.loss for run in runs if run.good and run.loss is not None]
    mean, sd = paired.mean_of(losses), paired.sd_of(losses)
    return ArmSummary(arm.name, len(losses), mean, sd, count_fates(arm, seeds))


def evaluated_digests(runs: Replicates, seeds: Sequence[int]) -> set[str | None]:
    """Return the digests of the tokens that the good runs were evaluated on."""
    return {runs[seed].digest for seed in seeds if seed in runs and runs[seed].good}


def weighted_differences(
    runs: Mapping[str, Replicates], weights: Mapping[str, float], seeds: Sequence[int]
) -> list[Difference]:
    """Return the weighted sum of losses at every seed at which all its arms have a good run.

    Args:
        runs: by arm; at least those that have a weight.
        weights: by arm, in the order in which the losses are added.
        seeds: the planned seeds.
    """
    sums = [(seed, _weighted_sum(runs, weights, seed)) for seed in seeds]
    return [Difference(seed, value) for seed, value in sums if value is not None]


def _weighted_sum(
    runs: Mapping[str, Replicates], weights: Mapping[str, float], seed: int
) -> float | None:
    total = 0.0
    for arm, weight in weights.items():
        run = runs[arm].get(seed)
        if run is None or not run.good or run.loss is None:
            return None
        total += weight * run.loss
    return total
