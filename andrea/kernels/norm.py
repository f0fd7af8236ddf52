"""Residual add and LayerNorm or RMSNorm as ops: `sum = x + delta`, `y = norm(sum) * weight + bias`.

Shapes: N rows (any leading axes), C columns; weight and bias [C], or [R, C] for R replicas that
    have N / R rows each,
one after the other. Storage: x, sum and their gradients as the stream, delta, y and theirs as the
    branch.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from andrea.kernels import source
from andrea.kernels.backend import limits, run
from andrea.kernels.library import (
    define,
    differentiate,
    per_replica,
    real_of,
    replicas_of,
    replicated,
    row_stride,
    rows_of,
    stacked,
    stacked_weights,
)

Optional = Tensor | None


class _Shape(NamedTuple):
    """Of a launch."""

    rows: int
    columns: int
    replicas: int
    stream: str
    branch: str

    @property
    def per_replica(self) -> int:
        return per_replica(self.rows, self.replicas)


def _shape(x: Tensor, branch: torch.dtype, weights: tuple[Optional, ...]) -> _Shape:
    columns = x.shape[-1]
    kinds = source.suffix(str(x.dtype)), source.suffix(str(branch))
    if kinds not in source.PAIRS and kinds != ("f64", "f64"):
        raise ValueError(f"no kernel for a stream of {x.dtype} with branches of {branch}")
    for weight in weights:
        if weight is not None and (weight.dtype != real_of(x.dtype) or weight.shape[-1] != columns):
            raise ValueError(
                f"weight {weight.dtype} {list(weight.shape)} for rows of {columns} columns"
            )
    return _Shape(math.prod(x.shape[:-1]), columns, replicas_of(weights), *kinds)


def _forward(
    x: Tensor,
    delta: Optional,
    weight: Optional,
    bias: Optional,
    kind: str,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sum (empty without delta), y, mean (empty for rms), reciprocal deviation."""
    if weight is None and bias is not None:
        raise ValueError(
            "a norm with a bias needs a weight: the backward sums for the bias only beside the "
            "weight"
        )
    shape = _shape(x, dtype, (weight, bias))
    real = real_of(x.dtype)
    total = x.new_empty(x.shape if delta is not None else (0,))
    y = x.new_empty(x.shape, dtype=dtype)
    mean = x.new_empty(x.shape[:-1] if kind == "ln" else (0,), dtype=real)
    rstd = x.new_empty(x.shape[:-1], dtype=real)
    if x.numel():
        own, branch = rows_of(x), None if delta is None else rows_of(delta)
        weight, bias = (None if w is None else w.contiguous() for w in (weight, bias))
        step = shape.columns if shape.replicas > 1 else 0
        run(
            x.device,
            source.norm_forward(
                kind, shape.stream, shape.branch, shape.rows, shape.columns, limits(x.device)
            ),
            x=own,
            x_stride=row_stride(own),
            delta=branch,
            delta_stride=0 if branch is None else row_stride(branch),
            weight=weight,
            weight_replica_stride=step,
            bias=bias,
            bias_replica_stride=step,
            sum=None if delta is None else total,
            y=y,
            mean=mean if kind == "ln" else None,
            rstd=rstd,
            rows=shape.rows,
            columns=shape.columns,
            rows_per_replica=shape.per_replica,
            eps=eps,
        )
    return total, y, mean, rstd


