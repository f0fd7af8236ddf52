"""One model of every kind, tiny: each name on each axis, each field that makes a variant, models
with a name.

A variant that is added to `VARIANTS` is in here by itself.
"""

import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT, build_model
from andrea.model.registry import VARIANTS

SMALL: dict[str, Any] = {
    "vocab_size": 13,
    "context": 8,
    "d_model": 16,
    "n_layer": 2,
    "n_head": 4,
    "init_std": 0.3,
}

AXES = {f"{axis} {name}": {axis: name} for axis, names in VARIANTS.items() for name in names}
"""Every name on every axis, the rest as GPT-2 has it."""
FIELDS: dict[str, dict[str, Any]] = {
    "no gain": {"norm_affine": False},
    "no gain of dyt": {"norm": "dyt", "norm_affine": False},
    "no bias": {"bias": False},
    "bias of norms alone": {"bias": False, "norm_bias": True},
    "bias of queries, keys, values": {"bias": False, "attn_bias": True},
    "bias of the projection": {"bias": False, "proj_bias": True},
    "bias of the mlp": {"bias": False, "mlp_bias": True},
    "bias of the head": {"head_bias": True},
    "bias of an untied head": {"head_bias": True, "tied": False},
    "untied": {"tied": False},
    "final norm after post": {"norm_placement": "post", "final_norm": True},
    "no final norm": {"final_norm": False},
    "no skip nor norm": {"norm_placement": "none", "residual": "off"},
    "rezero without norms": {"norm_placement": "none", "residual": "rezero"},
    "rezero side by side": {"norm_placement": "parallel", "residual": "rezero"},
    "no skip side by side": {"norm_placement": "parallel", "residual": "off"},
    "norm of embeddings": {"embedding_norm": True},
    "scale of embeddings": {"embedding_scale": 3.0},
    "scale by the root of the width": {"embedding_scale": "sqrt_d"},
    "gqa": {"n_kv_head": 2},
    "mqa": {"n_kv_head": 1},
    "wide heads": {"head_dim": 6},
    "heads that do not divide": {"n_head": 3, "head_dim": 5},
    "window": {"window": 3},
    "window, every second": {"window": 3, "full_every": 2, "n_layer": 3},
    "qk norm of heads": {"qk_norm": "head"},
    "qk norm of all": {"qk_norm": "full"},
    "qk norm by rmsnorm": {"qk_norm": "head", "norm": "rmsnorm"},
    "qk norm by dyt": {"qk_norm": "full", "norm": "dyt"},
    "qk norm of shared keys": {"qk_norm": "head", "n_kv_head": 2, "positions": "rope"},
    "qk norm of all, shared keys": {"qk_norm": "full", "n_kv_head": 2},
    "scale of scores": {"attn_scale": 0.1},
    "cap of scores": {"attn_softcap": 2.0},
    "cap of scores, window": {"attn_softcap": 2.0, "window": 3},
    "cap of scores, alibi": {"attn_softcap": 2.0, "positions": "alibi", "n_kv_head": 2},
    "cap of scores, qk norm": {"attn_softcap": 2.0, "qk_norm": "head"},
    "cap of logits": {"logit_softcap": 2.0},
    "z-loss": {"z_loss": 0.1},
    "partial rope": {"positions": "rope", "rope_fraction": 0.5},
    "rope, other base": {"positions": "rope", "rope_base": 100},
    "alibi, window": {"positions": "alibi", "window": 3},
    "alibi, shared keys": {"positions": "alibi", "n_kv_head": 2},
    "alibi of three heads": {"positions": "alibi", "n_head": 3, "d_model": 12},
    "width of the mlp": {"mlp_width": 21},
    "rounded mlp": {"activation": "swiglu", "mlp_ratio": 8 / 3, "mlp_multiple": 8},
    "mup of another width": {"init": "mup", "mup_base": 8},
}
"""Settings that make a variant without a name."""
KNOWN: dict[str, dict[str, Any]] = {
    "openai-gpt": {"norm_placement": "post"},
    "gpt-j": {
        "norm_placement": "parallel",
        "positions": "rope",
        "rope_fraction": 0.5,
        "tied": False,
    },
    "gpt-neox": {
        "norm_placement": "parallel_two",
        "positions": "rope",
        "rope_fraction": 0.5,
        "tied": False,
    },
    "bloom": {"positions": "alibi", "embedding_norm": True},
    "llama": {
        "norm": "rmsnorm",
        "activation": "swiglu",
        "positions": "rope",
        "n_kv_head": 2,
        "bias": False,
    },
    "olmo-2": {
        "norm_placement": "res_post",
        "norm": "rmsnorm",
        "qk_norm": "full",
        "positions": "rope",
        "bias": False,
    },
    "mistral": {
        "norm": "rmsnorm",
        "activation": "swiglu",
        "positions": "rope",
        "n_kv_head": 2,
        "window": 4,
    },
    "gemma-2": {
        "norm_placement": "sandwich",
        "norm": "rmsnorm",
        "activation": "geglu_tanh",
        "positions": "rope",
        "n_kv_head": 2,
        "head_dim": 6,
        "window": 3,
        "full_every": 2,
        "attn_scale": 0.3,
        "attn_softcap": 5.0,
        "logit_softcap": 3.0,
        "embedding_scale": "sqrt_d",
        "bias": False,
    },
    "deepnet": {"norm_placement": "deepnorm", "init": "xavier", "activation": "relu"},
    "nothing normalized": {"norm": "identity", "positions": "sinusoidal", "residual": "scaled"},
}
"""Models as their authors built them, in small."""
ZOO = AXES | FIELDS | KNOWN
NAMES = list(ZOO)
QUICK = [
    name if name in KNOWN else pytest.param(name, marks=pytest.mark.slow, id=name) for name in NAMES
]
"""What a test is parametrised by that takes long: the fast suite has the known models."""

