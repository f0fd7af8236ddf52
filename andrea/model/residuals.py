"""Joins of a branch with the residual stream. Torch-free at import."""

from andrea.model.settings import ModelSettings
from andrea.model.variants import Shapes, Variant


class Residual(Variant):
    """A join of stream x and branch f; shapes and counts are those of one of the two in a block."""

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {}

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Return the size of the branch, which the gradient of a learned factor needs."""
        return float(cfg.d_model) if cls.shapes(cfg) else 0.0


class On(Residual):
    """x + f (He et al. 2016)."""

    module = "residuals:Join"


class Off(Residual):
    """f alone: a plain stack without skip connections."""

    module = "residuals:Replace"


class ReZero(Residual):
    """x + α·f with one learned α, 0 at the start (Bachlechner et al. 2020; there without any
    norm).
    """

    module = "residuals:ReZeroJoin"

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {"alpha": (1,)}


class LayerScale(Residual):
    """x + γ·f with a learned gain of every channel, small at the start (Touvron et al. 2021)."""

    reads = ("layerscale_init",)

    module = "residuals:LayerScaleJoin"

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {"gamma": (cfg.d_model,)}


class Scaled(Residual):
    """x + f/√(2L): the stream's variance stays of order 1 at any depth (De & Smith 2020; Hayou et
    al. 2021).
    """

    module = "residuals:ScaledJoin"
