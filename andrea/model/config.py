"""What a model is made of: fields, names of variants, presets. Torch-free, so that `andrea list`
stays quick.

Adding a variant is one class (see `andrea.model.variants`) and one line in `VARIANTS`.
"""

import importlib
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from andrea.errors import UserError, nearest
from andrea.schema import Frozen

VARIANTS: dict[str, dict[str, str]] = {
    "norm_placement": {
        "pre": "andrea.model.placements:PreNorm",
        "post": "andrea.model.placements:PostNorm",
        "sandwich": "andrea.model.placements:Sandwich",
        "res_post": "andrea.model.placements:ResPostNorm",
        "deepnorm": "andrea.model.placements:DeepNorm",
        "parallel": "andrea.model.placements:Parallel",
        "parallel_two": "andrea.model.placements:ParallelTwo",
        "none": "andrea.model.placements:NoNorm",
    },
    "norm": {
        "layernorm": "andrea.model.norms:LayerNorm",
        "rmsnorm": "andrea.model.norms:RMSNorm",
        "rmsnorm_1p": "andrea.model.norms:RMSNorm1p",
        "dyt": "andrea.model.norms:DyT",
        "identity": "andrea.model.norms:Identity",
    },
    "activation": {
        "gelu_tanh": "andrea.model.mlps:GeluTanh",
        "gelu": "andrea.model.mlps:Gelu",
        "relu": "andrea.model.mlps:Relu",
        "relu2": "andrea.model.mlps:Relu2",
        "silu": "andrea.model.mlps:Silu",
        "swiglu": "andrea.model.mlps:SwiGLU",
        "geglu": "andrea.model.mlps:GEGLU",
        "geglu_tanh": "andrea.model.mlps:GEGLUTanh",
        "reglu": "andrea.model.mlps:ReGLU",
        "bilinear": "andrea.model.mlps:Bilinear",
        "glu": "andrea.model.mlps:GLU",
    },
    "residual": {
        "on": "andrea.model.residuals:On",
        "off": "andrea.model.residuals:Off",
        "rezero": "andrea.model.residuals:ReZero",
        "layerscale": "andrea.model.residuals:LayerScale",
        "scaled": "andrea.model.residuals:Scaled",
    },
    "positions": {
        "learned": "andrea.model.positions:Learned",
        "sinusoidal": "andrea.model.positions:Sinusoidal",
        "rope": "andrea.model.positions:Rope",
        "alibi": "andrea.model.positions:Alibi",
        "none": "andrea.model.positions:NoPositions",
    },
    "attention": {
        "softmax": "andrea.model.attention:Attention",
    },
    "init": {
        "gpt2": "andrea.model.inits:GPT2",
        "xavier": "andrea.model.inits:Xavier",
        "fan_in": "andrea.model.inits:FanIn",
        "zero_out": "andrea.model.inits:ZeroOut",
        "mup": "andrea.model.inits:MuP",
    },
}
"""Axis, name of the variant, `module:Class`."""

LARGEST = 10**12
"""Of any size. What the machine cannot hold is refused when a run is asked for; this keeps
arithmetic finite.
"""


def register(axis: str, name: str, target: str) -> None:
    """Make a user's own variant known on an axis.

    Raises:
        ValueError: the axis does not exist, the target is not `module:Class`, or the name on the
            axis stands for another class already.
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
        UserError: the name is unknown, or its class cannot be imported (a user's own file, most
            likely).
    """
    if name not in VARIANTS[axis]:
        raise UserError(unknown(axis, name))
    module, _, attribute = VARIANTS[axis][name].partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"model.{axis} {name!r}: cannot load {VARIANTS[axis][name]}: {error}"
        ) from error
    if not isinstance(found, type):
        raise UserError(f"model.{axis} {name!r}: {VARIANTS[axis][name]} is no class")
    return found


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
    """What a JSON schema says of an axis: the shipped variants as examples, since a user may
    register more.
    """
    return {"examples": [*VARIANTS[axis]]}


class Biases(NamedTuple):
    """Which parts carry biases."""

    attn: bool
    proj: bool
    mlp: bool
    norm: bool


class Dropouts(NamedTuple):
    """Share that is dropped, by place."""

    embedding: float
    attention: float
    residual: float


