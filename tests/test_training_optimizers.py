"""Every optimizer against its formula, shares of the rate by name, what each one keeps, and
resuming.
"""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_kit import assert_same_run, corpus, lasting, tiny

from andrea.errors import UserError
from andrea.model.gpt import build_model
from andrea.training import checkpoint, memory
from andrea.training import run as run_module
from andrea.training.config import TrainConfig
from andrea.training.identity import canonical, identity, run_id
from andrea.training.loop import Trainer
from andrea.training.optim import MUON_MOMENTUM, is_muon_param, make_optimizer, set_lr
from andrea.training.optimizers import CombinedOptimizer, Lion
from andrea.training.run import Run, train

OPTIMIZERS = ["adamw", "sgd", "lion", "muon"]
Step = Callable[[Tensor, Tensor, dict[str, Tensor], float], Tensor]


def sgd(p: Tensor, g: Tensor, state: dict[str, Tensor], lr: float) -> Tensor:
    state["m"] = 0.8 * state.get("m", torch.zeros_like(p)) + g
    return p - lr * state["m"]


def lion(p: Tensor, g: Tensor, state: dict[str, Tensor], lr: float) -> Tensor:
    """Program 1 of the paper: `update = interp(g, m, b1); update = sign(update); m = interp(g, m,
    b2)`.
    """
    m = state.get("m", torch.zeros_like(p))
    state["m"] = 0.7 * m + 0.3 * g
    return p - lr * torch.sign(0.8 * m + 0.2 * g)


def muon(p: Tensor, g: Tensor, state: dict[str, Tensor], lr: float) -> Tensor:
    """Momentum, five Newton-Schulz steps in bfloat16, an update of AdamW's size."""
    state["m"] = m = MUON_MOMENTUM * state.get("m", torch.zeros_like(p)) + (1 - MUON_MOMENTUM) * g
    x = ((1 - MUON_MOMENTUM) * g + MUON_MOMENTUM * m).bfloat16()
    x = x.T if p.shape[0] > p.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    x = x.T if p.shape[0] > p.shape[1] else x
    return p - lr * 0.2 * math.sqrt(max(p.shape)) * x


@pytest.mark.parametrize(("name", "formula"), [("sgd", sgd), ("lion", lion), ("muon", muon)])
def test_a_step_is_what_the_formula_says_on_what_decoupled_decay_has_left(
    name: str, formula: Step
) -> None:
    generator = torch.Generator().manual_seed(3)
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(6, 4)])})
    cfg = TrainConfig.model_validate(
        {"optimizer": name, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.7}
    )
    optimizer = make_optimizer(model, cfg)
    trained = {n: p for n, p in model.named_parameters() if name != "muon" or p.dim() == 2}
    expected = {n: p.detach().clone() for n, p in trained.items()}
    states: dict[str, dict[str, Tensor]] = {n: {} for n in expected}
    for lr in (0.05, 0.02, 0.1):
        set_lr(optimizer, lr)
        for n, p in trained.items():
            p.grad = torch.randn(p.shape, generator=generator)
            decayed = expected[n] * (1 - lr * 0.1) if p.dim() == 2 else expected[n]
            expected[n] = formula(decayed, p.grad, states[n], lr)
        optimizer.step()
    rounding = 5e-3 if name == "muon" else 1e-6  # of a way of 0.08: Muon computes in bfloat16
    for n, p in trained.items():
        torch.testing.assert_close(p.detach(), expected[n], rtol=1e-5, atol=rounding)


