"""What a model is made of: fields, names of variants, presets. Torch-free, so that `andrea list` stays quick.

Adding a variant is one class (see `andrea.model.variants`) and one line in `VARIANTS`.
"""

import importlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from andrea.errors import UserError, nearest
from andrea.schema import Frozen

VARIANTS: dict[str, dict[str, str]] = {
    "norm_placement": {
        "pre": "andrea.model.placements:PreNorm",
        "post": "andrea.model.placements:PostNorm",
    },
    "norm": {
        "layernorm": "andrea.model.norms:LayerNorm",
    },
    "activation": {
        "gelu_tanh": "andrea.model.mlps:GeluTanh",
        "gelu": "andrea.model.mlps:Gelu",
        "relu": "andrea.model.mlps:Relu",
        "swiglu": "andrea.model.mlps:SwiGLU",
    },
    "init": {
        "gpt2": "andrea.model.inits:GPT2",
    },
}
"""Axis, name of the variant, `module:Class`."""

LARGEST = 10**12
"""Of any size. What the machine cannot hold is refused when a run is asked for; this keeps arithmetic finite."""


def register(axis: str, name: str, target: str) -> None:
    """Make a user's own variant known on an axis.

    Raises:
        ValueError: the axis does not exist, the target is not `module:Class`, or the name on the axis stands for
            another class already.
    """
    if axis not in VARIANTS:
        raise ValueError(f"no axis {axis!r}; there are {', '.join(VARIANTS)}")
    if not all(part.strip() for part in target.split(":")) or target.count(":") != 1:
        raise ValueError(f"{axis} {name!r}: {target!r} is not of the form module:Class")
    if VARIANTS[axis].get(name, target) != target:
        raise ValueError(f"{axis} already has a variant {name!r}")
    VARIANTS[axis][name] = target


def variant(axis: str, name: str) -> Any:
    """The class behind a name on an axis; importing it loads no torch.

    Raises:
        UserError: the name is unknown, or its class cannot be imported (a user's own file, most likely).
    """
    if name not in VARIANTS[axis]:
        raise UserError(unknown(axis, name))
    module, _, attribute = VARIANTS[axis][name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"model.{axis} {name!r}: cannot load {VARIANTS[axis][name]}: {error}") from error


def unknown(axis: str, name: str) -> str:
    """What to say about a name that an axis does not have."""
    return f"unknown {axis} {name!r}; {nearest(name, VARIANTS[axis])}"


def ratio(value: Any) -> Any:
    """`8/3` in YAML or on the command line is the number 8/3."""
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value.replace(" ", "")))
        except (ValueError, ZeroDivisionError) as error:
            raise ValueError(f"not a ratio: {value!r}; write 4, 2.5 or 8/3") from error
    return value


def _names(axis: str) -> dict[str, Any]:
    """What a JSON schema says of an axis: the shipped variants as examples, since a user may register more."""
    return {"examples": [*VARIANTS[axis]]}


class ModelConfig(Frozen):
    """A decoder-only transformer of the GPT-2 family."""

    vocab_size: int | None = Field(default=None, gt=0, le=LARGEST)
    """Number of tokens that the embedding knows; empty means the tokenizer's."""
    context: int = Field(default=64, gt=0, le=LARGEST)
    """Positions the model sees at once, T."""
    d_model: int = Field(default=48, gt=0, le=LARGEST)
    """Width of the residual stream, d."""
    n_layer: int = Field(default=6, gt=0, le=LARGEST)
    """Number of blocks, L."""
    n_head: int = Field(default=4, gt=0, le=LARGEST)
    """Attention heads; they divide the width."""
    mlp_ratio: Annotated[float, BeforeValidator(ratio)] = Field(default=4.0, gt=0, le=LARGEST)
    """Hidden width of the MLP over d_model, rounded to the nearest whole number; `8/3` may be written so."""
    norm_placement: str = Field(default="pre", json_schema_extra=_names("norm_placement"))
    """Where the normalization stands: `pre` (GPT-2) or `post` (the 2017 transformer, OpenAI-GPT)."""
    norm: str = Field(default="layernorm", json_schema_extra=_names("norm"))
    """Kind of normalization."""
    norm_affine: bool = True
    """Whether norms carry a learned gain (and, with `bias`, a learned bias)."""
    norm_eps: float = Field(default=1e-5, gt=0)
    """Added to the variance under the root."""
    activation: str = Field(default="gelu_tanh", json_schema_extra=_names("activation"))
    """Nonlinearity of the MLP; `swiglu` is gated and has three matrices."""
    tied: bool = True
    """Whether the output head is the token embedding."""
    bias: bool = True
    """Whether linear maps and norms carry biases."""
    final_norm: bool | None = None
    """Normalization before the head; empty means what the placement asks for (pre: yes, post: no)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout where GPT-2 has it: on embeddings, attention weights and both branches of each block."""
    init: str = Field(default="gpt2", json_schema_extra=_names("init"))
    """Scale rule of the initial weights."""
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation that the rule starts from."""

    @field_validator("norm_placement", "norm", "activation", "init")
    @classmethod
    def _known_variant(cls, value: str, info: Any) -> str:
        if value not in VARIANTS[info.field_name]:
            raise ValueError(unknown(info.field_name, value))
        return value

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.d_model % self.n_head:
            raise ValueError(
                f"n_head {self.n_head} does not divide d_model {self.d_model}: "
                "choose a width that is a multiple of the heads"
            )
        return self

    @property
    def mlp_dim(self) -> int:
        """Hidden width of the MLP, at least 1."""
        return max(1, round(self.d_model * self.mlp_ratio))

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm stands before the head, resolved."""
        if self.final_norm is not None:
            return self.final_norm
        return bool(getattr(variant("norm_placement", self.norm_placement), "final_norm", True))


PRESETS: Mapping[str, Mapping[str, Any]] = {
    # GPT-2's 0.02 is 0.55/√d at d 768; the same share at d 48. With 0.02 there post-norm learns nothing (docs/log.md).
    "tiny": {"context": 64, "d_model": 48, "n_layer": 6, "n_head": 4, "init_std": 0.08},
    "andrea-12m": {"context": 1024, "d_model": 384, "n_layer": 6, "n_head": 12, "vocab_size": 4353},
    "andrea-120m": {"context": 1024, "d_model": 768, "n_layer": 12, "n_head": 12, "vocab_size": 8449},
    "andrea-480m": {"context": 1024, "d_model": 1536, "n_layer": 16, "n_head": 24, "vocab_size": 8449},
    "gpt2": {"context": 1024, "d_model": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
    "gpt2-medium": {"context": 1024, "d_model": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 50257},
    "gpt2-large": {"context": 1024, "d_model": 1280, "n_layer": 36, "n_head": 20, "vocab_size": 50257},
    "gpt2-xl": {"context": 1024, "d_model": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257},
}
"""Named settings of `model`; everything not named is the field's default."""
