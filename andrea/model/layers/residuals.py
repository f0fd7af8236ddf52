"""Joins of the residual stream x and a branch f, both [B, T, C]."""

import math

import torch
from torch import Tensor, nn

from andrea.model.settings import ModelSettings


class Join(nn.Module):
    """`x + f`."""

    def __init__(self, cfg: ModelSettings | None = None) -> None:
        super().__init__()

    def scale(self, branch: Tensor) -> Tensor:
        """Return what is added to the stream of a branch."""
        return branch

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self.scale(branch)


class Replace(Join):
    """`f`: the stream is replaced."""

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return branch


class ReZeroJoin(Join):
    """`x + alpha · f`, alpha 0 at the start."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        # At 0 every block is the identity, at any depth and without any norm.
        self.alpha = nn.Parameter(torch.zeros(1))

    def scale(self, branch: Tensor) -> Tensor:
        return self.alpha * branch


class LayerScaleJoin(Join):
    """`x + gamma · f`, channel by channel."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((cfg.d_model,), cfg.layerscale_init))

    def scale(self, branch: Tensor) -> Tensor:
        return self.gamma * branch


class ScaledJoin(Join):
    """`x + f / √(2L)`."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        self.factor = 1 / math.sqrt(2 * cfg.n_layer)  # a stream takes in 2L branches

    def scale(self, branch: Tensor) -> Tensor:
        return self.factor * branch
