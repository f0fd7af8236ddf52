"""The attention sublayer: causal self-attention, multi-head to multi-query, full or windowed.
Torch-free at import.
"""

from typing import TYPE_CHECKING

from andrea.model.norms import at_width, query_key_norm_widths
from andrea.model.registry import variant
from andrea.model.settings import ModelSettings
from andrea.model.variants import (
    Shapes,
    Variant,
    activations_of,
    linear_shapes,
    shapes_of,
    shared_of,
)

if TYPE_CHECKING:
    from torch import nn


class Attention(Variant):
    """Softmax attention of `n_head` heads of queries over `kv_heads` of keys and values, all from
    one matrix.
    """

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        from andrea.model.layers.attention import SelfAttention

        return SelfAttention(cfg)

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        d, heads, keys = cfg.d_model, cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        matrices = linear_shapes("qkv", heads + 2 * keys, d, cfg.biases.attn) | linear_shapes(
            "proj", d, heads, cfg.biases.proj
        )
        norms = {
            f"{name}.{leaf}": shape
            for name, width in query_key_norm_widths(cfg).items()
            for leaf, shape in shapes_of(variant("norm", cfg.norm), at_width(cfg, width)).items()
        }
        return matrices | norms

    @classmethod
    def count(cls, cfg: ModelSettings) -> int:
        norm = variant("norm", cfg.norm)
        norms = sum(
            int(norm.count(at_width(cfg, width))) for width in query_key_norm_widths(cfg).values()
        )
        return super().count(cfg.model_copy(update={"qk_norm": "none"})) + norms

    @classmethod
    def flops(cls, cfg: ModelSettings) -> float:
        """The two matrices, and scores and values over the positions that a token really sees."""
        matrices = super().flops(cfg.model_copy(update={"qk_norm": "none"}))
        norm = variant("norm", cfg.norm)
        norms = sum(
            times * float(norm.flops(at_width(cfg, width))) for times, width in cls.applied(cfg)
        )
        return matrices + norms + 2 * 2 * cfg.n_head * cfg.d_head * cls.seen(cfg)

    @classmethod
    def applied(cls, cfg: ModelSettings) -> list[tuple[int, int]]:
        """Norms of queries and keys: how often each is applied to a token, and to which width."""
        times = (1, 1) if cfg.qk_norm == "full" else (cfg.n_head, cfg.kv_heads)
        return list(zip(times, query_key_norm_widths(cfg).values(), strict=False))

    @classmethod
    def seen(cls, cfg: ModelSettings) -> float:
        """Positions that a token sees, its own included, on average over the context: (T + 1) / 2
        without a window.
        """
        T = cfg.context
        w = T if cfg.window is None else min(cfg.window, T)
        return (w * (w + 1) / 2 + (T - w) * w) / T

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Its input, queries, keys and values, its output before `proj`, and what attention itself
        keeps: one log-sum per head where it is fused, its scores twice where a soft cap takes them
        apart.
        """
        heads, keys = cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        norm = variant("norm", cfg.norm)
        # What a norm reads are rows of the one product, which is there as a whole.
        normed = sum(
            times * (activations_of(norm, at_width(cfg, width)) - width)
            for times, width in cls.applied(cfg)
        )
        product = heads + 2 * keys
        if (
            cfg.attn_softcap is not None
        ):  # copies of queries, keys and values, head by head of the queries
            kept: float = (
                3 * heads
                + 2 * cfg.n_head * cfg.context
                + (product if query_key_norm_widths(cfg) else 0)
            )
        else:
            inside = activations_of(variant("positions", cfg.positions), cfg)
            kept = (
                product
                + cfg.n_head
                + (inside or (heads + keys if query_key_norm_widths(cfg) else 0))
            )
        return float(cfg.d_model + heads) + kept + normed

    @classmethod
    def shared(cls, cfg: ModelSettings) -> float:
        """The mask of a window, or ALiBi's of every head; a soft cap keeps one of booleans, of
        distances none.
        """
        mask, biases = cfg.context**2, shared_of(variant("positions", cfg.positions), cfg)
        norm = variant("norm", cfg.norm)
        gains = sum(
            shared_of(norm, at_width(cfg, width)) for width in query_key_norm_widths(cfg).values()
        )
        if cfg.attn_softcap is not None:
            return gains + (0.0 if biases else mask / 4)
        return gains + (biases or (0.0 if cfg.window is None else mask))
