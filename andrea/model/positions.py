"""Positions of tokens: added to the embeddings, or worked into attention. Torch-free at import.

`build` makes what is added to the embedded tokens (a module from T to [T, C], or None), `inside`
what every attention uses (a module with `rotate(q, k)` and `bias(T)`, or None).
"""

from typing import TYPE_CHECKING, Any

from andrea.model.settings import ModelSettings
from andrea.model.variants import Shapes, Variant, build_layer

if TYPE_CHECKING:
    from torch import nn


class Positions(Variant):
    """Base of position encodings: adds nothing to the stream and changes no scores."""

    relative = False
    """It is worked into the scores of attention, so that it has no effect in a context of 1."""
    inside_module = ""
    """Class of the module that `inside` makes, as `module` is of `build`."""

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module | None":  # type: ignore[override]
        return super().build(cfg) if cls.module else None

    @classmethod
    def inside(cls, cfg: ModelSettings) -> Any:
        """Return the `AttentionPositions` that attention uses; None: nothing."""
        return build_layer(cls.inside_module, cfg) if cls.inside_module else None

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {}

    @classmethod
    def flops(cls, cfg: ModelSettings) -> float:
        """Return 0: a table is looked up, angles are applied elementwise."""
        return 0.0

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Return the elements per token that every attention keeps because of it."""
        return 0.0


class Learned(Positions):
    """A table of `context` vectors that is added to the embeddings (GPT-2)."""

    module = "positions:LearnedPositions"

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        return {"weight": (cfg.context, cfg.d_model)}


class Sinusoidal(Positions):
    """Sines and cosines of geometrically spaced wavelengths, added to the embeddings (Vaswani et
    al. 2017, 3.5).

    They are of order 1. The paper multiplies the embeddings by √d (`embedding_scale: sqrt_d`);
    without it tokens that start at `init_std` drown among them.
    """

    module = "positions:SinusoidalPositions"


class Rope(Positions):
    """Queries and keys rotated by an angle that grows with the position (Su et al. 2021), halves
    paired as in NeoX.
    """

    relative = True
    inside_module = "positions:Rotary"
    reads = ("rope_base", "rope_fraction")

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        rotated = cfg.rope_dim
        if rotated < 2 or rotated % 2:
            return (
                f"{rotated} of {cfg.d_head} dimensions of a head would be rotated, but they turn "
                "in pairs: change n_head, head_dim or rope_fraction so that the number is even"
            )
        if rotated == 2 and cfg.rope_base != type(cfg).model_fields["rope_base"].default:
            return (
                "2 dimensions of a head turn at one rate, whatever rope_base is: rotate more, "
                "or leave it out"
            )
        return None

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Return the sizes of rotated queries and keys; partly rotated ones are laid out head by
        head, which copies attention's output.
        """
        queries, keys = cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        copied_output = queries if cfg.rope_dim < cfg.d_head else 0
        return float(queries + keys + copied_output)


class Alibi(Positions):
    """Scores lowered in proportion to the distance, by a slope of every head (Press et al.
    2022).
    """

    relative = True
    inside_module = "positions:LinearBias"

    @classmethod
    def shared(cls, cfg: ModelSettings) -> float:
        """Return one number per head and pair of positions."""
        return float(cfg.n_head * cfg.context**2)


class NoPositions(Positions):
    """Nothing: only the causal mask tells the order (Haviv et al. 2022)."""
