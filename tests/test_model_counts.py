"""Parameters, FLOPs and memory: published numbers, and agreement with what is really built."""

import math
from collections import Counter
from itertools import takewhile
from typing import Any

import pytest
import torch
from model_zoo import QUICK, config, valid_models
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from andrea.errors import UserError
from andrea.model.accounting import (
    ParameterCounts,
    count_parameters,
    estimate_memory,
    flops_per_token,
)
from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT, build_model
from andrea.model.presets import PRESETS
from andrea.model.summary import compare_models, describe

BARE = {"tied": False, "bias": False, "norm_affine": False}
SHAKESPEARE_CHAR = {
    "d_model": 384,
    "n_layer": 6,
    "n_head": 6,
    "context": 256,
    "vocab_size": 65,
    "bias": False,
}


def preset(name: str, **changes: Any) -> ModelConfig:
    return ModelConfig(**{**PRESETS[name], **changes})


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        (preset("andrea-120m"), 92_331_264),
        (preset("andrea-120m", **BARE), 98_698_752),
        (preset("andrea-12m", vocab_size=2305, **BARE), 12_780_288),
        (preset("gpt2"), 124_439_808),
        (preset("gpt2-medium"), 354_823_168),
        (preset("gpt2-large"), 774_030_080),
        (preset("gpt2-xl"), 1_557_611_200),
        (ModelConfig(**SHAKESPEARE_CHAR), 10_745_088),
    ],
    ids=[
        "andrea-120m",
        "its card",
        "12m card",
        "gpt2",
        "medium",
        "large",
        "xl",
        "shakespeare-char",
    ],
)
def test_the_published_parameter_counts_hold(cfg: ModelConfig, expected: int) -> None:
    assert count_parameters(cfg).total == expected
    with torch.device("meta"):
        assert sum(p.numel() for p in GPT(cfg).parameters()) == expected


def test_the_parts_of_the_published_models_hold() -> None:
    andrea, gpt2 = (
        count_parameters(preset("andrea-120m")),
        count_parameters(preset("gpt2")),
    )
    final_norm = 2 * 768
    assert andrea.attention + andrea.mlp + andrea.norms - final_norm == 85_054_464
    assert gpt2.total - gpt2.position_embedding == 123_653_376
    assert (gpt2.attention + gpt2.mlp + gpt2.norms - final_norm) / 12 == 7_087_872
    assert count_parameters(preset("andrea-120m", bias=False)).mlp == 12 * 4_718_592
    assert preset("andrea-12m").mlp_dim == 1536
    assert preset("andrea-480m").mlp_dim == 6144


def test_gpt2_has_fifty_matrices_to_decay_and_ninety_eight_vectors_not_to() -> None:
    with torch.device("meta"):
        parameters = list(GPT(preset("gpt2")).parameters())
    matrices, vectors = (
        [p.numel() for p in parameters if (p.dim() >= 2) is wide] for wide in (True, False)
    )
    assert (len(matrices), sum(matrices)) == (50, 124_318_464)
    assert (len(vectors), sum(vectors)) == (98, 121_344)


@pytest.mark.parametrize("d_model", [384, 768])
def test_swiglu_at_eight_thirds_has_exactly_the_parameters_of_gelu_at_four(
    d_model: int,
) -> None:
    shape = {"vocab_size": 8449, "d_model": d_model, "n_head": 12, "bias": False}
    swiglu = ModelConfig(**shape, activation="swiglu", mlp_ratio="8/3")
    gelu = ModelConfig(**shape, activation="gelu_tanh", mlp_ratio=4)
    assert count_parameters(swiglu) == count_parameters(gelu)
    assert flops_per_token(swiglu) == flops_per_token(gelu)


def test_arms_that_differ_in_parameters_say_so() -> None:
    gelu, swiglu = compare_models(
        {"gelu": preset("gpt2"), "swiglu": preset("gpt2", activation="swiglu")}
    )
    assert gelu.difference == 0
    assert swiglu.difference == pytest.approx(100 * 12 * (768 * 3072 + 3072) / 124_439_808)