def _norm(
    x: Tensor, weight: Optional, bias: Optional, kind: str, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return _forward(x, None, weight, bias, kind, eps, dtype)[1:]


def _norm_fake(
    x: Tensor, weight: Optional, bias: Optional, kind: str, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    real = real_of(x.dtype)
    mean = x.new_empty(x.shape[:-1] if kind == "ln" else (0,), dtype=real)
    return x.new_empty(x.shape, dtype=dtype), mean, x.new_empty(x.shape[:-1], dtype=real)


def _norm_vmap(
    info: Any, axes: Any, x: Tensor, weight: Optional, bias: Optional, *rest: Any
) -> Any:
    x = stacked(x, axes[0], info.batch_size)
    weight, bias = replicated((weight, bias), axes[1:3], info.batch_size)
    y, mean, rstd = torch.ops.andrea.norm(x, weight, bias, *rest)
    return (y, mean, rstd), (0, _axis(mean, rest[0]), 0)


def _add_norm(
    x: Tensor, delta: Tensor, weight: Optional, bias: Optional, kind: str, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if x.shape != delta.shape:
        raise ValueError(
            f"a branch of shape {list(delta.shape)} for a stream of shape {list(x.shape)}"
        )
    return _forward(x, delta, weight, bias, kind, eps, delta.dtype)


def _add_norm_fake(
    x: Tensor, delta: Tensor, weight: Optional, bias: Optional, kind: str, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (x.new_empty(x.shape), *_norm_fake(x, weight, bias, kind, eps, delta.dtype))


def _add_norm_vmap(
    info: Any, axes: Any, x: Tensor, delta: Tensor, weight: Optional, bias: Optional, *rest: Any
) -> Any:
    x, delta = stacked(x, axes[0], info.batch_size), stacked(delta, axes[1], info.batch_size)
    weight, bias = replicated((weight, bias), axes[2:4], info.batch_size)
    total, y, mean, rstd = torch.ops.andrea.add_norm(x, delta, weight, bias, *rest)
    return (total, y, mean, rstd), (0, 0, _axis(mean, rest[0]), 0)


def _axis(mean: Tensor, kind: str) -> int | None:
    return 0 if kind == "ln" else None


def _backward(
    dy: Tensor,
    dsum: Optional,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Optional,
    kind: str,
    learned: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the stream, of the branch (empty where it is stored alike: then the same), of
    weight and bias.

    Args:
        learned: how many of weight and bias get a gradient; the others' are empty.
    """
    shape = _shape(total, dy.dtype, (weight,))
    real, device, replicas = real_of(total.dtype), total.device, shape.replicas
    dx, dbranch, dweight, dbias = _backward_fake(dy, dsum, total, mean, rstd, weight, kind, learned)
    if total.numel() == 0:
        return dx, dbranch, dweight.zero_(), dbias.zero_()
    plan = source.norm_backward(
        kind, shape.stream, shape.branch, shape.per_replica, replicas, shape.columns, limits(device)
    )
    upper, own, above = rows_of(dy), rows_of(total), None if dsum is None else rows_of(dsum)
    parts = plan.extra["parts"]
    partial = dx.new_empty(learned, replicas, parts, shape.columns, dtype=real) if learned else None
    run(
        device,
        plan,
        dy=upper,
        dy_stride=row_stride(upper),
        dsum=above,
        dsum_stride=0 if above is None else row_stride(above),
        sum=own,
        sum_stride=row_stride(own),
        mean=mean.contiguous() if kind == "ln" else None,
        rstd=rstd.contiguous(),
        weight=None if weight is None else weight.contiguous(),
        weight_replica_stride=shape.columns if replicas > 1 else 0,
        dx=dx,
        ddelta=dbranch if dbranch.numel() else None,
        partial=partial,
        rows_per_replica=shape.per_replica,
        replicas=replicas,
        columns=shape.columns,
        with_bias=int(learned == 2),
    )
    if partial is not None:
        summed = partial.new_empty(learned, *dweight.shape)
        reduce_parts(partial, summed)
        dweight, dbias = summed[0], summed[1].clone() if learned == 2 else dbias
    return dx, dbranch, dweight, dbias


def reduce_parts(partial: Tensor, out: Tensor) -> None:
    """Sum [segments..., parts, columns] over the parts, in their order, into out [segments...,
    columns].
    """
    columns, parts = partial.shape[-1], partial.shape[-2]
    segments = math.prod(partial.shape[:-2])
    real = source.suffix(str(partial.dtype))
    plan = source.reduce_parts(real, segments, parts, columns)
    run(partial.device, plan, partial=partial, out=out, segments=segments, columns=columns)


def _backward_fake(
    dy: Tensor,
    dsum: Optional,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Optional,
    kind: str,
    learned: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    real = real_of(total.dtype)
    branch = total.shape if dy.dtype != total.dtype else (0,)
    size = (0,) if weight is None else weight.shape
    return (
        total.new_empty(total.shape),
        total.new_empty(branch, dtype=dy.dtype),
        total.new_empty(size if learned else (0,), dtype=real),
        total.new_empty(size if learned == 2 else (0,), dtype=real),
    )


def _backward_vmap(
    info: Any,
    axes: Any,
    dy: Tensor,
    dsum: Optional,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Optional,
    kind: str,
    learned: int,
) -> Any:
    size = info.batch_size
    dsum = None if dsum is None else stacked(dsum, axes[1], size)
    mean = stacked(mean, axes[3], size) if kind == "ln" else mean
    # Each replica gets a gradient of its own, of what all share too.
    (weight,) = stacked_weights((weight,), axes[5:6], size)
    found = torch.ops.andrea.norm_backward(
        stacked(dy, axes[0], size),
        dsum,
        stacked(total, axes[2], size),
        mean,
        stacked(rstd, axes[4], size),
        weight,
        kind,
        learned,
    )
    mixed = dy.dtype != total.dtype
    return found, (0, 0 if mixed else None, 0 if learned else None, 0 if learned == 2 else None)


_BACKWARD = define(
    "norm_backward(Tensor dy, Tensor? dsum, Tensor sum, Tensor mean, Tensor rstd, Tensor? weight, "
    "str kind,"
    " int learned) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    _backward_vmap,
)
_NORM = define(
    "norm(Tensor x, Tensor? weight, Tensor? bias, str kind, float eps, ScalarType dtype) -> "
    "(Tensor, Tensor, Tensor)",
    _norm,
    _norm_fake,
    _norm_vmap,
)
_ADD_NORM = define(
    "add_norm(Tensor x, Tensor delta, Tensor? weight, Tensor? bias, str kind, float eps)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _add_norm,
    _add_norm_fake,
    _add_norm_vmap,
)


def _keep(
    ctx: Any,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weights: tuple[Optional, Optional],
    needed: Any,
) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(total, mean, rstd, weights[0])
    # With a bias the kernel sums for both; it cannot sum for the bias alone.
    ctx.learned = (
        2 if weights[1] is not None and needed[1] else int(weights[0] is not None and needed[0])
    )


def _setup_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, ctx.kind, _, ctx.dtype = inputs
    _keep(ctx, x, output[1], output[2], (weight, bias), ctx.needs_input_grad[1:3])


def _setup_add_norm(ctx: Any, inputs: Any, output: Any) -> None:
    _, delta, weight, bias, ctx.kind, _ = inputs
    ctx.dtype = delta.dtype
    _keep(ctx, output[0], output[2], output[3], (weight, bias), ctx.needs_input_grad[2:4])


def _gradients(
    ctx: Any, dsum: Optional, dy: Optional
) -> tuple[Optional, Optional, Optional, Optional]:
    """Of stream, branch, weight and bias; a missing gradient from above is none, not zeros that are
    read (S61).
    """
    total, mean, rstd, weight = ctx.saved_tensors
    dx: Tensor
    if dy is None:
        return dsum, None if dsum is None else dsum.to(ctx.dtype), None, None
    dx, dbranch, dweight, dbias = torch.ops.andrea.norm_backward(
        dy, dsum, total, mean, rstd, weight, ctx.kind, ctx.learned
    )
    branch = dx if dy.dtype == total.dtype else dbranch
    return dx, branch, dweight if ctx.learned else None, dbias if ctx.learned == 2 else None


def _norm_gradient(ctx: Any, dy: Optional, *unused: Any) -> tuple[Optional, ...]:
    dx, _, dweight, dbias = _gradients(ctx, None, dy)
    return dx, dweight, dbias, None, None, None


def _add_norm_gradient(
    ctx: Any, dsum: Optional, dy: Optional, *unused: Any
) -> tuple[Optional, ...]:
    return *_gradients(ctx, dsum, dy), None, None


differentiate(_NORM, _setup_norm, _norm_gradient)
differentiate(_ADD_NORM, _setup_add_norm, _add_norm_gradient)


def norm(
    x: Tensor,
    weight: Optional,
    bias: Optional,
    kind: str,
    eps: float,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`norm(x) * weight + bias` over the last axis, [..., C].

    Args:
        kind: `ln` (mean 0 and variance 1) or `rms` (mean square 1).
        eps: added to the variance, or to the mean square, under the root.
        dtype: of the result; by default that of x.
    """
    real = real_of(x.dtype)
    weight, bias = (None if w is None else w.to(real) for w in (weight, bias))
    y: Tensor = torch.ops.andrea.norm(x, weight, bias, kind, eps, dtype or x.dtype)[0]
    return y


def add_norm(
    x: Tensor, delta: Tensor, weight: Optional, bias: Optional, kind: str, eps: float
) -> tuple[Tensor, Tensor]:
    """`x + delta` as x is stored, and its norm as delta is stored."""
    real = real_of(x.dtype)
    weight, bias = (None if w is None else w.to(real) for w in (weight, bias))
    total, y, _, _ = torch.ops.andrea.add_norm(x, delta, weight, bias, kind, eps)
    return total, y
