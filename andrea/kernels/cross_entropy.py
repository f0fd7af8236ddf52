"""Cross-entropy as ops: of given logits, and of the head's product, whose logits nobody else sees.

The gradient of the logits is computed together with the loss, in one read and one write of them.
`cross_entropy` writes it beside the logits: a tensor that someone else may have saved is never
overwritten. `head_loss` makes the logits itself and lets the gradient take their place, which saves
the largest tensor of a training step. Its backward needs no pass over them either: what each row's
loss weighs is multiplied into the rows of the small factors of the two products.

Shapes: N rows (any leading axes), C columns of x, V columns of the logits (the vocabulary), R
replicas.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from andrea.kernels import library
from andrea.kernels.backend import device_limits, run_kernel
from andrea.kernels.launch_plans import plan_cross_entropy, plan_cross_entropy_scale
from andrea.kernels.source import type_suffix

IGNORED = -100
"""A target whose loss and gradient are 0."""


class LossRule(NamedTuple):
    """What the loss of a row is, besides its logits and target."""

    ignored: int = IGNORED
    softcap: float = 0.0
    """0: no cap."""
    z_loss: float = 0.0


class LossInputs(NamedTuple):
    """Arguments of the op `cross_entropy`."""

    logits: Tensor
    targets: Tensor
    upstream: Tensor | None
    """What each row's loss is expected to weigh."""
    ignored: int
    softcap: float
    z_loss: float
    with_grad: bool


class HeadInputs(NamedTuple):
    """Arguments of the op `head_loss`."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    ignored: int
    softcap: float
    z_loss: float
    with_grad: bool


def _rule_of(inputs: LossInputs | HeadInputs) -> LossRule:
    return LossRule(inputs.ignored, inputs.softcap, inputs.z_loss)


class ScaleInputs(NamedTuple):
    """Arguments of the op `cross_entropy_backward`."""

    grad: Tensor
    """For losses that weigh `upstream`."""
    dloss: Tensor
    """What the losses do weigh."""
    upstream: Tensor | None


def _row_weights(name: str, weights: Tensor | None) -> dict[str, Any]:
    """Return a kernel's arguments for weights of rows: one for each, or one for all (stride 0)."""
    stride = f"{name}_stride"
    if weights is None:
        return {name: None, stride: 0}
    return {name: weights.reshape(-1).contiguous(), stride: int(weights.numel() != 1)}


def fill_losses(
    logits: Tensor,
    targets: Tensor,
    rule: LossRule,
    *,
    loss: Tensor,
    grad: Tensor | None,
    upstream: Tensor | None = None,
) -> None:
    """Compute the losses of logits [N, V] into `loss` [N], and their gradient into `grad` [N, V],
    which may be the logits themselves.
    """
    rows, columns = logits.shape
    limits = device_limits(logits.device)
    run_kernel(
        logits.device,
        plan_cross_entropy(type_suffix(logits.dtype), rows, columns, limits),
        **library.row_argument("logits", logits),
        grad=grad,
        grad_stride=columns,
        targets=targets.reshape(-1).contiguous(),
        target_stride=1,
        target_replica_stride=0,
        **_row_weights("upstream", upstream),
        loss=loss,
        rows=rows,
        columns=columns,
        # Replicas are folded into the rows, and so are their targets.
        rows_per_replica=rows,
        ignore_index=rule.ignored,
        softcap=rule.softcap,
        z_loss=rule.z_loss,
    )


# ---- Given logits --------------------------------------------------------------------------------


def _require_fit(logits: Tensor, targets: Tensor, upstream: Tensor | None) -> None:
    if targets.dtype != torch.int64 or targets.shape != logits.shape[:-1]:
        message = f"targets {targets.dtype} {list(targets.shape)} for logits {list(logits.shape)}"
        raise ValueError(message)
    if upstream is None:
        return
    real = library.compute_type(logits.dtype)
    one_or_each = upstream.numel() == 1 or upstream.shape == targets.shape
    if not one_or_each or upstream.dtype != real:
        raise ValueError(f"upstream must be one number, or one for each target, as {real}")


