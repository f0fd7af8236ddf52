"""Initial weights: a function of seed, name and shape alone, shared by arms, scaled by a rule."""

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import model_zoo
import numpy as np
import pytest
import torch

from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT, build_model
from andrea.model.inits import draw, initial_scales, initialise
from andrea.model.registry import VARIANTS

SMALL = {"vocab_size": 31, "context": 9, "d_model": 24, "n_layer": 3, "n_head": 4}


def weights(seed: int = 4, **changes: Any) -> dict[str, torch.Tensor]:
    model = build_model(ModelConfig(**{**SMALL, **changes}), seed)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


ARMS = {
    "baseline": {},
    "post": {"norm_placement": "post"},
    "swiglu": {"activation": "swiglu", "mlp_ratio": "8/3"},
    "no affine": {"norm_affine": False},
    "no bias": {"bias": False},
    "untied": {"tied": False},
    "narrow": {"mlp_ratio": 1},
    "rotated": {"positions": "rope", "norm": "rmsnorm", "residual": "layerscale"},
}


@pytest.mark.parametrize(("one", "other"), list(combinations(ARMS, 2)))
def test_arms_start_from_the_same_numbers_wherever_they_share_a_parameter(
    one: str, other: str
) -> None:
    left, right = weights(**ARMS[one]), weights(**ARMS[other])
    common = [name for name in left if name in right and left[name].shape == right[name].shape]
    assert {
        "token_embedding.weight",
        "blocks.2.attn.qkv.weight",
        "blocks.2.attn.proj.weight",
    } <= set(common)
    for name in common:
        assert torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("arm", model_zoo.NAMES)
def test_on_every_axis_what_an_arm_shares_with_another_differs_by_nothing_but_the_rules_scale(
    arm: str,
) -> None:
    """A matrix is the draw of (seed, name, shape) times the scales that `init` and the placement
    give its pieces; a vector is a constant of its kind. So two arms are equal wherever name, shape
    and scale are.
    """
    cfg = model_zoo.config(arm)
    model = build_model(cfg, seed=6)
    asked = dict(initial_scales(model, cfg))
    constants = {
        "bias": 0.0,
        "weight": 1.0,
        "offset": 0.0,
        "gamma": cfg.layerscale_init,
        "alpha": cfg.dyt_alpha,
    }
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            rezero = ".join" in name and name.endswith(".alpha")
            expected = torch.full_like(
                parameter, 0.0 if rezero else constants[name.rpartition(".")[2]]
            )
        else:
            stds = torch.cat([torch.full((rows,), std) for rows, std in asked[name]])
            expected = draw(6, name, tuple(parameter.shape)) * stds[:, None]
        assert torch.equal(parameter.detach(), expected), name


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


def test_building_neither_reads_nor_moves_the_global_generators() -> None:
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
def test_gpt2s_rule_scales_every_residual_projection_down_and_nothing_else_whatever_the_block(
    activation: str, placement: str
) -> None:
    measured = deviations(
        activation=activation, norm_placement=placement, tied=False, init_std=0.05
    )
    assert measured.keys() >= {"head", "token_embedding", "position_embedding", "blocks.0.mlp.up"}
    for name, std in measured.items():
        residual = name.endswith((".attn.proj", ".mlp.down"))
        beta = (8 * 3) ** -0.25 if placement == "deepnorm" and name.endswith(SHRUNK) else 1.0
        assert std == close(0.05 * beta / (math.sqrt(2 * 3) if residual else 1)), name


