"""Seeds of tuning, of replication and of the A/A control: three ranges that can never meet.

A rate chosen on the seeds that later judge it would be chosen partly for those seeds' luck.
"""

BLOCK = 1_000_000
"""Replication uses [0, BLOCK), tuning [BLOCK, 2·BLOCK), the A/A control [2·BLOCK, 3·BLOCK)."""


def replication_seed(i: int) -> int:
    """Return the seed of replicate `i` (0, 1, …), the same in every arm."""
    return _within_block(i)


def replication_seeds(n: int) -> list[int]:
    """Return the seeds of the `n` replicates by which a study is judged."""
    return [replication_seed(i) for i in range(n)]


def tuning_seed(i: int) -> int:
    """Return tuning seed `i`.

    One study's trials all use seed 0, so that rates and arms are compared on one draw.
    """
    return BLOCK + _within_block(i)


def control_seed(i: int) -> int:
    """Return the seed of the initial weights of the `i`-th A/A run.

    Its batches and dropout are those of replicate `i`.
    """
    return 2 * BLOCK + _within_block(i)


def confirmation_seeds(n: int) -> list[int]:
    """Return the replication seeds that a confirmation of n pairs is judged by: those after the
    first n.
    """
    return [replication_seed(n + i) for i in range(n)]


def _within_block(i: int) -> int:
    if not 0 <= i < BLOCK:
        raise ValueError(f"seed index {i} is outside 0..{BLOCK - 1}")
    return i
