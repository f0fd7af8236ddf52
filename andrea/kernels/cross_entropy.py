"""Cross-entropy as ops: of given logits, and of the head's product, whose logits nobody else ever
sees.

The gradient of the logits is computed together with the loss, in one read and one write of them.
`head_loss` makes the logits itself and lets the gradient take their place; it saves the memory and
needs no pass over them in the backward: the gradient from above is a number for each row, and
belongs as well to the rows of the small factors of the two products. `cross_entropy` leaves its
logits alone: a tensor that someone else may have saved is never written to.

Shapes: N rows (any leading axes), C columns of x, V columns of the logits (the vocabulary); R
    replicas.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from andrea.kernels import source
from andrea.kernels.backend import limits, run
from andrea.kernels.library import (
    define,
    differentiate,
    real_of,
    row_stride,
    rows_of,
    stacked,
    stacked_weights,
)

Optional = Tensor | None
IGNORED = -100
"""A target that costs nothing."""


def _fill(
    logits: Tensor,
    grad: Optional,
    targets: Tensor,
    upstream: Optional,
    loss: Tensor,
    ignored: int,
    softcap: float,
    z_loss: float,
) -> None:
    """Losses of the rows of logits [N, V], and their gradient: into the logits themselves where
    they are `grad`.
    """
    rows, columns = logits.shape
    plan = source.cross_entropy(
        source.suffix(str(logits.dtype)), rows, columns, limits(logits.device)
    )
    run(
        logits.device,
        plan,
        logits=logits,
        logits_stride=row_stride(logits),
        grad=grad,
        grad_stride=columns,
        targets=targets.reshape(-1).contiguous(),
        target_stride=1,
        target_replica_stride=0,
        upstream=None if upstream is None else upstream.reshape(-1).contiguous(),
        upstream_stride=0 if upstream is None or upstream.numel() == 1 else 1,
        loss=loss,
        rows=rows,
        columns=columns,
        rows_per_replica=rows,
        ignore_index=ignored,
        softcap=softcap,
        z_loss=z_loss,
    )


def _require(logits: Tensor, targets: Tensor, upstream: Optional) -> None:
    if targets.dtype != torch.int64 or targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets {targets.dtype} {list(targets.shape)} for logits {list(logits.shape)}"
        )
    fits = upstream is None or upstream.numel() == 1 or upstream.shape == targets.shape
    if not fits or (upstream is not None and upstream.dtype != real_of(logits.dtype)):
        raise ValueError(
            f"upstream must be one number, or one for each target, as {real_of(logits.dtype)}"
        )


def _loss(
    logits: Tensor,
    targets: Tensor,
    upstream: Optional,
    ignored: int,
    softcap: float,
    z_loss: float,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    _require(logits, targets, upstream)
    loss, grad = _loss_fake(logits, targets, upstream, ignored, softcap, z_loss, with_grad)
    if logits.numel():
        _fill(
            rows_of(logits),
            grad if with_grad else None,
            targets,
            upstream,
            loss,
            ignored,
            softcap,
            z_loss,
        )
    return loss, grad


def _loss_fake(
    logits: Tensor,
    targets: Tensor,
    upstream: Optional,
    ignored: int,
    softcap: float,
    z_loss: float,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    loss = logits.new_empty(targets.shape, dtype=real_of(logits.dtype))
    return loss, logits.new_empty(logits.shape if with_grad else (0,))


def _loss_vmap(
    info: Any, axes: Any, logits: Tensor, targets: Tensor, upstream: Optional, *rest: Any
) -> Any:
    size = info.batch_size
    logits, targets = stacked(logits, axes[0], size), stacked(targets, axes[1], size)
    upstream = _each_row(upstream, axes[2], size, targets.shape)
    found = torch.ops.andrea.cross_entropy(logits, targets, upstream, *rest)
    return found, (0, 0 if rest[-1] else None)


def _each_row(upstream: Optional, axis: int | None, size: int, rows: torch.Size) -> Optional:
    """What was said of each replica's losses, for all rows [R, ...]; one number for all may stay
    one.
    """
    if upstream is None or (axis is None and upstream.numel() == 1):
        return upstream
    own = stacked(upstream, axis, size)
    if own.numel() == size:
        own = own.reshape(size, *[1] * (len(rows) - 1))
    return own.expand(rows)


def _scale(grad: Tensor, dloss: Tensor, upstream: Optional) -> Tensor:
    """The gradient of logits for losses that weigh `dloss` rather than `upstream`."""
    out = grad.new_empty(grad.shape)
    if grad.numel():
        rows = rows_of(grad)
        weight = dloss.reshape(-1).contiguous()
        run(
            grad.device,
            source.cross_entropy_scale(source.suffix(str(grad.dtype)), *rows.shape),
            src=rows,
            src_stride=row_stride(rows),
            dst=out,
            dst_stride=grad.shape[-1],
            dloss=weight,
            dloss_stride=0 if weight.numel() == 1 else 1,
            upstream=None if upstream is None else upstream.reshape(-1).contiguous(),
            upstream_stride=0 if upstream is None or upstream.numel() == 1 else 1,
            rows=rows.shape[0],
            columns=rows.shape[1],
        )
    return out


def _scale_fake(grad: Tensor, dloss: Tensor, upstream: Optional) -> Tensor:
    return grad.new_empty(grad.shape)


def _scale_vmap(info: Any, axes: Any, grad: Tensor, dloss: Tensor, upstream: Optional) -> Any:
    size = info.batch_size
    grad, dloss = stacked(grad, axes[0], size), stacked(dloss, axes[1], size)
    upstream = _each_row(upstream, axes[2], size, dloss.shape)
    return torch.ops.andrea.cross_entropy_backward(grad, dloss, upstream), 0


def _head(
    x: Tensor,
    weight: Tensor,
    bias: Optional,
    targets: Tensor,
    ignored: int,
    softcap: float,
    z_loss: float,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    loss, grad = _head_fake(x, weight, bias, targets, ignored, softcap, z_loss, with_grad)
    if x.shape[:-1] != targets.shape or targets.dtype != torch.int64:
        raise ValueError(f"targets {targets.dtype} {list(targets.shape)} for rows {list(x.shape)}")
    if targets.numel():
        with torch.autocast(x.device.type, enabled=False):  # the types are chosen outside
            logits = _logits(x, weight, bias)
        rows = logits.view(-1, logits.shape[-1])
        _fill(rows, rows if with_grad else None, targets, None, loss, ignored, softcap, z_loss)
        grad = logits.view(grad.shape) if with_grad else grad
    return loss, grad


def _logits(x: Tensor, weight: Tensor, bias: Optional) -> Tensor:
    """The head's product; replicas' weights [R, V, C] each with its share of the rows."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias).contiguous()
    lead = weight.shape[:-2]
    logits = x.reshape(math.prod(lead), -1, x.shape[-1]) @ weight.reshape(-1, *weight.shape[-2:]).mT
    return logits if bias is None else logits + bias.reshape(-1, 1, bias.shape[-1])


