"""Residual add and LayerNorm or RMSNorm as ops: `sum = x + delta`, `y = norm(sum) * weight + bias`.

Storage: x, sum and their gradients as the residual stream; delta, y and theirs as the branch;
weights, means and reciprocal deviations in float32.

Shapes: N rows (any leading axes), C columns; weight and bias [C], or [R, C] for R replicas that
have N / R rows each, one after the other.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from andrea.kernels import library
from andrea.kernels.backend import device_limits, run_kernel
from andrea.kernels.launch_plans import NormShape, plan_norm_backward, plan_norm_forward
from andrea.kernels.source import NORM_TYPES, type_suffix

NormKind = Literal["ln", "rms"]


class NormInputs(NamedTuple):
    """Arguments of the op `norm`, which has no `delta`, or of `add_norm`, which has no `dtype`."""

    x: Tensor
    delta: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    kind: NormKind
    eps: float
    dtype: torch.dtype | None = None

    @property
    def branch_type(self) -> torch.dtype:
        """The type that y is stored in: that of the branch, if there is one."""
        dtype = self.dtype if self.delta is None else self.delta.dtype
        assert dtype is not None
        return dtype


def _norm_inputs(x: Any, *others: Any) -> NormInputs:
    return NormInputs(x, None, *others)


class NormOutputs(NamedTuple):
    """What the forward kernel writes; empty where there is nothing to write."""

    sum: Tensor
    """[..., C] in the stream's type; empty without a delta."""
    y: Tensor
    """[..., C] in the branch's type."""
    mean: Tensor
    """[...], float32; empty for RMSNorm."""
    rstd: Tensor
    """[...], float32: 1 / √(variance + eps), or 1 / √(mean square + eps)."""


class NormBackwardInputs(NamedTuple):
    """Arguments of the op `norm_backward`."""

    dy: Tensor
    dsum: Tensor | None
    """The gradient that reaches the sum past the norm, along the residual stream."""
    sum: Tensor
    mean: Tensor
    rstd: Tensor
    weight: Tensor | None
    kind: NormKind
    learned: int
    """How many of weight and bias, in this order, get a gradient."""


class NormGradients(NamedTuple):
    """What the backward computes; empty where nothing is asked for."""

    dx: Tensor
    ddelta: Tensor
    """In the branch's type; empty where that is the stream's, and the gradient therefore dx."""
    dweight: Tensor
    dbias: Tensor


# ---- Forward -------------------------------------------------------------------------------------


def _norm_shape(
    x: Tensor, branch: torch.dtype, kind: NormKind, weights: tuple[Tensor | None, ...]
) -> NormShape:
    types = type_suffix(x.dtype), type_suffix(branch)
    if types not in NORM_TYPES and types != ("f64", "f64"):
        raise ValueError(f"no kernel for a stream of {x.dtype} with branches of {branch}")
    return NormShape(kind, *types, *library.replica_rows(x, weights, "weight"))


def _empty_outputs(inputs: NormInputs) -> NormOutputs:
    x = inputs.x
    real = library.compute_type(x.dtype)
    return NormOutputs(
        sum=library.new_result(x, x.shape, needed=inputs.delta is not None),
        y=library.new_result(x, x.shape, inputs.branch_type),
        mean=library.new_result(x, x.shape[:-1], real, needed=inputs.kind == "ln"),
        rstd=library.new_result(x, x.shape[:-1], real),
    )


def _run_forward(inputs: NormInputs) -> NormOutputs:
    x, delta = inputs.x, inputs.delta
    if delta is not None and x.shape != delta.shape:
        message = f"a branch of shape {list(delta.shape)} for a stream of shape {list(x.shape)}"
        raise ValueError(message)
    if inputs.weight is None and inputs.bias is not None:
        raise ValueError(
            "a norm with a bias needs a weight: the backward sums for the bias only beside the "
            "weight"
        )
    # Under vmap the weights have a replica axis, and x holds the rows of all replicas.
    shape = _norm_shape(x, inputs.branch_type, inputs.kind, (inputs.weight, inputs.bias))
    outputs = _empty_outputs(inputs)
    if x.numel() == 0:
        return outputs
    run_kernel(
        x.device,
        plan_norm_forward(shape, device_limits(x.device)),
        **library.row_argument("x", x),
        **library.row_argument("delta", delta),
        weight=library.contiguous(inputs.weight),
        weight_replica_stride=library.replica_stride(shape),
        bias=library.contiguous(inputs.bias),
        bias_replica_stride=library.replica_stride(shape),
        sum=library.null_if_empty(outputs.sum),
        y=outputs.y,
        mean=library.null_if_empty(outputs.mean),
        rstd=outputs.rstd,
        rows=shape.rows,
        columns=shape.columns,
        rows_per_replica=shape.rows_per_replica,
        eps=inputs.eps,
    )
    return outputs


