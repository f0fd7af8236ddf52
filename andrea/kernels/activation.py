"""Activations with their biases as ops: `f(a + bias)`, and gated `f(gate + gate_bias) * (up +
up_bias)`.

Shapes: N rows (any leading axes), M columns; biases [M], or [R, M] for R replicas that have N / R
    rows each, one after
the other. The backward pass computes f again, so that only what came in is kept.
"""

import math
from typing import Any

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
from andrea.kernels.norm import reduce_parts

Optional = Tensor | None


def _shape(x: Tensor, biases: tuple[Optional, ...]) -> dict[str, int]:
    """Rows of a replica, replicas, columns.

    Raises:
        ValueError: a bias does not fit.
    """
    columns = x.shape[-1]
    for bias in biases:
        if bias is not None and (bias.dtype != real_of(x.dtype) or bias.shape[-1] != columns):
            raise ValueError(f"bias {bias.dtype} {list(bias.shape)} for rows of {columns} columns")
    replicas = replicas_of(biases)
    rows = per_replica(math.prod(x.shape[:-1]), replicas)
    return {"rows_per_replica": rows, "replicas": replicas, "columns": columns}


def _operand(name: str, x: Tensor, bias: Optional, bias_name: str, replicas: int) -> dict[str, Any]:
    """The kernel's arguments of one matrix and its bias."""
    rows = rows_of(x)
    return {
        name: rows,
        f"{name}_stride": row_stride(rows),
        bias_name: None if bias is None else bias.contiguous(),
        f"{bias_name}_replica_stride": x.shape[-1] if replicas > 1 else 0,
    }


def _operands(
    matrices: tuple[Tensor, ...], biases: tuple[Optional, ...], replicas: int
) -> dict[str, Any]:
    if len(matrices) == 1:
        return _operand("a", matrices[0], biases[0], "bias", replicas)
    gate = _operand("g", matrices[0], biases[0], "gate_bias", replicas)
    return gate | _operand("u", matrices[1], biases[1], "up_bias", replicas)


def _forward(matrices: tuple[Tensor, ...], biases: tuple[Optional, ...], function: str) -> Tensor:
    x = matrices[0]
    if any(other.shape != x.shape or other.dtype != x.dtype for other in matrices):
        raise ValueError("gate and up must be alike in shape and type")
    out, shape = x.new_empty(x.shape), _shape(x, biases)
    if x.numel():
        plan = source.activation_forward(
            function,
            len(matrices) == 2,
            source.suffix(str(x.dtype)),
            limits=limits(x.device),
            **shape,
        )
        run(x.device, plan, out=out, **_operands(matrices, biases, shape["replicas"]), **shape)
    return out


def _backward(
    dy: Tensor,
    matrices: tuple[Tensor, ...],
    biases: tuple[Optional, ...],
    function: str,
    learned: bool,
) -> tuple[Tensor, ...]:
    """Gradients of the matrices and, where learned, of the biases (without a bias: empty)."""
    x, gated = matrices[0], len(matrices) == 2
    results = [x.new_empty(x.shape) for _ in matrices]
    real, shape = real_of(x.dtype), _shape(x, biases)
    sizes = [bias.shape if bias is not None and learned else (0,) for bias in biases]
    if x.numel() == 0:
        return (*results, *(x.new_zeros(size, dtype=real) for size in sizes))
    plan = source.activation_backward(
        function, gated, source.suffix(str(x.dtype)), limits=limits(x.device), **shape
    )
    upper, parts = rows_of(dy), plan.extra["parts"]
    partial = (
        x.new_empty(len(matrices), shape["replicas"], parts, x.shape[-1], dtype=real)
        if learned
        else None
    )
    names = ("dg", "du") if gated else ("da",)
    run(
        x.device,
        plan,
        dy=upper,
        dy_stride=row_stride(upper),
        partial=partial,
        **dict(zip(names, results, strict=True)),
        **{f"{name}_stride": x.shape[-1] for name in names},
        **_operands(matrices, biases, shape["replicas"]),
        **shape,
    )
    summed = [x.new_empty(size, dtype=real) for size in sizes]
    for index, out in enumerate(summed):
        if partial is not None and out.numel():
            reduce_parts(partial[index], out)
    return (*results, *summed)


def _plain(a: Tensor, bias: Optional, function: str) -> Tensor:
    return _forward((a,), (bias,), function)


def _plain_fake(a: Tensor, bias: Optional, function: str) -> Tensor:
    return a.new_empty(a.shape)


def _plain_vmap(info: Any, axes: Any, a: Tensor, bias: Optional, function: str) -> Any:
    (bias,) = replicated((bias,), axes[1:2], info.batch_size)
    return torch.ops.andrea.activation(stacked(a, axes[0], info.batch_size), bias, function), 0


def _plain_backward(
    dy: Tensor, a: Tensor, bias: Optional, function: str, learned: bool
) -> tuple[Tensor, Tensor]:
    da, dbias = _backward(dy, (a,), (bias,), function, learned and bias is not None)
    return da, dbias


def _empties(x: Tensor, biases: tuple[Optional, ...], learned: bool) -> tuple[Tensor, ...]:
    sizes = [bias.shape if bias is not None and learned else (0,) for bias in biases]
    return tuple(x.new_empty(size, dtype=real_of(x.dtype)) for size in sizes)


def _plain_backward_fake(
    dy: Tensor, a: Tensor, bias: Optional, function: str, learned: bool
) -> tuple[Tensor, Tensor]:
    return a.new_empty(a.shape), *_empties(a, (bias,), learned)  # type: ignore[return-value]