def test_muon_trains_the_matrices_inside_the_blocks_and_adamw_the_rest() -> None:
    model = build_model(tiny(model__bias=True, model__norm_affine=True, model__tied=False).model)
    optimizer = make_optimizer(model, TrainConfig(optimizer="muon"))
    assert isinstance(optimizer, CombinedOptimizer)
    muon_, adamw = (
        {id(p) for group in part.param_groups for p in group["params"]} for part in optimizer.parts
    )
    named = {id(p): name for name, p in model.named_parameters()}
    inside = {
        f"blocks.{i}.{m}.weight"
        for i in (0, 1)
        for m in ("attn.qkv", "attn.proj", "mlp.up", "mlp.down")
    }
    assert {named[p] for p in muon_} == inside
    assert muon_ | adamw == set(named) and not muon_ & adamw
    assert not is_muon_param("blocks.0.norm1.weight", (16,)) and not is_muon_param(
        "head.weight", (256, 16)
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_share_of_the_rate_by_name_is_kept_by_every_new_rate(name: str) -> None:
    model = build_model(tiny(model__bias=True).model)
    shares = {"blocks.0.attn.qkv.weight": 0.25, "blocks.1.mlp.up.bias": 0.5}
    optimizer = make_optimizer(model, TrainConfig.model_validate({"optimizer": name}), shares)
    set_lr(optimizer, 0.2)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for parameter_name, parameter in model.named_parameters():
        assert rates[id(parameter)] == 0.2 * shares.get(parameter_name, 1.0)
    assert len(rates) == len(list(model.parameters()))


def test_a_parameter_with_no_share_of_the_rate_stays_where_it_started() -> None:
    for name in OPTIMIZERS:
        model = build_model(tiny().model)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer = make_optimizer(
            model, TrainConfig.model_validate({"optimizer": name}), {"blocks.0.mlp.up.weight": 0.0}
        )
        set_lr(optimizer, 0.1)
        x = torch.arange(16)[None] % 7
        model(x, x).mean().backward()
        optimizer.step()
        moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
        assert moved == set(before) - {"blocks.0.mlp.up.weight"}, name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_memory_that_is_counted_is_the_state_that_is_kept(name: str) -> None:
    cfg = tiny(
        train__optimizer=name, model__bias=True, model__qk_norm="head", model__norm_affine=True
    )
    model = build_model(cfg.model)
    optimizer = make_optimizer(model, cfg.train)
    x = torch.arange(16)[None] % 7
    model(x, x).mean().backward()
    optimizer.step()
    parts = optimizer.parts if isinstance(optimizer, CombinedOptimizer) else [optimizer]
    kept = [
        v
        for part in parts
        for state in part.state.values()
        for v in state.values()
        if isinstance(v, Tensor)
    ]
    assert sum(v.numel() for v in kept if v.dim()) == memory.optimizer_moments(cfg.model, cfg.train)


def test_sgd_without_momentum_keeps_nothing() -> None:
    cfg = tiny(train__optimizer="sgd", train__beta1=0.0)
    assert memory.optimizer_moments(cfg.model, cfg.train) == 0


@pytest.mark.parametrize("name", ["sgd", "lion", "muon"])
def test_a_resumed_run_continues_bit_for_bit_with_every_optimizer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = {"lion": "mup"}.get(name, "gpt2")
    cfg = tiny(train__optimizer=name, train__lr=0.01, model__dropout=0.1, model__init=init)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    monkeypatch.setattr(run_module, "CHECKPOINT_SHARE", 0)
    save = Run._save_checkpoint

    def keep_the_eleventh(self: Run) -> None:
        save(self)
        if self.trainer.step == 11:
            shutil.copytree(self.folder, cut)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_save_checkpoint", keep_the_eleventh)
        result = train(cfg, corpus(), whole, checkpoint_every_s=0)
    assert checkpoint.load(cut / "checkpoint")["step"] == 11
    assert lasting(train(cfg, corpus(), cut, attempt=2)) == lasting(result)
    assert_same_run(whole, cut)
    assert result.outcome == "completed"


def test_what_an_optimizer_or_a_schedule_does_not_read_changes_no_name() -> None:
    def named(**settings: Any) -> str:
        return run_id(identity(tiny(**settings), "f" * 64, platform={"torch": "2", "device": "d"}))

    plain = {name: named(train__optimizer=name) for name in OPTIMIZERS}
    assert len(set(plain.values())) == 4 and plain["adamw"] == named()
    unread = {"sgd": ("beta2", "adam_eps"), "lion": ("adam_eps",), "adamw": (), "muon": ()}
    for name, same in unread.items():
        for key in ("beta1", "beta2", "adam_eps", "weight_decay"):
            changed = named(**{"train__optimizer": name, f"train__{key}": 0.5})
            assert (changed == plain[name]) is (key in same), (name, key)
    assert (
        "optimizer" not in canonical(tiny())["train"] and "decay" not in canonical(tiny())["train"]
    )
    assert named(train__decay=0.5) == plain["adamw"]
    inverse = named(train__schedule="inverse_sqrt")
    assert named(train__schedule="inverse_sqrt", train__final_lr=0.5) == inverse != plain["adamw"]
    falling = {named(train__schedule="wsd", train__decay=share) for share in (0.2, 0.5, 0.9)}
    assert len(falling) == 3
    assert named(train__schedule="wsd", train__decay=5.1 / 24) == named(
        train__schedule="wsd", train__decay=5 / 24
    )


def test_lion_by_itself_has_the_defaults_of_the_paper() -> None:
    assert Lion([nn.Parameter(torch.zeros(2))], lr=1e-4).defaults["betas"] == (0.9, 0.99)


def test_a_warmup_and_a_decay_longer_than_the_run_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"warmup 0\.6 and decay 0\.5 of a wsd schedule are more than the whole run"
    ):
        tiny(train__schedule="wsd", train__warmup=0.6, train__decay=0.5)
    assert tiny(train__schedule="wsd", train__warmup=0.5, train__decay=0.5).train.decay == 0.5


def test_rates_that_mup_scales_for_adam_are_refused_with_another_kind_of_step() -> None:
    for name in ("sgd", "muon"):
        with pytest.raises(UserError, match=f"train.optimizer {name} makes another"):
            tiny(train__optimizer=name, model__init="mup")
    shares = {
        g["lr_scale"]
        for g in Trainer(
            tiny(model__init="mup", model__mup_base=8), corpus()
        ).optimizer.param_groups
    }
    assert shares == {1.0, 0.5}
