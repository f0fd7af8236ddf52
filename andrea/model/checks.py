"""Checks that the settings of a model fit together: none contradicts another, and each is read.
Torch-free.

A setting that is accepted is used: one that the chosen variants do not read is refused unless it
has its default. A variant says itself what it reads (`Variant.reads`) and what it cannot go
together with (`Variant.refuse`).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from andrea.errors import reason
from andrea.model.registry import VARIANTS, variant
from andrea.model.settings import ModelSettings
from andrea.model.variants import is_users_own

GIVE_MLP_WIDTH = ("mlp_ratio", "mlp_multiple")
"""Settings that `mlp_width` leaves without a meaning."""

SMALLEST, GREATEST = 1e-30, 1e30
"""Between these lies every number that is not 0: products of a few such still fit into float32."""

Parts = dict[str, Any]
"""The class of the chosen variant by axis."""


def find_faults(cfg: ModelSettings) -> Iterator[str]:
    """Yield every reason why the settings make no sense, with their names and how to mend them."""
    yield from _faults_of_numbers(cfg)
    yield from _faults_of_heads(cfg)
    yield from _faults_of_windows(cfg)
    yield from _faults_of_short_context(cfg)
    yield from _overridden_settings(cfg)
    parts = _chosen_parts(cfg)
    yield from _refusals(cfg, parts)
    # A user's own part may read any setting.
    if not any(is_users_own(part) for part in parts.values()):
        yield from _faults_of_shared_settings(cfg, parts)
        yield from _unread_settings(cfg, parts)


def _chosen_parts(cfg: ModelSettings) -> Parts:
    return {axis: variant(axis, getattr(cfg, axis)) for axis in VARIANTS}


def _default(cfg: ModelSettings, name: str) -> Any:
    return type(cfg).model_fields[name].default


def _is_set(cfg: ModelSettings, name: str) -> bool:
    """True where a setting differs from its default."""
    return bool(getattr(cfg, name) != _default(cfg, name))


def _faults_of_numbers(cfg: ModelSettings) -> Iterator[str]:
    for name in type(cfg).model_fields:
        number = getattr(cfg, name)
        if isinstance(number, float) and number and not SMALLEST <= abs(number) <= GREATEST:
            yield (
                f"{name} {number:g} is beyond what float32 computes with: choose one between "
                f"{SMALLEST:g} and {GREATEST:g}"
            )


def _faults_of_heads(cfg: ModelSettings) -> Iterator[str]:
    if cfg.head_dim is None and cfg.d_model % cfg.n_head:
        yield (
            f"n_head {cfg.n_head} does not divide d_model {cfg.d_model}: "
            "choose a width that is a multiple of the heads, or set head_dim"
        )
    if cfg.n_head % cfg.kv_heads:
        yield (
            f"n_kv_head {cfg.n_kv_head} does not divide n_head {cfg.n_head}: "
            "choose a divisor, or leave it out"
        )
    if cfg.qk_norm == "head" and cfg.d_head == 1:
        yield (
            "qk_norm head would leave a head of width 1 nothing but its sign: "
            "choose wider heads, or leave it out"
        )


def _faults_of_windows(cfg: ModelSettings) -> Iterator[str]:
    if cfg.window is None:
        if cfg.full_every is not None:
            yield "full_every is read with a window only: set window, or leave it out"
        return
    if cfg.window >= cfg.context:
        yield (
            f"window {cfg.window} hides nothing in a context of {cfg.context}: "
            "make it smaller, or leave it out"
        )
    elif cfg.window == 1:
        yield (
            "window 1 shows a token itself alone, so that nothing would attend: "
            "make it larger, or leave it out"
        )
    if cfg.full_every is not None and cfg.full_every > cfg.n_layer:
        yield (
            f"full_every {cfg.full_every} of {cfg.n_layer} blocks lets none attend to everything: "
            "make it smaller, or leave it out"
        )


def _faults_of_short_context(cfg: ModelSettings) -> Iterator[str]:
    """With one position there is one score, and its softmax is 1."""
    if cfg.context > 1:
        return
    for name in ("qk_norm", "attn_scale", "attn_softcap", "dropout_attention"):
        if _is_set(cfg, name):
            yield f"{name} does nothing in a context of 1: leave it out, or make context longer"
    if getattr(variant("positions", cfg.positions), "relative", False):
        yield (
            f"positions {cfg.positions} tells nothing in a context of 1: "
            "choose none, or make context longer"
        )


def _overridden_settings(cfg: ModelSettings) -> Iterator[str]:
    for name in GIVE_MLP_WIDTH:
        if cfg.mlp_width is not None and _is_set(cfg, name):
            value = f"{getattr(cfg, name):g}"
            yield f"mlp_width {cfg.mlp_width} leaves {name} {value} without effect: give one"


def _refusals(cfg: ModelSettings, parts: Parts) -> Iterator[str]:
    for axis, part in parts.items():
        refusal = _ask_to_refuse(part, cfg) if hasattr(part, "refuse") else None
        if refusal:
            yield f"{axis} {getattr(cfg, axis)}: {refusal}"


def _ask_to_refuse(part: Any, cfg: ModelSettings) -> str | None:
    """Objections of a part to a model. A user's own may fail, or return anything."""
    try:
        refusal = part.refuse(cfg)
    except Exception as error:
        return f"its `refuse` fails ({reason(error)})"
    if refusal is None or isinstance(refusal, str):
        return refusal
    return f"its `refuse` gives {refusal!r}, neither a reason nor None"


