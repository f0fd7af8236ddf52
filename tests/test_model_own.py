"""A user's own variant on every axis is as good a citizen as ours: built, counted, described,
rehearsed, trained on.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from model_zoo import SMALL, some_tokens
from torch import Tensor, nn

from andrea.model.accounting import count_parameters
from andrea.model.attention import Attention
from andrea.model.config import ModelConfig
from andrea.model.gpt import build_model
from andrea.model.inits import Init, lr_scales
from andrea.model.layers.attention import SelfAttention
from andrea.model.layers.blocks import PreNormBlock
from andrea.model.layers.positions import AttentionPositions
from andrea.model.layers.residuals import Join
from andrea.model.mlps import Mlp
from andrea.model.placements import PreNorm
from andrea.model.positions import Positions
from andrea.model.registry import VARIANTS, register
from andrea.model.residuals import Residual
from andrea.model.summary import describe
from andrea.model.variants import Shapes, Variant
from andrea.training import diagnostics
from andrea.training.rehearsal import rehearse


class Cube(Mlp):
    """Activation: x³."""

    @classmethod
    def activation(cls) -> nn.Module:
        return Power()


class Power(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


class MaxNorm(Variant):
    """Norm: over the largest element, with a gain."""

    @classmethod
    def build(cls, cfg: ModelConfig) -> nn.Module:
        return OverLargest(cfg.d_model)

    @classmethod
    def shapes(cls, cfg: ModelConfig) -> Shapes:
        return {"weight": (cfg.d_model,)}


class OverLargest(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.abs().amax(-1, keepdim=True) + 1e-5)


class Halfway(PreNorm):
    """Placement: pre-norm whose MLP reads what the attention read."""

    @classmethod
    def build(cls, cfg: ModelConfig) -> nn.Module:
        return HalfwayBlock(cfg)


class HalfwayBlock(PreNormBlock):
    def stages(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.join1(x_BTC, self.attn(self.norm1(x_BTC)))
        return middle, self.join2(middle, self.mlp(self.norm2(x_BTC)))


class Gated(Residual):
    """Residual: x + σ(g)·f with one learned g."""

    @classmethod
    def build(cls, cfg: ModelConfig) -> nn.Module:
        return GatedJoin()

    @classmethod
    def shapes(cls, cfg: ModelConfig) -> Shapes:
        return {"gate": (1,)}


class GatedJoin(Join):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.full((1,), -1.0))

    def scale(self, branch: Tensor) -> Tensor:
        return self.gate.sigmoid() * branch


class Recent(Positions):
    """Positions: earlier tokens score half a point lower, in every block."""

    @classmethod
    def inside(cls, cfg: ModelConfig) -> nn.Module:
        return RecentBias()


class RecentBias(AttentionPositions):
    def bias(self, length: int) -> Tensor:
        t = torch.arange(length)
        return 0.5 * (t[None, :] - t[:, None]).sign().float()[None]


class Halved(Attention):
    """Attention: half of what ours puts out."""

    @classmethod
    def build(cls, cfg: ModelConfig) -> nn.Module:
        return HalvedAttention(cfg)


class HalvedAttention(SelfAttention):
    def forward(self, x_BTC: Tensor) -> Tensor:
        return 0.5 * super().forward(x_BTC)


class Wide(Init):
    """Init: everything at 0.1, learning rates of matrices halved."""

    @classmethod
    def scale(cls, cfg: ModelConfig, name: str, shape: tuple[int, ...]) -> float:
        return 0.1

    @classmethod
    def lr(cls, cfg: ModelConfig, name: str, shape: tuple[int, ...]) -> float:
        return 0.5 if len(shape) == 2 else 1.0


class Mean:
    """Attention without a base class: the mean of all tokens so far through one matrix."""

    @staticmethod
    def build(cfg: ModelConfig) -> nn.Module:
        return MeanSoFar(cfg.d_model)

    @staticmethod
    def count(cfg: ModelConfig) -> int:
        return cfg.d_model**2

    @staticmethod
    def flops(cfg: ModelConfig) -> float:
        return 2.0 * cfg.d_model**2


class MeanSoFar(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return self.mix(x.cumsum(1) / counts)


class Clock:
    """Positions without a base class: one learned vector, more of it the later it is."""

    @staticmethod
    def build(cfg: ModelConfig) -> nn.Module:
        return ClockHand(cfg)

    @staticmethod
    def count(cfg: ModelConfig) -> int:
        return cfg.d_model

    @staticmethod
    def flops(cfg: ModelConfig) -> float:
        return 0.0


class ClockHand(nn.Module):
    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.hand = nn.Parameter(torch.ones(cfg.d_model))
        self.context = cfg.context

    def forward(self, length: int) -> Tensor:
        return torch.arange(length, device=self.hand.device)[:, None] / self.context * self.hand


class Flat:
    """Init without a base class."""

    @staticmethod
    def scale(cfg: ModelConfig, name: str, shape: tuple[int, ...]) -> float:
        return 0.05


class Bare:
    """Placement without a base class: sublayers in sequence, no norm and no join of ours."""

    @staticmethod
    def build(cfg: ModelConfig) -> nn.Module:
        return BareBlock(cfg)

    @staticmethod
    def count(cfg: ModelConfig) -> int:
        return 0

    @staticmethod
    def flops(cfg: ModelConfig) -> float:
        return 0.0


class BareBlock(nn.Module):
    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.attn, self.mlp = SelfAttention(cfg), Cube.build(cfg)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(x + self.attn(x))


OWN = [
    *[
        ("activation", Cube),
        ("norm", MaxNorm),
        ("norm_placement", Halfway),
        ("residual", Gated),
        ("init", Wide),
    ],
    *[("positions", Recent), ("attention", Halved)],
    *[("attention", Mean), ("positions", Clock), ("init", Flat), ("norm_placement", Bare)],
]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for axis in VARIANTS:
        monkeypatch.setitem(VARIANTS, axis, dict(VARIANTS[axis]))
    for axis, part in OWN:
        register(axis, part.__name__.lower(), f"{__name__}:{part.__name__}")
    yield


def test_there_is_an_example_for_every_axis() -> None:
    assert {axis for axis, _ in OWN} == VARIANTS.keys()


@pytest.mark.parametrize(("axis", "part"), OWN, ids=[part.__name__ for _, part in OWN])
def test_an_own_variant_is_built_counted_described_rehearsed_and_watched(
    axis: str, part: Any, own: None
) -> None:
    cfg = ModelConfig(**{**SMALL, axis: part.__name__.lower()})
    rehearse(cfg, "arm mine")
    model, plain = build_model(cfg, 3), build_model(ModelConfig(**SMALL), 3)
    assert sum(p.numel() for p in model.parameters()) == count_parameters(cfg).total
    described = describe(cfg, batch_size=2)
    assert (
        sum(row.parameters for row in described.rows if row.depth == 0)
        == described.parameters.total
    )
    assert described.memory.activations > 0
    tokens, targets = some_tokens(2, 8), some_tokens(2, 8, seed=1)
    assert not torch.equal(model(tokens), plain(tokens))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 13
    torch.testing.assert_close(model(changed)[:, :5], model(tokens)[:, :5])
    found = diagnostics.layer_statistics(model, tokens, targets)
    assert len(found.grad_norm) == 2 and all(norm > 0 for norm in found.grad_norm)
    model(tokens, targets).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    rates = set(lr_scales(model, cfg).values())
    assert rates == ({0.5, 1.0} if part is Wide else {1.0})


def test_all_of_ones_own_go_together(own: None) -> None:
    chosen = {axis: part.__name__.lower() for axis, part in OWN[:7]}
    cfg = ModelConfig(**{**SMALL, **chosen})
    rehearse(cfg, "arm mine")
    assert sum(p.numel() for p in build_model(cfg).parameters()) == count_parameters(cfg).total


def test_an_own_norm_stands_in_every_place(own: None) -> None:
    everywhere = {
        "qk_norm": "head",
        "embedding_norm": True,
        "norm_placement": "sandwich",
        "n_kv_head": 2,
    }
    cfg = ModelConfig(**{**SMALL, "norm": "maxnorm", **everywhere})
    rehearse(cfg, "arm mine")
    assert count_parameters(cfg).norms == (4 * 2 + 2) * 16
    assert describe(cfg).parameters.total == count_parameters(cfg).total
