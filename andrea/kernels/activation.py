"""Activations with their biases as ops: `f(a + bias)`, `f(gate + gate_bias) * (up + up_bias)`.

The backward pass computes f again, so that only its inputs are kept.

Shapes: N rows (any leading axes), M columns; biases [M], or [R, M] for R replicas that have N / R
rows each, one after the other.
"""

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


class ActivationInputs(NamedTuple):
    """Arguments of an op: `a`, or `gate` and `up`, with their biases."""

    matrices: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    function: str

    @property
    def gated(self) -> bool:
        return len(self.matrices) == 2


class BackwardInputs(NamedTuple):
    """Arguments of the backward of an op."""

    dy: Tensor
    forward: ActivationInputs
    learned: bool
    """True if a bias gets a gradient."""


def _plain_inputs(a: Any, bias: Any, function: Any) -> ActivationInputs:
    return ActivationInputs((a,), (bias,), function)


def _gated_inputs(
    gate: Any, up: Any, gate_bias: Any, up_bias: Any, function: Any
) -> ActivationInputs:
    return ActivationInputs((gate, up), (gate_bias, up_bias), function)


def _plain_backward_inputs(dy: Any, *forward: Any) -> BackwardInputs:
    return BackwardInputs(dy, _plain_inputs(*forward[:-1]), forward[-1])


def _gated_backward_inputs(dy: Any, *forward: Any) -> BackwardInputs:
    return BackwardInputs(dy, _gated_inputs(*forward[:-1]), forward[-1])


class _Names(NamedTuple):
    """The kernel's names of a matrix, its bias and its gradient."""

    matrix: str
    bias: str
    gradient: str


PLAIN_NAMES = (_Names("a", "bias", "da"),)
GATED_NAMES = (_Names("g", "gate_bias", "dg"), _Names("u", "up_bias", "du"))


def _names(inputs: ActivationInputs) -> tuple[_Names, ...]:
    return GATED_NAMES if inputs.gated else PLAIN_NAMES


def _activation_shape(inputs: ActivationInputs) -> ActivationShape:
    x = inputs.matrices[0]
    rows = library.replica_rows(x, inputs.biases, "bias")
    return ActivationShape(inputs.function, inputs.gated, type_suffix(x.dtype), *rows)


def _input_arguments(inputs: ActivationInputs, shape: ActivationShape) -> dict[str, Any]:
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


def _empty_output(inputs: ActivationInputs) -> Tensor:
    x = inputs.matrices[0]
    return x.new_empty(x.shape)


def _run_forward(inputs: ActivationInputs) -> Tensor:
    x = inputs.matrices[0]
    if any(matrix.shape != x.shape or matrix.dtype != x.dtype for matrix in inputs.matrices):
        raise ValueError("gate and up must be alike in shape and type")
    out = _empty_output(inputs)
    shape = _activation_shape(inputs)
    if x.numel():
        plan = plan_activation_forward(shape)
        run_kernel(x.device, plan, out=out, **_input_arguments(inputs, shape))
    return out


def _stack_matrices(inputs: ActivationInputs, axes: Any, replicas: int) -> list[Tensor]:
    pairs = zip(inputs.matrices, axes.matrices, strict=True)
    return [library.stack_replicas(matrix, axis, replicas) for matrix, axis in pairs]


def _forward_vmap(replicas: int, axes: Any, inputs: ActivationInputs) -> Any:
    matrices = _stack_matrices(inputs, axes, replicas)
    biases = library.stack_unshared_weights(inputs.biases, axes.biases, replicas)
    ops = torch.ops.andrea
    op = ops.gated_activation if inputs.gated else ops.activation
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
    op = _backward_op(forward.gated)
    gradients = op(dy, *matrices, *biases, forward.function, inputs.learned)
    bias_axes = [library.replica_axis(inputs.learned and bias is not None) for bias in biases]
    return gradients, (*(0 for _ in matrices), *bias_axes)


# ---- Gradients -----------------------------------------------------------------------------------


def _backward_op(gated: bool) -> Any:
    ops = torch.ops.andrea
    return ops.gated_activation_backward if gated else ops.activation_backward


def _save(ctx: Any, inputs: ActivationInputs, output: Tensor) -> None:
    ctx.save_for_backward(*inputs.matrices, *inputs.biases)
    ctx.function = inputs.function


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of matrices and biases; the function has none."""
    learned = ctx.needed.biases
    count = len(learned)
    op = _backward_op(gated=count == 2)
    gradients = op(dy, *ctx.saved_tensors, ctx.function, any(learned))
    dbiases = zip(gradients[count:], learned, strict=True)
    return *gradients[:count], *(dbias if needed else None for dbias, needed in dbiases), None


# ---- Registration --------------------------------------------------------------------------------

library.define_op(
    "activation_backward(Tensor dy, Tensor a, Tensor? bias, str function, bool learned) -> "
    "(Tensor, Tensor)",
    _plain_backward_inputs,
    kernel=_run_backward,
    shapes=_empty_gradients,
    vmap=_backward_vmap,
)
library.define_op(
    "gated_activation_backward(Tensor dy, Tensor gate, Tensor up, Tensor? gate_bias, Tensor? "
    "up_bias, str function, bool learned) -> (Tensor, Tensor, Tensor, Tensor)",
    _gated_backward_inputs,
    kernel=_run_backward,
    shapes=_empty_gradients,
    vmap=_backward_vmap,
)
library.define_op(
    "activation(Tensor a, Tensor? bias, str function) -> Tensor",
    _plain_inputs,
    kernel=_run_forward,
    shapes=_empty_output,
    vmap=_forward_vmap,
    save=_save,
    backward=_gradient,
)
library.define_op(
    "gated_activation(Tensor gate, Tensor up, Tensor? gate_bias, Tensor? up_bias, str function) -> "
    "Tensor",
    _gated_inputs,
    kernel=_run_forward,
    shapes=_empty_output,
    vmap=_forward_vmap,
    save=_save,
    backward=_gradient,
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
