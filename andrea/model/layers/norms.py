"""Normalizations that torch does not have."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea.model.settings import ModelSettings


class DynamicTanh(nn.Module):
    """`weight · tanh(alpha · x) + bias`; alpha is one learned number, weight and bias are there as
    the norm's are.
    """

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), cfg.dyt_alpha))
        self.weight = nn.Parameter(torch.ones(cfg.d_model)) if cfg.norm_affine else None
        self.bias = (
            nn.Parameter(torch.zeros(cfg.d_model)) if cfg.norm_affine and cfg.biases.norm else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.alpha * x)
        if self.weight is not None:
            y = y * self.weight
        return y if self.bias is None else y + self.bias


class OffsetRMSNorm(nn.Module):
    """`x / rms(x) · (1 + offset)`, offset 0 at the start."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(cfg.d_model))
        self.eps = cfg.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.offset.shape, 1 + self.offset, self.eps)
