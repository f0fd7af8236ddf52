"""The base of the architectures of Hugging Face transformers: settings and tensors under their
names, and under andrea's. Torch-free.

An architecture is a class of tables: its name of a setting (`keys`), the settings that it has no
choice about (`fixed`), and which of andrea's tensors its own consist of (`outside`, `block`).
Whether it can express a model is no table: the configuration is written under its names and read
back, and a setting that then differs has no place there.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.inits import output_scale, score_scale
from andrea.model.registry import VARIANTS, variant
from andrea.model.settings import ModelSettings
from andrea.model.variants import is_users_own

T = TypeVar("T")
HfSettings = Mapping[str, Any]
"""Settings under the names of transformers, as in a config.json."""
Settings = dict[str, Any]
"""Settings under andrea's names."""

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
RESOLVED = {"mlp_ratio", "mlp_multiple", "bias", "dropout", "rope_fraction"}
"""Settings that `resolve_settings` replaces by what follows from them."""


class Architecture:
    """One model type. Never instantiated."""

    model_type: ClassVar[str]
    """As in config.json."""
    class_name: ClassVar[str]
    """Class of transformers with the head."""
    prefix: ClassVar[str] = "model."
    """Stands before the names of all tensors but the head's."""
    outside: ClassVar[dict[str, str]]
    """Modules outside the blocks: their names, andrea's."""
    layers: ClassVar[str] = "layers"
    """Their name of the blocks."""
    block: ClassVar[dict[str, tuple[str, ...]]]
    """Modules of a block: their names, and the parts of andrea's that they consist of, from top to
    bottom.
    """
    by_head: ClassVar[bool] = False
    """Rows of a fused `qkv`: those of the first head's query, key and value come first, and so on.
    """
    conv1d: ClassVar[bool] = False
    """Matrices of the blocks are stored [in, out]."""
    paired_rope: ClassVar[bool] = False
    """RoPE turns dimensions 2i and 2i + 1 together, and not i and i + R/2."""

    keys: ClassVar[dict[str, str]]
    """Settings that are one number or switch on both sides: their names, andrea's."""
    defaults: ClassVar[dict[str, Any]]
    """Values of their settings that a config.json may leave out."""
    fixed: ClassVar[dict[str, Any]]
    """Settings of andrea's that it has no choice about, unless they are at their default."""
    required: ClassVar[dict[str, Any]] = {}
    """Settings of theirs that andrea has no place for, at the value without effect."""
    following: ClassVar[dict[str, str]] = {}
    """Settings of andrea's that have no name of their own there: they equal another of andrea's."""
    partial_rope: ClassVar[float | None] = None
    """The share of a head that RoPE turns where a config.json does not say; empty where it always
    turns the whole head.
    """
    activation_key: ClassVar[str] = "hidden_act"
    activations: ClassVar[dict[str, str]] = GATED
    """Nonlinearities: andrea's names, theirs."""
    whole_heads: ClassVar[bool] = True
    """It insists that n_head divides d_model even where `head_dim` gives the width of a head."""

    @classmethod
    def write(cls, cfg: ModelSettings) -> dict[str, Any]:
        """Return its settings for a model; nonsense where it has no place for something
        (`misplaced_settings` finds that).
        """
        settings = resolve_settings(cfg)
        hf = {hf_name: settings[name] for hf_name, name in cls.keys.items()}
        if cls.activation_key:
            any_activation = next(iter(cls.activations.values()))
            hf[cls.activation_key] = cls.activations.get(cfg.activation, any_activation)
        return hf

    @classmethod
    def read(cls, hf: HfSettings) -> Settings:
        """Return andrea's settings for its own (complete: with the defaults).

        Raises:
            UserError: a setting has no place here.
        """
        settings = {name: hf[hf_name] for hf_name, name in cls.keys.items()}
        if cls.activation_key:
            settings["activation"] = cls._read_activation(hf[cls.activation_key])
        if not settings.get("mlp_width"):  # absent or empty there; in andrea that means a ratio
            settings["mlp_width"] = 4 * settings["d_model"]
        for name, source in cls.following.items():
            settings[name] = settings[source]
        return settings

    @classmethod
    def _read_activation(cls, hf_name: Any) -> str:
        for name, candidate in cls.activations.items():
            if candidate in (hf_name, ALIASES.get(hf_name)):
                return name
        message = f"{cls.activation_key} {hf_name!r}: andrea has no such MLP for {cls.model_type}"
        raise UserError(message)

    @classmethod
    def layout(cls, cfg: ModelSettings) -> dict[str, tuple[str, ...]]:
        """Return every module of theirs by its full name, with the parts of andrea's that it
        consists of.
        """
        layout: dict[str, tuple[str, ...]] = {}
        for hf_name, name in cls.outside.items():
            layout[f"{cls.prefix}{hf_name}"] = (name,)
        for i in range(cfg.n_layer):
            for hf_name, parts in cls.block.items():
                full_names = tuple(f"blocks.{i}.{part}" for part in parts)
                layout[f"{cls.prefix}{cls.layers}.{i}.{hf_name}"] = full_names
        layout["lm_head"] = ("head",)
        return layout


