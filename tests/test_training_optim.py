"""Optimizer groups, clipping, accumulation."""

import math

import pytest
import torch
from torch import nn
from training_kit import corpus, tiny

from andrea.data.batches import training_batch
from andrea.model.gpt import build_model
from andrea.training.config import TrainConfig
from andrea.training.loop import Trainer
from andrea.training.optim import clip_gradients, make_optimizer, set_lr


def test_gains_and_biases_are_not_decayed_and_every_matrix_is() -> None:
    model = build_model(tiny(model__norm_affine=True, model__bias=True).model)
    optimizer = make_optimizer(model, TrainConfig(weight_decay=0.3))
    decay = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.3 if parameter.dim() >= 2 else 0.0), name


def test_decay_moves_a_matrix_without_gradient_and_leaves_a_gain() -> None:
    model = nn.ModuleDict({"matrix": nn.Linear(3, 3), "norm": nn.LayerNorm(3)})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, TrainConfig(lr=0.5, weight_decay=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if name == "matrix.weight" else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_a_matrix_that_learns_at_a_share_of_the_rate_is_decayed_as_all_others() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make_optimizer(model, TrainConfig(lr=0.5, weight_decay=0.1), {"0.weight": 0.25})
    for step, lr in enumerate((0.5, 0.2)):
        set_lr(optimizer, lr)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        before = [p * (1 - lr * 0.1) for p in before]
        assert optimizer.param_groups[0]["lr"] in (lr, lr / 4), step
    for parameter, expected in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), expected)


def test_a_tied_table_is_one_parameter_and_an_untied_one_two() -> None:
    for tied in (True, False):
        model = build_model(tiny(model__tied=tied).model)
        held = [
            p
            for group in make_optimizer(model, TrainConfig()).param_groups
            for p in group["params"]
        ]
        tables = [p for p in held if p.shape == model.token_embedding.weight.shape]
        assert len(tables) == (1 if tied else 2)
        assert len({id(p) for p in held}) == len(held) == len(list(model.parameters()))


def test_a_rate_is_set_in_all_groups() -> None:
    optimizer = make_optimizer(build_model(tiny().model), TrainConfig())
    set_lr(optimizer, 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]


def test_clipping_scales_all_gradients_to_the_limit_and_returns_the_norm_before() -> None:
    parameters = [
        nn.Parameter(torch.zeros(2)),
        nn.Parameter(torch.zeros(2, 2)),
        nn.Parameter(torch.zeros(3)),
    ]
    parameters[0].grad = torch.tensor([3.0, 0.0])
    parameters[1].grad = torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    assert clip_gradients(parameters, 0).item() == 5.0
    assert clip_gradients(parameters, 10.0).item() == 5.0
    assert parameters[0].grad.tolist() == [3.0, 0.0]
    assert clip_gradients(parameters, 1.0).item() == 5.0
    assert parameters[0].grad[0].item() == pytest.approx(0.6, rel=1e-5)
    assert parameters[1].grad[0, 1].item() == pytest.approx(0.8, rel=1e-5)
    assert parameters[2].grad is None


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_accumulated_gradient_and_loss_equal_the_full_batch(micro_batch: int) -> None:
    x, y = (torch.from_numpy(a) for a in training_batch(corpus(), 1, 0, 4, 16))
    whole, sliced = (
        Trainer(tiny(), corpus()),
        Trainer(tiny(train__micro_batch=micro_batch), corpus()),
    )
    torch.testing.assert_close(
        whole.accumulate_gradients(x, y), sliced.accumulate_gradients(x, y), rtol=1e-6, atol=1e-6
    )
    for full, part in zip(whole.parameters, sliced.parameters, strict=True):
        torch.testing.assert_close(full.grad, part.grad, rtol=1e-4, atol=1e-7)


def test_a_step_is_adamw_on_the_clipped_mean_gradient_of_the_batch() -> None:
    cfg = tiny(train__clip=0.05, train__lr=0.01)
    trainer = Trainer(cfg, corpus())
    oracle = build_model(cfg.model, cfg.seed)
    plain = torch.optim.AdamW(
        [
            {"params": [p for p in oracle.parameters() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in oracle.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=False,
        foreach=False,
    )
    for k in range(3):
        x, y = (torch.from_numpy(a) for a in training_batch(corpus(), cfg.seed, k, 4, 16))
        plain.zero_grad()
        nn.functional.cross_entropy(oracle(x).flatten(0, 1), y.flatten()).backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in oracle.parameters()))
        for parameter in oracle.parameters():
            parameter.grad *= min(1.0, 0.05 / (norm + 1e-6))
        for group in plain.param_groups:
            group["lr"] = 0.01 * min(1.0, (k + 1) / 2)
            if k == 2:
                group["lr"] = 0.001 + 0.009 * 0.5 * (1 + math.cos(math.pi / 22))
        plain.step()
        trainer.advance()
        assert trainer.read_sums().latest_grad_norm == pytest.approx(norm, rel=1e-5)
    for ours, theirs in zip(trainer.model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
