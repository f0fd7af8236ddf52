"""Normalizations over the width of the residual stream, or of a head's queries and keys. Torch-free
at import.
"""

from typing import TYPE_CHECKING

from andrea.model.registry import variant
from andrea.model.settings import ModelSettings
from andrea.model.variants import Shapes, Variant, is_users_own

if TYPE_CHECKING:
    from torch import nn


class LayerNorm(Variant):
    """Mean 0 and variance 1 over the width (Ba et al. 2016); `norm_affine` adds a gain, `norm_bias`
    a bias to it.
    """

    reads = ("norm_affine", "norm_bias", "norm_eps")

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        alone = cfg.norm_bias is not None and not cfg.norm_affine
        return (
            "norm_bias is read with norm_affine only: set that, or leave norm_bias out"
            if alone
            else None
        )

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        from torch import nn

        return nn.LayerNorm(
            cfg.d_model,
            eps=cfg.norm_eps,
            elementwise_affine=cfg.norm_affine,
            bias=cfg.norm_affine and cfg.biases.norm,
        )

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        names = ("weight", "bias") if cfg.biases.norm else ("weight",)
        return {name: (cfg.d_model,) for name in names if cfg.norm_affine}

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Its input, one mean and one inverse deviation."""
        return float(cfg.d_model + 2)


class RMSNorm(Variant):
    """x / √(mean(x²) + eps), times a gain (Zhang & Sennrich 2019); it has no bias."""

    reads = ("norm_affine", "norm_eps")

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        from torch import nn

        return nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps, elementwise_affine=cfg.norm_affine)

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {"weight": (cfg.d_model,)} if cfg.norm_affine else {}

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Its input and one inverse root; for the gain's gradient also what the gain multiplies."""
        return float((2 if cfg.norm_affine else 1) * cfg.d_model + 1)


class RMSNorm1p(RMSNorm):
    """RMSNorm whose gain is 1 + offset (Gemma): weight decay, where there is any, pulls it to 1 and
    not to 0.
    """

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        return (
            None
            if cfg.norm_affine
            else "without a gain it is rmsnorm: choose that, or leave norm_affine out"
        )

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        from andrea.model.layers.norms import OffsetRMSNorm

        return OffsetRMSNorm(cfg)

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {"offset": (cfg.d_model,)}

    @classmethod
    def shared(cls, cfg: ModelSettings) -> float:
        """The gain, 1 + offset."""
        return float(cfg.d_model)


class DyT(Variant):
    """Dynamic tanh, gain · tanh(α·x) + bias with one learned α: elementwise, no statistics (Zhu et
    al. 2025).
    """

    reads = ("norm_affine", "norm_bias", "dyt_alpha")

    refuse = LayerNorm.refuse

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        from andrea.model.layers.norms import DynamicTanh

        return DynamicTanh(cfg)

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {"alpha": (1,)} | LayerNorm.shapes(cfg)

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Its input and the tanh; without a gain the tanh is its output, which whoever reads it
        keeps.
        """
        return float((2 if cfg.norm_affine else 1) * cfg.d_model)


class Identity(Variant):
    """No normalization where there would be one: the stream as it is."""

    normalizes = False
    """A norm that is one does not say so."""

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        asked = {
            "qk_norm": cfg.qk_norm != "none",
            "embedding_norm": cfg.embedding_norm,
            "final_norm": cfg.final_norm,
        }
        if names := [name for name, there in asked.items() if there]:
            return f"{' and '.join(names)} would normalize nothing: choose another norm, or leave this out"
        placed = cfg.norm_placement in ("pre", "parallel") or is_users_own(
            variant("norm_placement", cfg.norm_placement)
        )
        if not placed:
            return (
                f"there is no norm for norm_placement {cfg.norm_placement} to place: leave "
                "norm_placement at pre "
                "(or parallel), or choose another norm"
            )
        return None

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        from torch import nn

        return nn.Identity()

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {}

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """The matrix behind it keeps its own input; that is this one's output."""
        return 0.0


def query_key_norm_widths(cfg: ModelSettings) -> dict[str, int]:
    """Return the norms of queries and keys by name, each with the number of elements it
    normalizes; none without `qk_norm`.
    """
    if cfg.qk_norm == "none":
        return {}
    full = cfg.qk_norm == "full"
    return {
        "q_norm": cfg.d_head * (cfg.n_head if full else 1),
        "k_norm": cfg.d_head * (cfg.kv_heads if full else 1),
    }


def at_width(cfg: ModelSettings, width: int) -> ModelSettings:
    """The configuration that a norm over `width` elements is built and counted from."""
    return cfg if width == cfg.d_model else cfg.model_copy(update={"d_model": width})


def build_norm(cfg: ModelSettings, width: int | None = None) -> "nn.Module":
    """A norm of the model's kind over the width of the stream, or another one."""
    module: nn.Module = variant("norm", cfg.norm).build(at_width(cfg, width or cfg.d_model))
    return module
