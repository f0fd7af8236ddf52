"""Settings of a model and what follows from them (widths of heads, biases by part, …). Torch-free.

The classes of variants read a `ModelSettings`: they also say which settings make no sense, so that
they cannot take its checked form, `andrea.model.config.ModelConfig`, for granted.
"""

import math
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, field_validator

from andrea.model.registry import VARIANTS, is_registered, unknown_variant, variant
from andrea.schema import Frozen

LARGEST = 10**12
"""Of any size. What the machine cannot hold is refused when a run is asked for; this keeps
arithmetic finite.
"""


def parse_ratio(value: Any) -> Any:
    """Return the number that `8/3` means in YAML or on the command line; other values unchanged."""
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value.replace(" ", "")))
        except (ValueError, ZeroDivisionError) as error:
            raise ValueError(f"not a ratio: {value!r}; write 4, 2.5 or 8/3") from error
    return value


def _examples(axis: str) -> dict[str, Any]:
    """Shipped variants for the JSON schema: examples only, since a user may register more."""
    return {"examples": [*VARIANTS[axis]]}


class Biases(NamedTuple):
    """Presence of biases, by part."""

    attn: bool
    proj: bool
    mlp: bool
    norm: bool

    def by_setting(self) -> dict[str, bool]:
        """Return them by the names of their settings."""
        return {f"{part}_bias": has_bias for part, has_bias in self._asdict().items()}


class Dropouts(NamedTuple):
    """Share that is dropped, by place."""

    embedding: float
    attention: float
    residual: float

    def by_setting(self) -> dict[str, float]:
        """Return them by the names of their settings."""
        return {f"dropout_{place}": share for place, share in self._asdict().items()}


class ModelSettings(Frozen):
    """Settings of a decoder-only transformer, each valid by itself."""

    vocab_size: int | None = Field(default=None, gt=0, le=LARGEST)
    """Number of tokens that the embedding knows; empty means the tokenizer's."""
    context: int = Field(default=64, gt=0, le=LARGEST)
    """Positions the model sees at once, T."""
    d_model: int = Field(default=48, gt=0, le=LARGEST)
    """Width of the residual stream, d."""
    n_layer: int = Field(default=6, gt=0, le=LARGEST)
    """Number of blocks, L."""

    norm_placement: str = Field(default="pre", json_schema_extra=_examples("norm_placement"))
    """Where the normalization stands: `pre` (GPT-2), `post` (the 2017 transformer), `sandwich`,
    `res_post`, …
    """
    norm: str = Field(default="layernorm", json_schema_extra=_examples("norm"))
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

    activation: str = Field(default="gelu_tanh", json_schema_extra=_examples("activation"))
    """Nonlinearity of the MLP; those whose names end in `glu`, and `bilinear`, are gated and have
    three matrices.
    """
    mlp_ratio: Annotated[float, BeforeValidator(parse_ratio)] = Field(default=4.0, gt=0, le=LARGEST)
    """Hidden width of the MLP over d_model, rounded to the nearest whole number; `8/3` may be
    written so.
    """
    mlp_width: int | None = Field(default=None, gt=0, le=LARGEST)
    """Hidden width of the MLP itself, instead of `mlp_ratio`."""
    mlp_multiple: int = Field(default=1, gt=0, le=LARGEST)
    """The hidden width that follows from `mlp_ratio` is rounded up to a multiple of this."""

    residual: str = Field(default="on", json_schema_extra=_examples("residual"))
    """How a branch joins the stream: `on` x + f, `off` f alone, `rezero`, `layerscale`, `scaled` x
    + f/√(2L).
    """
    layerscale_init: float = Field(default=0.1, gt=0)
    """Initial gain of LayerScale."""

    positions: str = Field(default="learned", json_schema_extra=_examples("positions"))
    """How a token knows where it stands."""
    rope_base: float = Field(default=10_000.0, gt=1)
    """θ of RoPE: the slowest rotation takes about 2πθ positions."""
    rope_fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of a head's dimensions that RoPE rotates (GPT-NeoX: 0.25)."""

    attention: str = Field(default="softmax", json_schema_extra=_examples("attention"))
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

    init: str = Field(default="gpt2", json_schema_extra=_examples("init"))
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
        if not is_registered(info.field_name, value):
            raise ValueError(unknown_variant(info.field_name, value))
        return value

    @field_validator("embedding_scale", mode="before")
    @classmethod
    def _scale(cls, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "sqrt_d" and not (is_number and value > 0):
            raise ValueError(f"a number above 0 or sqrt_d, not {value!r}")
        return value

    @property
    def mlp_dim(self) -> int:
        """Hidden width of the MLP, at least 1."""
        if self.mlp_width is not None:
            return self.mlp_width
        width = max(1, round(self.d_model * self.mlp_ratio))
        n_multiples = -(-width // self.mlp_multiple)  # rounded up
        return n_multiples * self.mlp_multiple

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
        if self.embedding_scale == "sqrt_d":
            return math.sqrt(self.d_model)
        return float(self.embedding_scale)

    @property
    def biases(self) -> Biases:
        """Presence of biases by part, nothing left empty."""
        by_part = (self.attn_bias, self.proj_bias, self.mlp_bias, self.norm_bias)
        return Biases(*(self.bias if bias is None else bias for bias in by_part))

    @property
    def dropouts(self) -> Dropouts:
        """Dropout by place, nothing left empty."""
        by_place = (self.dropout_embedding, self.dropout_attention, self.dropout_residual)
        return Dropouts(*(self.dropout if share is None else share for share in by_place))

    @property
    def has_final_norm(self) -> bool:
        """Presence of a norm before the head, resolved."""
        if self.final_norm is not None:
            return self.final_norm
        placement, norm = variant("norm_placement", self.norm_placement), variant("norm", self.norm)
        # A user's own classes may have neither attribute.
        return bool(getattr(placement, "final_norm", True) and getattr(norm, "normalizes", True))

    def at_layer(self, index: int) -> Self:
        """Return the settings of block `index` (from 0): without a window where the block attends
        to everything.
        """
        if self.full_every is None:
            return self
        changes: dict[str, None] = {"full_every": None}
        if (index + 1) % self.full_every == 0:
            changes["window"] = None
        return self.model_copy(update=changes)
