"""µP: initial weights, rates and scales such that what is right at one width is right at every
other.
"""

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT, build_model
from andrea.model.inits import lr_scales
from andrea.training.config import TrainConfig
from andrea.training.optim import make_optimizer, set_lr

V, T = 32, 16
WIDTHS = [64, 128, 256]


def config(width: int, init: str, **changes: Any) -> ModelConfig:
    base = {"mup_base": 64} if init == "mup" else {}
    own = {"vocab_size": V, "context": T, "n_layer": 2, "n_head": 4, "tied": False, "init_std": 0.1}
    return ModelConfig(**{**own, "d_model": width, "init": init, **base, **changes})


def step(model: GPT, optimizer: Any, tokens: Tensor) -> None:
    optimizer.zero_grad()
    model(tokens[:, :-1], tokens[:, 1:]).mean().backward()
    optimizer.step()


def change(cfg: ModelConfig) -> tuple[float, float]:
    """How far three steps of Adam move the stream before the head, and the logits: root mean
    squares.
    """
    model = build_model(cfg, seed=0)
    optimizer = make_optimizer(model, TrainConfig(lr=1e-2, weight_decay=0), lr_scales(model, cfg))
    tokens = torch.randint(V, (16, T + 1), generator=torch.Generator().manual_seed(5))

    @torch.no_grad()
    def state() -> tuple[Tensor, Tensor]:
        x = model.embed(tokens[:, :-1])
        for block in model.blocks:
            x = block(x)
        return x, model.unembed(x)

    before = state()
    for _ in range(3):
        step(model, optimizer, tokens)
    stream, logits = (
        float((b - a).square().mean().sqrt()) for a, b in zip(before, state(), strict=True)
    )
    return stream, logits


def slope(values: list[float]) -> float:
    """Of the logarithm against the logarithm of the width."""
    x, y = torch.tensor(WIDTHS).double().log(), torch.tensor(values).double().log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


SHAPES: list[dict[str, Any]] = [
    {"tied": True},
    {"n_head": "by width"},
    {"activation": "swiglu", "norm": "rmsnorm"},
]


