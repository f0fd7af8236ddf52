"""The attention sublayer: causal self-attention, multi-head to multi-query, full or windowed.
Torch-free at import.
"""

from typing import TYPE_CHECKING

from andrea.model.config import ModelConfig, variant
from andrea.model.norms import at_width
from andrea.model.variants import Shapes, Variant, activations, linear, shapes, shared

if TYPE_CHECKING:
    from torch import nn


class Attention(Variant):
    """Softmax attention of `n_head` heads of queries over `kv_heads` of keys and values, all from
    one matrix.
    """

    @classmethod
    def build(cls, cfg: ModelConfig) -> "nn.Module":
        from andrea.model.layers.attention import SelfAttention

        return SelfAttention(cfg)

    @classmethod
    def shapes(cls, cfg: ModelConfig) -> Shapes:
        d, heads, keys = cfg.d_model, cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        matrices = linear("qkv", heads + 2 * keys, d, cfg.biases.attn) | linear(
            "proj", d, heads, cfg.biases.proj
        )
        norms = {
            f"{name}.{leaf}": shape
            for name, width in cls.normed(cfg).items()
            for leaf, shape in shapes(variant("norm", cfg.norm), at_width(cfg, width)).items()
        }
        return matrices | norms

    @classmethod
    def count(cls, cfg: ModelConfig) -> int:
        norm = variant("norm", cfg.norm)
        norms = sum(int(norm.count(at_width(cfg, width))) for width in cls.normed(cfg).values())
        return super().count(cfg.model_copy(update={"qk_norm": "none"})) + norms

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
        matrices = super().flops(cfg.model_copy(update={"qk_norm": "none"}))
        norm = variant("norm", cfg.norm)
        norms = sum(
            times * float(norm.flops(at_width(cfg, width))) for times, width in cls.applied(cfg)
        )
        return matrices + norms + 2 * 2 * cfg.n_head * cfg.d_head * cls.seen(cfg)

    @classmethod
    def applied(cls, cfg: ModelConfig) -> list[tuple[int, int]]:
        """Norms of queries and keys: how often each is applied to a token, and to which width."""
        times = (1, 1) if cfg.qk_norm == "full" else (cfg.n_head, cfg.kv_heads)
        return list(zip(times, cls.normed(cfg).values(), strict=False))

    @classmethod
    def seen(cls, cfg: ModelConfig) -> float:
        """Positions that a token sees, its own included, on average over the context: (T + 1) / 2
        without a window.
        """
        T = cfg.context
        w = T if cfg.window is None else min(cfg.window, T)
        return (w * (w + 1) / 2 + (T - w) * w) / T

    @classmethod
    def activations(cls, cfg: ModelConfig) -> float:
        """Its input, queries, keys and values, its output before `proj`, and what attention itself
        keeps: one log-sum per head where it is fused, its scores twice where a soft cap takes them
        apart.
        """
        heads, keys = cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        norm = variant("norm", cfg.norm)
        # What a norm reads are rows of the one product, which is there as a whole.
        normed = sum(
            times * (activations(norm, at_width(cfg, width)) - width)
            for times, width in cls.applied(cfg)
        )
        product = heads + 2 * keys
        if (
            cfg.attn_softcap is not None
        ):  # copies of queries, keys and values, head by head of the queries
            kept: float = (
                3 * heads + 2 * cfg.n_head * cfg.context + (product if cls.normed(cfg) else 0)
            )
        else:
            inside = activations(variant("positions", cfg.positions), cfg)
            kept = product + cfg.n_head + (inside or (heads + keys if cls.normed(cfg) else 0))
        return float(cfg.d_model + heads) + kept + normed

    @classmethod
    def shared(cls, cfg: ModelConfig) -> float:
        """The mask of a window, or ALiBi's of every head; a soft cap keeps one of booleans, of
        distances none.
        """
        mask, biases = cfg.context**2, shared(variant("positions", cfg.positions), cfg)
        norm = variant("norm", cfg.norm)
        gains = sum(shared(norm, at_width(cfg, width)) for width in cls.normed(cfg).values())
        if cfg.attn_softcap is not None:
            return gains + (0.0 if biases else mask / 4)
        return gains + (biases or (0.0 if cfg.window is None else mask))
