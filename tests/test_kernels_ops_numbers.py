"""The ops against torch in float64, with every layout of their inputs; symptoms known from other
kernels, by number.
"""

from typing import Any

import pytest
import torch
from kernels_kit import (  # noqa: F401
    classes,
    close,
    doubled,
    drawn,
    gradients,
    kernels_on_cpu,
    pytestmark,
)
from torch import Tensor

from andrea.kernels import source
from andrea.kernels.activation import activation, gated_activation
from andrea.kernels.check import ACTIVATIONS, plain_loss, plain_norm
from andrea.kernels.cross_entropy import cross_entropy, head_loss
from andrea.kernels.norm import add_norm, norm

HALVES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (1, 31, 33, 256, 768, 1023, 1600)


def layouts(x: Tensor) -> dict[str, Tensor]:
    """The same numbers [N, C] laid out differently."""
    n, c = x.shape
    wide = x.new_zeros(n, c + 3)
    wide[:, 1 : c + 1] = x.detach()
    moved = x.new_zeros(n * c + 1)
    moved[1:] = x.detach().reshape(-1)
    return {
        "contiguous": x.detach().clone(),
        "strided rows": wide[:, 1 : c + 1],
        "transposed": x.detach().t().contiguous().t(),
        "misaligned": moved[1:].view(n, c),
        "strided columns": x.detach().repeat_interleave(2, 1)[:, ::2],
    }


@pytest.mark.parametrize(
    "layout", ["contiguous", "strided rows", "transposed", "misaligned", "strided columns"]
)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_layout_of_inputs_and_gradients_gives_the_same_numbers(
    layout: str, dtype: torch.dtype
) -> None:
    x, d = (drawn(6, 40, seed=seed, dtype=dtype) for seed in (0, 1))
    w, t = drawn(40), classes(6, of=40)
    head = drawn(40, 40, dtype=dtype, scale=0.1)

    def everything(x: Tensor, d: Tensor, weigh: Tensor) -> list[Tensor]:
        x, d = x.detach().requires_grad_(), d.detach().requires_grad_()
        total, y = add_norm(x, d, w, w, "ln", 1e-5)
        z = gated_activation(x, d, w, None, "silu")
        results = [total, y, norm(x, w, None, "rms", 1e-5), activation(x, w, "gelu"), z]
        losses = [cross_entropy(x, t), head_loss(x, head, None, t)]
        seen = sum((r * weigh).sum() for r in results) + sum(
            (one * weigh[:, 0]).sum() for one in losses
        )
        return [*results, *losses, *torch.autograd.grad(seen, [x, d])]

    weigh = drawn(6, 40, seed=9, dtype=dtype).detach()
    usual = everything(x, d, weigh)
    other = everything(layouts(x)[layout], layouts(d)[layout], layouts(weigh)[layout])
    close(other, usual, dtype)


def test_expanded_inputs_and_gradients() -> None:
    row, w = drawn(33), drawn(33, seed=1)
    x = row.expand(2, 3, 33)
    exact = doubled(row, w)
    ours = norm(x, w, None, "ln", 1e-5)
    plain = plain_norm(exact[0].expand(2, 3, 33), exact[1], None, "ln", 1e-5)
    close(ours, plain)
    close(
        torch.autograd.grad(ours.sum(), [row, w]),
        torch.autograd.grad(plain.sum(), exact),
        factor=20,
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["ln", "rms"])
def test_norms_of_any_size(size: int, kind: str) -> None:
    x, d, w, b = drawn(3, size), drawn(3, size, seed=1), drawn(size, seed=2), drawn(size, seed=3)
    b = b if kind == "ln" else None  # type: ignore[assignment]
    exact = doubled(x, d, w, b)
    total, y = add_norm(x, d, w, b, kind, 1e-5)
    plain = plain_norm(exact[0] + exact[1], exact[2], exact[3], kind, 1e-5)
    close([total, y], [exact[0] + exact[1], plain], factor=4)
    close(gradients(y, [x, d, w, b]), gradients(plain, exact), factor=50 if size == 1 else 10)


@pytest.mark.parametrize("size", SIZES)
def test_activations_and_losses_of_any_size(size: int) -> None:
    a, u, b = drawn(3, size), drawn(3, size, seed=1), drawn(size, seed=2)
    exact, t = doubled(a, u, b), classes(3, of=size)
    ours, plain = (
        gated_activation(a, u, b, None, "gelu"),
        ACTIVATIONS["gelu"](exact[0] + exact[2]) * exact[1],
    )
    close(ours, plain)
    close(gradients(ours, [a, u, b]), gradients(plain, exact), factor=4)
    ours, plain = cross_entropy(a, t), plain_loss(exact[0], t)
    close(ours, plain)
    close(gradients(ours, [a]), gradients(plain, exact[:1]))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("function", source.GATED_ACTIVATIONS)
