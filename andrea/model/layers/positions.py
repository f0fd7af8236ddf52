"""Positions: tables that are added to the embeddings, and what attention does with queries, keys
and scores.

Shapes: B sequences, H heads, T positions, C = d_model, D = width of a head, R ≤ D rotated
    dimensions.
"""

import math

import torch
from torch import Tensor, nn

from andrea.model.settings import ModelSettings


class LearnedPositions(nn.Embedding):
    """A vector of every position."""

    def forward(self, length: int) -> Tensor:  # type: ignore[override]
        """The first `length` positions, [T, C]."""
        return self.weight[:length]


class SinusoidalPositions(nn.Module):
    """sin(t / 10000^(2i/C)) in even channels, the cosines in odd ones."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        channels = torch.arange(0, cfg.d_model, 2, dtype=torch.float32)
        waves = torch.outer(
            torch.arange(cfg.context, dtype=torch.float32), 10_000.0 ** (-channels / cfg.d_model)
        )
        table_TC = torch.stack([waves.sin(), waves.cos()], dim=-1).flatten(1)[:, : cfg.d_model]
        self.register_buffer("table", table_TC.contiguous(), persistent=False)
        self.table: Tensor

    def forward(self, length: int) -> Tensor:
        """The first `length` positions, [T, C]."""
        return self.table[:length]


class AttentionPositions(nn.Module):
    """What positions do inside attention; by itself nothing."""

    def rotate(self, q_BHTD: Tensor, k_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys with their positions worked in."""
        return q_BHTD, k_BHTD

    def bias(self, length: int) -> Tensor | None:
        """What is added to the scores, [H, T, T]; None: nothing."""
        return None


class Rotary(AttentionPositions):
    """Dimension i of the first half of R turns with dimension i + R/2, by the angle t ·
    base^(−2i/R).
    """

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        self.dim = cfg.rope_dim
        frequencies = cfg.rope_base ** (
            -torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim
        )
        angles = torch.outer(torch.arange(cfg.context, dtype=torch.float32), frequencies).repeat(
            1, 2
        )
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def rotate(self, q_BHTD: Tensor, k_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        return self._turn(q_BHTD), self._turn(k_BHTD)

    def _turn(self, x_BHTD: Tensor) -> Tensor:
        T = x_BHTD.shape[2]
        x_BHTR, rest = x_BHTD[..., : self.dim], x_BHTD[..., self.dim :]
        first, second = x_BHTR.chunk(2, dim=-1)
        turned = x_BHTR * self.cos[:T] + torch.cat([-second, first], dim=-1) * self.sin[:T]
        turned = turned.to(x_BHTD.dtype)  # the tables stay float32 under autocast
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


class LinearBias(AttentionPositions):
    """−slope · distance, the slopes of H heads a geometric sequence from 2^(−8/H) to 2^(−8)."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(slopes(cfg.n_head)), persistent=False)
        self.slopes: Tensor

    def bias(self, length: int) -> Tensor:
        t = torch.arange(length, device=self.slopes.device)
        return self.slopes[:, None, None] * (t[None, :] - t[:, None])


def slopes(heads: int) -> list[float]:
    """ALiBi's slopes; for a number of heads that is no power of two as in the authors' code: those
    of the next lower power, then every second one of the next higher.
    """
    power = 2 ** int(math.log2(heads))
    own = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return own + between[: heads - power]