def _head_fake(
    x: Tensor,
    weight: Tensor,
    bias: Optional,
    targets: Tensor,
    ignored: int,
    softcap: float,
    z_loss: float,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    shape = (*targets.shape, weight.shape[-2]) if with_grad else (0,)
    return x.new_empty(targets.shape, dtype=real_of(x.dtype)), x.new_empty(shape)


def _head_vmap(
    info: Any, axes: Any, x: Tensor, weight: Tensor, bias: Optional, targets: Tensor, *rest: Any
) -> Any:
    size = info.batch_size
    if axes[1] is not None or axes[2] is not None or weight.dim() > 2:
        own = stacked_weights((weight, bias), axes[1:3], size)
        assert own[0] is not None
        weight, bias = own[0], own[1]
    found = torch.ops.andrea.head_loss(
        stacked(x, axes[0], size), weight, bias, stacked(targets, axes[3], size), *rest
    )
    return found, (0, 0 if rest[-1] else None)


_SCALE = define(
    "cross_entropy_backward(Tensor grad, Tensor dloss, Tensor? upstream) -> Tensor",
    _scale,
    _scale_fake,
    _scale_vmap,
)
_LOSS = define(
    "cross_entropy(Tensor logits, Tensor targets, Tensor? upstream, int ignored, float softcap, "
    "float z_loss,"
    " bool with_grad) -> (Tensor, Tensor)",
    _loss,
    _loss_fake,
    _loss_vmap,
)
_HEAD = define(
    "head_loss(Tensor x, Tensor weight, Tensor? bias, Tensor targets, int ignored, float softcap, "
    "float z_loss,"
    " bool with_grad) -> (Tensor, Tensor)",
    _head,
    _head_fake,
    _head_vmap,
)


def _setup_loss(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], inputs[2])


