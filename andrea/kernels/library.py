"""What all ops have in common: registration, rows of tensors, and how a replica axis is folded into
rows.

Shapes: R replicas (any number of leading axes of a weight), N rows, C columns.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("andrea", "DEF")  # type: ignore[no-untyped-call]
"""Holds the ops for as long as the process lives."""


def define(
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[..., Any],
) -> str:
    """Register an op: what it computes on a CPU (where a test's backend is installed) and on a GPU,
    the shapes of its results, and how it is computed for stacked replicas at once. Returns its
    qualified name.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, kernel, key)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"andrea::{name}", fake, lib=LIBRARY)
    torch.library.register_vmap(f"andrea::{name}", vmap, lib=LIBRARY)
    return f"andrea::{name}"


def differentiate(name: str, setup: Callable[..., None], backward: Callable[..., Any]) -> None:
    """Register an op's gradient."""
    torch.library.register_autograd(name, backward, setup_context=setup, lib=LIBRARY)


def real_of(dtype: torch.dtype) -> torch.dtype:
    """What kernels compute in: float32, and float64 for the float64 modules of the tests."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rows_of(x: Tensor) -> Tensor:
    """[..., C] as [N, C] whose columns are contiguous: the tensor itself where its strides allow
    it, else a copy.
    """
    columns = x.shape[-1]
    count = math.prod(x.shape[:-1])
    if x.stride(-1) != 1 and columns > 1:
        return x.contiguous().view(count, columns)
    try:
        return x.view(count, columns)
    except RuntimeError:  # rows that are not evenly spaced
        return x.contiguous().view(count, columns)


def row_stride(rows: Tensor) -> int:
    """Elements from one row of [N, C] to the next."""
    return rows.stride(0) if rows.shape[0] > 1 else rows.shape[1]


def replicas_of(weights: Sequence[Tensor | None]) -> int:
    """How many replicas weights of shape [..., C] are for.

    Raises:
        ValueError: they are for different numbers.
    """
    counts = {math.prod(weight.shape[:-1]) for weight in weights if weight is not None}
    if len(counts) > 1:
        raise ValueError(f"weights for different numbers of replicas: {sorted(counts)}")
    return counts.pop() if counts else 1


def per_replica(rows: int, replicas: int) -> int:
    """Rows of each replica.

    Raises:
        ValueError: the rows cannot be shared out.
    """
    if replicas == 0 or rows % replicas:
        raise ValueError(f"{rows} rows for {replicas} replicas")
    return rows // replicas


def stacked(x: Tensor, axis: int | None, size: int) -> Tensor:
    """With the replica axis first; what all replicas share is expanded."""
    return x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)


def replicated(
    weights: Sequence[Tensor | None], axes: Sequence[int | None], size: int
) -> list[Tensor | None]:
    """Weights [C] that all replicas share stay as they are, since rows are folded anyway; else each
    has its own.
    """
    pairs = zip(weights, axes, strict=True)
    if all(weight is None or (axis is None and weight.dim() == 1) for weight, axis in pairs):
        return list(weights)
    return stacked_weights(weights, axes, size)


def stacked_weights(
    weights: Sequence[Tensor | None], axes: Sequence[int | None], size: int
) -> list[Tensor | None]:
    """Weights with the replica axis first, each replica with its own."""
    pairs = zip(weights, axes, strict=True)
    return [
        None if weight is None else stacked(weight, axis, size).contiguous()
        for weight, axis in pairs
    ]
