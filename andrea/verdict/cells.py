"""Cells of a factorial design. Loads nothing heavy: the questions of the catalogue name cells.

A cell is an arm: one level of every factor, named `level+level` in the order of the factors.
"""

import itertools
from collections.abc import Mapping, Sequence

Factors = Mapping[str, Sequence[str]]
"""Levels by factor, in declared order."""


def cell_name(levels: Sequence[str]) -> str:
    """Return the name of the arm with these levels, in the order of the factors."""
    return "+".join(levels)


def cells(factors: Factors) -> dict[str, dict[str, str]]:
    """Return the level by factor of every cell, the last factor varying fastest."""
    return {
        cell_name(levels): dict(zip(factors, levels, strict=True))
        for levels in itertools.product(*factors.values())
    }
