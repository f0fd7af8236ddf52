"""Activations with their biases as ops: `f(a + bias)`, `f(gate + gate_bias) * (up + up_bias)`.

The backward pass computes f again, so that only its inputs are kept.

Shapes: N rows (any leading axes), M columns; biases [M], or [R, M] for R replicas that have N / R
rows each, one after the other.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from andrea.kernels import library
from andrea.kernels.backend import device_limits, run_kernel
from andrea.kernels.launch_plans import (
    ActivationShape,
    plan_activation_backward,
    plan_activation_forward,
)
from andrea.kernels.source import type_suffix

# The plain and the gated op differ in how many matrices they have. Everything below but their
# schemas is written once, for `matrices` and `biases` of equal length.

Biases = tuple[Tensor | None, ...]


class PlainInputs(NamedTuple):
    """Arguments of the op `activation`."""

    a: Tensor
    bias: Tensor | None
    function: str

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return (self.a,)

    @property
    def biases(self) -> Biases:
        return (self.bias,)


class GatedInputs(NamedTuple):
    """Arguments of the op `gated_activation`."""

    gate: Tensor
    up: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    function: str

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return (self.gate, self.up)

    @property
    def biases(self) -> Biases:
        return (self.gate_bias, self.up_bias)


class PlainBackwardInputs(NamedTuple):
    """Arguments of the op `activation_backward`."""

    dy: Tensor
    a: Tensor
    bias: Tensor | None
    function: str
    learned: bool
    """True if a bias gets a gradient."""

    @property
    def forward(self) -> PlainInputs:
        return PlainInputs(*self[1:-1])


class GatedBackwardInputs(NamedTuple):
    """Arguments of the op `gated_activation_backward`."""

    dy: Tensor
    gate: Tensor
    up: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    function: str
    learned: bool
    """True if a bias gets a gradient."""

    @property
    def forward(self) -> GatedInputs:
        return GatedInputs(*self[1:-1])


Inputs = PlainInputs | GatedInputs
BackwardInputs = PlainBackwardInputs | GatedBackwardInputs


class _Names(NamedTuple):
    """The kernel's names of a matrix, its bias and its gradient."""

    matrix: str
    bias: str
    gradient: str


def _names(inputs: Inputs) -> tuple[_Names, ...]:
    if isinstance(inputs, PlainInputs):
        return (_Names("a", "bias", "da"),)
    return (_Names("g", "gate_bias", "dg"), _Names("u", "up_bias", "du"))


def _activation_shape(inputs: Inputs) -> ActivationShape:
    x, biases = inputs.matrices[0], inputs.biases
    columns = x.shape[-1]
    for bias in biases:
        if bias is None:
            continue
        if bias.dtype != library.compute_type(x.dtype) or bias.shape[-1] != columns:
            raise ValueError(f"bias {bias.dtype} {list(bias.shape)} for rows of {columns} columns")
    replicas = library.count_replicas(biases)
    rows = library.rows_per_replica(math.prod(x.shape[:-1]), replicas)
    gated = isinstance(inputs, GatedInputs)
    return ActivationShape(inputs.function, gated, type_suffix(x.dtype), rows, replicas, columns)


def _input_arguments(inputs: Inputs, shape: ActivationShape) -> dict[str, Any]:
    """Return the kernel's arguments for shape, matrices and biases."""
    arguments: dict[str, Any] = {
        "rows_per_replica": shape.rows_per_replica,
        "replicas": shape.replicas,
        "columns": shape.columns,
    }
    for names, matrix, bias in zip(_names(inputs), inputs.matrices, inputs.biases, strict=True):
        arguments |= library.row_argument(names.matrix, matrix)
        arguments[names.bias] = library.contiguous(bias)
        arguments[f"{names.bias}_replica_stride"] = library.replica_stride(shape)
    return arguments


# ---- Forward -------------------------------------------------------------------------------------


def _empty_output(inputs: Inputs) -> Tensor:
    x = inputs.matrices[0]
    return x.new_empty(x.shape)


def _run_forward(inputs: Inputs) -> Tensor:
    x = inputs.matrices[0]
    if any(matrix.shape != x.shape or matrix.dtype != x.dtype for matrix in inputs.matrices):
        raise ValueError("gate and up must be alike in shape and type")
    out = _empty_output(inputs)
    shape = _activation_shape(inputs)
    if x.numel():
        plan = plan_activation_forward(shape)
        run_kernel(x.device, plan, out=out, **_input_arguments(inputs, shape))
    return out


def _stack_matrices(inputs: Inputs, axes: Any, replicas: int) -> list[Tensor]:
    pairs = zip(inputs.matrices, axes.matrices, strict=True)
    return [library.stack_replicas(matrix, axis, replicas) for matrix, axis in pairs]


def _forward_vmap(replicas: int, axes: Any, inputs: Inputs) -> Any:
    matrices = _stack_matrices(inputs, axes, replicas)
    biases = library.stack_unshared_weights(inputs.biases, axes.biases, replicas)
    op = torch.ops.andrea.activation
    if isinstance(inputs, GatedInputs):
        op = torch.ops.andrea.gated_activation
    return op(*matrices, *biases, inputs.function), 0


# ---- Backward ------------------------------------------------------------------------------------