def _empty_loss(inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return loss [...] and gradient [..., V], which is empty where none is asked for."""
    logits = inputs.logits
    loss = library.new_result(logits, inputs.targets.shape, library.compute_type(logits.dtype))
    return loss, library.new_result(logits, logits.shape, needed=inputs.with_grad)


def _run_loss(inputs: LossInputs) -> tuple[Tensor, Tensor]:
    logits, targets, upstream = inputs.logits, inputs.targets, inputs.upstream
    _require_fit(logits, targets, upstream)
    loss, grad = _empty_loss(inputs)
    if logits.numel():
        rows, grad_rows = library.as_rows(logits), library.null_if_empty(grad)
        fill_losses(rows, targets, _rule_of(inputs), loss=loss, grad=grad_rows, upstream=upstream)
    return loss, grad


def _loss_vmap(replicas: int, axes: Any, inputs: LossInputs) -> Any:
    stacked = library.stack_fields(inputs, axes, replicas, "logits", "targets")
    rows = stacked.targets.shape
    upstream = _stack_upstream(inputs.upstream, axes.upstream, replicas, rows)
    outputs = torch.ops.andrea.cross_entropy(*stacked._replace(upstream=upstream))
    return outputs, (0, library.replica_axis(inputs.with_grad))


def _stack_upstream(
    upstream: Tensor | None, axis: int | None, replicas: int, rows: torch.Size
) -> Tensor | None:
    """Return the weights of all rows [R, ...]; one number for all replicas stays one."""
    if upstream is None or (axis is None and upstream.numel() == 1):
        return upstream
    stacked = library.stack_replicas(upstream, axis, replicas)
    if stacked.numel() == replicas:  # one number for each replica
        stacked = stacked.reshape(replicas, *[1] * (len(rows) - 1))
    return stacked.expand(rows)


def _empty_scaled(inputs: ScaleInputs) -> Tensor:
    return inputs.grad.new_empty(inputs.grad.shape)


def _run_scale(inputs: ScaleInputs) -> Tensor:
    """Return the gradient of logits for losses that weigh `dloss` rather than `upstream`."""
    grad = inputs.grad
    out = _empty_scaled(inputs)
    if grad.numel():
        columns = grad.shape[-1]
        rows = grad.numel() // columns
        run_kernel(
            grad.device,
            plan_cross_entropy_scale(type_suffix(grad.dtype), rows, columns),
            **library.row_argument("src", grad),
            dst=out,
            dst_stride=columns,
            **_row_weights("dloss", inputs.dloss),
            **_row_weights("upstream", inputs.upstream),
            rows=rows,
            columns=columns,
        )
    return out


def _scale_vmap(replicas: int, axes: Any, inputs: ScaleInputs) -> Any:
    grad = library.stack_replicas(inputs.grad, axes.grad, replicas)
    dloss = library.stack_replicas(inputs.dloss, axes.dloss, replicas)
    upstream = _stack_upstream(inputs.upstream, axes.upstream, replicas, dloss.shape)
    return torch.ops.andrea.cross_entropy_backward(grad, dloss, upstream), 0


# ---- The head's product --------------------------------------------------------------------------


def _head_logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x · weightᵀ + bias; replicas' weights [R, V, C] each with its share of the rows."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias).contiguous()
    replicas = math.prod(weight.shape[:-2])
    rows = x.reshape(replicas, -1, x.shape[-1])
    logits = rows @ weight.reshape(replicas, *weight.shape[-2:]).mT
    if bias is None:
        return logits
    return logits + bias.reshape(-1, 1, bias.shape[-1])


def _empty_head_loss(inputs: HeadInputs) -> tuple[Tensor, Tensor]:
    """Return loss [...] and the logits' gradient [..., V], empty where none is asked for."""
    x, rows = inputs.x, inputs.targets.shape
    grad_shape = (*rows, inputs.weight.shape[-2])
    loss = library.new_result(x, rows, library.compute_type(x.dtype))
    return loss, library.new_result(x, grad_shape, needed=inputs.with_grad)


def _run_head_loss(inputs: HeadInputs) -> tuple[Tensor, Tensor]:
    x, targets = inputs.x, inputs.targets
    if x.shape[:-1] != targets.shape or targets.dtype != torch.int64:
        raise ValueError(f"targets {targets.dtype} {list(targets.shape)} for rows {list(x.shape)}")
    if targets.numel() == 0:
        return _empty_head_loss(inputs)
    with torch.autocast(x.device.type, enabled=False):  # the caller has chosen the types
        logits = _head_logits(x, inputs.weight, inputs.bias)
    loss = x.new_empty(targets.shape, dtype=library.compute_type(x.dtype))
    rows = logits.view(-1, logits.shape[-1])
    if not inputs.with_grad:
        fill_losses(rows, targets, _rule_of(inputs), loss=loss, grad=None)
        return loss, x.new_empty(0)
    # In place: the logits belong to this op alone.
    fill_losses(rows, targets, _rule_of(inputs), loss=loss, grad=rows)
    return loss, logits.view(*targets.shape, -1)


def _head_vmap(replicas: int, axes: Any, inputs: HeadInputs) -> Any:
    stacked = library.stack_fields(inputs, axes, replicas, "x", "targets")
    shared = axes.weight is None and axes.bias is None and inputs.weight.dim() == 2
    if not shared:
        weights, weight_axes = (inputs.weight, inputs.bias), (axes.weight, axes.bias)
        weight, bias = library.stack_weights(weights, weight_axes, replicas)
        assert weight is not None
        stacked = stacked._replace(weight=weight, bias=bias)
    outputs = torch.ops.andrea.head_loss(*stacked)
    return outputs, (0, library.replica_axis(inputs.with_grad))


# ---- Gradients -----------------------------------------------------------------------------------


def _save_loss(ctx: Any, inputs: LossInputs, outputs: tuple[Tensor, Tensor]) -> None:
    _, grad = outputs
    ctx.mark_non_differentiable(grad)
    ctx.save_for_backward(grad, inputs.upstream)


def _loss_gradient(ctx: Any, dloss: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    grad, upstream = ctx.saved_tensors
    dlogits = torch.ops.andrea.cross_entropy_backward(grad, dloss, upstream)
    return dlogits, None, None, None, None, None, None


def _save_head(ctx: Any, inputs: HeadInputs, outputs: tuple[Tensor, Tensor]) -> None:
    _, grad = outputs
    ctx.mark_non_differentiable(grad)
    ctx.save_for_backward(inputs.x, inputs.weight, inputs.bias, grad)


def _head_gradient(ctx: Any, dloss: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, weight and bias from two products with the logits' gradient.

    A row's loss weighs `dloss`, in training 1/N. Multiplied into rows of bfloat16 or float16 that
    number would be rounded, or vanish. So what goes into the rows is its share of the largest
    (in training 1, which is exact); the largest is multiplied into the product afterwards.
    """
    x, weight, bias, grad = ctx.saved_tensors
    replicas, V = weight.shape[:-2], weight.shape[-2]
    weights_N1 = dloss.reshape(*replicas, -1, 1)
    # Keeps the maximum defined without rows, and the division without weights.
    tiny = weights_N1.new_full((*replicas, 1, 1), torch.finfo(weights_N1.dtype).tiny)
    largest = torch.cat([weights_N1.abs(), tiny], -2).amax(-2, keepdim=True)
    shares_N1 = weights_N1 / largest
    grad_NV = grad.reshape(*replicas, -1, V)
    x_NC = x.reshape(*replicas, -1, x.shape[-1])
    dx = dweight = dbias = None
    if ctx.needed.x:
        dx = ((grad_NV @ weight) * weights_N1).to(x.dtype).view(x.shape)
    if ctx.needed.weight:
        dweight = ((grad_NV.mT @ (x_NC * shares_N1).to(x.dtype)) * largest).to(weight.dtype)
    if bias is not None and ctx.needed.bias:
        dbias = (shares_N1.mT.to(grad.dtype) @ grad_NV) * largest
        dbias = dbias.to(bias.dtype).view(bias.shape)
    return dx, dweight, dbias, None, None, None, None, None


# ---- Registration --------------------------------------------------------------------------------

library.define_op(
    "cross_entropy_backward(Tensor grad, Tensor dloss, Tensor? upstream) -> Tensor",
    ScaleInputs,
    kernel=_run_scale,
    shapes=_empty_scaled,
    vmap=_scale_vmap,
)
library.define_op(
    "cross_entropy(Tensor logits, Tensor targets, Tensor? upstream, int ignored, float softcap, "
    "float z_loss, bool with_grad) -> (Tensor, Tensor)",
    LossInputs,
    kernel=_run_loss,
    shapes=_empty_loss,
    vmap=_loss_vmap,
    save=_save_loss,
    backward=_loss_gradient,
)
library.define_op(
    "head_loss(Tensor x, Tensor weight, Tensor? bias, Tensor targets, int ignored, float softcap, "
    "float z_loss, bool with_grad) -> (Tensor, Tensor)",
    HeadInputs,
    kernel=_run_head_loss,
    shapes=_empty_head_loss,
    vmap=_head_vmap,
    save=_save_head,
    backward=_head_gradient,
)


# ---- Functions -----------------------------------------------------------------------------------


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    upstream: Tensor | None = None,
    ignored: int = IGNORED,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """Return the loss of every row in nats, float32 [...], for logits [..., V] and targets [...].

    Args:
        upstream: what each row's loss will weigh, float32 [...] or one number, if that is known:
            the backward then copies the gradient instead of scaling it. Other weights give the
            right gradient too, unless a row's was announced as 0.
        ignored: a target whose loss and gradient are 0.
        softcap: the logits are replaced by `c·tanh(logits / c)` (Gemma 2; Riviere et al. 2024).
        z_loss: adds the gradient of `z_loss · log²Z` (Chowdhery et al. 2022); the loss never
            contains that term.
    """
    with_grad = torch.is_grad_enabled()
    loss: Tensor = torch.ops.andrea.cross_entropy(
        logits, targets, upstream, ignored, softcap or 0.0, z_loss, with_grad
    )[0]
    return loss


def head_loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    ignored: int = IGNORED,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """Return the loss of every row in nats, float32 [...], for the logits `x @ weight.T + bias`.

    Args:
        x: [..., C].
        weight: [V, C].
        bias: [V].
        ignored, softcap, z_loss: as for `cross_entropy`.
    """
    with_grad = torch.is_grad_enabled()
    loss: Tensor = torch.ops.andrea.head_loss(
        x, weight, bias, targets, ignored, softcap or 0.0, z_loss, with_grad
    )[0]
    return loss