def _loss_gradient(ctx: Any, dloss: Tensor, _: Any) -> tuple[Optional, ...]:
    grad, upstream = ctx.saved_tensors
    return (
        torch.ops.andrea.cross_entropy_backward(grad, dloss, upstream),
        None,
        None,
        None,
        None,
        None,
        None,
    )


def _setup_head(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, _, *_ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, bias, output[1])


def _head_gradient(ctx: Any, dloss: Tensor, _: Any) -> tuple[Optional, ...]:
    """Two products; what the losses weigh goes into the rows of the small factor (right for any
    weights, S56).

    In training every row weighs 1/N: the products see shares of the largest weight, here 1, which
        no storage rounds.
    """
    x, weight, bias, grad = ctx.saved_tensors
    lead, V = weight.shape[:-2], weight.shape[-2]
    weigh = dloss.reshape(*lead, -1, 1)
    least = weigh.new_full(
        (*lead, 1, 1), torch.finfo(weigh.dtype).tiny
    )  # also where there are no rows
    largest = torch.cat([weigh.abs(), least], -2).amax(-2, keepdim=True)
    share = weigh / largest
    rows_NV, rows_NC = grad.reshape(*lead, -1, V), x.reshape(*lead, -1, x.shape[-1])
    dx = dweight = dbias = None
    if ctx.needs_input_grad[0]:
        dx = ((rows_NV @ weight) * weigh).to(x.dtype).view(x.shape)
    if ctx.needs_input_grad[1]:
        dweight = ((rows_NV.mT @ (rows_NC * share).to(x.dtype)) * largest).to(weight.dtype)
    if bias is not None and ctx.needs_input_grad[2]:
        dbias = ((share.mT.to(grad.dtype) @ rows_NV) * largest).to(bias.dtype).view(bias.shape)
    return dx, dweight, dbias, None, None, None, None, None


differentiate(_LOSS, _setup_loss, _loss_gradient)
differentiate(_HEAD, _setup_head, _head_gradient)


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    upstream: Optional = None,
    ignored: int = IGNORED,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """Loss of every row in nats, float32 [...]; of logits [..., V] and targets [...].

    Args:
        upstream: what each row's loss will weigh, float32 [...] or one number, when that is known:
            in the backward the gradient is then copied, not scaled. Any other weights stay right,
            unless a row's was said to be 0.
        ignored: a target whose loss and gradient are 0.
        softcap: the loss is that of `c·tanh(logits / c)`.
        z_loss: adds the gradient of `z_loss · log²Z`; the loss never contains it.
    """
    with_grad = torch.is_grad_enabled()
    loss: Tensor = torch.ops.andrea.cross_entropy(
        logits, targets, upstream, ignored, softcap or 0.0, z_loss, with_grad
    )[0]
    return loss


def head_loss(
    x: Tensor,
    weight: Tensor,
    bias: Optional,
    targets: Tensor,
    *,
    ignored: int = IGNORED,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """Loss of every row in nats, float32 [...], of the logits `x @ weight.T + bias`; x [..., C],
    weight [V, C].

    Args:
        ignored, softcap, z_loss: as for `cross_entropy`.
    """
    with_grad = torch.is_grad_enabled()
    loss: Tensor = torch.ops.andrea.head_loss(
        x, weight, bias, targets, ignored, softcap or 0.0, z_loss, with_grad
    )[0]
    return loss
