"""Normalizations that torch does not have."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea.model.settings import ModelSettings


class DynamicTanh(nn.Module):
    """`weight · tanh(alpha · x) + bias`, alpha one learned number; `norm_affine` and `norm_bias`
    say whether weight and bias are there.
    """

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), cfg.dyt_alpha))
        self.weight = nn.Parameter(torch.ones(cfg.d_model)) if cfg.norm_affine else None
        has_bias = cfg.norm_affine and cfg.biases.norm
        self.bias = nn.Parameter(torch.zeros(cfg.d_model)) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.alpha * x)
        if self.weight is not None:
            y = y * self.weight
        return y if self.bias is None else y + self.bias


class OffsetRMSNorm(nn.Module):
    """`x / rms(x) · (1 + offset)`, offset 0 at the start."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        # The distance to 1, as in Gemma's files: 1 + (g − 1) is not every g in float32.
        self.offset = nn.Parameter(torch.zeros(cfg.d_model))
        self.eps = cfg.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.offset.shape, 1 + self.offset, self.eps)