def test_activations_with_and_without_gate_and_biases(function: str, dtype: torch.dtype) -> None:
    a, u = drawn(7, 24, dtype=dtype), drawn(7, 24, seed=1, dtype=dtype)
    for b, c in ((drawn(24, seed=2), drawn(24, seed=3)), (None, drawn(24, seed=3)), (None, None)):
        exact = doubled(a, u, b, c)
        ours = gated_activation(a, u, b, c, function)
        gate, up = (
            x if bias is None else x + bias for x, bias in zip(exact[:2], exact[2:], strict=True)
        )
        plain = ACTIVATIONS[function](gate) * up
        close(ours, plain, dtype)
        close(gradients(ours, [a, u, b, c]), gradients(plain, exact), dtype, factor=2)
        if function in source.PLAIN_ACTIVATIONS:
            ours, plain = activation(a, b, function), ACTIVATIONS[function](gate)
            close(ours, plain, dtype)
            close(gradients(ours, [a, b]), gradients(plain, [exact[0], exact[2]]), dtype, factor=2)


@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16], ids=str)
def test_a_half_precision_branch_joins_its_stream(stream: torch.dtype) -> None:
    half = torch.bfloat16
    x, d, w = drawn(5, 48, dtype=stream), drawn(5, 48, seed=1, dtype=half), drawn(48, seed=2)
    exact = doubled(x, d, w)
    total, y = add_norm(x, d, w, None, "ln", 1e-5)
    assert (total.dtype, y.dtype) == (stream, half)
    plain = exact[0] + exact[1]
    close([total, y], [plain, plain_norm(plain, exact[2], None, "ln", 1e-5)], half)
    found = torch.autograd.grad((total.double() * 2).sum() + y.double().square().sum(), [x, d, w])
    assert [g.dtype for g in found] == [stream, half, torch.float32]
    normed = plain_norm(plain, exact[2], None, "ln", 1e-5)
    close(
        found, torch.autograd.grad((plain * 2).sum() + normed.square().sum(), exact), half, factor=2
    )


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_losses_with_cap_and_z_loss_for_any_weights(
    cap: float | None, z_loss: float, dtype: torch.dtype
) -> None:
    x, head, bias = (
        drawn(6, 20, dtype=dtype),
        drawn(37, 20, seed=1, dtype=dtype),
        drawn(37, seed=2, dtype=dtype),
    )
    t, exact = classes(6, of=37), doubled(x, head, bias)
    ours = head_loss(x, head, bias, t, softcap=cap, z_loss=z_loss)
    plain = plain_loss(exact[0] @ exact[1].T + exact[2], t, cap, z_loss)
    assert ours.dtype == torch.float32 and ours[0] == 0
    close(ours, plain, dtype, factor=4)
    close(gradients(ours, [x, head, bias]), gradients(plain, exact), dtype, factor=8)


@pytest.mark.parametrize("upstream", [None, torch.tensor(0.25), torch.tensor([0.5, 1.0, 2.0, 4.0])])
def test_the_weights_that_were_announced_do_not_matter(upstream: Tensor | None) -> None:
    logits, t = drawn(4, 11), classes(4, of=11)
    (exact,) = doubled(logits)
    ours, plain = cross_entropy(logits, t, upstream=upstream), plain_loss(exact, t)
    for seed in (1, 2):
        weights = drawn(4, seed=seed).detach()
        found = torch.autograd.grad((ours * weights).sum(), logits, retain_graph=True)
        close(found[0], torch.autograd.grad((plain * weights).sum(), exact, retain_graph=True)[0])


def test_no_tensor_that_came_in_or_was_saved_is_written_to() -> None:
    logits, t = drawn(4, 11), classes(4, of=11)
    kept = logits.detach().clone()
    loss = cross_entropy(logits, t) + logits.exp().sum(-1)  # exp's result is saved
    first = torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0]
    second = torch.autograd.grad(loss.sum() * 3, logits, retain_graph=True)[0]
    assert torch.equal(logits, kept) and logits._version == 0
    torch.testing.assert_close(second, first * 3)
    x, head = drawn(4, 8), drawn(11, 8)
    loss = head_loss(x, head, None, t)
    gradients_ = [
        torch.autograd.grad(loss.sum() * k, [x, head], retain_graph=True) for k in (1, 2, 1)
    ]
    assert all(
        torch.equal(one, other) for one, other in zip(gradients_[0], gradients_[2], strict=True)
    )
    total, _ = add_norm(x, x, None, None, "ln", 1e-5)
    assert total.data_ptr() != x.data_ptr() and (x._version, head._version) == (0, 0)


def test_the_heads_gradient_is_summed_in_one_go() -> None:
    """Over 4,096 rows in bf16; chunks that are added in bf16 lose the small ones."""
    x, head = drawn(4096, 8, dtype=torch.bfloat16), drawn(16, 8, dtype=torch.bfloat16, scale=0.1)
    t, exact = (
        torch.randint(16, (4096,), generator=torch.Generator().manual_seed(1)),
        doubled(x, head),
    )
    ours = torch.autograd.grad(head_loss(x, head, None, t).mean(), head)[0]
    plain = torch.autograd.grad(plain_loss(exact[0] @ exact[1].T, t).mean(), exact[1])[0]
    assert (ours.double() - plain).abs().max() / plain.abs().max() < 2**-7


