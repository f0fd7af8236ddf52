"""Stacked replicas reach the kernels through vmap: one launch, the numbers of a loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernels_kit import HOST, classes, close, drawn, kernels_on_cpu, pytestmark  # noqa: F401
from torch import Tensor
from torch.func import grad, vmap

from andrea.kernels.activation import activation, gated_activation
from andrea.kernels.cross_entropy import cross_entropy, head_loss
from andrea.kernels.norm import add_norm, norm

R, N, C, V = 3, (2, 4), 10, 13

Op = Callable[..., Tensor]
OPS: dict[str, tuple[Op, list[Tensor]]] = {
    "norm": (
        lambda x, w, b: norm(x, w, b, "ln", 1e-5),
        [drawn(R, *N, C), drawn(R, C), drawn(R, C, seed=1)],
    ),
    "norm without bias": (
        lambda x, w: norm(x, w, None, "rms", 1e-5),
        [drawn(R, *N, C), drawn(R, C)],
    ),
    "norm without weights": (lambda x: norm(x, None, None, "rms", 1e-5), [drawn(R, *N, C)]),
    "add_norm": (
        lambda x, d, w, b: torch.cat(add_norm(x, d, w, b, "ln", 1e-5)),
        [drawn(R, *N, C), drawn(R, *N, C, seed=1), drawn(R, C), drawn(R, C, seed=1)],
    ),
    "activation": (lambda a, b: activation(a, b, "gelu_tanh"), [drawn(R, *N, C), drawn(R, C)]),
    "gated activation": (
        lambda g, u, b, c: gated_activation(g, u, b, c, "silu"),
        [drawn(R, *N, C), drawn(R, *N, C, seed=1), drawn(R, C), drawn(R, C, seed=1)],
    ),
    "gated activation with one bias": (
        lambda g, u, c: gated_activation(g, u, None, c, "gelu"),
        [drawn(R, *N, C), drawn(R, *N, C, seed=1), drawn(R, C)],
    ),
    "cross_entropy": (
        lambda z, t: cross_entropy(z, t, softcap=3.0, z_loss=1e-2),
        [drawn(R, *N, V), classes(R, *N, of=V)],
    ),
    "cross_entropy announced": (
        lambda z, t, u: cross_entropy(z, t, upstream=u),
        [drawn(R, *N, V), classes(R, *N, of=V), torch.tensor([0.5, 1.0, 2.0])],
    ),
    "head_loss": (
        lambda x, h, b, t: head_loss(x, h, b, t, z_loss=1e-2),
        [drawn(R, *N, C), drawn(R, V, C), drawn(R, V), classes(R, *N, of=V)],
    ),
}
CASES = pytest.mark.parametrize(("op", "inputs"), OPS.values(), ids=[*OPS])


def _with_gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    wanted = [x for x in inputs if x.requires_grad]
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    return [output, *torch.autograd.grad((output * weights).sum(), wanted)]


@CASES
def test_stacked_replicas_have_the_numbers_of_a_loop(op: Op, inputs: list[Tensor]) -> None:
    looped = torch.stack([op(*(x[r] for x in inputs)) for r in range(R)])
    close(_with_gradients(vmap(op)(*inputs), inputs), _with_gradients(looped, inputs))


@CASES
def test_the_replicas_axis_may_be_any(op: Op, inputs: list[Tensor]) -> None:
    moved = [x.movedim(0, -1) for x in inputs]
    close(vmap(op, in_dims=-1)(*moved), vmap(op)(*inputs))


@CASES
def test_what_replicas_share_is_not_stacked(op: Op, inputs: list[Tensor]) -> None:
    """Each input in turn is the same for all; its gradient is the sum over replicas."""
    for shared in range(len(inputs)):
        ours = [
            x[0].detach().requires_grad_(x.requires_grad) if i == shared else x
            for i, x in enumerate(inputs)
        ]
        axes = tuple(None if i == shared else 0 for i in range(len(inputs)))
        if axes == (None,):
            continue
        looped = torch.stack(
            [op(*(x if i == shared else x[r] for i, x in enumerate(ours))) for r in range(R)]
        )
        close(
            _with_gradients(vmap(op, in_dims=axes)(*ours), ours),
            _with_gradients(looped, ours),
            factor=2,
        )


@CASES
def test_gradients_of_many_outputs_at_once(op: Op, inputs: list[Tensor]) -> None:
    """Backward passes have vmap rules too; each gets gradients of its own for what all share."""
    inputs = [x[0].detach().requires_grad_(x.requires_grad) for x in inputs]
    output, wanted = op(*inputs), [x for x in inputs if x.requires_grad]
    several = torch.randn(R, *output.shape, generator=torch.Generator().manual_seed(3))
    together = torch.autograd.grad(
        output, wanted, several, is_grads_batched=True, retain_graph=True
    )
    alone = [torch.autograd.grad(output, wanted, one, retain_graph=True) for one in several]
    close(list(together), [torch.stack(column) for column in zip(*alone, strict=True)])


def test_a_way_to_differentiate_that_torch_does_not_offer_to_ops_is_refused() -> None:
    with pytest.raises(RuntimeError, match="setup_context"):
        grad(lambda x: norm(x, None, None, "ln", 1e-5).sum())(torch.ones(2, 3))


@CASES
def test_replicas_of_replicas(op: Op, inputs: list[Tensor]) -> None:
    twice = [torch.stack([x.detach(), x.detach().flip(0)]) for x in inputs]
    close(vmap(vmap(op))(*twice), torch.stack([vmap(op)(*(x[i] for x in twice)) for i in range(2)]))


def test_replicas_share_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    launch = HOST.launch

    def counted(name: str, *args: Any, **keywords: Any) -> None:
        seen.append(name)
        launch(name, *args, **keywords)

    monkeypatch.setattr(HOST, "launch", counted)
    op, inputs = OPS["add_norm"]
    vmap(op)(*inputs).sum().backward()
    assert seen == ["norm_fwd_ln_f32_f32", "norm_bwd_ln_f32_f32", "reduce_parts_f32"]
