"""Where the normalization stands in a block. Torch-free at import."""

from typing import TYPE_CHECKING

from andrea.model.config import ModelConfig, variant
from andrea.model.variants import Shapes, Variant, activations, shapes

if TYPE_CHECKING:
    from torch import nn


class Placement(Variant):
    """Wires the two sublayers into a block; shapes and counts are those of its norms alone."""

    final_norm = True
    """Whether this placement asks for a norm before the head."""

    @classmethod
    def shapes(cls, cfg: ModelConfig) -> Shapes:
        norm = shapes(variant("norm", cfg.norm), cfg)
        return {f"{site}.{name}": shape for site in ("norm1", "norm2") for name, shape in norm.items()}

    @classmethod
    def count(cls, cfg: ModelConfig) -> int:
        return 2 * int(variant("norm", cfg.norm).count(cfg))

    @classmethod
    def flops(cls, cfg: ModelConfig) -> float:
        return 2 * float(variant("norm", cfg.norm).flops(cfg))

    @classmethod
    def activations(cls, cfg: ModelConfig) -> float:
        return 2 * activations(variant("norm", cfg.norm), cfg)


class PreNorm(Placement):
    """x + f(norm(x)) and a norm before the head (GPT-2; Xiong et al. 2020)."""

    @classmethod
    def build(cls, cfg: ModelConfig) -> "nn.Module":
        from andrea.model.layers import PreNormBlock

        return PreNormBlock(cfg)


class PostNorm(Placement):
    """norm(x + f(x)) and no norm before the head (Vaswani et al. 2017; OpenAI-GPT)."""

    final_norm = False

    @classmethod
    def build(cls, cfg: ModelConfig) -> "nn.Module":
        from andrea.model.layers import PostNormBlock

        return PostNormBlock(cfg)