def _plain_backward_vmap(
    info: Any, axes: Any, dy: Tensor, a: Tensor, bias: Optional, function: str, learned: bool
) -> Any:
    size = info.batch_size
    (own,) = stacked_weights((bias,), axes[2:3], size)
    found = torch.ops.andrea.activation_backward(
        stacked(dy, axes[0], size), stacked(a, axes[1], size), own, function, learned
    )
    return found, (0, 0 if learned and bias is not None else None)


def _gated(
    gate: Tensor, up: Tensor, gate_bias: Optional, up_bias: Optional, function: str
) -> Tensor:
    return _forward((gate, up), (gate_bias, up_bias), function)


def _gated_fake(
    gate: Tensor, up: Tensor, gate_bias: Optional, up_bias: Optional, function: str
) -> Tensor:
    return gate.new_empty(gate.shape)


def _gated_vmap(
    info: Any,
    axes: Any,
    gate: Tensor,
    up: Tensor,
    gate_bias: Optional,
    up_bias: Optional,
    function: str,
) -> Any:
    gate, up = stacked(gate, axes[0], info.batch_size), stacked(up, axes[1], info.batch_size)
    gate_bias, up_bias = replicated((gate_bias, up_bias), axes[2:4], info.batch_size)
    return torch.ops.andrea.gated_activation(gate, up, gate_bias, up_bias, function), 0


def _gated_backward(
    dy: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_bias: Optional,
    up_bias: Optional,
    function: str,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    biased = gate_bias is not None or up_bias is not None
    dgate, dup, dgate_bias, dup_bias = _backward(
        dy, (gate, up), (gate_bias, up_bias), function, learned and biased
    )
    return dgate, dup, dgate_bias, dup_bias


def _gated_backward_fake(
    dy: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_bias: Optional,
    up_bias: Optional,
    function: str,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dgate_bias, dup_bias = _empties(gate, (gate_bias, up_bias), learned)
    return gate.new_empty(gate.shape), up.new_empty(up.shape), dgate_bias, dup_bias


def _gated_backward_vmap(
    info: Any,
    axes: Any,
    dy: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_bias: Optional,
    up_bias: Optional,
    function: str,
    learned: bool,
) -> Any:
    size = info.batch_size
    dy, gate, up = (
        stacked(x, axis, size) for x, axis in zip((dy, gate, up), axes[:3], strict=True)
    )
    own = stacked_weights((gate_bias, up_bias), axes[3:5], size)
    found = torch.ops.andrea.gated_activation_backward(dy, gate, up, *own, function, learned)
    return found, (0, 0, *(0 if learned and bias is not None else None for bias in own))


_PLAIN_BACKWARD = define(
    "activation_backward(Tensor dy, Tensor a, Tensor? bias, str function, bool learned) -> "
    "(Tensor, Tensor)",
    _plain_backward,
    _plain_backward_fake,
    _plain_backward_vmap,
)
_GATED_BACKWARD = define(
    "gated_activation_backward(Tensor dy, Tensor gate, Tensor up, Tensor? gate_bias, Tensor? "
    "up_bias, str function,"
    " bool learned) -> (Tensor, Tensor, Tensor, Tensor)",
    _gated_backward,
    _gated_backward_fake,
    _gated_backward_vmap,
)
_PLAIN = define(
    "activation(Tensor a, Tensor? bias, str function) -> Tensor", _plain, _plain_fake, _plain_vmap
)
_GATED = define(
    "gated_activation(Tensor gate, Tensor up, Tensor? gate_bias, Tensor? up_bias, str function) -> "
    "Tensor",
    _gated,
    _gated_fake,
    _gated_vmap,
)


def _setup_plain(ctx: Any, inputs: Any, output: Tensor) -> None:
    a, bias, ctx.function = inputs
    ctx.save_for_backward(a, bias)


def _plain_gradient(ctx: Any, dy: Tensor) -> tuple[Optional, ...]:
    a, bias = ctx.saved_tensors
    learned = bool(ctx.needs_input_grad[1])
    da, dbias = torch.ops.andrea.activation_backward(dy, a, bias, ctx.function, learned)
    return da, dbias if learned else None, None


def _setup_gated(ctx: Any, inputs: Any, output: Tensor) -> None:
    *tensors, ctx.function = inputs
    ctx.save_for_backward(*tensors)


def _gated_gradient(ctx: Any, dy: Tensor) -> tuple[Optional, ...]:
    gate, up, gate_bias, up_bias = ctx.saved_tensors
    needed = ctx.needs_input_grad[2:4]
    dgate, dup, *dbiases = torch.ops.andrea.gated_activation_backward(
        dy, gate, up, gate_bias, up_bias, ctx.function, bool(any(needed))
    )
    return dgate, dup, *(d if need else None for d, need in zip(dbiases, needed, strict=True)), None


differentiate(_PLAIN, _setup_plain, _plain_gradient)
differentiate(_GATED, _setup_gated, _gated_gradient)


def activation(a: Tensor, bias: Optional, function: str) -> Tensor:
    """`f(a + bias)` over [..., M]; f is one of `source.PLAIN`."""
    y: Tensor = torch.ops.andrea.activation(a, _real(bias, a), function)
    return y


def gated_activation(
    gate: Tensor, up: Tensor, gate_bias: Optional, up_bias: Optional, function: str
) -> Tensor:
    """`f(gate + gate_bias) * (up + up_bias)` over [..., M]; f is one of `source.GATED`."""
    y: Tensor = torch.ops.andrea.gated_activation(
        gate, up, _real(gate_bias, gate), _real(up_bias, gate), function
    )
    return y


def _real(bias: Optional, x: Tensor) -> Optional:
    return None if bias is None else bias.to(real_of(x.dtype))
