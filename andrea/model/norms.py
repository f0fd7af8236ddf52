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
        if cfg.norm_bias is not None and not cfg.norm_affine:
            return "norm_bias is read with norm_affine only: set that, or leave norm_bias out"
        return None

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
        if not cfg.norm_affine:
            return {}
        shapes: Shapes = {"weight": (cfg.d_model,)}
        if cfg.biases.norm:
            shapes["bias"] = (cfg.d_model,)
        return shapes

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Return the size of its input, one mean and one inverse deviation."""
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
        """Return the size of its input and one inverse root; for the gain's gradient also what the
        gain multiplies.
        """
        return float((1 + cfg.norm_affine) * cfg.d_model + 1)


class RMSNorm1p(RMSNorm):
    """RMSNorm whose gain is 1 + offset (Gemma): weight decay, where there is any, pulls it to 1 and
    not to 0.
    """

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        if not cfg.norm_affine:
            return "without a gain it is rmsnorm: choose that, or leave norm_affine out"
        return None

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        from andrea.model.layers.norms import OffsetRMSNorm

        return OffsetRMSNorm(cfg)

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {"offset": (cfg.d_model,)}

    @classmethod
    def shared(cls, cfg: ModelSettings) -> float:
        """Return the size of the gain, 1 + offset."""
        return float(cfg.d_model)


class DyT(Variant):
    """Dynamic tanh, gain · tanh(α·x) + bias with one learned α: elementwise, no statistics (Zhu et
    al. 2025).
    """

    reads = ("norm_affine", "norm_bias", "dyt_alpha")
    module = "norms:DynamicTanh"
    refuse = LayerNorm.refuse

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {"alpha": (1,)} | LayerNorm.shapes(cfg)

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Return the size of its input and of the tanh; without a gain the tanh is its output,
        which the next part keeps as its input.
        """
        return float((1 + cfg.norm_affine) * cfg.d_model)


class Identity(Variant):
    """No normalization where there would be one: the stream as it is."""

    normalizes = False
    """Read by `ModelSettings.has_final_norm`; norms are taken to normalize unless they deny it."""

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        requested = {
            "qk_norm": cfg.qk_norm != "none",
            "embedding_norm": cfg.embedding_norm,
            "final_norm": cfg.final_norm,
        }
        names = [name for name, is_set in requested.items() if is_set]
        if names:
            return (
                f"{' and '.join(names)} would normalize nothing: choose another norm, "
                "or leave this out"
            )
        # Without norms the other placements are one of these two by another name.
        distinct = cfg.norm_placement in ("pre", "parallel")
        if not distinct and not is_users_own(variant("norm_placement", cfg.norm_placement)):
            return (
                f"there is no norm for norm_placement {cfg.norm_placement} to place: leave "
                "norm_placement at pre (or parallel), or choose another norm"
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
        """Return 0: its output is its input, which the next matrix keeps."""
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
    """Return the settings that a norm over `width` elements is built and counted from."""
    if width == cfg.d_model:
        return cfg
    return cfg.model_copy(update={"d_model": width})


def build_norm(cfg: ModelSettings, width: int | None = None) -> "nn.Module":
    """Build a norm of the model's kind over `width` elements, or the width of the stream."""
    module: nn.Module = variant("norm", cfg.norm).build(at_width(cfg, width or cfg.d_model))
    return module
