"""Positions: vectors that are added to the embeddings, and what attention does with queries, keys
and scores.

Shapes: B sequences, H heads, T positions, C = d_model, D = width of a head, R ≤ D rotated
dimensions.
"""

import math

import torch
from torch import Tensor, nn

from andrea.model.settings import ModelSettings


class LearnedPositions(nn.Embedding):
    """A learned vector of every position."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__(cfg.context, cfg.d_model)

    def forward(self, length: int) -> Tensor:  # type: ignore[override]
        """Return the first `length` positions, [T, C]."""
        return self.weight[:length]


class SinusoidalPositions(nn.Module):
    """sin(t / 10000^(2i/C)) in even channels, the cosines in odd ones (Vaswani et al. 2017)."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        channels = torch.arange(0, cfg.d_model, 2, dtype=torch.float32)
        frequencies = 10_000.0 ** (-channels / cfg.d_model)
        waves = torch.outer(torch.arange(cfg.context, dtype=torch.float32), frequencies)
        table_TC = torch.stack([waves.sin(), waves.cos()], dim=-1).flatten(1)
        table_TC = table_TC[:, : cfg.d_model]  # an odd width has no last cosine
        self.register_buffer("table", table_TC.contiguous(), persistent=False)
        self.table: Tensor

    def forward(self, length: int) -> Tensor:
        """Return the first `length` positions, [T, C]."""
        return self.table[:length]


class AttentionPositions(nn.Module):
    """Positions inside attention; this base does nothing."""

    def rotate(self, q_BHTD: Tensor, k_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys with their positions worked in."""
        return q_BHTD, k_BHTD

    def bias(self, length: int) -> Tensor | None:
        """Return what is added to the scores, [H, T, T]; None: nothing."""
        return None


class Rotary(AttentionPositions):
    """Dimension i of the first half of R turns with dimension i + R/2, by the angle t ·
    base^(−2i/R).
    """

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        self.dim = cfg.rope_dim
        exponents = -torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim
        frequencies = cfg.rope_base**exponents
        positions = torch.arange(cfg.context, dtype=torch.float32)
        angles_TR = torch.outer(positions, frequencies).repeat(1, 2)
        # Not persistent: they follow from the configuration and are no part of a checkpoint.
        self.register_buffer("cos", angles_TR.cos(), persistent=False)
        self.register_buffer("sin", angles_TR.sin(), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def rotate(self, q_BHTD: Tensor, k_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        return self._turn(q_BHTD), self._turn(k_BHTD)

    def _turn(self, x_BHTD: Tensor) -> Tensor:
        T = x_BHTD.shape[2]
        x_BHTR, rest = x_BHTD[..., : self.dim], x_BHTD[..., self.dim :]
        first, second = x_BHTR.chunk(2, dim=-1)
        turned = x_BHTR * self.cos[:T] + torch.cat([-second, first], dim=-1) * self.sin[:T]
        # Cosines and sines are float32 under autocast too: the product is, and attention is not.
        turned = turned.to(x_BHTD.dtype)
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


class LinearBias(AttentionPositions):
    """−slope · distance, the slopes of H heads a geometric sequence from 2^(−8/H) to 2^(−8)."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        slopes = torch.tensor(alibi_slopes(cfg.n_head))
        self.register_buffer("slopes", slopes, persistent=False)
        self.slopes: Tensor

    def bias(self, length: int) -> Tensor:
        t = torch.arange(length, device=self.slopes.device)
        return self.slopes[:, None, None] * (t[None, :] - t[:, None])


def alibi_slopes(heads: int) -> list[float]:
    """Return ALiBi's slopes (Press et al. 2022); for a number of heads that is no power of two as
    in the authors' code: those of the next lower power, then every second one of the next higher.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]
