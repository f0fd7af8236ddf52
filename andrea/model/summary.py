"""What a model consists of and costs, as plain data to print. Torch-free.

describe(ModelConfig(**PRESETS["andrea-120m"]), batch_size=8, preset="andrea-120m")
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from andrea.model import accounting
from andrea.model.attention import Attention
from andrea.model.config import ModelConfig
from andrea.model.registry import variant
from andrea.model.size_matching import Quantity, Setting, deviation, fit, quantity
from andrea.model.variants import matmul_flops, shapes

BYTES = 256
"""Vocabulary of the byte tokenizer, the default one."""
MAGNITUDES = {"k": 1e3, "m": 1e6, "b": 1e9}

Row = dict[str, Any]


def describe(
    cfg: ModelConfig, batch_size: int = 1, preset: str | None = None, optimizer: str = "adamw"
) -> dict[str, Any]:
    """Everything `andrea model show` prints.

    Returns:
        `rows`: the tree, each row with `name`, `depth`, `times` (how often the part occurs),
            `shape` (of one, or None),
        `about` (of a part: its kind, or None), `parameters` and `flops` (per token, forward; of all
        occurrences), `share` of all parameters; a row's children follow it one deeper and add up to
        it. `parameters`: by group. `total`, `non_embedding`, `flops_per_token` (forward, backward,
        total), `memory` (bytes by kind and in total, for `batch_size` sequences at once and what
        `optimizer` keeps), `notes`.
    """
    cfg, notes = _with_vocabulary(cfg)
    if preset and (note := size_note(preset, cfg)):
        notes.append(note)
    flops = accounting.flops_per_token(cfg)
    memory = accounting.memory(cfg, batch_size, moments=accounting.moments(cfg, optimizer))
    return {
        "preset": preset,
        "config": cfg.model_dump(mode="json"),
        "rows": rows(cfg),
        "parameters": accounting.parameters(cfg),
        "total": accounting.total(cfg),
        "non_embedding": accounting.non_embedding(cfg),
        "flops_per_token": {
            "forward": flops.forward,
            "backward": flops.backward,
            "total": flops.total,
        },
        "batch_size": batch_size,
        "optimizer": optimizer,
        "memory": memory | {"total": sum(memory.values())},
        "notes": notes,
    }


def compare(cfgs: Mapping[str, ModelConfig]) -> list[Row]:
    """One row per model: `name`, parameters by group, `total`, `non_embedding`, `flops_per_token`
    (forward and backward), `difference` and `flops_difference` (more than the first one's, in per
    cent) and `notes`.
    """
    compared: list[Row] = []
    for name, asked in cfgs.items():
        cfg, notes = _with_vocabulary(asked)
        total, flops = accounting.total(cfg), accounting.flops_per_token(cfg).total
        first = compared[0] if compared else {"total": total, "flops_per_token": flops}
        compared.append(
            {"name": name}
            | accounting.parameters(cfg)
            | {
                "total": total,
                "non_embedding": accounting.non_embedding(cfg),
                "flops_per_token": flops,
                "difference": 100 * (total / first["total"] - 1),
                "flops_difference": 100 * (flops / first["flops_per_token"] - 1),
                "notes": notes,
            }
        )
    return compared


def fits(cfgs: Mapping[str, ModelConfig], on: Quantity, by: Setting) -> list[Row]:
    """What `match` would solve each later model for, to come nearest to the first: one row per
    later model with `name`, `setting` (dotted), `was`, `became` and `deviation` (of params and
    flops, as a share of the first one's); without the last three where no value changes anything.
    """
    (_, base), *others = [(name, _with_vocabulary(cfg)[0]) for name, cfg in cfgs.items()]
    found: list[Row] = []
    for name, cfg in others:
        row: Row = {"name": name, "setting": f"model.{by}"}
        if fitted := fit(cfg, quantity(base, on), on, by):
            row |= {
                "was": fitted.was,
                "became": fitted.became,
                "deviation": deviation(fitted.config, base),
            }
        found.append(row)
    return found


def rows(cfg: ModelConfig) -> list[Row]:
    """The tree of parts; see `describe`. What costs nothing has no row."""
    vocab_size, d = accounting.vocabulary(cfg), cfg.d_model
    norm, positions = variant("norm", cfg.norm), variant("positions", cfg.positions)
    one_norm = (int(norm.count(cfg)), float(norm.flops(cfg)))
    head = "head (the token embedding)" if cfg.tied else "head"
    inside = blocks(cfg)
    parts = [row for row in inside if row["depth"] == 1]
    tree = [
        _row("token_embedding", 0, 1, vocab_size * d, 0.0, (vocab_size, d)),
        _row("position_embedding", 0, 1, int(positions.count(cfg)), 0.0, (cfg.context, d)),
        *([_row("embedding_norm", 0, 1, *one_norm, about=cfg.norm)] if cfg.embedding_norm else []),
        _row(
            "blocks",
            0,
            cfg.n_layer,
            sum(row["parameters"] for row in parts),
            sum(row["flops"] for row in parts),
        ),
        *inside,
        *([_row("final_norm", 0, 1, *one_norm, about=cfg.norm)] if cfg.has_final_norm else []),
        _row(head, 0, 1, accounting.parameters(cfg)["head"], 2.0 * vocab_size * d, (vocab_size, d)),
    ]
    total = accounting.total(cfg)
    return [
        row | {"share": row["parameters"] / total}
        for row in tree
        if row["parameters"] or row["flops"]
    ]


def blocks(cfg: ModelConfig) -> list[Row]:
    """What is inside the blocks, over all of them; positions are named where attention works them
    in.
    """
    heads = f"{cfg.n_head} head{'s' * (cfg.n_head > 1)} of {cfg.d_head}"
    if cfg.kv_heads != cfg.n_head:
        heads += f", {cfg.kv_heads} of keys"
    if getattr(variant("positions", cfg.positions), "relative", False):
        heads += f", {cfg.positions}"
    about = {
        "attn": ("attention", heads if cfg.attention == "softmax" else cfg.attention),
        "mlp": ("activation", cfg.activation),
        "norms": ("norm_placement", f"{cfg.norm}, {cfg.norm_placement}"),
        "joins": ("residual", cfg.residual),
    }
    return [
        row
        for name, (axis, said) in about.items()
        for row in _part(name, variant(axis, getattr(cfg, axis)), accounting.kinds(cfg), said)
    ]


def size_note(preset: str, cfg: ModelConfig) -> str | None:
    """What is true about a size that a name carries; None if it carries none."""
    match = re.search(r"(\d+(?:\.\d+)?)([kmb])\b", preset, re.IGNORECASE)
    if not match:
        return None
    claimed = float(match[1]) * MAGNITUDES[match[2].lower()]
    total, table = accounting.total(cfg), accounting.parameters(cfg)["token_embedding"]
    excess = 100 * (total / claimed - 1)
    note = f"{preset} has {total:,} parameters"
    if abs(excess) < 1:
        return f"{note}, as its name says"
    note += f", {abs(excess):.1f} % {'more' if excess > 0 else 'fewer'} than its name says"
    if cfg.tied and excess < 0:
        twice = total + table
        verdict = "still falls short" if twice < 0.99 * claimed else "is what the name rests on"
        note += f"; counting the tied token embedding twice gives {twice:,}, which {verdict}"
    return note


def _part(name: str, part: Any, kinds: list[tuple[ModelConfig, int]], about: str) -> list[Row]:
    """A part of all blocks and, one deeper, its parameters; FLOPs beyond theirs have rows of their
    own.
    """
    known = [shapes(part, layer) for layer, _ in kinds]
    joins = ("join1.", "join2.") if name == "joins" else ("",)
    count = sum(blocks for _, blocks in kinds)
    leaves = [
        _row(
            f"{join}{leaf}",
            2,
            count,
            count * math.prod(shape),
            float(count * matmul_flops(shape)),
            shape,
        )
        for join in joins
        for leaf, shape in known[0].items()
        if all(other == known[0] for other in known)
    ]
    if leaves:
        for layer, blocks in kinds:
            beyond = float(part.flops(layer)) - sum(
                matmul_flops(shape) for shape in known[0].values()
            )
            if beyond:
                leaves.append(
                    _row(_rest(part, layer, blocks, len(kinds)), 2, blocks, 0, blocks * beyond)
                )
    parameters = sum(blocks * len(joins) * int(part.count(layer)) for layer, blocks in kinds)
    flops = sum(blocks * len(joins) * float(part.flops(layer)) for layer, blocks in kinds)
    return [_row(name, 1, count, parameters, flops, about=about), *leaves]


def _rest(part: Any, layer: ModelConfig, blocks: int, kinds: int) -> str:
    """What FLOPs beyond the matrices' are for, and in which blocks."""
    if not issubclass(part, Attention):
        return "other"
    seen = "causal" if layer.window is None else f"window {layer.window}"
    return f"scores and values, {seen}" + (f", {blocks} blocks" if kinds > 1 else "")


def _row(
    name: str,
    depth: int,
    times: int,
    parameters: int,
    flops: float,
    shape: tuple[int, ...] | None = None,
    about: str | None = None,
) -> Row:
    """A row of the tree; parameters and FLOPs are those of all occurrences."""
    counts = {"parameters": parameters, "flops": flops}
    return {"name": name, "depth": depth, "times": times, "shape": shape, "about": about, **counts}


def _with_vocabulary(cfg: ModelConfig) -> tuple[ModelConfig, list[str]]:
    """The configuration with a vocabulary to count, and what to say about it."""
    if cfg.vocab_size is not None:
        return cfg, []
    return cfg.model_copy(update={"vocab_size": BYTES}), [
        f"vocab_size is the tokenizer's: counted with {BYTES}, bytes"
    ]
