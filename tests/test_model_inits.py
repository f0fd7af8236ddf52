"""Initial weights: a function of seed, name and shape alone, shared by arms, scaled as GPT-2 scales them."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from andrea.model.config import VARIANTS, ModelConfig
from andrea.model.gpt import GPT, build_model
from andrea.model.inits import draw, initialise

SMALL = {"vocab_size": 31, "context": 9, "d_model": 24, "n_layer": 3, "n_head": 4}


def weights(seed: int = 4, **changes: Any) -> dict[str, torch.Tensor]:
    model = build_model(ModelConfig(**{**SMALL, **changes}), seed)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


ARMS = {
    "baseline": {},
    "post": {"norm_placement": "post"},
    "relu": {"activation": "relu"},
    "swiglu": {"activation": "swiglu", "mlp_ratio": "8/3"},
    "no affine": {"norm_affine": False},
    "no bias": {"bias": False},
    "untied": {"tied": False},
    "narrow": {"mlp_ratio": 1},
}


@pytest.mark.parametrize(("one", "other"), list(combinations(ARMS, 2)))
def test_s1_arms_start_from_the_same_numbers_wherever_they_share_a_parameter(one: str, other: str) -> None:
    left, right = weights(**ARMS[one]), weights(**ARMS[other])
    common = [name for name in left if name in right and left[name].shape == right[name].shape]
    assert {"token_embedding.weight", "blocks.2.attn.qkv.weight", "blocks.2.attn.proj.weight"} <= set(common)
    for name in common:
        assert torch.equal(left[name], right[name]), name


def test_deeper_arms_share_the_draws_and_differ_by_the_scale() -> None:
    shallow, deep = weights(), weights(n_layer=12)
    for name, tensor in shallow.items():
        factor = 2.0 if name.endswith(("attn.proj.weight", "mlp.down.weight")) else 1.0
        torch.testing.assert_close(tensor, deep[name] * factor)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    first, again, other = weights(1), weights(1), weights(2)
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
        if tensor.dim() == 2:
            assert not torch.equal(tensor, other[name])


def test_parameters_of_one_shape_get_different_numbers() -> None:
    drawn = weights()
    matrices = [tensor for name, tensor in drawn.items() if name.endswith("attn.qkv.weight")]
    assert all(not torch.equal(a, b) for a, b in combinations(matrices, 2))


def test_s71_building_neither_reads_nor_moves_the_global_generators() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        np.random.seed(5)
        state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
        first = weights()
        assert torch.equal(state, torch.get_rng_state())
        assert np.array_equal(numpy_state, np.random.get_state()[1])
        torch.manual_seed(999)
        assert all(torch.equal(tensor, first[name]) for name, tensor in weights().items())


@pytest.mark.parametrize("activation", VARIANTS["activation"])
@pytest.mark.parametrize("placement", VARIANTS["norm_placement"])
def test_matrices_have_gpt2s_deviation_and_residual_ones_less_whatever_the_mlp(activation: str, placement: str) -> None:
    drawn = weights(
        activation=activation, norm_placement=placement, d_model=96, vocab_size=200, tied=False, init_std=0.05
    )
    for name, tensor in drawn.items():
        if name.endswith(".bias"):
            assert not tensor.any()
        elif tensor.dim() == 1:
            assert (tensor == 1).all()
        else:
            residual = name.endswith((".attn.proj.weight", ".mlp.down.weight"))
            std = 0.05 / math.sqrt(2 * 3) if residual else 0.05
            tolerance = 5 / math.sqrt(2 * tensor.numel())
            assert tensor.std().item() == pytest.approx(std, rel=tolerance), name
            assert abs(tensor.mean().item()) < 5 * std / math.sqrt(tensor.numel()), name


def test_s9_the_normal_distribution_is_not_truncated() -> None:
    numbers = draw(8, "blocks.0.attn.qkv.weight", (300, 400))
    for deviations, beyond in ((2, 0.0455), (3, 0.0027)):
        assert (numbers.abs() > deviations).double().mean().item() == pytest.approx(beyond, rel=0.2)
    assert numbers.abs().max() > 3.9


def test_the_draws_stay_what_they_were() -> None:
    """Golden numbers: if they must change, raise `numerics` of GPT. Last bits follow torch and the CPU's capability."""
    assert draw(1, "head.weight", (2, 2)).flatten().tolist() == pytest.approx(GOLDEN_SMALL, rel=1e-5)
    assert draw(1, "head.weight", (4, 8))[3, :4].tolist() == pytest.approx(GOLDEN, rel=1e-5)
    assert draw(1, "head.weight", (4,)).tolist() != pytest.approx(GOLDEN_SMALL, rel=1e-2)


def test_the_draws_are_the_same_with_1_and_2_threads() -> None:
    drawn = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        drawn.append([draw(3, "token_embedding.weight", shape) for shape in ((3,), (700, 300), (5, 7, 9))])
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))


def test_initialising_again_is_the_same_as_initialising_once() -> None:
    cfg = ModelConfig(**SMALL)
    model = build_model(cfg, seed=9)
    initialise(model, cfg, 4)
    assert all(torch.equal(p, weights()[name]) for name, p in model.named_parameters())


def test_a_float64_model_starts_from_the_same_numbers() -> None:
    cfg = ModelConfig(**SMALL)
    model = GPT(cfg).double()
    initialise(model, cfg, 4)
    assert all(torch.equal(p.float(), weights()[name]) for name, p in model.named_parameters())


GOLDEN = [0.06431566923856735, 1.1857504844665527, 1.6337554454803467, -0.9210333824157715]
GOLDEN_SMALL = [0.7681633234024048, -0.41331425309181213, 0.5791233777999878, 0.4264063537120819]
