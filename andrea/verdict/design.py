"""Factorial designs: cells, and the effects that can be read off them as weighted sums.

A cell is an arm: one level of every factor, named `level+level` in the order of the factors.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["main", "simple", "interaction"]
KINDS: tuple[Kind, ...] = ("main", "simple", "interaction")
Factors = Mapping[str, Sequence[str]]
"""Levels by factor, in declared order."""


@dataclass(frozen=True)
class Step:
    """From one level of a factor to another."""

    factor: str
    level: str
    against: str


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of cells whose weights add up to 0."""

    kind: Kind
    steps: list[Step]
    """One, or the two of an interaction."""
    at: dict[str, str]
    """Level of the other factor, of a simple effect."""
    weights: dict[str, float]
    """By cell; cells that are not in it play no part."""


def cell(levels: Sequence[str]) -> str:
    """Name of the arm that has these levels, in the order of the factors."""
    return "+".join(levels)


def cells(factors: Factors) -> dict[str, dict[str, str]]:
    """Level by factor of every cell, the last factor varying fastest."""
    return {
        cell(levels): dict(zip(factors, levels, strict=True))
        for levels in itertools.product(*factors.values())
    }


def contrasts(factors: Factors, baseline: str) -> list[Contrast]:
    """Every effect of a design with at least two factors: main effects, simple ones (of two
    factors), interactions.

    Main effects and interactions are averages over the levels of the factors that they do not name.

    Raises:
        KeyError: the baseline is no cell.
    """
    base = cells(factors)[baseline]
    found = [_contrast(factors, "main", [step]) for step in _steps(factors, base)]
    if len(factors) == 2:
        for step in _steps(factors, base):
            [other] = [name for name in factors if name != step.factor]
            found += [
                _contrast(factors, "simple", [step], {other: level}) for level in factors[other]
            ]
    pairs = itertools.combinations(_steps(factors, base), 2)
    return found + [
        _contrast(factors, "interaction", [a, b]) for a, b in pairs if a.factor != b.factor
    ]


def _steps(factors: Factors, base: Mapping[str, str]) -> Iterator[Step]:
    for factor, levels in factors.items():
        yield from (Step(factor, level, base[factor]) for level in levels if level != base[factor])


def _contrast(
    factors: Factors, kind: Kind, steps: list[Step], at: dict[str, str] | None = None
) -> Contrast:
    at = at or {}
    named = {step.factor for step in steps} | at.keys()
    averaged = 1
    for factor, levels in factors.items():
        averaged *= 1 if factor in named else len(levels)
    weights = {}
    for name, levels_ in cells(factors).items():
        weight = 1 / averaged
        for step in steps:
            weight *= {step.level: 1, step.against: -1}.get(levels_[step.factor], 0)
        if weight and all(levels_[factor] == level for factor, level in at.items()):
            weights[name] = weight
    return Contrast(kind, steps, at, weights)
