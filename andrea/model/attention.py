"""The attention sublayer: causal self-attention, multi-head to multi-query, full or windowed. Torch-free at import."""

from typing import TYPE_CHECKING

from andrea.model.config import ModelConfig, variant
from andrea.model.norms import at_width
from andrea.model.variants import Shapes, Variant, activations, linear, shapes

if TYPE_CHECKING:
    from torch import nn


class Attention(Variant):
    """Softmax attention of `n_head` heads of queries over `kv_heads` of keys and values, all from one matrix."""

    @classmethod
    def build(cls, cfg: ModelConfig) -> "nn.Module":
        from andrea.model.layers.attention import SelfAttention

        return SelfAttention(cfg)

    @classmethod
    def shapes(cls, cfg: ModelConfig) -> Shapes:
        d, heads, keys = cfg.d_model, cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        matrices = linear("qkv", heads + 2 * keys, d, cfg.biases.attn) | linear("proj", d, heads, cfg.biases.proj)
        norms = {
            f"{name}.{leaf}": shape
            for name, width in cls.normed(cfg).items()
            for leaf, shape in shapes(variant("norm", cfg.norm), at_width(cfg, width)).items()
        }
        return matrices | norms

    @classmethod
    def count(cls, cfg: ModelConfig) -> int:
        norm = variant("norm", cfg.norm)
        own = sum(int(norm.count(at_width(cfg, width))) for width in cls.normed(cfg).values())
        named = cls.shapes(cfg.model_copy(update={"qk_norm": "none"})) if own else cls.shapes(cfg)
        return sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in named.values()) + own

    @classmethod
    def normed(cls, cfg: ModelConfig) -> dict[str, int]:
        """Norms of queries and keys by name, and the width that each normalizes."""
        if cfg.qk_norm == "none":
            return {}
        heads, keys = (cfg.n_head, cfg.kv_heads) if cfg.qk_norm == "full" else (1, 1)
        return {"q_norm": heads * cfg.d_head, "k_norm": keys * cfg.d_head}

    @classmethod
    def flops(cls, cfg: ModelConfig) -> float:
        """The two matrices, and scores and values over the positions that a token really sees."""
        return super().flops(cfg) + 2 * 2 * cfg.n_head * cfg.d_head * cls.seen(cfg)

    @classmethod
    def seen(cls, cfg: ModelConfig) -> float:
        """Positions that a token sees, its own included, on average over the context: (T + 1) / 2 without a window."""
        T = cfg.context
        w = T if cfg.window is None else min(cfg.window, T)
        return (w * (w + 1) / 2 + (T - w) * w) / T

    @classmethod
    def activations(cls, cfg: ModelConfig) -> float:
        """Its input, queries, keys and values, its output before `proj`, and one log-sum per head (fused attention)."""
        heads, keys = cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        norm = variant("norm", cfg.norm)
        normed = sum(activations(norm, at_width(cfg, width)) for width in cls.normed(cfg).values())
        inside = activations(variant("positions", cfg.positions), cfg)
        return float(cfg.d_model + 2 * heads + 2 * keys + cfg.n_head) + normed + inside
