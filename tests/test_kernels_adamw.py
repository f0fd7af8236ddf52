"""AdamW by kernels against torch's fused AdamW after its clipping."""

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from kernels_kit import HOST, drawn, kernels_on_cpu, pytestmark  # noqa: F401
from torch import Tensor, nn

from andrea.kernels import launch_plans
from andrea.kernels.adamw import AdamW

SHAPES = ((7, 5), (5,), (launch_plans.OPTIMIZER_CHUNK + 3,), (1, 1))


def parameters(seed: int = 0, *lead: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    drawn_ = [drawn(*lead, *shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(SHAPES)]
    return [nn.Parameter(p.detach()) for p in drawn_]


def groups(
    parameters: list[nn.Parameter], decay: Any = 0.1, lr: Any = 1e-2
) -> list[dict[str, Any]]:
    return [
        {"params": [parameters[0], parameters[3]], "weight_decay": decay, "lr": lr},
        {
            "params": parameters[1:3],
            "weight_decay": 0.0,
            "lr": np.asarray(lr) * 0.5,
            "lr_scale": 0.5,
        },
    ]


def ours(parameters: list[nn.Parameter], clip: float = 1.0, **keywords: Any) -> AdamW:
    return AdamW(groups(parameters), betas=(0.9, 0.95), clip=clip, **keywords)


def theirs(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups(parameters), betas=(0.9, 0.95), fused=True)


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    for index, p in enumerate(parameters):
        p.grad = drawn(*p.shape, seed=100 * step + index).detach().to(p.dtype)


def set_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("lr_scale", 1.0)


def train(
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    steps: range,
    clip: float = 1.0,
) -> list[Tensor]:
    """Returns the norms."""
    norms = []
    for step in steps:
        set_rate(optimizer, 1e-2 * (step + 1) / 20)
        give_gradients(parameters, step)
        if not isinstance(optimizer, AdamW):
            norms.append(nn.utils.clip_grad_norm_(parameters, clip or float("inf")))
        optimizer.step()
        if isinstance(optimizer, AdamW):
            norms.append(optimizer.norm.clone())
    return norms


@pytest.mark.parametrize("clip", [0.0, 1.0, 1e9])
def test_it_trains_as_torch_does(clip: float) -> None:
    a, b = parameters(), parameters()
    norms, expected = train(ours(a, clip), a, range(20), clip), train(theirs(b), b, range(20), clip)
    torch.testing.assert_close(torch.stack(norms), torch.stack(expected))
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_gradients_are_read_and_not_written() -> None:
    a = parameters()
    give_gradients(a, 0)
    kept = [p.grad.clone() for p in a if p.grad is not None]
    ours(a).step()
    assert all(p.grad is not None and torch.equal(p.grad, k) for p, k in zip(a, kept, strict=True))


def test_a_state_goes_through_a_checkpoint_and_may_come_from_torch() -> None:
    a, b = parameters(), parameters()
    first, other = ours(a), theirs(b)
    train(first, a, range(5))
    train(other, b, range(5))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed_parameters = [nn.Parameter(p.detach().clone()) for p in a]
    resumed = ours(resumed_parameters)
    resumed.load_state_dict(state)
    exchanged_parameters = [nn.Parameter(p.detach().clone()) for p in b]
    exchanged = ours(exchanged_parameters)
    exchanged.load_state_dict(copy.deepcopy(other.state_dict()))
    for optimizer, held in (
        (first, a),
        (resumed, resumed_parameters),
        (exchanged, exchanged_parameters),
    ):
        train(optimizer, held, range(5, 10))
    for one, same, near in zip(a, resumed_parameters, exchanged_parameters, strict=True):
        assert torch.equal(one, same)
        torch.testing.assert_close(one, near, atol=1e-6, rtol=1e-6)


def test_replicas_have_rates_decays_and_norms_of_their_own() -> None:
    rates, decays = np.array([1e-2, 3e-3]), np.array([0.1, 0.01])
    stacked = parameters(0, 2)
    optimizer = AdamW(groups(stacked, decays, rates), betas=(0.9, 0.95), clip=1.0, replicas=2)
    solo = [[nn.Parameter(p.detach()[r].clone()) for p in stacked] for r in range(2)]
    alone = [
        AdamW(groups(s, decay, rate), betas=(0.9, 0.95), clip=1.0)
        for s, rate, decay in zip(solo, rates, decays, strict=True)
    ]
    for step in range(6):
        give_gradients(stacked, step)
        optimizer.step()
        for r in range(2):
            for p, q in zip(stacked, solo[r], strict=True):
                assert p.grad is not None
                q.grad = p.grad[r].clone()
            alone[r].step()
        torch.testing.assert_close(
            optimizer.norm, torch.stack([one.norm for one in alone]), rtol=1e-6, atol=0
        )
    for p, *each in zip(stacked, *solo, strict=True):
        torch.testing.assert_close(p, torch.stack([q.detach() for q in each]), atol=1e-6, rtol=1e-6)


def test_parameters_without_a_gradient_or_in_half_precision() -> None:
    a = [*parameters()[:2], *parameters(dtype=torch.bfloat16)[2:]]
    give_gradients(a, 0)
    a[1].grad = None
    kept = [p.detach().clone() for p in a]
    optimizer = ours(a)
    optimizer.step()
    assert [torch.equal(p, k) for p, k in zip(a, kept, strict=True)] == [False, True, False, False]
    assert optimizer.state[a[2]]["exp_avg"].dtype == torch.float32
    exact = torch.linalg.vector_norm(
        torch.cat([p.grad.double().reshape(-1) for p in a if p.grad is not None])
    )
    torch.testing.assert_close(optimizer.norm.double(), exact, rtol=1e-6, atol=0)
    give_gradients(a, 1)
    optimizer.step()
    assert not torch.equal(a[1], kept[1])


def test_a_gradient_that_is_not_contiguous() -> None:
    a, b = parameters(), parameters()
    give_gradients(a, 0)
    give_gradients(b, 0)
    assert a[0].grad is not None
    a[0].grad = a[0].grad.t().contiguous().t()
    first, other = ours(a), ours(b)
    first.step()
    other.step()
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_a_gradient_that_is_not_finite_shows_in_the_norm_and_in_the_weights() -> None:
    a, b = parameters(), parameters()
    for optimizer, held in ((ours(a), a), (theirs(b), b)):
        give_gradients(held, 0)
        assert held[1].grad is not None
        held[1].grad[0] = torch.nan
        nn.utils.clip_grad_norm_(held, 1.0) if optimizer.__class__ is torch.optim.AdamW else None
        optimizer.step()
    assert all(torch.equal(p.isnan(), q.isnan()) for p, q in zip(a, b, strict=True))


def test_nothing_is_copied_to_the_device_when_nothing_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies: list[int] = []
    pin = AdamW._pin

    def counted(self: AdamW, tensor: Tensor) -> Tensor:
        copies.append(tensor.numel())
        return pin(self, tensor)

    monkeypatch.setattr(AdamW, "_pin", counted)
    a = parameters()
    give_gradients(a, 0)
    optimizer = ours(a)
    optimizer.step()
    copies.clear()
    optimizer.step()
    assert copies == []
    set_rate(optimizer, 5e-3)
    optimizer.step()
    assert copies == [6]


def test_three_launches_whatever_the_number_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    launch = HOST.launch
    monkeypatch.setattr(
        HOST, "launch", lambda name, *rest: (seen.append(name), launch(name, *rest))
    )
    a = parameters()
    give_gradients(a, 0)
    ours(a).step()
    assert seen == ["gradnorm_f32", "adamw_prepare_f32", "adamw_f32"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        AdamW([nn.Parameter(torch.zeros(3, 4).t())])
    with pytest.raises(ValueError, match=r"contiguous \[2"):
        AdamW([nn.Parameter(torch.zeros(3, 4))], replicas=2)
    a = parameters()
    give_gradients(a, 0)
    optimizer = AdamW([{"params": a[:1], "lr": 1e-3}, {"params": a[1:], "lr": 2e-3}])
    with pytest.raises(ValueError, match="lr_scale"):
        optimizer.step()


def test_decays_per_replica_must_be_proportional() -> None:
    a = parameters(0, 2)
    give_gradients(a, 0)
    both = [
        {"params": a[:1], "weight_decay": [0.1, 0.01]},
        {"params": a[1:], "weight_decay": [0.05, 0.005]},
    ]
    optimizer = AdamW(both, replicas=2)
    optimizer.step()
    optimizer.param_groups[1]["weight_decay"] = [0.05, 0.02]
    with pytest.raises(ValueError, match="proportional"):
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_state_of_half_precision_parameters_keeps_its_moments_exactly(dtype: torch.dtype) -> None:
    a = parameters(dtype=dtype)
    first = ours(a)
    train(first, a, range(3))
    b = [nn.Parameter(p.detach().clone()) for p in a]
    resumed = ours(b)
    state = copy.deepcopy(first.state_dict())
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"].t().contiguous().t()
    resumed.load_state_dict(state)
    for p, q in zip(a, b, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            moment = resumed.state[q][name]
            assert moment.dtype == torch.float32
            assert moment.is_contiguous()
            assert torch.equal(moment, first.state[p][name])
    for optimizer, held in ((first, a), (resumed, b)):
        train(optimizer, held, range(3, 6))
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "wrong", [torch.zeros(7, 5, dtype=torch.bfloat16), torch.zeros(5, 7).t(), torch.zeros(7)]
)
def test_moments_that_the_kernel_would_misread_are_refused(wrong: Tensor) -> None:
    a = parameters()
    give_gradients(a, 0)
    optimizer = ours(a)
    optimizer.step()
    optimizer.state[a[0]]["exp_avg"] = wrong
    with pytest.raises(ValueError, match="exp_avg must be contiguous"):
        optimizer.step()


def test_a_capture_needs_a_step_before_it_and_keeps_what_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = parameters()
    give_gradients(a, 0)
    optimizer, new = ours(a), ours(a)
    optimizer.step()
    monkeypatch.setattr(AdamW, "_is_capturing", lambda _: True)
    with pytest.raises(RuntimeError, match=r"shares of rate.*before capturing"):
        new.step()
    give_gradients(a, 1)
    optimizer.step()
    (tables,) = optimizer._tables
    assert tables.address_rows
    held = [tensor.data_ptr() for tensor in optimizer._captured]
    read = [tables.chunks.data_ptr(), *(row.data_ptr() for row in tables.address_rows)]
    assert {*read} <= {*held}
    assert tables.addresses == ()
    set_rate(optimizer, 5e-3)
    with pytest.raises(RuntimeError, match="rates"):
        optimizer.step()
    set_rate(optimizer, 1e-2)
    optimizer.state.clear()
    with pytest.raises(RuntimeError, match="no state"):
        optimizer.step()


def test_refresh_copies_what_changed_without_a_step() -> None:
    a = parameters()
    give_gradients(a, 0)
    optimizer = ours(a)
    optimizer.step()
    set_rate(optimizer, 5e-3)
    optimizer.refresh()
    assert optimizer._hyper[0, 0].item() == 5e-3
    assert optimizer._steps.tolist() == [1]


@pytest.mark.parametrize("kind", [list, np.asarray])
def test_replicas_have_betas_and_clipping_of_their_own(kind: Any) -> None:
    stacked, each = parameters(0, 2), ((0.9, 0.95, 1.0), (0.8, 0.99, 0.0))
    solo = [[nn.Parameter(p.detach()[r].clone()) for p in stacked] for r in range(2)]
    betas = (kind([one[0] for one in each]), kind([one[1] for one in each]))
    optimizer = AdamW(groups(stacked), betas=betas, clip=kind([one[2] for one in each]), replicas=2)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    alone = [
        AdamW(groups(s), betas=one[:2], clip=one[2]) for s, one in zip(solo, each, strict=True)
    ]
    for step in range(4):
        give_gradients(stacked, step)
        optimizer.step()
        for r in range(2):
            for p, q in zip(stacked, solo[r], strict=True):
                assert p.grad is not None
                q.grad = p.grad[r].clone()
            alone[r].step()
    for p, *both in zip(stacked, *solo, strict=True):
        torch.testing.assert_close(p, torch.stack([q.detach() for q in both]), atol=1e-6, rtol=1e-6)