@pytest.mark.parametrize("offset", [3e4, -3e4])
def test_a_common_offset_changes_no_loss(offset: float) -> None:
    logits, t = (drawn(5, 50, scale=4.0) * 8).round() / 8, classes(5, of=50)
    torch.testing.assert_close(
        cross_entropy(logits + offset, t), cross_entropy(logits, t), atol=1e-5, rtol=0
    )


def test_most_logits_minus_infinity() -> None:
    logits = torch.full((3, 40), -torch.inf)
    logits[:, 5], logits[:, 7] = 1.0, 2.0
    logits.requires_grad_()
    loss = cross_entropy(logits, torch.tensor([5, 7, 5]))
    (found,) = torch.autograd.grad(loss.sum(), logits)
    close(loss, plain_loss(logits.double(), torch.tensor([5, 7, 5])))
    assert found.isfinite().all() and (found != 0).sum() == 6


def test_two_runs_have_the_same_bits() -> None:
    x, w, t = drawn(64, 48), drawn(48), classes(64, of=48)
    runs: list[list[Any]] = []
    for _ in range(2):
        loss = cross_entropy(gated_activation(norm(x, w, w, "ln", 1e-5), x, w, w, "silu"), t)
        runs.append([loss, *torch.autograd.grad(loss.sum(), [x, w])])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_an_output_that_nobody_uses() -> None:
    x, d, w = drawn(3, 8), drawn(3, 8, seed=1), drawn(8)
    total, y = add_norm(x, d, w, None, "ln", 1e-5)
    alone = torch.autograd.grad(y.square().sum(), [x, d, w], retain_graph=True)
    exact = doubled(x, d, w)
    plain = plain_norm(exact[0] + exact[1], exact[2], None, "ln", 1e-5)
    close(alone, torch.autograd.grad(plain.square().sum(), exact), factor=4)
    through, other = torch.autograd.grad(total.sum(), [x, d])
    assert torch.equal(through, torch.ones(3, 8)) and torch.equal(other, torch.ones(3, 8))


def test_every_input_gets_its_gradient() -> None:
    x, d, w, b, t = drawn(3, 8), drawn(3, 8, seed=1), drawn(8), drawn(8, seed=1), classes(3, of=8)
    for output, inputs in (
        (add_norm(x, d, w, b, "ln", 1e-5)[1], [x, d, w, b]),
        (norm(x, w, None, "rms", 1e-5), [x, w]),
        (norm(x, w.detach(), b, "ln", 1e-5), [x, b]),
        (activation(x, b, "gelu"), [x, b]),
        (gated_activation(x, d, None, b, "silu"), [x, d, b]),
        (cross_entropy(x, t), [x]),
        (head_loss(x, drawn(8, 8), b, t), [x, b]),
    ):
        assert all(g.abs().sum() > 0 for g in gradients(output, inputs))


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_an_empty_batch_is_no_special_case(shape: tuple[int, ...]) -> None:
    x, w, head, t = drawn(*shape), drawn(8), drawn(5, 8), torch.zeros(shape[:-1], dtype=torch.int64)
    total, y = add_norm(x, x, w, w, "ln", 1e-5)
    z = gated_activation(activation(y, w, "silu"), total, w, w, "gelu")
    loss = head_loss(z, head, None, t).sum() + cross_entropy(z, t).sum()
    found = torch.autograd.grad(loss, [x, w, head])
    assert [g.shape for g in found] == [x.shape, w.shape, head.shape]
    assert not any(g.any() for g in found)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"7\] for rows of 8 columns"):
        norm(drawn(3, 8), drawn(7), None, "ln", 1e-5)
    with pytest.raises(ValueError, match=r"rows for 2 replicas"):
        activation(drawn(3, 8), drawn(2, 8), "gelu")
    with pytest.raises(ValueError, match="targets"):
        cross_entropy(drawn(3, 8), torch.zeros(4, dtype=torch.int64))


def test_the_head_s_bias_sees_one_over_n_as_it_is_not_as_bfloat16_rounds_it() -> None:
    N, C, V = 83, 8, 400
    generator = torch.Generator().manual_seed(3)
    x, weight, bias = (
        torch.randn(s, generator=generator).bfloat16() for s in ((N, C), (V, C), (V,))
    )
    targets = torch.randint(V, (N,), generator=generator)
    rows = torch.ops.andrea.head_loss(x, weight, bias, targets, -100, 0.0, 0.0, True)[1]
    expected = rows.double().sum(0) / N
    bias.requires_grad_()
    (head_loss(x, weight, bias, targets).sum() / N).backward()
    assert bias.grad is not None
    factor = (bias.grad.double() * expected).sum() / expected.square().sum()
    assert abs(factor - 1) < 7e-4  # 1/83 is 0.2 % off in bfloat16
