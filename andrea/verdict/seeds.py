"""Seeds of tuning and of replication: two ranges that can never meet.

A rate chosen on the seeds that later judge it would be chosen partly for those seeds' luck.
"""

BLOCK = 1_000_000
"""Tuning uses [BLOCK, 2·BLOCK); replication uses [0, BLOCK)."""


def replication_seed(i: int) -> int:
    """The seed of replicate `i` (0, 1, …), the same in every arm."""
    return _within(i)


def tuning_seed(i: int) -> int:
    """Tuning seed `i`. One study's trials all use seed 0, so that rates and arms are compared on one draw."""
    return BLOCK + _within(i)


def _within(i: int) -> int:
    if not 0 <= i < BLOCK:
        raise ValueError(f"seed index {i} is outside 0..{BLOCK - 1}")
    return i