@pytest.mark.parametrize(
    "changes", [SHAPES[0], *(pytest.param(s, marks=pytest.mark.slow) for s in SHAPES[1:])], ids=str
)
def test_a_step_moves_stream_and_logits_alike_at_every_width_under_mup_and_more_and_more_without(
    changes: dict[str, Any],
) -> None:
    """The coordinate check (Yang et al. 2022, appendix D)."""

    def slopes(init: str) -> list[float]:
        shapes = [
            {**changes, **({"n_head": width // 16} if "n_head" in changes else {})}
            for width in WIDTHS
        ]
        moved = [
            change(config(width, init, **shape))
            for width, shape in zip(WIDTHS, shapes, strict=True)
        ]
        return [slope(list(of_one)) for of_one in zip(*moved, strict=True)]

    assert all(abs(s) < 0.35 for s in slopes("mup"))
    assert all(s > 0.6 for s in slopes("gpt2"))


def test_at_its_base_width_mup_is_gpt2s_rule_but_for_the_scale_of_scores() -> None:
    tokens = torch.arange(T)[None]
    mup, gpt2 = config(64, "mup"), config(64, "gpt2")
    own, same = (
        build_model(config(64, "mup", attn_scale=scale)) for scale in (None, 1 / math.sqrt(16))
    )
    assert set(lr_scales(own, mup).values()) == {1.0}
    plain = build_model(gpt2)
    assert all(torch.equal(p, q) for p, q in zip(own.parameters(), plain.parameters(), strict=True))
    assert torch.equal(same(tokens), plain(tokens))
    scores_by_width = build_model(config(64, "gpt2", attn_scale=1 / 16))
    assert torch.equal(own(tokens), scores_by_width(tokens))


@pytest.mark.parametrize("tied", [True, False])
def test_at_four_times_the_width_matrices_of_the_blocks_learn_at_a_quarter_and_nothing_else_does(
    tied: bool,
) -> None:
    cfg = config(
        256,
        "mup",
        tied=tied,
        activation="swiglu",
        qk_norm="head",
        residual="layerscale",
        embedding_norm=True,
    )
    factors = lr_scales(build_model(cfg), cfg)
    quarter = {name for name, factor in factors.items() if factor == 0.25}
    matrices = [f"blocks.{i}.{m}.weight" for i in (0, 1) for m in ("attn.qkv", "attn.proj", *MLP)]
    assert quarter == set(matrices)
    assert all(factor == 1.0 for name, factor in factors.items() if name not in quarter)


MLP = ["mlp.up", "mlp.gate", "mlp.down"]


def test_at_four_times_the_width_weights_of_blocks_start_at_half_and_the_head_reads_a_quarter() -> (
    None
):
    wide, plain = build_model(config(256, "mup")), build_model(config(256, "gpt2"))
    for (name, own), theirs in zip(wide.named_parameters(), plain.parameters(), strict=True):
        halved = name.startswith("blocks.") and own.dim() == 2
        torch.testing.assert_close(own, theirs * (0.5 if halved else 1.0), msg=name)
    x = torch.randn(1, 3, 256, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(wide.unembed(x), plain.unembed(x) / 4)
    assert (
        wide.blocks[0].attn.scale == 1 / 64
    )  # of heads as wide; 1/√64 grows too strong with the width


def test_mup_refuses_embeddings_that_grow_with_the_width() -> None:
    with pytest.raises(ValidationError, match="sqrt_d grows with the width"):
        config(64, "mup", embedding_scale="sqrt_d")
    assert config(64, "mup", embedding_scale=8.0).token_scale == 8


def second_order_chain(sequences: int, seed: int) -> Tensor:
    """Sequences in which a token follows from the two before it, int64 [sequences, T + 1]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)
        after_one, after_two = torch.distributions.Dirichlet(torch.full((2, V, V), 0.1)).sample()
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(V, (sequences, T + 1), generator=generator)
    for t in range(2, T + 1):
        mixed = (after_one[x[:, t - 1]] + after_two[x[:, t - 2]]) / 2
        x[:, t] = torch.multinomial(mixed, 1, generator=generator)[:, 0]
    return x


STEPS, RATES = 100, [1e-3, 10**-2.5, 1e-2, 10**-1.5, 1e-1]


def final_losses(width: int, init: str) -> list[float]:
    """The held-out loss after a short training, by rate."""
    train, held_out = second_order_chain(16 * STEPS, 1), second_order_chain(256, 2)
    cfg, losses = config(width, init), []
    for lr in RATES:
        model = build_model(cfg)
        optimizer = make_optimizer(model, TrainConfig(lr=lr, weight_decay=0), lr_scales(model, cfg))
        for i in range(STEPS):
            set_lr(optimizer, lr * min(1, (i + 1) / 10) * (1 - i / STEPS))
            step(model, optimizer, train[16 * i : 16 * (i + 1)])
        with torch.no_grad():
            losses.append(float(model(held_out[:, :-1], held_out[:, 1:]).mean()))
    return losses


@pytest.mark.slow
def test_the_best_rate_holds_at_four_times_the_width_under_mup_and_is_too_high_without() -> None:
    narrow, wide = final_losses(32, "mup"), final_losses(128, "mup")
    assert narrow.index(min(narrow)) == wide.index(min(wide)) == 2
    assert all(
        more <= less + 0.01 for less, more in zip(narrow, wide, strict=True)
    )  # wider is better at every rate
    narrow, wide = final_losses(32, "gpt2"), final_losses(128, "gpt2")
    assert wide.index(min(wide)) < narrow.index(min(narrow))
    assert wide[2] > narrow[2]  # at the narrow one's best rate the wide one is worse