def _empty_gradients(inputs: BackwardInputs) -> tuple[Tensor, ...]:
    """Return the gradients of matrices and biases; those of a bias that is absent, or that learns
    nothing, are empty.
    """
    matrices, biases = inputs.forward.matrices, inputs.forward.biases
    real = library.compute_type(matrices[0].dtype)
    gradients = [matrix.new_empty(matrix.shape) for matrix in matrices]
    for bias in biases:
        shape = () if bias is None else bias.shape
        needed = inputs.learned and bias is not None
        gradients.append(library.new_result(matrices[0], shape, real, needed))
    return tuple(gradients)


def _run_backward(inputs: BackwardInputs) -> tuple[Tensor, ...]:
    forward = inputs.forward
    x, count = forward.matrices[0], len(forward.matrices)
    shape = _activation_shape(forward)
    gradients = _empty_gradients(inputs)
    dbiases = gradients[count:]
    if x.numel() == 0:
        for dbias in dbiases:
            dbias.zero_()
        return gradients
    plan = plan_activation_backward(shape, device_limits(x.device))
    # The kernel sums for both biases of a gated activation, or for none.
    partial = None
    if any(dbias.numel() for dbias in dbiases):
        size = (count, shape.replicas, plan.arguments["parts"], shape.columns)
        partial = x.new_empty(size, dtype=library.compute_type(x.dtype))
    arguments = library.row_argument("dy", inputs.dy) | _input_arguments(forward, shape)
    for names, gradient in zip(_names(forward), gradients, strict=False):
        arguments |= {names.gradient: gradient, f"{names.gradient}_stride": shape.columns}
    run_kernel(x.device, plan, partial=partial, **arguments)
    if partial is not None:
        for sums, dbias in zip(partial, dbiases, strict=True):
            if dbias.numel():
                library.reduce_parts(sums, dbias)
    return gradients


def _backward_vmap(replicas: int, axes: Any, inputs: BackwardInputs) -> Any:
    forward = inputs.forward
    dy = library.stack_replicas(inputs.dy, axes.dy, replicas)
    matrices = _stack_matrices(forward, axes.forward, replicas)
    # Each replica gets a gradient of its own, also of a bias that all share.
    biases = library.stack_weights(forward.biases, axes.forward.biases, replicas)
    op = torch.ops.andrea.activation_backward
    if isinstance(inputs, GatedBackwardInputs):
        op = torch.ops.andrea.gated_activation_backward
    gradients = op(dy, *matrices, *biases, inputs.function, inputs.learned)
    bias_axes = [library.replica_axis(inputs.learned and bias is not None) for bias in biases]
    return gradients, (*(0 for _ in matrices), *bias_axes)


# ---- Gradients -----------------------------------------------------------------------------------


def _save(ctx: Any, inputs: Inputs, output: Tensor) -> None:
    ctx.save_for_backward(*inputs.matrices, *inputs.biases)
    ctx.function = inputs.function


def _plain_gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    needed = library.needed_gradients(ctx, PlainInputs)
    learned = bool(needed.bias)
    da, dbias = torch.ops.andrea.activation_backward(dy, *ctx.saved_tensors, ctx.function, learned)
    return da, dbias if learned else None, None


def _gated_gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    needed = library.needed_gradients(ctx, GatedInputs)
    learned = bool(needed.gate_bias or needed.up_bias)
    dgate, dup, dgate_bias, dup_bias = torch.ops.andrea.gated_activation_backward(
        dy, *ctx.saved_tensors, ctx.function, learned
    )
    if not needed.gate_bias:
        dgate_bias = None
    if not needed.up_bias:
        dup_bias = None
    return dgate, dup, dgate_bias, dup_bias, None


# ---- Registration --------------------------------------------------------------------------------

library.define_op(
    "activation_backward(Tensor dy, Tensor a, Tensor? bias, str function, bool learned) -> "
    "(Tensor, Tensor)",
    PlainBackwardInputs,
    kernel=_run_backward,
    shapes=_empty_gradients,
    vmap=_backward_vmap,
)
library.define_op(
    "gated_activation_backward(Tensor dy, Tensor gate, Tensor up, Tensor? gate_bias, Tensor? "
    "up_bias, str function, bool learned) -> (Tensor, Tensor, Tensor, Tensor)",
    GatedBackwardInputs,
    kernel=_run_backward,
    shapes=_empty_gradients,
    vmap=_backward_vmap,
)
library.define_op(
    "activation(Tensor a, Tensor? bias, str function) -> Tensor",
    PlainInputs,
    kernel=_run_forward,
    shapes=_empty_output,
    vmap=_forward_vmap,
    save=_save,
    backward=_plain_gradient,
)
library.define_op(
    "gated_activation(Tensor gate, Tensor up, Tensor? gate_bias, Tensor? up_bias, str function) -> "
    "Tensor",
    GatedInputs,
    kernel=_run_forward,
    shapes=_empty_output,
    vmap=_forward_vmap,
    save=_save,
    backward=_gated_gradient,
)


# ---- Functions -----------------------------------------------------------------------------------


def activation(a: Tensor, bias: Tensor | None, function: str) -> Tensor:
    """Return `f(a + bias)`, [..., M]; f is one of `source.PLAIN_ACTIVATIONS`."""
    y: Tensor = torch.ops.andrea.activation(a, library.to_compute_type(a, bias), function)
    return y


def gated_activation(
    gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, function: str
) -> Tensor:
    """Return `f(gate + gate_bias) * (up + up_bias)`, [..., M]; f is one of
    `source.GATED_ACTIVATIONS`.
    """
    gate_bias = library.to_compute_type(gate, gate_bias)
    up_bias = library.to_compute_type(gate, up_bias)
    y: Tensor = torch.ops.andrea.gated_activation(gate, up, gate_bias, up_bias, function)
    return y
