"""What controls, equal budgets and a confirmation come to, before anything is trained: runs and
tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from andrea.config import RunConfig
from andrea.records.extras import Extras
from andrea.study.stages.controls import FACTORS, ruler_tokens
from andrea.study.stages.equal_cost import TOLERANCE, cost
from andrea.training import schedule


class Training(NamedTuple):
    """A run as far as a plan knows it."""

    arm: str
    tokens: int


@dataclass(frozen=True)
class Extra:
    """One thing that is trained beside a study's own runs."""

    what: str
    sure: list[Training]
    """Runs that are trained if the study gets so far."""
    perhaps: list[Training] = field(default_factory=list)
    """Runs that are trained if something turns out so."""
    when: str = ""
    """If what turns out."""
    own: int = 1
    """Tokens of one of the baseline's replicates."""

    @property
    def runs(self) -> int:
        """Runs that are sure."""
        return len(self.sure)

    @property
    def length(self) -> float:
        """Tokens of a run over those of a replicate, in the mean."""
        return (
            sum(run.tokens for run in self.sure) / (self.own * len(self.sure)) if self.sure else 1.0
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        told = {
            "what": self.what,
            "runs": self.runs,
            "tokens": sum(run.tokens for run in self.sure),
        }
        return {**told, "perhaps": len(self.perhaps), "when": self.when}


def extras(
    asked: Extras, configs: Mapping[str, RunConfig], baseline: str, seeds: int
) -> list[Extra]:
    """What is asked beside a question, in the order in which it is trained.

    Args:
        configs: of every arm, the baseline's too.

    Raises:
        UserError: controls of a baseline that trains a single batch.
    """
    base, found = configs[baseline], []
    own = {
        arm: schedule.steps(config) * schedule.batch_tokens(config)
        for arm, config in configs.items()
    }
    if asked.controls:
        half, double = (
            Training(baseline, ruler_tokens(base, factor)) for factor in FACTORS.values()
        )
        full = Training(baseline, own[baseline])
        found.append(
            Extra(
                "controls", [full] + [full, half] * seeds, [double] * seeds, "if an arm is better"
            )
        )
    if "flops" in asked.equal:
        found.append(Extra("equal flops", _equal_flops(configs, baseline) * seeds))
    if "time" in asked.equal:
        others = [Training(arm, tokens) for arm, tokens in own.items() if arm != baseline]
        found.append(Extra("equal time", [], others * seeds, "where arms are faster or slower"))
    if asked.confirm:
        found.append(
            Extra("confirmation", [Training(arm, tokens) for arm, tokens in own.items()] * seeds)
        )
    return [replace(extra, own=own[baseline]) for extra in found]


def _equal_flops(configs: Mapping[str, RunConfig], baseline: str) -> list[Training]:
    """One run of every arm whose training costs other FLOPs than the baseline's."""
    found = []
    for arm, config in configs.items():
        ratio = cost(configs, baseline, "flops", None, arm) or 1.0
        steps = max(1, round(schedule.steps(config) / ratio))
        if abs(ratio - 1) > TOLERANCE and steps != schedule.steps(config):
            found.append(Training(arm, steps * schedule.batch_tokens(config)))
    return found
