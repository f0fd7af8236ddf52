"""What an architecture of Hugging Face transformers is in andrea's words: its settings, and where
its tensors are.

Torch-free. An architecture says in tables what it calls a setting (`keys`), what it has no choice
about (`fixed`), and which of andrea's tensors its own consist of (`outside`, `block`). Whether it
can express a model is no table: the configuration is written in its words and read back, and what
then differs has no place there.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.inits import output_scale, score_scale
from andrea.model.registry import VARIANTS, variant
from andrea.model.variants import is_users_own

PLAIN = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "relu2": "relu2", "silu": "silu"}
GATED = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_pytorch_tanh",
    "reglu": "relu",
    "bilinear": "linear",
    "glu": "sigmoid",
}
ALIASES = {"gelu_pytorch_tanh": "gelu_new", "swish": "silu", "gelu_python": "gelu"}
"""Other names of the same function: of the first for plain MLPs, whatever the gate."""
DROPOUTS = ("dropout_embedding", "dropout_attention", "dropout_residual")
TRAINING = {"init", "init_std", "mup_base", "z_loss", "dyt_alpha", "layerscale_init", *DROPOUTS}
"""Settings that change no output of a trained model."""
FOLLOWED = {"mlp_ratio", "mlp_multiple", "bias", "dropout", "rope_fraction"}
"""Settings that `resolved` replaces by what follows from them."""


class Architecture:
    """One model type. Never instantiated."""

    model_type: ClassVar[str]
    """As in config.json."""
    class_name: ClassVar[str]
    """Class of transformers with the head."""
    prefix: ClassVar[str] = "model."
    """Stands before the names of all tensors but the head's."""
    outside: ClassVar[dict[str, str]]
    """Modules outside the blocks: theirs, ours."""
    layers: ClassVar[str] = "layers"
    """What they call the blocks."""
    block: ClassVar[dict[str, tuple[str, ...]]]
    """Modules of a block: theirs, and the parts of ours that it consists of, from top to bottom."""
    by_head: ClassVar[bool] = False
    """Rows of a fused `qkv`: those of the first head's query, key and value come first, and so on.
    """
    conv1d: ClassVar[bool] = False
    """Matrices of the blocks are stored [in, out]."""
    paired_rope: ClassVar[bool] = False
    """RoPE turns dimensions 2i and 2i + 1 together, and not i and i + R/2."""

    keys: ClassVar[dict[str, str]]
    """Settings that are one number or switch on both sides: theirs, ours."""
    defaults: ClassVar[dict[str, Any]]
    """What a config.json that leaves one of their settings out means."""
    fixed: ClassVar[dict[str, Any]]
    """Our settings that it has no choice about, unless they are at their default."""
    required: ClassVar[dict[str, Any]] = {}
    """Their settings that andrea has no place for, at the value that means nothing."""
    activation_key: ClassVar[str] = "hidden_act"
    activations: ClassVar[dict[str, str]] = GATED
    """Nonlinearities: ours, theirs."""
    whole_heads: ClassVar[bool] = True
    """Whether it insists that n_head divides d_model even where `head_dim` says how wide a head is.
    """

    @classmethod
    def write(cls, cfg: ModelConfig) -> dict[str, Any]:
        """Its settings for a model; nonsense where it has no place for something (`misplaced` finds
        that).
        """
        ours = resolved(cfg)
        known = {theirs: ours[name] for theirs, name in cls.keys.items()}
        named = cls.activations.get(cfg.activation, next(iter(cls.activations.values())))
        return known | ({cls.activation_key: named} if cls.activation_key else {})

    @classmethod
    def read(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Our settings for its own (complete: with the defaults).

        Raises:
            UserError: a setting has no place here.
        """
        found = {ours: theirs[name] for name, ours in cls.keys.items()}
        if not cls.activation_key:
            return found
        named = theirs[cls.activation_key]
        for ours, name in cls.activations.items():
            if name == named or ALIASES.get(named) == name:
                return found | {"activation": ours}
        raise UserError(
            f"{cls.activation_key} {named!r}: andrea has no such MLP for {cls.model_type}"
        )

    @classmethod
    def layout(cls, cfg: ModelConfig) -> dict[str, tuple[str, ...]]:
        """Every module of theirs by its full name, and the parts of ours that it consists of."""
        found: dict[str, tuple[str, ...]] = {
            f"{cls.prefix}{name}": (ours,) for name, ours in cls.outside.items()
        }
        for i in range(cfg.n_layer):
            for theirs, parts in cls.block.items():
                found[f"{cls.prefix}{cls.layers}.{i}.{theirs}"] = tuple(
                    f"blocks.{i}.{part}" for part in parts
                )
        return found | {"lm_head": ("head",)}


def resolved(cfg: ModelConfig) -> dict[str, Any]:
    """The settings with nothing left empty, such that models that compute the same have the same."""
    settings = cfg.model_dump(exclude=FOLLOWED)
    settings |= {f"{part}_bias": there for part, there in cfg.biases._asdict().items()}
    settings |= {f"dropout_{place}": share for place, share in cfg.dropouts._asdict().items()}
    if (
        "norm_bias" not in getattr(variant("norm", cfg.norm), "reads", ("norm_bias",))
        or not cfg.norm_affine
    ):
        settings["norm_bias"] = False
    score = score_scale(cfg)
    settings |= {
        "mlp_width": cfg.mlp_dim,
        "n_kv_head": cfg.kv_heads,
        "head_dim": cfg.d_head,
        "final_norm": cfg.has_final_norm,
        "embedding_scale": cfg.token_scale,
        "attn_scale": max(1, cfg.d_head) ** -0.5 if score is None else score,
        "rope_dim": cfg.rope_dim,
        "output_scale": output_scale(cfg),
    }
    return settings


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a person would write them: without what follows from others or repeats a default."""
    kept = {
        name: value
        for name, value in settings.items()
        if value != ModelConfig.model_fields[name].default
    }
    if kept.get("n_kv_head") == kept.get("n_head", 4):
        kept.pop("n_kv_head")
    if kept.get("head_dim", 0) * settings["n_head"] == settings["d_model"]:
        kept.pop("head_dim")
    head = kept.get("head_dim") or settings["d_model"] // settings["n_head"]
    if math.isclose(kept.get("attn_scale") or 0, head**-0.5, rel_tol=1e-9):
        kept.pop("attn_scale")
    if kept.get("mlp_width") == 4 * settings["d_model"]:
        kept.pop("mlp_width")
    if kept.get("window", 0) >= settings["context"]:  # it hides nothing
        kept.pop("window"), kept.pop("full_every", None)
    kept["bias"] = bool(settings.get("attn_bias", True))
    for part in ("attn_bias", "proj_bias", "mlp_bias", "norm_bias"):
        if kept.get(part) == kept["bias"]:
            kept.pop(part)
    return kept


def misplaced(architecture: type[Architecture], cfg: ModelConfig) -> list[str]:
    """Every setting of a model that an architecture has no place for; none: it computes the same."""
    own = [axis for axis in VARIANTS if is_users_own(variant(axis, getattr(cfg, axis)))]
    if own:
        return [f"{axis} {getattr(cfg, axis)} is your own" for axis in own]
    try:
        ours, theirs = resolved(cfg), resolved(read_back(architecture, cfg))
    except UserError as error:
        return [str(error)]
    found = [
        f"{name} {shown(ours[name])} (there {shown(theirs[name])})"
        for name in ours
        if name not in TRAINING and not same(ours[name], theirs[name])
    ]
    if architecture.whole_heads and cfg.d_model % cfg.n_head:
        found.append(
            f"n_head {cfg.n_head} does not divide d_model {cfg.d_model}, which is refused there"
        )
    return found


def read_back(architecture: type[Architecture], cfg: ModelConfig) -> ModelConfig:
    """A model, written in an architecture's words and read back; not validated, for it may make no
    sense.

    Raises:
        UserError: it cannot even be read.
    """
    settings = architecture.read({**architecture.defaults, **architecture.write(cfg)})
    return ModelConfig.model_construct(**{**architecture.fixed, **settings})


def same(one: Any, other: Any) -> bool:
    """Whether two settings mean the same; a scale may differ by rounding."""
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return math.isclose(one, other, rel_tol=1e-9) if numbers else bool(one == other)


def shown(value: Any) -> str:
    """A setting as people write it."""
    if value is None:
        return "none"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def write_window(cfg: ModelConfig) -> dict[str, Any]:
    """Which blocks see a window, as a list of their kinds."""
    windows = [cfg.at_layer(i).window for i in range(cfg.n_layer)]
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {"sliding_window": cfg.window or cfg.context, "layer_types": kinds}


def read_window(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """`window` and `full_every` from the kinds of the blocks.

    Raises:
        UserError: blocks that attend to everything do not come at every n-th place.
    """
    kinds = list(theirs["layer_types"])
    window = theirs["sliding_window"]
    if "sliding_attention" not in kinds or window is None:
        return {}
    full = [kind == "full_attention" for kind in kinds]
    every = full.index(True) + 1 if True in full else None
    expected = [every is not None and (i + 1) % every == 0 for i in range(len(kinds))]
    if full != expected or every == 1 or {*kinds} - {"full_attention", "sliding_attention"}:
        raise UserError(
            "layer_types: andrea can let every n-th block attend to everything, not this pattern"
        )
    return {"window": window, "full_every": every}


def write_rope(cfg: ModelConfig, *, partial: bool = False) -> dict[str, Any]:
    """RoPE's parameters."""
    rope = {"rope_type": "default", "rope_theta": cfg.rope_base}
    return {
        "rope_parameters": rope | ({"partial_rotary_factor": cfg.rope_fraction} if partial else {})
    }


def read_rope(theirs: Mapping[str, Any], *, partial: float | None = None) -> dict[str, Any]:
    """RoPE's base, and with `partial` (its default) the share of a head that turns; older names are
    known too.

    Raises:
        UserError: the angles are scaled.
    """
    given = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind != "default":
        raise UserError(f"rope_type {kind!r}: andrea's RoPE does not scale its angles")
    base = given.get(
        "rope_theta", theirs.get("rope_theta", theirs.get("rotary_emb_base", 10_000.0))
    )
    found = {"positions": "rope", "rope_base": float(base)}
    if partial is not None:
        older = theirs.get("partial_rotary_factor", theirs.get("rotary_pct", partial))
        found["rope_fraction"] = float(given.get("partial_rotary_factor", older))
    return found