def test_a_name_that_carries_a_size_is_held_against_the_count() -> None:
    (note,) = describe(preset("andrea-120m"), preset="andrea-120m").notes
    assert "92,331,264" in note and "twice gives 98,820,096, which still falls short" in note
    (note,) = describe(preset("andrea-480m"), preset="andrea-480m").notes
    assert (
        "467,857,920" in note and "twice gives 480,835,584, which is what the name rests on" in note
    )
    (note,) = describe(preset("gpt2", tied=False), preset="gpt2-124m").notes
    assert "163,037,184 parameters, 31.5 % more" in note
    (note,) = describe(preset("gpt2"), preset="gpt2-124m").notes
    assert note.endswith("as its name says")
    assert describe(preset("gpt2"), preset="gpt2").notes == []


INSIDE = {"attn": "attention", "mlp": "mlp", "join1": "residual", "join2": "residual"}


def group(name: str) -> str:
    """The group of a parameter, told by its name alone."""
    part = name.split(".")[0]
    if part == "blocks":
        return INSIDE.get(name.split(".")[2], "norms")
    return part if part in ("token_embedding", "position_embedding", "head") else "norms"


def assert_counted(cfg: ModelConfig) -> None:
    """Counts by group, and the tree's shapes, are those of what is built."""
    with torch.device("meta"):
        named = dict(GPT(cfg).named_parameters())
    built = Counter(dict.fromkeys(ParameterCounts._fields, 0))
    for name, parameter in named.items():
        built[group(name)] += parameter.numel()
    assert count_parameters(cfg)._asdict() == built, cfg

    rows = describe(cfg).rows
    described = sorted(row.shape for row in rows if row.depth == 2 and row.shape)
    assert described == sorted(
        tuple(p.shape) for name, p in named.items() if "blocks.0." in name
    ), cfg
    assert_adds_up(cfg)


def assert_adds_up(cfg: ModelConfig) -> None:
    """Every row of the tree is the sum of those one deeper below it, and none is empty."""
    described = describe(cfg, batch_size=3)
    rows = described.rows
    for quantity, whole in (
        ("parameters", described.parameters.total),
        ("flops", described.flops_per_token.forward),
    ):
        assert sum(getattr(row, quantity) for row in rows if row.depth == 0) == pytest.approx(whole)
        for i, row in enumerate(rows):
            below = list(
                takewhile(lambda other, depth=row.depth: other.depth > depth, rows[i + 1 :])
            )
            children = [getattr(other, quantity) for other in below if other.depth == row.depth + 1]
            assert not children or sum(children) == pytest.approx(getattr(row, quantity)), (
                cfg,
                row,
            )
    assert all(row.parameters or row.flops for row in rows), cfg
    assert sum(row.share for row in rows if row.depth == 0) == pytest.approx(1)
    assert described.memory.total == estimate_memory(cfg, 3).total


@pytest.mark.parametrize("name", QUICK)
def test_counts_by_group_and_shapes_are_those_of_the_built_model(name: str) -> None:
    assert_counted(config(name))


@pytest.mark.parametrize("seed", range(4))
def test_counts_of_random_models_are_those_of_the_built(seed: int) -> None:
    for cfg in valid_models(25, seed):
        assert_counted(cfg)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 13))
def test_counts_of_thousands_of_random_models_are_those_of_the_built(seed: int) -> None:
    for cfg in valid_models(1000, seed):
        assert_counted(cfg)


def assert_flops_counted(cfg: ModelConfig, B: int = 2) -> None:
    """torch's counter sees attention as T × T products; a token sees fewer: those before it, in its
    window.
    """
    model, T = build_model(cfg), cfg.context
    tokens = torch.randint(13, (B, T))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = model(tokens, tokens).sum()
        forward = counter.get_total_flops()
        loss.backward()
        backward = counter.get_total_flops() - forward
    layers = [cfg.at_layer(i) for i in range(cfg.n_layer)]
    seen = [sum(min(t + 1, layer.window or T) for t in range(T)) / T for layer in layers]
    uncounted = sum(4 * cfg.n_head * cfg.d_head * (T - positions) for positions in seen)
    flops = flops_per_token(cfg)
    assert flops.forward == pytest.approx(forward / (B * T) - uncounted), cfg
    assert flops.backward == pytest.approx(backward / (B * T) - 2 * uncounted), cfg