def names_and_defaults(
    table: Mapping[str, tuple[str, Any]],
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return `keys` and `defaults` from a table of their settings: andrea's name, their default."""
    keys = {hf_name: name for hf_name, (name, _) in table.items()}
    return keys, {hf_name: default for hf_name, (_, default) in table.items()}


def without_keys(table: Mapping[str, T], *names: str) -> dict[str, T]:
    """Return a table of an architecture without some of its rows."""
    return {name: value for name, value in table.items() if name not in names}


def resolve_settings(cfg: ModelSettings) -> Settings:
    """Return the settings with nothing left empty, the same for models that compute the same."""
    settings = cfg.model_dump(exclude=RESOLVED)
    settings |= cfg.biases.by_setting() | cfg.dropouts.by_setting()
    norm_reads = getattr(variant("norm", cfg.norm), "reads", ("norm_bias",))
    if "norm_bias" not in norm_reads or not cfg.norm_affine:
        settings["norm_bias"] = False
    scale = score_scale(cfg)
    return settings | {
        "mlp_width": cfg.mlp_dim,
        "n_kv_head": cfg.kv_heads,
        "head_dim": cfg.d_head,
        "final_norm": cfg.has_final_norm,
        "embedding_scale": cfg.token_scale,
        "attn_scale": max(1, cfg.d_head) ** -0.5 if scale is None else scale,
        "rope_dim": cfg.rope_dim,
        "output_scale": output_scale(cfg),
    }


def shorten_settings(settings: Settings) -> Settings:
    """Return the settings as a person would write them: without what repeats a default or follows
    from others.
    """
    defaults = {name: field.default for name, field in ModelConfig.model_fields.items()}
    short = {name: value for name, value in settings.items() if value != defaults[name]}
    d_model, n_head = settings["d_model"], settings["n_head"]
    if short.get("n_kv_head") == short.get("n_head", defaults["n_head"]):
        short.pop("n_kv_head")
    if short.get("head_dim", 0) * n_head == d_model:
        short.pop("head_dim")
    head_dim = short.get("head_dim") or d_model // n_head
    if math.isclose(short.get("attn_scale") or 0, head_dim**-0.5, rel_tol=1e-9):
        short.pop("attn_scale")
    if short.get("mlp_width") == 4 * d_model:
        short.pop("mlp_width")
    if short.get("window", 0) >= settings["context"]:  # it hides nothing
        short.pop("window")
        short.pop("full_every", None)
    short["bias"] = bool(settings.get("attn_bias", True))
    for part in ("attn_bias", "proj_bias", "mlp_bias", "norm_bias"):
        if short.get(part) == short["bias"]:
            short.pop(part)
    return short


def misplaced_settings(architecture: type[Architecture], cfg: ModelSettings) -> list[str]:
    """Return the settings of a model that an architecture has no place for, with their values; none
    if it computes the same.
    """
    users_own = [axis for axis in VARIANTS if is_users_own(variant(axis, getattr(cfg, axis)))]
    if users_own:
        return [f"{axis} {getattr(cfg, axis)} is your own" for axis in users_own]
    try:
        settings, written = resolve_settings(cfg), resolve_settings(read_back(architecture, cfg))
    except UserError as error:
        return [str(error)]
    faults = []
    for name, value in settings.items():
        if name not in TRAINING and not is_same_value(value, written[name]):
            faults.append(f"{name} {format_value(value)} (there {format_value(written[name])})")
    if architecture.whole_heads and cfg.d_model % cfg.n_head:
        fault = f"n_head {cfg.n_head} does not divide d_model {cfg.d_model}, which is refused there"
        faults.append(fault)
    return faults


def read_back(architecture: type[Architecture], cfg: ModelSettings) -> ModelSettings:
    """Return a model, written under an architecture's names and read back; not validated, for it
    may make no sense.

    Raises:
        UserError: it cannot even be read.
    """
    settings = architecture.read({**architecture.defaults, **architecture.write(cfg)})
    return ModelSettings.model_construct(**{**architecture.fixed, **settings})


def is_same_value(a: Any, b: Any) -> bool:
    """Return whether two settings mean the same; a scale may differ by rounding."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9)
    return bool(a == b)


def format_value(value: Any) -> str:
    """Return a setting as text, as on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def write_window(cfg: ModelSettings) -> dict[str, Any]:
    """Return the window, and the kinds of the blocks, which say which of them have it."""
    kinds = []
    for i in range(cfg.n_layer):
        is_full = cfg.at_layer(i).window is None
        kinds.append("full_attention" if is_full else "sliding_attention")
    return {"sliding_window": cfg.window or cfg.context, "layer_types": kinds}


def read_window(hf: HfSettings) -> Settings:
    """Return `window` and `full_every` from the kinds of the blocks.

    Raises:
        UserError: blocks that attend to everything do not come at every n-th place.
    """
    kinds = list(hf["layer_types"])
    window = hf["sliding_window"]
    if "sliding_attention" not in kinds or window is None:
        return {}
    full = [kind == "full_attention" for kind in kinds]
    every = full.index(True) + 1 if True in full else None
    expected = [every is not None and (i + 1) % every == 0 for i in range(len(kinds))]
    unknown_kinds = {*kinds} - {"full_attention", "sliding_attention"}
    if full != expected or every == 1 or unknown_kinds:
        raise UserError(
            "layer_types: andrea can let every n-th block attend to everything, not this pattern"
        )
    return {"window": window, "full_every": every}


def write_rope(cfg: ModelSettings, *, partial: float | None = None) -> dict[str, Any]:
    """Return RoPE's parameters, with `partial` also the share of a head that turns."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": cfg.rope_base}
    if partial is not None:
        rope["partial_rotary_factor"] = cfg.rope_fraction
    return {"rope_parameters": rope}


def read_rope(hf: HfSettings, *, partial: float | None = None) -> Settings:
    """Return RoPE's base, and with `partial` (its default) the share of a head that turns; older
    names of both are read too.

    Raises:
        UserError: the angles are scaled.
    """
    rope = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"rope_type {kind!r}: andrea's RoPE does not scale its angles")
    older_base: Any = hf.get("rope_theta", hf.get("rotary_emb_base", 10_000.0))
    settings: Settings = {
        "positions": "rope",
        "rope_base": float(rope.get("rope_theta", older_base)),
    }
    if partial is not None:
        older_share: Any = hf.get("partial_rotary_factor", hf.get("rotary_pct", partial))
        settings["rope_fraction"] = float(rope.get("partial_rotary_factor", older_share))
    return settings