class ModelConfig(Frozen):
    """A decoder-only transformer. Settings that nothing would read are refused
    (`andrea.model.checks`).
    """

    vocab_size: int | None = Field(default=None, gt=0, le=LARGEST)
    """Number of tokens that the embedding knows; empty means the tokenizer's."""
    context: int = Field(default=64, gt=0, le=LARGEST)
    """Positions the model sees at once, T."""
    d_model: int = Field(default=48, gt=0, le=LARGEST)
    """Width of the residual stream, d."""
    n_layer: int = Field(default=6, gt=0, le=LARGEST)
    """Number of blocks, L."""

    norm_placement: str = Field(default="pre", json_schema_extra=_names("norm_placement"))
    """Where the normalization stands: `pre` (GPT-2), `post` (the 2017 transformer), `sandwich`,
    `res_post`, …
    """
    norm: str = Field(default="layernorm", json_schema_extra=_names("norm"))
    """Kind of normalization."""
    norm_affine: bool = True
    """Whether norms carry a learned gain (and perhaps a bias)."""
    norm_bias: bool | None = None
    """Whether norms that have one carry a bias; empty means `bias`."""
    norm_eps: float = Field(default=1e-5, gt=0)
    """Added to the variance, or the mean square, under the root."""
    dyt_alpha: float = Field(default=0.5, gt=0)
    """Initial slope α of DyT's tanh(αx)."""
    final_norm: bool | None = None
    """Normalization before the head; empty means what the placement asks for (pre: yes, post: no).
    """
    embedding_norm: bool = False
    """Normalization of the embedded tokens, before the first block (BLOOM)."""

    activation: str = Field(default="gelu_tanh", json_schema_extra=_names("activation"))
    """Nonlinearity of the MLP; those whose names end in `glu`, and `bilinear`, are gated and have
    three matrices.
    """
    mlp_ratio: Annotated[float, BeforeValidator(ratio)] = Field(default=4.0, gt=0, le=LARGEST)
    """Hidden width of the MLP over d_model, rounded to the nearest whole number; `8/3` may be
    written so.
    """
    mlp_width: int | None = Field(default=None, gt=0, le=LARGEST)
    """Hidden width of the MLP itself, instead of `mlp_ratio`."""
    mlp_multiple: int = Field(default=1, gt=0, le=LARGEST)
    """The hidden width that follows from `mlp_ratio` is rounded up to a multiple of this."""

    residual: str = Field(default="on", json_schema_extra=_names("residual"))
    """How a branch joins the stream: `on` x + f, `off` f alone, `rezero`, `layerscale`, `scaled` x
    + f/√(2L).
    """
    layerscale_init: float = Field(default=0.1, gt=0)
    """Initial gain of LayerScale."""

    positions: str = Field(default="learned", json_schema_extra=_names("positions"))
    """How a token knows where it stands."""
    rope_base: float = Field(default=10_000.0, gt=1)
    """θ of RoPE: the slowest rotation takes about 2πθ positions."""
    rope_fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of a head's dimensions that RoPE rotates (GPT-NeoX: 0.25)."""

    attention: str = Field(default="softmax", json_schema_extra=_names("attention"))
    """Kind of attention."""
    n_head: int = Field(default=4, gt=0, le=LARGEST)
    """Attention heads; without `head_dim` they divide the width."""
    n_kv_head: int | None = Field(default=None, gt=0, le=LARGEST)
    """Heads of keys and values: fewer are shared among the queries' (GQA), 1 is MQA; empty means
    `n_head`.
    """
    head_dim: int | None = Field(default=None, gt=0, le=LARGEST)
    """Width of a head; empty means d_model / n_head."""
    window: int | None = Field(default=None, gt=0, le=LARGEST)
    """Sliding window: how many positions a token sees, its own included; empty means all before it.
    """
    full_every: int | None = Field(default=None, ge=2, le=LARGEST)
    """With a window: every n-th block attends to everything all the same (Gemma 2: 2)."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """Normalization of queries and keys: of each head by itself, or over all heads at once (OLMo
    2).
    """
    attn_scale: float | None = Field(default=None, gt=0)
    """Factor of the attention scores; empty means 1/√(width of a head), or what the init rule asks
    for.
    """
    attn_softcap: float | None = Field(default=None, gt=0)
    """Soft cap c of the attention scores, c·tanh(s/c) (Gemma 2: 50)."""

    tied: bool = True
    """Whether the output head is the token embedding."""
    head_bias: bool = False
    """Whether the output head carries a bias."""
    embedding_scale: float | Literal["sqrt_d"] = 1.0
    """Factor of the token embedding before positions are added; `sqrt_d` is √d_model."""
    logit_softcap: float | None = Field(default=None, gt=0)
    """Soft cap c of the logits, c·tanh(z/c) (Gemma 2: 30)."""
    z_loss: float = Field(default=0.0, ge=0)
    """Weight of log²Z in the training's gradient; losses that are reported never contain it."""

    bias: bool = True
    """Whether linear maps and norms carry biases; the parts' own settings come first."""
    attn_bias: bool | None = None
    """Bias of queries, keys and values; empty means `bias`."""
    proj_bias: bool | None = None
    """Bias of attention's output; empty means `bias`."""
    mlp_bias: bool | None = None
    """Biases of the MLP; empty means `bias`."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout where GPT-2 has it: on embeddings, attention weights and both branches of each block.
    """
    dropout_embedding: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of the embedded tokens; empty means `dropout`."""
    dropout_attention: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of attention weights; empty means `dropout`."""
    dropout_residual: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of both branches of each block; empty means `dropout`."""

    init: str = Field(default="gpt2", json_schema_extra=_names("init"))
    """Scale rule of the initial weights."""
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation that the rule starts from (`xavier` and `fan_in`: of the tables alone)."""
    mup_base: int = Field(default=128, gt=0, le=LARGEST)
    """Width at which µP's factors are 1 (scores are divided by D at any): learning rates found
    there hold at all.
    """

    @field_validator(*VARIANTS)
    @classmethod
    def _known_variant(cls, value: str, info: Any) -> str:
        if value not in VARIANTS[info.field_name]:
            raise ValueError(unknown(info.field_name, value))
        return value

    @field_validator("embedding_scale", mode="before")
    @classmethod
    def _scale(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "sqrt_d" and not (number and value > 0):
            raise ValueError(f"a number above 0 or sqrt_d, not {value!r}")
        return value

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        from andrea.model.checks import faults

        if found := list(faults(self)):
            raise ValueError("; ".join(found))
        return self

    @property
    def mlp_dim(self) -> int:
        """Hidden width of the MLP, at least 1."""
        if self.mlp_width is not None:
            return self.mlp_width
        wide = max(1, round(self.d_model * self.mlp_ratio))
        return -(-wide // self.mlp_multiple) * self.mlp_multiple

    @property
    def d_head(self) -> int:
        """Width of an attention head, D."""
        return self.head_dim or self.d_model // self.n_head

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, K."""
        return self.n_kv_head or self.n_head

    @property
    def rope_dim(self) -> int:
        """Dimensions of a head that RoPE rotates."""
        return int(self.d_head * self.rope_fraction)

    @property
    def token_scale(self) -> float:
        """Factor of the token embedding."""
        return (
            math.sqrt(self.d_model)
            if self.embedding_scale == "sqrt_d"
            else float(self.embedding_scale)
        )

    @property
    def biases(self) -> Biases:
        """Which parts carry biases, nothing left empty."""
        own = (self.attn_bias, self.proj_bias, self.mlp_bias, self.norm_bias)
        return Biases(*(self.bias if bias is None else bias for bias in own))

    @property
    def dropouts(self) -> Dropouts:
        """Dropout by place, nothing left empty."""
        own = (self.dropout_embedding, self.dropout_attention, self.dropout_residual)
        return Dropouts(*(self.dropout if share is None else share for share in own))

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm stands before the head, resolved."""
        if self.final_norm is not None:
            return self.final_norm
        placement, norm = variant("norm_placement", self.norm_placement), variant("norm", self.norm)
        return bool(getattr(placement, "final_norm", True) and getattr(norm, "normalizes", True))

    def at_layer(self, index: int) -> Self:
        """The configuration of block `index` (from 0): without a window where the block attends to
        everything.
        """
        if self.full_every is None:
            return self
        full = (index + 1) % self.full_every == 0
        return self.model_copy(update={"full_every": None} | ({"window": None} if full else {}))


PRESETS: Mapping[str, Mapping[str, Any]] = {
    # GPT-2's 0.02 is 0.55/√d at d 768; the same share at d 48. With 0.02 there post-norm learns
    # nothing (docs/log.md).
    "tiny": {"context": 64, "d_model": 48, "n_layer": 6, "n_head": 4, "init_std": 0.08},
    "andrea-12m": {"context": 1024, "d_model": 384, "n_layer": 6, "n_head": 12, "vocab_size": 4353},
    "andrea-120m": {
        "context": 1024,
        "d_model": 768,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 8449,
    },
    "andrea-480m": {
        "context": 1024,
        "d_model": 1536,
        "n_layer": 16,
        "n_head": 24,
        "vocab_size": 8449,
    },
    "gpt2": {"context": 1024, "d_model": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
    "gpt2-medium": {
        "context": 1024,
        "d_model": 1024,
        "n_layer": 24,
        "n_head": 16,
        "vocab_size": 50257,
    },
    "gpt2-large": {
        "context": 1024,
        "d_model": 1280,
        "n_layer": 36,
        "n_head": 20,
        "vocab_size": 50257,
    },
    "gpt2-xl": {"context": 1024, "d_model": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257},
}
"""Named settings of `model`; everything not named is the field's default."""