def _forward_vmap(replicas: int, axes: Any, inputs: NormInputs) -> Any:
    x, delta, weight, bias, *settings = library.stack_fields(inputs, axes, replicas, "x", "delta")
    weight_axes = (axes.weight, axes.bias)
    weights = library.stack_unshared_weights((weight, bias), weight_axes, replicas)
    y_axes = (0, library.replica_axis(inputs.kind == "ln"), 0)
    if delta is None:
        return torch.ops.andrea.norm(x, *weights, *settings), y_axes
    return torch.ops.andrea.add_norm(x, delta, *weights, inputs.kind, inputs.eps), (0, *y_axes)


# ---- Backward ------------------------------------------------------------------------------------


def _empty_gradients(inputs: NormBackwardInputs) -> NormGradients:
    total, dtype, learned = inputs.sum, inputs.dy.dtype, inputs.learned
    real = library.compute_type(total.dtype)
    weight_shape = () if inputs.weight is None else inputs.weight.shape
    return NormGradients(
        dx=library.new_result(total, total.shape),
        ddelta=library.new_result(total, total.shape, dtype, needed=dtype != total.dtype),
        dweight=library.new_result(total, weight_shape, real, needed=learned > 0),
        dbias=library.new_result(total, weight_shape, real, needed=learned == 2),
    )


def _run_backward(inputs: NormBackwardInputs) -> NormGradients:
    total, weight, learned = inputs.sum, inputs.weight, inputs.learned
    shape = _norm_shape(total, inputs.dy.dtype, inputs.kind, (weight,))
    gradients = _empty_gradients(inputs)
    if total.numel() == 0:
        gradients.dweight.zero_()
        gradients.dbias.zero_()
        return gradients
    plan = plan_norm_backward(shape, device_limits(total.device))
    # Without atomics: each block writes its sums into a row of `partial`; `reduce_parts` adds the
    # rows in a fixed order, so that two runs agree bit for bit.
    partial = None
    if learned:
        parts = plan.arguments["parts"]
        size = (learned, shape.replicas, parts, shape.columns)
        partial = total.new_empty(size, dtype=library.compute_type(total.dtype))
    run_kernel(
        total.device,
        plan,
        **library.row_argument("dy", inputs.dy),
        **library.row_argument("dsum", inputs.dsum),
        **library.row_argument("sum", total),
        mean=library.null_if_empty(inputs.mean.contiguous()),
        rstd=inputs.rstd.contiguous(),
        weight=library.contiguous(weight),
        weight_replica_stride=library.replica_stride(shape),
        dx=gradients.dx,
        ddelta=library.null_if_empty(gradients.ddelta),
        partial=partial,
        rows_per_replica=shape.rows_per_replica,
        replicas=shape.replicas,
        columns=shape.columns,
        with_bias=int(learned == 2),
    )
    if partial is None:
        return gradients
    sums = partial.new_empty(learned, *gradients.dweight.shape)
    library.reduce_parts(partial, sums)
    gradients = gradients._replace(dweight=sums[0])
    if learned == 2:
        # An op may not return two views of one storage.
        gradients = gradients._replace(dbias=sums[1].clone())
    return gradients


def _backward_vmap(replicas: int, axes: Any, inputs: NormBackwardInputs) -> Any:
    mean = ["mean"] if inputs.kind == "ln" else []
    stacked = library.stack_fields(inputs, axes, replicas, "dy", "dsum", "sum", "rstd", *mean)
    # Each replica gets a gradient of its own, also of a weight that all share.
    [weight] = library.stack_weights((inputs.weight,), (axes.weight,), replicas)
    gradients = torch.ops.andrea.norm_backward(*stacked._replace(weight=weight))
    return gradients, (
        0,
        library.replica_axis(inputs.dy.dtype != inputs.sum.dtype),
        library.replica_axis(inputs.learned > 0),
        library.replica_axis(inputs.learned == 2),
    )


