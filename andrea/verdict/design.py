"""Factorial designs: the effects that can be read off their cells (`cells.py`) as weighted sums.

docs/method.md, *Factorial designs*.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from andrea.verdict.cells import Factors, cells
from andrea.verdict.contrast import Contrast, Finding, Word, size_and_direction
from andrea.verdict.replicates import ArmData, Fates

Kind = Literal["main", "simple", "interaction"]
KINDS: tuple[Kind, ...] = ("main", "simple", "interaction")


@dataclass(frozen=True)
class Step:
    """From one level of a factor to another."""

    factor: str
    level: str
    against: str


@dataclass(frozen=True)
class FactorialContrast(Contrast):
    """An effect: a weighted sum of cells."""

    kind: Kind
    steps: list[Step]
    """One, or the two of an interaction."""
    at: dict[str, str]
    """Level of the other factor, of a simple effect."""

    @property
    def family(self) -> str:
        """The effects of one kind are a family."""
        return self.kind

    def explain_instability(
        self, unstable: Mapping[str, ArmData], fates: Mapping[str, Fates]
    ) -> tuple[str, str]:
        """Return an empty cause, and what every unstable cell has lost."""
        losses = [f"{name}: {_describe_loss(cell, fates[name])}" for name, cell in unstable.items()]
        return "", f"{'; '.join(losses)}; so there is nothing to take the difference of"

    def explain_absence(self, absent: Mapping[str, int], planned: int) -> str:
        """Return the sentence on the cells that lack a run."""
        lacking = [f"{n} of {planned} runs of {cell}" for cell, n in absent.items() if n]
        return f"{' and '.join(lacking)} failed or are missing"

    def word_for(self, finding: Finding) -> Word:
        """Return present or absent for an interaction: of two effects neither is the better one."""
        if self.kind != "interaction":
            return finding
        return "absent" if finding == "equivalent" else "present"

    def describe_difference(self, mean: float) -> str:
        """Return by how much the loss, or the effect on it, is lower or higher."""
        first, last = self.steps[0], self.steps[-1]
        size = size_and_direction(mean)
        if self.kind != "interaction":
            return f"the loss is {size} with {first.level} than with {first.against}"
        effect = f"the effect of {first.level} on the loss"
        return f"{effect} is {size} with {last.level} than with {last.against}"

    def describe_equivalence(self, margin: float) -> str:
        """Return the sentence on an effect that is seen to be smaller than the margin."""
        if self.kind != "interaction":
            return super().describe_equivalence(margin)
        first, last = self.steps
        effect = f"the effect of {first.level} on the loss with {last.level}"
        return f"{effect} is that with {last.against} to within {margin:g} nats"

    def json_entries(
        self, fates: Mapping[str, Fates], family_size: int
    ) -> dict[str, dict[str, Any]]:
        """Return the entries of an effect."""
        contrast = {
            "kind": self.kind,
            "steps": [asdict(step) for step in self.steps],
            "at": self.at,
            "weights": self.weights,
        }
        return {
            "contrast": contrast,
            "family_size": {"family": family_size},
            "fates": {"counts": fates},
            "fisher_p": {},
        }


def factorial_contrasts(factors: Factors, baseline: str) -> list[FactorialContrast]:
    """List every effect of a design with at least two factors: main, simple (of two factors only),
    interactions.

    Main effects and interactions are averages over the levels of the factors that they do not name.

    Raises:
        KeyError: the baseline is no cell.
    """
    steps = list(_steps_from(cells(factors)[baseline], factors))
    contrasts = [_contrast(factors, "main", [step]) for step in steps]
    if len(factors) == 2:
        for step in steps:
            [other] = [factor for factor in factors if factor != step.factor]
            for level in factors[other]:
                contrasts.append(_contrast(factors, "simple", [step], {other: level}))
    for first, second in itertools.combinations(steps, 2):
        if first.factor != second.factor:
            contrasts.append(_contrast(factors, "interaction", [first, second]))
    return contrasts


def _steps_from(baseline_levels: Mapping[str, str], factors: Factors) -> Iterator[Step]:
    for factor, levels in factors.items():
        for level in levels:
            if level != baseline_levels[factor]:
                yield Step(factor, level, baseline_levels[factor])


def _contrast(
    factors: Factors, kind: Kind, steps: list[Step], at: dict[str, str] | None = None
) -> FactorialContrast:
    at = at or {}
    fixed = {step.factor for step in steps} | at.keys()
    averaged = math.prod(len(levels) for factor, levels in factors.items() if factor not in fixed)
    weights = {}
    for name, levels in cells(factors).items():
        weight = 1 / averaged
        for step in steps:
            weight *= {step.level: 1, step.against: -1}.get(levels[step.factor], 0)
        if weight and at.items() <= levels.items():
            weights[name] = weight
    return FactorialContrast(kind, steps, at, weights=weights)


def _describe_loss(cell: ArmData, fates: Fates) -> str:
    if cell.untrainable:
        return "every tuning run diverged or stalled"
    counts = [f"{fates[fate]} {fate}" for fate in ("diverged", "stalled") if fates[fate]]
    return f"{' and '.join(counts)} of {sum(fates.values())} runs"
