"""What makes no sense in a model: settings that contradict each other, and settings that nothing
reads. Torch-free.

A setting that is accepted is used: one that the chosen variants do not read is refused unless it
    has its default. What
a variant reads it says itself (`Variant.reads`), and what it cannot go together with
(`Variant.refuse`).
"""

import math
from collections.abc import Iterator
from typing import Any

from andrea.errors import reason
from andrea.model.registry import VARIANTS, variant
from andrea.model.settings import ModelSettings
from andrea.model.variants import is_users_own

ONE_VALUE: tuple[tuple[str, str], ...] = (("mlp_width", "mlp_ratio"), ("mlp_width", "mlp_multiple"))
"""Pairs of settings of which the first makes the second mean nothing."""

NUMBERS = (1e-30, 1e30)
"""Between these lies every number that is not 0: products of a few such still fit into float32."""


def find_faults(cfg: ModelSettings) -> Iterator[str]:
    """Every reason why a configuration makes no sense, naming the settings and how to mend them."""
    yield from _of_numbers(cfg)
    yield from _of_sizes(cfg)
    yield from _of_context(cfg)
    for first, second in ONE_VALUE:
        if _set(cfg, first) and _set(cfg, second):
            yield f"{first} {getattr(cfg, first)} leaves {second} {getattr(cfg, second):g} without effect: give one"
    chosen = {axis: variant(axis, getattr(cfg, axis)) for axis in VARIANTS}
    for axis, part in chosen.items():
        if hasattr(part, "refuse") and (why := _refusal(part, cfg)):
            yield f"{axis} {getattr(cfg, axis)}: {why}"
    if not any(
        is_users_own(part) for part in chosen.values()
    ):  # a user's own part may read any setting
        yield from _of_wholes(cfg, chosen)
        yield from _unread(cfg, chosen)


def _refusal(part: Any, cfg: ModelSettings) -> str | None:
    """What a part has against a model; a user's own may fail to say it."""
    try:
        why = part.refuse(cfg)
    except Exception as error:
        return f"its `refuse` fails ({reason(error)})"
    return (
        why
        if why is None or isinstance(why, str)
        else f"its `refuse` gives {why!r}, neither a reason nor None"
    )


def _of_numbers(cfg: ModelSettings) -> Iterator[str]:
    low, high = NUMBERS
    for name in type(cfg).model_fields:
        number = getattr(cfg, name)
        if isinstance(number, float) and number and not low <= abs(number) <= high:
            yield f"{name} {number:g} is beyond what float32 computes with: choose one between {low:g} and {high:g}"


def _of_sizes(cfg: ModelSettings) -> Iterator[str]:
    if cfg.head_dim is None and cfg.d_model % cfg.n_head:
        yield (
            f"n_head {cfg.n_head} does not divide d_model {cfg.d_model}: "
            "choose a width that is a multiple of the heads, or set head_dim"
        )
    if cfg.n_head % cfg.kv_heads:
        yield f"n_kv_head {cfg.n_kv_head} does not divide n_head {cfg.n_head}: choose a divisor, or leave it out"
    if cfg.qk_norm == "head" and cfg.d_head == 1:
        yield "qk_norm head would leave a head of width 1 nothing but its sign: choose wider heads, or leave it out"
    if cfg.window is None:
        if cfg.full_every is not None:
            yield "full_every is read with a window only: set window, or leave it out"
        return
    if cfg.window >= cfg.context:
        yield f"window {cfg.window} hides nothing in a context of {cfg.context}: make it smaller, or leave it out"
    elif cfg.window == 1:
        yield "window 1 shows a token itself alone, so that nothing would attend: make it larger, or leave it out"
    if cfg.full_every is not None and cfg.full_every > cfg.n_layer:
        yield (
            f"full_every {cfg.full_every} of {cfg.n_layer} blocks lets none attend to everything: "
            "make it smaller, or leave it out"
        )


def _of_context(cfg: ModelSettings) -> Iterator[str]:
    """With one position there is one score, and its softmax is 1."""
    if cfg.context > 1:
        return
    for name in ("qk_norm", "attn_scale", "attn_softcap", "dropout_attention"):
        if _set(cfg, name):
            yield f"{name} does nothing in a context of 1: leave it out, or make context longer"
    if getattr(variant("positions", cfg.positions), "relative", False):
        yield f"positions {cfg.positions} tells nothing in a context of 1: choose none, or make context longer"


def _of_wholes(cfg: ModelSettings, chosen: dict[str, Any]) -> Iterator[str]:
    """A setting for all parts that every part has its own of."""
    normed = "norm_bias" in chosen["norm"].reads and cfg.norm_affine and _normed(cfg, chosen)
    parts = {
        "bias": ("attn_bias", "proj_bias", "mlp_bias", *(["norm_bias"] if normed else [])),
        "dropout": ("dropout_embedding", "dropout_attention", "dropout_residual"),
    }
    for whole, names in parts.items():
        if _set(cfg, whole) and all(getattr(cfg, name) is not None for name in names):
            yield f"{whole} has no part left: {', '.join(names)} are set; leave {whole} or one of them out"


