"""What a model consists of and costs, as plain data to print. Torch-free.

describe(ModelConfig(**PRESETS["andrea-120m"]), batch_size=8, preset="andrea-120m")
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from andrea.model import accounting
from andrea.model.config import ModelConfig, variant
from andrea.model.fit import Quantity, Setting, deviation, fit, quantity
from andrea.model.variants import matmul_flops, shapes

BYTES = 256
"""Vocabulary of the byte tokenizer, the default one."""
MAGNITUDES = {"k": 1e3, "m": 1e6, "b": 1e9}

Row = dict[str, Any]


def describe(cfg: ModelConfig, batch_size: int = 1, preset: str | None = None) -> dict[str, Any]:
    """Everything `andrea model show` prints.

    Returns:
        `rows`: the tree, each row with `name`, `depth`, `times` (how often the part occurs), `shape` (of one, or None),
        `parameters` and `flops` (per token, forward; of all occurrences), `share` of all parameters; a row's children
        follow it one deeper and add up to it. `parameters`: by group. `total`, `non_embedding`, `flops_per_token`
        (forward, backward, total), `memory` (bytes by kind and in total, for `batch_size` sequences at once), `notes`.
    """
    cfg, notes = _with_vocabulary(cfg)
    if preset and (note := size_note(preset, cfg)):
        notes.append(note)
    flops = accounting.flops_per_token(cfg)
    memory = accounting.memory(cfg, batch_size)
    return {
        "preset": preset,
        "config": cfg.model_dump(mode="json"),
        "rows": rows(cfg),
        "parameters": accounting.parameters(cfg),
        "total": accounting.total(cfg),
        "non_embedding": accounting.non_embedding(cfg),
        "flops_per_token": {"forward": flops.forward, "backward": flops.backward, "total": flops.total},
        "batch_size": batch_size,
        "memory": memory | {"total": sum(memory.values())},
        "notes": notes,
    }


def compare(cfgs: Mapping[str, ModelConfig]) -> list[Row]:
    """One row per model: `name`, parameters by group, `total`, `non_embedding`, `flops_per_token` (forward and
    backward), `difference` and `flops_difference` (more than the first one's, in per cent) and `notes`."""
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
    """What `match` would solve each later model for, to come nearest to the first: one row per later model with `name`,
    `setting` (dotted), `was`, `became` and `deviation` (of params and flops, as a share of the first one's); without
    the last three where no value changes anything."""
    (_, base), *others = [(name, _with_vocabulary(cfg)[0]) for name, cfg in cfgs.items()]
    found: list[Row] = []
    for name, cfg in others:
        row: Row = {"name": name, "setting": f"model.{by}"}
        if fitted := fit(cfg, quantity(base, on), on, by):
            row |= {"was": fitted.was, "became": fitted.became, "deviation": deviation(fitted.config, base)}
        found.append(row)
    return found


def rows(cfg: ModelConfig) -> list[Row]:
    """The tree of parts; see `describe`."""
    vocab_size, d = accounting.vocabulary(cfg), cfg.d_model
    norm, positions = variant("norm", cfg.norm), variant("positions", cfg.positions)
    tree = [_row("token_embedding", 0, 1, (vocab_size, d), vocab_size * d, 0.0)]
    if table := positions.count(cfg):
        tree.append(_row("position_embedding", 0, 1, (cfg.context, d), int(table), 0.0))
    if cfg.embedding_norm:
        tree.append(_row("embedding_norm", 0, 1, None, int(norm.count(cfg)), float(norm.flops(cfg))))
    for layer, count in accounting.kinds(cfg):
        inside = (
            _part("attn", variant("attention", cfg.attention), layer, count, "scores and values, causal")
            + _part("mlp", variant("activation", cfg.activation), layer, count)
            + _part("norms", variant("norm_placement", cfg.norm_placement), layer, count)
        )
        if join := 2 * int(variant("residual", cfg.residual).count(layer)):
            inside.append(_row("joins", 1, count, None, join, 0.0))
        parts = [row for row in inside if row["depth"] == 1]
        name = "blocks" if layer.window is None or cfg.full_every is None else f"blocks, window {layer.window}"
        tree.append(_row(name, 0, count, None, sum(r["parameters"] for r in parts), sum(r["flops"] for r in parts)))
        tree += inside
    if cfg.has_final_norm:
        tree.append(_row("final_norm", 0, 1, None, int(norm.count(cfg)), float(norm.flops(cfg))))
    head = "head (the token embedding)" if cfg.tied else "head"
    tree.append(_row(head, 0, 1, (vocab_size, d), accounting.parameters(cfg)["head"], 2.0 * vocab_size * d))
    total = accounting.total(cfg)
    return [row | {"share": row["parameters"] / total} for row in tree]


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


def _part(name: str, part: Any, cfg: ModelConfig, count: int, rest: str = "other") -> list[Row]:
    """A part of `count` blocks and, one deeper, its parameters; what its FLOPs hold beyond them is the row `rest`."""
    known = shapes(part, cfg)
    leaves = [
        _row(leaf, 2, count, shape, math.prod(shape), float(matmul_flops(shape))) for leaf, shape in known.items()
    ]
    beyond = float(part.flops(cfg)) - sum(matmul_flops(shape) for shape in known.values())
    if leaves and beyond:
        leaves.append(_row(rest, 2, count, None, 0, beyond))
    return [_row(name, 1, count, None, int(part.count(cfg)), float(part.flops(cfg))), *leaves]


def _row(name: str, depth: int, times: int, shape: tuple[int, ...] | None, parameters: int, flops: float) -> Row:
    """A row of the tree; counts are given for one occurrence (for `blocks`: already for all)."""
    repeats = times if depth else 1
    return {
        "name": name,
        "depth": depth,
        "times": times,
        "shape": shape,
        "parameters": repeats * parameters,
        "flops": repeats * flops,
    }


def _with_vocabulary(cfg: ModelConfig) -> tuple[ModelConfig, list[str]]:
    """The configuration with a vocabulary to count, and what to say about it."""
    if cfg.vocab_size is not None:
        return cfg, []
    return cfg.model_copy(update={"vocab_size": BYTES}), [f"vocab_size is the tokenizer's: counted with {BYTES}, bytes"]