SHRUNK = (".mlp.up", ".mlp.gate", ".mlp.down", ".attn.v", ".attn.proj")
"""DeepNorm's β is for these: Wang et al. 2022, figure 2."""
D, M, KEYS = 96, 384, 48
FANS = {
    "q": (D, D),
    "k": (D, KEYS),
    "v": (D, KEYS),
    "proj": (D, D),
    "up": (D, M),
    "gate": (D, M),
    "down": (M, D),
}
"""Inputs and outputs of the matrices, queries, keys and values one by one."""
TABLE = 0.05
RULES: dict[str, Callable[[str, int, int], float]] = {
    "gpt2": lambda name, fan_in, fan_out: TABLE / (math.sqrt(6) if name in ("proj", "down") else 1),
    "xavier": lambda name, fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)),
    "fan_in": lambda name, fan_in, fan_out: 1 / math.sqrt(fan_in),
    "zero_out": lambda name, fan_in, fan_out: 0.0 if name in ("proj", "down") else TABLE,
    "mup": lambda name, fan_in, fan_out: (
        TABLE / math.sqrt(3) / (math.sqrt(6) if name in ("proj", "down") else 1)
    ),
}


@pytest.mark.parametrize("placement", ["pre", "deepnorm"])
@pytest.mark.parametrize("init", VARIANTS["init"])
def test_every_rule_gives_each_matrix_its_deviation_queries_keys_and_values_one_by_one(
    init: str, placement: str
) -> None:
    base = {"mup_base": 32} if init == "mup" else {}
    measured = deviations(
        init=init,
        norm_placement=placement,
        activation="swiglu",
        tied=False,
        n_kv_head=2,
        init_std=TABLE,
        **base,
    )
    for name, std in measured.items():
        piece = name.rpartition(".")[2]
        beta = (8 * 3) ** -0.25 if placement == "deepnorm" and name.endswith(SHRUNK) else 1.0
        expected = beta * RULES[init](piece, *FANS[piece]) if piece in FANS else TABLE
        assert std == close(expected), name


def deviations(**changes: Any) -> dict[str, float]:
    """Standard deviations as drawn, of everything that is drawn, attention's one matrix in its
    three pieces.
    """
    cfg = ModelConfig(**{**SMALL, "d_model": D, "vocab_size": 200, "context": 40, **changes})
    found: dict[str, torch.Tensor] = {}
    for name, tensor in build_model(cfg, seed=4).named_parameters():
        at = name.removesuffix(".weight")
        if at.endswith(".qkv"):
            pieces = tensor.detach().split(
                [cfg.n_head * cfg.d_head, *2 * [cfg.kv_heads * cfg.d_head]]
            )
            found |= {
                at.removesuffix("qkv") + piece: part
                for piece, part in zip("qkv", pieces, strict=True)
            }
        elif tensor.dim() == 2:
            found[at] = tensor.detach()
    assert all(abs(t.mean()) <= 5 * t.std() / math.sqrt(t.numel()) for t in found.values())
    return {name: tensor.std().item() for name, tensor in found.items()}


def close(std: float) -> Any:
    """Five deviations of the estimate from the smallest matrix, 48 · 96 numbers."""
    return pytest.approx(std, rel=5 / math.sqrt(2 * 3840))


def test_the_normal_distribution_is_not_truncated() -> None:
    numbers = draw(8, "blocks.0.attn.qkv.weight", (300, 400))
    for deviations, beyond in ((2, 0.0455), (3, 0.0027)):
        assert (numbers.abs() > deviations).double().mean().item() == pytest.approx(beyond, rel=0.2)
    assert numbers.abs().max() > 3.9


def test_the_draws_stay_what_they_were() -> None:
    """Golden numbers: if they must change, raise `numerics` of GPT. Last bits follow torch and the
    CPU's capability.
    """
    assert draw(1, "head.weight", (2, 2)).flatten().tolist() == pytest.approx(
        GOLDEN_SMALL, rel=1e-5
    )
    assert draw(1, "head.weight", (4, 8))[3, :4].tolist() == pytest.approx(GOLDEN, rel=1e-5)
    assert draw(1, "head.weight", (4,)).tolist() != pytest.approx(GOLDEN_SMALL, rel=1e-2)


def test_the_draws_are_the_same_with_1_and_2_threads() -> None:
    drawn = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        drawn.append(
            [draw(3, "token_embedding.weight", shape) for shape in ((3,), (700, 300), (5, 7, 9))]
        )
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