def _faults_of_shared_settings(cfg: ModelSettings, parts: Parts) -> Iterator[str]:
    """A setting for all parts that every part has its own of."""
    biases = ["attn_bias", "proj_bias", "mlp_bias"]
    if _has_norm_bias(cfg, parts):
        biases.append("norm_bias")
    dropouts = ["dropout_embedding", "dropout_attention", "dropout_residual"]
    for shared, names in (("bias", biases), ("dropout", dropouts)):
        if _is_set(cfg, shared) and all(getattr(cfg, name) is not None for name in names):
            yield (
                f"{shared} has no part left: {', '.join(names)} are set; "
                f"leave {shared} or one of them out"
            )


def _has_norm(cfg: ModelSettings, parts: Parts) -> bool:
    """True where a norm stands anywhere."""
    in_blocks = bool(parts["norm_placement"].sites)
    return in_blocks or cfg.has_final_norm or cfg.embedding_norm or cfg.qk_norm != "none"


def _has_norm_bias(cfg: ModelSettings, parts: Parts) -> bool:
    """True where a norm stands anywhere that can carry a bias."""
    return "norm_bias" in parts["norm"].reads and cfg.norm_affine and _has_norm(cfg, parts)


def _unread_settings(cfg: ModelSettings, parts: Parts) -> Iterator[str]:
    """Settings away from their default that no chosen variant reads."""
    has_norm = _has_norm(cfg, parts)
    read: set[str] = set()
    for axis, part in parts.items():
        if axis != "norm" or has_norm:
            read.update(part.reads)
    for name, (axis, readers) in _readers_of_settings().items():
        if not _is_set(cfg, name) or name in read:
            continue
        chosen = getattr(cfg, axis)
        obstacle = f"{axis} is {chosen}"
        if axis == "norm" and chosen in readers:
            obstacle = "no norm stands anywhere"
        yield f"{name} is read with {axis} {', '.join(readers)} only, and {obstacle}: leave it out"
    if not has_norm and _is_set(cfg, "norm"):
        yield (
            f"norm {cfg.norm}: no norm stands anywhere; choose another norm_placement, "
            "or leave it out"
        )


class Readers(NamedTuple):
    """The shipped variants of one axis that read a setting."""

    axis: str
    names: list[str]


def _readers_of_settings() -> dict[str, Readers]:
    """Readers of every setting that not all variants of an axis read."""
    readers: dict[str, Readers] = {}
    for axis, targets in VARIANTS.items():
        for name, target in targets.items():
            if not target.startswith("andrea."):
                continue
            for setting in variant(axis, name).reads:
                readers.setdefault(setting, Readers(axis, [])).names.append(name)
    return readers


def normal_form(cfg: ModelSettings) -> dict[str, Any]:
    """Return the settings as plain data, such that configurations that compute the same have the
    same form. It is part of a run's identity.

    The MLP's width stands as `mlp_dim` for what it follows from; a part's bias or dropout stands
    only where it differs from the setting for all; what merely repeats the default is empty. Only
    for shipped variants: a user's own part may read what none of them does.
    """
    form = cfg.model_dump(mode="json", exclude={"mlp_ratio", "mlp_width", "mlp_multiple"})
    form |= {
        "mlp_dim": cfg.mlp_dim,
        "embedding_scale": cfg.token_scale,
        "final_norm": cfg.has_final_norm,
    }
    form |= _normal_biases(cfg) | _normal_dropouts(cfg) | _normal_heads(cfg) | _normal_norms(cfg)
    if cfg.rope_fraction != 1:
        form["rope_fraction"] = cfg.rope_dim / cfg.d_head
    return form


def _normal_biases(cfg: ModelSettings) -> dict[str, Any]:
    """`bias` as attention's, and those of the parts that differ from it."""
    biases = cfg.biases
    if not _has_norm_bias(cfg, _chosen_parts(cfg)):
        biases = biases._replace(norm=biases.attn)
    return {"bias": biases.attn, **_without_value(biases.by_setting(), biases.attn)}


def _normal_dropouts(cfg: ModelSettings) -> dict[str, Any]:
    """`dropout` as that of the branches, and those of the places that differ from it."""
    common = cfg.dropouts.residual
    return {"dropout": common, **_without_value(cfg.dropouts.by_setting(), common)}


def _without_value(settings: Mapping[str, Any], common: Any) -> dict[str, Any]:
    """Settings that are empty where they have the common value."""
    return {name: None if value == common else value for name, value in settings.items()}


def _normal_heads(cfg: ModelSettings) -> dict[str, Any]:
    """Attention's sizes and its scale; µP at its base width is the standard parametrization but for
    that scale.
    """
    form: dict[str, Any] = {"n_kv_head": None, "head_dim": None}
    if cfg.kv_heads != cfg.n_head:
        form["n_kv_head"] = cfg.kv_heads
    if cfg.d_head * cfg.n_head != cfg.d_model:
        form["head_dim"] = cfg.d_head
    if cfg.qk_norm == "full" and cfg.n_head == 1:
        form["qk_norm"] = "head"
    scale = cfg.attn_scale
    is_mup = cfg.init == "mup"
    if is_mup and cfg.d_model == cfg.mup_base:
        is_mup = False
        form |= {"init": "gpt2", "mup_base": _default(cfg, "mup_base")}
        scale = scale or 1 / cfg.d_head
    usual_scale = 1 / cfg.d_head if is_mup else 1 / math.sqrt(cfg.d_head)
    form["attn_scale"] = None if scale == usual_scale else scale
    return form


def _normal_norms(cfg: ModelSettings) -> dict[str, Any]:
    """Placements that compute the same by one name."""
    if cfg.norm == "identity" and cfg.norm_placement == "pre":
        return {"norm": _default(cfg, "norm"), "norm_placement": "none"}
    if cfg.norm_placement == "res_post" and cfg.residual == "off" and not cfg.dropouts.residual:
        return {"norm_placement": "post"}  # nothing joins the branch between its norm and its end
    return {}
