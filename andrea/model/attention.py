"""The attention sublayer: causal self-attention over learned positions. Torch-free at import."""

from typing import TYPE_CHECKING

from andrea.model.config import ModelConfig
from andrea.model.variants import Shapes, Variant, linear

if TYPE_CHECKING:
    from torch import nn


class Attention(Variant):
    """Multi-head causal attention with queries, keys and values from one matrix."""

    @classmethod
    def build(cls, cfg: ModelConfig) -> "nn.Module":
        from andrea.model.layers import SelfAttention

        return SelfAttention(cfg)

    @classmethod
    def shapes(cls, cfg: ModelConfig) -> Shapes:
        d = cfg.d_model
        return linear("qkv", 3 * d, d, cfg.bias) | linear("proj", d, d, cfg.bias)

    @classmethod
    def flops(cls, cfg: ModelConfig) -> float:
        """The two matrices, and scores and values over the positions a token really sees: (T + 1) / 2 on average."""
        over_positions = 2 * 2 * cfg.d_model * (cfg.context + 1) / 2
        return super().flops(cfg) + over_positions

    @classmethod
    def activations(cls, cfg: ModelConfig) -> float:
        """Its input, queries, keys and values, its output before `proj`, and one log-sum per head (fused attention)."""
        return float(5 * cfg.d_model + cfg.n_head)
