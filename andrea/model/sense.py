"""What makes no sense in a model: settings that contradict each other, and settings that nothing reads. Torch-free.

A setting that is accepted is used: one that the chosen variants do not read is refused unless it has its default. What
a variant reads it says itself (`Variant.reads`), and what it cannot go together with (`Variant.refuse`).
"""

from collections.abc import Iterator
from typing import Any

from andrea.model.config import VARIANTS, ModelConfig, variant
from andrea.model.variants import users_own

ONE_VALUE: tuple[tuple[str, str], ...] = (("mlp_width", "mlp_ratio"), ("mlp_width", "mlp_multiple"))
"""Pairs of settings of which the first makes the second mean nothing."""


def faults(cfg: ModelConfig) -> Iterator[str]:
    """Every reason why a configuration makes no sense, naming the settings and how to mend them."""
    yield from _of_sizes(cfg)
    for first, second in ONE_VALUE:
        if _set(cfg, first) and _set(cfg, second):
            yield f"{first} {getattr(cfg, first)} leaves {second} {getattr(cfg, second):g} without effect: give one"
    chosen = {axis: variant(axis, getattr(cfg, axis)) for axis in VARIANTS}
    for axis, part in chosen.items():
        refuse = getattr(part, "refuse", None)
        if refuse and (reason := refuse(cfg)):
            yield f"{axis} {getattr(cfg, axis)}: {reason}"
    if not any(users_own(part) for part in chosen.values()):  # a user's own part may read any setting
        yield from _unread(cfg, chosen)


def _of_sizes(cfg: ModelConfig) -> Iterator[str]:
    if cfg.head_dim is None and cfg.d_model % cfg.n_head:
        yield (
            f"n_head {cfg.n_head} does not divide d_model {cfg.d_model}: "
            "choose a width that is a multiple of the heads, or set head_dim"
        )
    if cfg.n_head % cfg.kv_heads:
        yield f"n_kv_head {cfg.n_kv_head} does not divide n_head {cfg.n_head}"
    if cfg.window is not None and cfg.window >= cfg.context:
        yield f"window {cfg.window} hides nothing in a context of {cfg.context}: make it smaller, or leave it out"
    if cfg.full_every is not None and cfg.window is None:
        yield "full_every is read with a window only; set window, or leave it out"
    elif cfg.full_every is not None and cfg.full_every > cfg.n_layer:
        yield f"full_every {cfg.full_every}: there are {cfg.n_layer} blocks, so none would attend to everything"


def _unread(cfg: ModelConfig, chosen: dict[str, Any]) -> Iterator[str]:
    """Settings away from their default that no chosen variant reads; a norm that stands nowhere reads nothing."""
    readers = _readers()
    normless = not _normed(cfg, chosen)
    read = {name for axis, part in chosen.items() if not (axis == "norm" and normless) for name in part.reads}
    for name, by in readers.items():
        if _set(cfg, name) and name not in read:
            axis = by[0][0]
            names = ", ".join(dict.fromkeys(variant_name for _, variant_name in by))
            unplaced = axis == "norm" and getattr(cfg, axis) in names.split(", ")
            there = "no norm stands anywhere" if unplaced else f"{axis} is {getattr(cfg, axis)}"
            yield f"{name} is read with {axis} {names} only, and {there}: leave it out"
    if normless and _set(cfg, "norm"):
        yield f"norm {cfg.norm}: no norm stands anywhere; choose another norm_placement, or leave it out"


def _normed(cfg: ModelConfig, chosen: dict[str, Any]) -> bool:
    """Whether a norm stands anywhere."""
    return bool(chosen["norm_placement"].sites) or cfg.has_final_norm or cfg.embedding_norm or cfg.qk_norm != "none"


def _readers() -> dict[str, list[tuple[str, str]]]:
    """Which shipped variants read a setting that not all do: axis and name."""
    readers: dict[str, list[tuple[str, str]]] = {}
    for axis, names in VARIANTS.items():
        for name, target in names.items():
            if target.startswith("andrea."):
                for setting in variant(axis, name).reads:
                    readers.setdefault(setting, []).append((axis, name))
    return readers


def _set(cfg: ModelConfig, name: str) -> bool:
    return bool(getattr(cfg, name) != type(cfg).model_fields[name].default)


def normal_form(cfg: ModelConfig) -> dict[str, Any]:
    """The settings as plain data, such that configurations that compute the same have the same form.

    The MLP's width stands as `mlp_dim` for what it follows from; a part's bias or dropout stands only where it differs
    from the whole's; what merely repeats the default is empty.
    """
    form = cfg.model_dump(mode="json", exclude={"mlp_ratio", "mlp_width", "mlp_multiple"})
    form["mlp_dim"] = cfg.mlp_dim
    biases, dropouts = cfg.biases, cfg.dropouts
    if "norm_bias" not in variant("norm", cfg.norm).reads:
        biases = biases._replace(norm=biases.attn)
    form["bias"], form["dropout"] = biases.attn, dropouts.residual
    for part, own in biases._asdict().items():
        form[f"{part}_bias"] = None if own == biases.attn else own
    for place, share in dropouts._asdict().items():
        form[f"dropout_{place}"] = None if share == dropouts.residual else share
    form["n_kv_head"] = None if cfg.kv_heads == cfg.n_head else cfg.kv_heads
    form["head_dim"] = None if cfg.d_head * cfg.n_head == cfg.d_model else cfg.d_head
    form["embedding_scale"] = cfg.token_scale
    if cfg.rope_fraction != 1:
        form["rope_fraction"] = cfg.rope_dim / cfg.d_head
    return form