def _unread(cfg: ModelSettings, chosen: dict[str, Any]) -> Iterator[str]:
    """Settings away from their default that no chosen variant reads; a norm that stands nowhere
    reads nothing.
    """
    normless = not _normed(cfg, chosen)
    read = {
        name
        for axis, part in chosen.items()
        if not (axis == "norm" and normless)
        for name in part.reads
    }
    for name, (axis, readers) in _readers().items():
        if _set(cfg, name) and name not in read:
            unplaced = axis == "norm" and getattr(cfg, axis) in readers
            there = "no norm stands anywhere" if unplaced else f"{axis} is {getattr(cfg, axis)}"
            yield f"{name} is read with {axis} {', '.join(readers)} only, and {there}: leave it out"
    if normless and _set(cfg, "norm"):
        yield f"norm {cfg.norm}: no norm stands anywhere; choose another norm_placement, or leave it out"


def _normed(cfg: ModelSettings, chosen: dict[str, Any]) -> bool:
    """Whether a norm stands anywhere."""
    return (
        bool(chosen["norm_placement"].sites)
        or cfg.has_final_norm
        or cfg.embedding_norm
        or cfg.qk_norm != "none"
    )


def _readers() -> dict[str, tuple[str, list[str]]]:
    """Which shipped variants read a setting that not all do: their axis and names."""
    readers: dict[str, tuple[str, list[str]]] = {}
    for axis, names in VARIANTS.items():
        for name, target in names.items():
            if target.startswith("andrea."):
                for setting in variant(axis, name).reads:
                    readers.setdefault(setting, (axis, []))[1].append(name)
    return readers


def _set(cfg: ModelSettings, name: str) -> bool:
    return bool(getattr(cfg, name) != type(cfg).model_fields[name].default)


def normal_form(cfg: ModelSettings) -> dict[str, Any]:
    """The settings as plain data, such that configurations that compute the same have the same
    form.

    The MLP's width stands as `mlp_dim` for what it follows from; a part's bias or dropout stands
    only where it differs from the whole's; what merely repeats the default is empty. Only for
    shipped variants: a user's own part may read what none of them does.
    """
    form = cfg.model_dump(mode="json", exclude={"mlp_ratio", "mlp_width", "mlp_multiple"})
    form |= {
        "mlp_dim": cfg.mlp_dim,
        "embedding_scale": cfg.token_scale,
        "final_norm": cfg.has_final_norm,
    }
    form |= _of_parts(cfg) | _of_heads(cfg) | _of_norms(cfg)
    if cfg.rope_fraction != 1:
        form["rope_fraction"] = cfg.rope_dim / cfg.d_head
    return form


def _of_parts(cfg: ModelSettings) -> dict[str, Any]:
    """Biases and dropout."""
    biases, dropouts = cfg.biases, cfg.dropouts
    chosen = {axis: variant(axis, getattr(cfg, axis)) for axis in ("norm", "norm_placement")}
    if "norm_bias" not in chosen["norm"].reads or not cfg.norm_affine or not _normed(cfg, chosen):
        biases = biases._replace(norm=biases.attn)
    form = {"bias": biases.attn, "dropout": dropouts.residual}
    own: dict[str, tuple[Any, Any]] = {
        f"{part}_bias": (bias, biases.attn) for part, bias in biases._asdict().items()
    }
    own |= {
        f"dropout_{place}": (share, dropouts.residual)
        for place, share in dropouts._asdict().items()
    }
    return form | {name: None if value == whole else value for name, (value, whole) in own.items()}


def _of_heads(cfg: ModelSettings) -> dict[str, Any]:
    """Attention's sizes and its scale; µP at its base width is the standard parametrization but for
    that scale.
    """
    form: dict[str, Any] = {
        "n_kv_head": None if cfg.kv_heads == cfg.n_head else cfg.kv_heads,
        "head_dim": None if cfg.d_head * cfg.n_head == cfg.d_model else cfg.d_head,
    }
    if cfg.qk_norm == "full" and cfg.n_head == 1:
        form["qk_norm"] = "head"
    scale = cfg.attn_scale
    if cfg.init == "mup" and cfg.d_model == cfg.mup_base:
        form |= {"init": "gpt2", "mup_base": type(cfg).model_fields["mup_base"].default}
        scale = scale or 1 / cfg.d_head
    usual = 1 / cfg.d_head if form.get("init", cfg.init) == "mup" else 1 / math.sqrt(cfg.d_head)
    return form | {"attn_scale": None if scale == usual else scale}


def _of_norms(cfg: ModelSettings) -> dict[str, Any]:
    """Without norms it is the same where they would stand."""
    if cfg.norm == "identity" and cfg.norm_placement == "pre":
        return {"norm": type(cfg).model_fields["norm"].default, "norm_placement": "none"}
    if cfg.norm_placement == "res_post" and cfg.residual == "off" and not cfg.dropouts.residual:
        return {"norm_placement": "post"}  # nothing joins the branch between its norm and its end
    return {}