POOL: dict[str, list[Any]] = {
    "vocab_size": [13, 29],
    "context": [6, 7],
    "d_model": [12, 16],
    "n_layer": [2, 3],
    "n_head": [2, 4, 1],
    **{axis: list(names) for axis, names in VARIANTS.items()},
    "norm_affine": [False],
    "norm_bias": [True, False],
    "norm_eps": [0.1, 0.2],
    "dyt_alpha": [0.7, 0.9],
    "final_norm": [True, False],
    "embedding_norm": [True],
    "mlp_ratio": [2.5, 3.0],
    "mlp_width": [10, 17],
    "mlp_multiple": [7, 11],
    "layerscale_init": [0.2, 0.3],
    "rope_base": [50.0, 100.0],
    "rope_fraction": [0.5, 2 / 3, 0.25],
    "n_kv_head": [1, 2],
    "head_dim": [4, 6, 2],
    "window": [2, 3, 5],
    "full_every": [2, 3],
    "qk_norm": ["head", "full"],
    "attn_scale": [0.1, 0.4],
    "attn_softcap": [1.0, 2.0],
    "tied": [False],
    "head_bias": [True],
    "embedding_scale": [2.0, "sqrt_d"],
    "logit_softcap": [1.0, 2.0],
    "z_loss": [0.1, 0.2],
    "bias": [False],
    "attn_bias": [True, False],
    "proj_bias": [True, False],
    "mlp_bias": [True, False],
    "dropout": [0.2, 0.4],
    "dropout_embedding": [0.0, 0.3],
    "dropout_attention": [0.0, 0.3],
    "dropout_residual": [0.0, 0.3],
    "init_std": [0.5, 0.1],
    "mup_base": [8, 24],
}
"""Values of every field of the model, to draw from."""


def config(name: str, **changes: Any) -> ModelConfig:
    """The configuration of one of them."""
    return ModelConfig(**{**SMALL, **ZOO[name], **changes})


def valid_models(count: int, seed: int, base: Mapping[str, Any] = SMALL) -> Iterator[ModelConfig]:
    """Random models that make sense: up to ten settings from `POOL`, the rest as in `base`."""
    draw, found = random.Random(seed), 0
    while found < count:
        fields = draw.sample(list(POOL), draw.randint(1, 10))
        try:
            cfg = ModelConfig(**{**base, **{field: draw.choice(POOL[field]) for field in fields}})
        except ValidationError:
            continue
        found += 1
        yield cfg


def model(name: str, seed: int = 2, stirred: bool = True, **changes: Any) -> GPT:
    """One of them with initial weights; stirred, so that no gain is 1, no bias 0 and no branch
    shut.
    """
    built = build_model(config(name, **changes), seed)
    return stir(built) if stirred else built


def stir(built: GPT) -> GPT:
    """The same model with every parameter moved by a draw of its own, in place."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return built


@cache
def some_tokens(*shape: int, seed: int = 0, vocab_size: int = 13) -> Tensor:
    """Random tokens, int64; not to be changed in place."""
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))
