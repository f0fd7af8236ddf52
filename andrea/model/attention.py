"""The attention sublayer: causal self-attention, multi-head to multi-query, full or windowed.
Torch-free at import.
"""

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


class Attention(Variant):
    """Softmax attention of `n_head` heads of queries over `kv_heads` of keys and values, all from
    one matrix.
    """

    module = "attention:SelfAttention"

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        queries, keys = cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        shapes = linear_shapes("qkv", queries + 2 * keys, cfg.d_model, cfg.biases.attn)
        shapes |= linear_shapes("proj", cfg.d_model, queries, cfg.biases.proj)
        norm = variant("norm", cfg.norm)
        for name, width in query_key_norm_widths(cfg).items():
            for leaf, shape in shapes_of(norm, at_width(cfg, width)).items():
                shapes[f"{name}.{leaf}"] = shape
        return shapes

    @classmethod
    def count(cls, cfg: ModelSettings) -> int:
        # A user's own norm may have no shapes, but it has a count.
        norm = variant("norm", cfg.norm)
        widths = query_key_norm_widths(cfg).values()
        norms = sum(int(norm.count(at_width(cfg, width))) for width in widths)
        return super().count(_without_norms(cfg)) + norms

    @classmethod
    def flops(cls, cfg: ModelSettings) -> float:
        """Return the FLOPs of the two matrices, and of scores and values over the positions that a
        token really sees.
        """
        matrices = super().flops(_without_norms(cfg))
        norm = variant("norm", cfg.norm)
        norms = 0.0
        for times, width in cls.applied_norms(cfg):
            norms += times * float(norm.flops(at_width(cfg, width)))
        scores_and_values = 2 * 2 * cfg.n_head * cfg.d_head * cls.seen(cfg)
        return matrices + norms + scores_and_values

    @classmethod
    def applied_norms(cls, cfg: ModelSettings) -> list[tuple[int, int]]:
        """Return how often each norm of queries and keys is applied to a token, and its width."""
        times = (1, 1) if cfg.qk_norm == "full" else (cfg.n_head, cfg.kv_heads)
        # Without norms there are no widths, and no pairs.
        return list(zip(times, query_key_norm_widths(cfg).values(), strict=False))

    @classmethod
    def seen(cls, cfg: ModelSettings) -> float:
        """Return how many positions a token sees, its own included, on average over the context:
        (T + 1) / 2 without a window.
        """
        T = cfg.context
        w = T if cfg.window is None else min(cfg.window, T)
        return (w * (w + 1) / 2 + (T - w) * w) / T

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Return the sizes of its input, of queries, keys and values, of its output before `proj`,
        and of what attention itself keeps: one log-sum per head where it is fused, its scores twice
        where a soft cap takes them apart.
        """
        queries, keys = cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        qkv = queries + 2 * keys
        has_norms = cfg.qk_norm != "none"
        if cfg.attn_softcap is not None:
            # Copies of queries, keys and values, head by head of the queries.
            copies = 3 * queries
            scores = 2 * cfg.n_head * cfg.context
            saved: float = copies + scores + (qkv if has_norms else 0)
        else:
            positions = activations_of(variant("positions", cfg.positions), cfg)
            normed = queries + keys if has_norms else 0
            saved = qkv + cfg.n_head + (positions or normed)
        norm = variant("norm", cfg.norm)
        norms = 0.0
        for times, width in cls.applied_norms(cfg):
            # The input of these norms is part of `qkv`, which is counted as a whole.
            norms += times * (activations_of(norm, at_width(cfg, width)) - width)
        return float(cfg.d_model + queries) + saved + norms

    @classmethod
    def shared(cls, cfg: ModelSettings) -> float:
        """Return the size of the mask of a window, or of ALiBi's of every head; a soft cap keeps
        one of booleans, of distances none.
        """
        norm = variant("norm", cfg.norm)
        widths = query_key_norm_widths(cfg).values()
        norm_weights = sum(shared_of(norm, at_width(cfg, width)) for width in widths)
        mask = cfg.context**2
        biases = shared_of(variant("positions", cfg.positions), cfg)
        if cfg.attn_softcap is not None:
            return norm_weights + (0.0 if biases else mask / 4)
        window_mask = 0.0 if cfg.window is None else mask
        return norm_weights + (biases or window_mask)


def _without_norms(cfg: ModelSettings) -> ModelSettings:
    return cfg.model_copy(update={"qk_norm": "none"})
