"""Normalizations over the width of the residual stream. Torch-free at import."""

from typing import TYPE_CHECKING

from andrea.model.config import ModelConfig
from andrea.model.variants import Shapes, Variant

if TYPE_CHECKING:
    from torch import nn


class LayerNorm(Variant):
    """Mean 0 and variance 1 over the width (Ba et al. 2016); `norm_affine` adds a gain, with `bias` also a bias."""

    @classmethod
    def build(cls, cfg: ModelConfig) -> "nn.Module":
        from torch import nn

        return nn.LayerNorm(
            cfg.d_model, eps=cfg.norm_eps, elementwise_affine=cfg.norm_affine, bias=cfg.norm_affine and cfg.bias
        )

    @classmethod
    def shapes(cls, cfg: ModelConfig) -> Shapes:
        names = ("weight", "bias") if cfg.bias else ("weight",)
        return {name: (cfg.d_model,) for name in names if cfg.norm_affine}

    @classmethod
    def activations(cls, cfg: ModelConfig) -> float:
        """Its input, one mean and one inverse deviation."""
        return float(cfg.d_model + 2)