# ---- Gradients -----------------------------------------------------------------------------------


def _save(ctx: Any, inputs: NormInputs, outputs: tuple[Tensor, ...]) -> None:
    *_, mean, rstd = outputs
    total = inputs.x if inputs.delta is None else outputs[0]
    # A gradient that does not come stays None, instead of zeros that are written and read.
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(total, mean, rstd, inputs.weight)
    ctx.kind, ctx.branch_dtype = inputs.kind, inputs.branch_type
    # With a bias the kernel sums for both; it cannot sum for the bias alone.
    if inputs.bias is not None and ctx.needed.bias:
        ctx.learned = 2
    else:
        ctx.learned = int(inputs.weight is not None and bool(ctx.needed.weight))


def _gradients(ctx: Any, dsum: Tensor | None, dy: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients of stream, branch, weight and bias."""
    total, mean, rstd, weight = ctx.saved_tensors
    if dy is None:  # y was not used: the sum's gradient passes on
        return dsum, None if dsum is None else dsum.to(ctx.branch_dtype), None, None
    inputs = NormBackwardInputs(dy, dsum, total, mean, rstd, weight, ctx.kind, ctx.learned)
    gradients = NormGradients(*torch.ops.andrea.norm_backward(*inputs))
    ddelta = gradients.dx if dy.dtype == total.dtype else gradients.ddelta
    dweight = gradients.dweight if ctx.learned else None
    dbias = gradients.dbias if ctx.learned == 2 else None
    return gradients.dx, ddelta, dweight, dbias


def _norm_gradient(ctx: Any, dy: Tensor | None, *_statistics: Any) -> tuple[Tensor | None, ...]:
    dx, _, dweight, dbias = _gradients(ctx, None, dy)
    return dx, dweight, dbias, None, None, None


def _add_norm_gradient(
    ctx: Any, dsum: Tensor | None, dy: Tensor | None, *_statistics: Any
) -> tuple[Tensor | None, ...]:
    return *_gradients(ctx, dsum, dy), None, None


# ---- Registration --------------------------------------------------------------------------------

library.define_op(
    "norm_backward(Tensor dy, Tensor? dsum, Tensor sum, Tensor mean, Tensor rstd, Tensor? weight, "
    "str kind, int learned) -> (Tensor, Tensor, Tensor, Tensor)",
    NormBackwardInputs,
    kernel=_run_backward,
    shapes=_empty_gradients,
    vmap=_backward_vmap,
)
library.define_op(
    "norm(Tensor x, Tensor? weight, Tensor? bias, str kind, float eps, ScalarType dtype) -> "
    "(Tensor, Tensor, Tensor)",
    _norm_inputs,
    kernel=lambda inputs: _run_forward(inputs)[1:],
    shapes=lambda inputs: _empty_outputs(inputs)[1:],
    vmap=_forward_vmap,
    save=_save,
    backward=_norm_gradient,
)
library.define_op(
    "add_norm(Tensor x, Tensor delta, Tensor? weight, Tensor? bias, str kind, float eps)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    NormInputs,
    kernel=_run_forward,
    shapes=_empty_outputs,
    vmap=_forward_vmap,
    save=_save,
    backward=_add_norm_gradient,
)


# ---- Functions -----------------------------------------------------------------------------------


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    kind: NormKind,
    eps: float,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return `norm(x) * weight + bias` over the last axis, [..., C].

    Args:
        kind: `ln` (mean 0 and variance 1; Ba et al. 2016) or `rms` (mean square 1; Zhang &
            Sennrich 2019).
        eps: added to the variance, or to the mean square, under the root.
        dtype: of the result; by default that of x.
    """
    weight, bias = library.to_compute_type(x, weight), library.to_compute_type(x, bias)
    y: Tensor = torch.ops.andrea.norm(x, weight, bias, kind, eps, dtype or x.dtype)[0]
    return y


def add_norm(
    x: Tensor, delta: Tensor, weight: Tensor | None, bias: Tensor | None, kind: NormKind, eps: float
) -> tuple[Tensor, Tensor]:
    """Return `x + delta` in the type of x, and its norm in the type of delta, both [..., C]."""
    weight, bias = library.to_compute_type(x, weight), library.to_compute_type(x, bias)
    outputs = NormOutputs(*torch.ops.andrea.add_norm(x, delta, weight, bias, kind, eps))
    return outputs.sum, outputs.y
