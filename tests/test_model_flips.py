"""A key that is accepted is used. Every field alone, then random models over all of them."""

from functools import cache
from typing import Any

import pytest
import torch
from model_zoo import POOL, valid_models
from pydantic import ValidationError
from torch import Tensor

from andrea.model.accounting import count_parameters
from andrea.model.checks import normal_form
from andrea.model.config import ModelConfig
from andrea.model.gpt import build_model
from andrea.model.inits import lr_scales

SMALL: dict[str, Any] = {"vocab_size": 13, "context": 6, "d_model": 12, "n_layer": 2, "n_head": 2}
WINDOW = {"window": 2, "n_layer": 3}
ACTIVE: dict[str, dict[str, Any]] = {
    "norm_bias": {},
    "dyt_alpha": {"norm": "dyt"},
    "layerscale_init": {"residual": "layerscale"},
    "rope_base": {"positions": "rope"},
    "rope_fraction": {"positions": "rope", "head_dim": 8},
    "full_every": WINDOW,
    "mup_base": {"init": "mup"},
    "z_loss": {},
}
"""Settings beside which a field is read, where the defaults leave it unread."""
SAME: dict[str, str] = {"attention": "the only one of its axis"}
"""Fields that cannot be flipped yet, and why."""


@cache
def normal(name: str, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(len(name) + 31 * sum(map(ord, name)))
    return 0.4 * torch.randn(shape, generator=generator)


def traces(cfg: ModelConfig) -> list[Any]:
    """What a configuration leaves behind: counts, initial weights and rates, and with other weights
    (the same for equal names) the logits of a training pass and the gradients.
    """
    model = build_model(cfg, seed=3)
    initial = [parameter.detach().clone() for parameter in model.parameters()]
    rates = list(lr_scales(model, cfg).items())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(normal(name, tuple(parameter.shape)))
    tokens = torch.arange(2 * cfg.context).view(2, -1) % 13
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        logits = model(tokens)
        torch.manual_seed(5)
        model(tokens, tokens.flip(1)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [count_parameters(cfg), rates, logits.detach(), *initial, *gradients]


def differ(one: ModelConfig, other: ModelConfig) -> bool:
    left, right = traces(one), traces(other)
    if len(left) != len(right):
        return True
    for a, b in zip(left, right, strict=True):
        same = torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        if not same:
            return True
    return False


def runs(cfg: ModelConfig) -> bool:
    """Whether a configuration, perhaps one that is refused, can be built and run at all."""
    try:
        return bool(build_model(cfg)(torch.zeros(1, 1, dtype=torch.int64)).numel())
    except (RuntimeError, ValueError):
        return False


def flipped(cfg: ModelConfig, field: str) -> list[ModelConfig]:
    """The valid configurations that differ in this field alone; its default counts even where it
    would be refused.
    """
    default = {field: ModelConfig.model_fields[field].default}
    found = [] if field in SMALL else [cfg.model_copy(update=default)]
    found = [other for other in found if runs(other)]
    for value in POOL[field]:
        try:
            found.append(ModelConfig(**{**cfg.model_dump(), field: value}))
        except ValidationError:
            continue
    return [other for other in found if getattr(other, field) != getattr(cfg, field)]


@pytest.mark.parametrize(
    "field", [field for field in ModelConfig.model_fields if field not in SAME]
)
def test_every_accepted_key_changes_the_count_the_output_or_the_training(field: str) -> None:
    base = ModelConfig(**{**SMALL, **ACTIVE.get(field, {})})
    others = flipped(base, field)
    assert others, f"{field} has no other value here: give POOL some, and ACTIVE what it needs"
    assert all(differ(base, other) or normal_form(base) == normal_form(other) for other in others)
    assert any(differ(base, other) for other in others)


def told(cfg: ModelConfig, field: str) -> bool:
    """Whether a field says explicitly what would hold without it too: nothing to ask of it."""
    return (field == "final_norm" and cfg.norm == "identity") or (
        field == "n_kv_head" and cfg.n_head == 1
    )


def makes_sense(cfg: ModelConfig) -> bool:
    try:
        return bool(ModelConfig(**cfg.model_dump()))
    except ValidationError:
        return False


def assert_used(cfg: ModelConfig) -> None:
    """Every field away from its default changes something, and a run's name changes exactly where
    something does.
    """
    fields = ModelConfig.model_fields
    for field in fields:
        if field in SAME or getattr(cfg, field) == fields[field].default:
            continue
        others = flipped(cfg, field)
        different = [differ(cfg, other) for other in others]
        assert any(different) or told(cfg, field), (field, cfg)
        for other, is_different in zip(others, different, strict=True):
            if makes_sense(other):
                assert (normal_form(other) != normal_form(cfg)) == is_different, (
                    field,
                    getattr(other, field),
                    cfg,
                )


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_a_random_model_is_refused_or_uses_every_setting_that_is_not_the_default(
    seed: int,
) -> None:
    for cfg in valid_models(2, seed, SMALL):
        assert_used(cfg)


@pytest.mark.slow
def test_hundreds_of_random_models_use_every_setting_and_equal_ones_have_one_name() -> None:
    for cfg in valid_models(80, 20, SMALL):
        assert_used(cfg)