@pytest.mark.parametrize("name", QUICK)
def test_flops_agree_with_torchs_counter_but_for_what_no_token_sees(name: str) -> None:
    assert_flops_counted(config(name))


def test_flops_of_random_models_agree_with_torchs_counter() -> None:
    for cfg in valid_models(15, 1):
        assert_flops_counted(cfg)


def test_flops_without_the_causal_mask_are_the_860_million_of_the_usual_formula() -> None:
    cfg = preset("gpt2")
    masked = 3 * cfg.n_layer * 4 * cfg.d_model * (cfg.context - (cfg.context + 1) / 2)
    assert (flops_per_token(cfg).total + masked) / 1e6 == pytest.approx(860, rel=0.01)


def assert_kept(cfg: ModelConfig, B: int) -> None:
    """What autograd keeps is what `memory` says."""
    model = build_model(cfg)
    there = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens = torch.randint(13, (B, cfg.context))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(tokens, tokens.clone())
    assert loss.shape == tokens.shape
    # Beyond the count, cross-entropy keeps one scalar.
    assert sum(s.nbytes() for s in kept.values()) - estimate_memory(cfg, B).activations == 4, cfg


@pytest.mark.parametrize("name", QUICK)
def test_memory_of_activations_is_what_autograd_keeps(name: str) -> None:
    assert_kept(config(name), 3)


def test_memory_of_random_models_is_what_autograd_keeps() -> None:
    chosen = (
        cfg
        for cfg in valid_models(100, 2)
        if not any(cfg.dropouts) and cfg.n_head > 1 and cfg.context > 1
    )
    for cfg in chosen:
        if cfg.norm != "dyt" or cfg.norm_affine:
            assert_kept(cfg, 2)


def test_weights_gradients_and_moments_are_four_copies_in_float32() -> None:
    memory = estimate_memory(preset("gpt2"), 8)
    assert memory.weights == memory.gradients == memory.optimizer // 2 == 4 * 124_439_808


def test_in_bfloat16_activations_take_half_but_the_loss_stays_in_float32() -> None:
    cfg, tokens = preset("gpt2"), 8 * 1024
    full, half = (estimate_memory(cfg, 8, dtype).activations for dtype in ("float32", "bfloat16"))
    loss = tokens * (4 * 50257 + 16)
    assert half - loss == (full - loss) / 2
    capped = estimate_memory(preset("gpt2", logit_softcap=30.0), 8, "bfloat16").activations
    assert capped - half == tokens * 4 * 50257
    with_masks = estimate_memory(preset("gpt2", dropout=0.1), 8).activations
    assert with_masks - full == tokens * 768 * (1 + 2 * 12)


def test_the_loss_at_initialisation_is_the_log_of_the_vocabulary() -> None:
    generator = torch.Generator().manual_seed(11)
    for vocab_size, expected in ((50257, 10.825), (8449, 9.042), (256, 5.545), (65, 4.174)):
        cfg = ModelConfig(vocab_size=vocab_size, context=16, d_model=32, n_layer=2, n_head=2)
        tokens, targets = torch.randint(vocab_size, (2, 8, 16), generator=generator)
        loss = build_model(cfg, seed=7)(tokens, targets).mean().item()
        assert (
            loss
            == pytest.approx(math.log(vocab_size), abs=0.05)
            == pytest.approx(expected, abs=0.05)
        )


def test_without_a_vocabulary_nothing_is_counted_or_built() -> None:
    cfg = ModelConfig()
    for ask in (count_parameters, flops_per_token, build_model):
        with pytest.raises(UserError, match="vocab_size is empty"):
            ask(cfg)
    assert "counted with 256" in describe(cfg).notes[0]
