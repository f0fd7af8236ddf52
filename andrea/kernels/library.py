"""What all ops stand on: registration with torch, tensors as rows, and the replica axis.

`vmap` over an op adds a replica axis. Ops fold it into the rows, so that stacked replicas share one
launch: R replicas of N rows are R · N rows, and row r belongs to replica r // N.

Shapes: N rows, C columns; weights [C], or [..., C] with any number of replica axes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from andrea.kernels.backend import run_kernel
from andrea.kernels.launch_plans import ActivationShape, NormShape, plan_reduce_parts
from andrea.kernels.source import type_suffix

LIBRARY = torch.library.Library("andrea", "DEF")  # type: ignore[no-untyped-call]
"""Holds the ops for as long as the process lives."""

Inputs = TypeVar("Inputs", bound=tuple[Any, ...])
"""A named tuple of an op's arguments, in the order of its schema."""


def define_op(
    schema: str,
    inputs_type: Callable[..., Inputs],
    *,
    kernel: Callable[[Inputs], Any],
    shapes: Callable[[Inputs], Any],
    vmap: Callable[[int, Any, Inputs], Any],
    save: Callable[[Any, Inputs, Any], None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> None:
    """Register an op in torch's namespace `andrea`.

    Args:
        inputs_type: the named tuple in which the functions below get the op's arguments.
        kernel: computes it, on a GPU, and on a CPU where a test has installed a backend.
        shapes: returns results without numbers, for tracing.
        vmap: computes it for stacked replicas, from their number, the axes of the inputs (a tuple
            of the same names; None: all replicas share it) and the inputs; returns results and
            their axes.
        save: keeps what the backward needs: `save(ctx, inputs, outputs)`. `ctx.needed` has the
            names of the inputs, True for each that needs a gradient.
        backward: returns the gradients of the inputs: `backward(ctx, *gradients)`. It calls ops
            alone, so that it can be traced and batched. Without it the op has no gradient.
    """
    name = schema.partition("(")[0]
    op = f"andrea::{name}"

    def vmap_named(info: Any, axes: Sequence[int | None], *arguments: Any) -> Any:
        return vmap(info.batch_size, inputs_type(*axes), inputs_type(*arguments))

    def save_named(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        assert save is not None
        # torch appends an entry of its own.
        ctx.needed = inputs_type(*ctx.needs_input_grad[: len(inputs)])
        save(ctx, inputs_type(*inputs), output)

    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, lambda *arguments: kernel(inputs_type(*arguments)), device)  # type: ignore[no-untyped-call]
    torch.library.register_fake(op, lambda *arguments: shapes(inputs_type(*arguments)), lib=LIBRARY)
    torch.library.register_vmap(op, vmap_named, lib=LIBRARY)
    if backward is not None:
        torch.library.register_autograd(op, backward, setup_context=save_named, lib=LIBRARY)


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type that kernels compute in, and store weights and sums in: float32, and float64
    for the float64 modules of the tests.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def to_compute_type(x: Tensor, weight: Tensor | None) -> Tensor | None:
    """Return a weight or bias of x, if there is one, in the type that kernels read it in."""
    return None if weight is None else weight.to(compute_type(x.dtype))


# ---- Results that may be absent ------------------------------------------------------------------
# An op returns a fixed number of tensors: what is not asked for is an empty one.


def new_result(
    x: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None, needed: bool = True
) -> Tensor:
    """Return a tensor for a kernel to fill; an empty one if it is not needed."""
    return x.new_empty(shape if needed else (0,), dtype=dtype)


def null_if_empty(x: Tensor) -> Tensor | None:
    """Return what a kernel gets for a tensor: an empty one is a null pointer."""
    return x if x.numel() else None


def replica_axis(needed: bool) -> int | None:
    """Return the replica axis of a result; an empty one has none."""
    return 0 if needed else None


# ---- Rows ----------------------------------------------------------------------------------------


def as_rows(x: Tensor) -> Tensor:
    """Return [..., C] as [N, C] with contiguous columns: a view where the strides allow it, else a
    copy.
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
    """Return the elements from one row of [N, C] to the next."""
    # A single row may have any stride; one that is no multiple of 16 bytes would forbid vectors.
    return rows.stride(0) if rows.shape[0] > 1 else rows.shape[1]


def row_argument(name: str, x: Tensor | None) -> dict[str, Any]:
    """Return a kernel's arguments for a tensor [..., C]: its rows as `name`, and `name`_stride."""
    if x is None:
        return {name: None, f"{name}_stride": 0}
    rows = as_rows(x)
    return {name: rows, f"{name}_stride": row_stride(rows)}


def contiguous(x: Tensor | None) -> Tensor | None:
    """Return a weight as kernels read it, if there is one."""
    return None if x is None else x.contiguous()


def reduce_parts(partial: Tensor, out: Tensor) -> None:
    """Sum [..., parts, C] over the parts, in their order, into out [..., C]."""
    *segments, parts, columns = partial.shape
    count = math.prod(segments)
    plan = plan_reduce_parts(type_suffix(partial.dtype), count, parts, columns)
    run_kernel(partial.device, plan, partial=partial, out=out, segments=count, columns=columns)


# ---- Replicas ------------------------------------------------------------------------------------


class ReplicaRows(NamedTuple):
    """Rows of x [R · N, C], of which each of R replicas has as many."""

    rows_per_replica: int
    replicas: int
    columns: int


def replica_rows(x: Tensor, weights: Sequence[Tensor | None], kind: str) -> ReplicaRows:
    """Share out the rows of x among the replicas that its weights [..., C] are for.

    Args:
        kind: how a message calls such a weight.

    Raises:
        ValueError: a weight does not fit to x, they are for different numbers of replicas, or the
            rows cannot be shared out.
    """
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    counts = set()
    for weight in weights:
        if weight is None:
            continue
        if weight.dtype != compute_type(x.dtype) or weight.shape[-1] != columns:
            message = f"{kind} {weight.dtype} {list(weight.shape)} for rows of {columns} columns"
            raise ValueError(message)
        counts.add(math.prod(weight.shape[:-1]))
    if len(counts) > 1:
        raise ValueError(f"weights for different numbers of replicas: {sorted(counts)}")
    replicas = counts.pop() if counts else 1
    if replicas == 0 or rows % replicas:
        raise ValueError(f"{rows} rows for {replicas} replicas")
    return ReplicaRows(rows // replicas, replicas, columns)


def replica_stride(shape: NormShape | ActivationShape) -> int:
    """Return the elements from a replica's weight or bias to the next one's; 0 for a weight that
    all rows share.
    """
    return shape.columns if shape.replicas > 1 else 0


def stack_replicas(x: Tensor, axis: int | None, replicas: int) -> Tensor:
    """Return a tensor with its replica axis first; one that all replicas share is expanded."""
    if axis is None:
        return x.expand(replicas, *x.shape)
    return x.movedim(axis, 0)


def stack_if_given(x: Tensor | None, axis: int | None, replicas: int) -> Tensor | None:
    """Return what `stack_replicas` does; None for an absent tensor."""
    return None if x is None else stack_replicas(x, axis, replicas)


def stack_fields(inputs: Inputs, axes: Any, replicas: int, *names: str) -> Inputs:
    """Return an op's inputs with the replica axis first in the tensors of these names; an absent
    one stays so.
    """
    fields: Any = inputs
    stacked = {}
    for name in names:
        stacked[name] = stack_if_given(getattr(fields, name), getattr(axes, name), replicas)
    replaced: Inputs = fields._replace(**stacked)
    return replaced


def stack_weights(
    weights: Sequence[Tensor | None], axes: Sequence[int | None], replicas: int
) -> list[Tensor | None]:
    """Return weights with the replica axis first, each replica with one of its own."""
    pairs = zip(weights, axes, strict=True)
    return [contiguous(stack_if_given(weight, axis, replicas)) for weight, axis in pairs]


def stack_unshared_weights(
    weights: Sequence[Tensor | None], axes: Sequence[int | None], replicas: int
) -> list[Tensor | None]:
    """Return weights for folded rows: weights [C] that all replicas share as they are, since they
    belong to every row; otherwise one for each replica.
    """
    pairs = zip(weights, axes, strict=True)
    if all(weight is None or (axis is None and weight.dim() == 1) for weight, axis in pairs):
        return list(weights)
    return stack_weights(weights, axes, replicas)
