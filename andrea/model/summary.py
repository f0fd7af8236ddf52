"""Parts and costs of models, for `andrea model show` and `andrea model compare`. Torch-free.

describe(ModelConfig(**PRESETS["andrea-120m"]), batch_size=8, preset="andrea-120m").parameters.total
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from andrea.model import accounting
from andrea.model.attention import Attention
from andrea.model.config import ModelConfig
from andrea.model.size_matching import (
    Fitted,
    Quantity,
    Setting,
    fit_setting,
    relative_excess,
    size_of,
)
from andrea.model.variants import matmul_flops, shapes_of

BYTES = 256
"""Vocabulary of the byte tokenizer, the default one."""
MAGNITUDES = {"k": 1e3, "m": 1e6, "b": 1e9}


@dataclass(frozen=True)
class PartRow:
    """A row of the tree of parts; the rows of its children follow, one deeper, and add up to it."""

    name: str
    depth: int
    times: int
    """How often the part occurs."""
    shape: tuple[int, ...] | None = None
    """Of one occurrence; None where the part is no tensor."""
    about: str | None = None
    """Kind of the part."""
    parameters: int = 0
    """Of all occurrences."""
    flops: float = 0.0
    """Per token, forward, of all occurrences."""
    share: float = 0.0
    """Of all parameters of the model."""


@dataclass(frozen=True)
class ModelSummary:
    """Parts, size and costs of one model."""

    preset: str | None
    config: ModelConfig
    rows: list[PartRow]
    parameters: accounting.ParameterCounts
    flops_per_token: accounting.Flops
    batch_size: int
    """Sequences at once, for the memory."""
    optimizer: str
    memory: accounting.MemoryEstimate
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return what `andrea model show --json` prints."""
        return {
            "preset": self.preset,
            "config": self.config.model_dump(mode="json"),
            "rows": [asdict(row) for row in self.rows],
            "parameters": self.parameters._asdict(),
            "total": self.parameters.total,
            "non_embedding": self.parameters.non_embedding,
            "flops_per_token": _with_total(self.flops_per_token),
            "batch_size": self.batch_size,
            "optimizer": self.optimizer,
            "memory": _with_total(self.memory),
            "notes": self.notes,
        }


@dataclass(frozen=True)
class ComparedModel:
    """One model of several, against the first of them."""

    name: str
    parameters: accounting.ParameterCounts
    flops_per_token: float
    """Forward and backward."""
    difference: float
    """Parameters more than the first one's, in per cent."""
    flops_difference: float
    """FLOPs more than the first one's, in per cent."""
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the entry that `andrea model compare --json` prints."""
        return {
            "name": self.name,
            **self.parameters._asdict(),
            "total": self.parameters.total,
            "non_embedding": self.parameters.non_embedding,
            "flops_per_token": self.flops_per_token,
            "difference": self.difference,
            "flops_difference": self.flops_difference,
            "notes": self.notes,
        }


@dataclass(frozen=True)
class MatchedModel:
    """The value of one setting that brings a model nearest to another."""

    name: str
    setting: str
    """Dotted."""
    fitted: Fitted | None
    """None where no value changes anything."""
    deviation: Mapping[Quantity, float]
    """Of the fitted model from the other, as a share of the other's; empty where nothing fits."""

    def to_json(self) -> dict[str, Any]:
        """Return what `andrea model compare --match … --json` prints of it, the name left out."""
        if self.fitted is None:
            return {"setting": self.setting}
        return {
            "setting": self.setting,
            "was": self.fitted.was,
            "became": self.fitted.became,
            "deviation": dict(self.deviation),
        }


def describe(
    cfg: ModelConfig, batch_size: int = 1, preset: str | None = None, optimizer: str = "adamw"
) -> ModelSummary:
    """Return the parts and costs of a model, without building it.

    Args:
        batch_size: sequences at once, for the memory.
        preset: name of the model; a size in it is held against the count.
        optimizer: whose moments the memory holds.
    """
    cfg, notes = _with_vocabulary(cfg)
    note = size_note(preset, cfg) if preset else None
    if note:
        notes.append(note)
    moments = accounting.count_moments(cfg, optimizer)
    return ModelSummary(
        preset=preset,
        config=cfg,
        rows=list_parts(cfg),
        parameters=accounting.count_parameters(cfg),
        flops_per_token=accounting.flops_per_token(cfg),
        batch_size=batch_size,
        optimizer=optimizer,
        memory=accounting.estimate_memory(cfg, batch_size, moments=moments),
        notes=notes,
    )


def compare_models(cfgs: Mapping[str, ModelConfig]) -> list[ComparedModel]:
    """Return sizes and costs of models by name, each against the first."""
    compared: list[ComparedModel] = []
    for name, cfg in cfgs.items():
        counted, notes = _with_vocabulary(cfg)
        parameters = accounting.count_parameters(counted)
        flops = accounting.flops_per_token(counted).total
        first_total = compared[0].parameters.total if compared else parameters.total
        first_flops = compared[0].flops_per_token if compared else flops
        compared.append(
            ComparedModel(
                name=name,
                parameters=parameters,
                flops_per_token=flops,
                difference=100 * (parameters.total / first_total - 1),
                flops_difference=100 * (flops / first_flops - 1),
                notes=notes,
            )
        )
    return compared


def match_models(cfgs: Mapping[str, ModelConfig], on: Quantity, by: Setting) -> list[MatchedModel]:
    """Return what `match` would solve each later model for, to come nearest to the first."""
    counted = [(name, _with_vocabulary(cfg)[0]) for name, cfg in cfgs.items()]
    (_, base), *others = counted
    target = size_of(base, on)
    matched = []
    for name, cfg in others:
        fitted = fit_setting(cfg, target, on, by)
        deviation = relative_excess(fitted.config, base) if fitted else {}
        matched.append(MatchedModel(name, f"model.{by}", fitted, deviation))
    return matched


def list_parts(cfg: ModelConfig) -> list[PartRow]:
    """Return the tree of parts, parents before children. What costs nothing has no row."""
    parameters = accounting.count_parameters(cfg)
    embedding = (accounting.require_vocab_size(cfg), cfg.d_model)
    positions = (cfg.context, cfg.d_model)
    head_flops = float(matmul_flops(embedding))
    head_name = "head (the token embedding)" if cfg.tied else "head"
    norm = accounting.chosen_part(cfg, "norm")
    norm_row = PartRow("", 0, 1, None, cfg.norm, int(norm.count(cfg)), float(norm.flops(cfg)))
    inside = list_block_parts(cfg)
    parts = [row for row in inside if row.depth == 1]
    in_blocks, block_flops = sum(row.parameters for row in parts), sum(row.flops for row in parts)

    rows = [
        PartRow("token_embedding", 0, 1, embedding, None, parameters.token_embedding),
        PartRow("position_embedding", 0, 1, positions, None, parameters.position_embedding),
    ]
    if cfg.embedding_norm:
        rows.append(replace(norm_row, name="embedding_norm"))
    rows.append(PartRow("blocks", 0, cfg.n_layer, None, None, in_blocks, block_flops))
    rows += inside
    if cfg.has_final_norm:
        rows.append(replace(norm_row, name="final_norm"))
    rows.append(PartRow(head_name, 0, 1, embedding, None, parameters.head, head_flops))
    costly = [row for row in rows if row.parameters or row.flops]
    return [replace(row, share=row.parameters / parameters.total) for row in costly]


def list_block_parts(cfg: ModelConfig) -> list[PartRow]:
    """Return the rows of what is inside the blocks, over all of them."""
    return [
        *_part_rows(cfg, "attn", "attention", _describe_attention(cfg)),
        *_part_rows(cfg, "mlp", "activation", cfg.activation),
        *_part_rows(cfg, "norms", "norm_placement", f"{cfg.norm}, {cfg.norm_placement}"),
        *_part_rows(cfg, "joins", "residual", cfg.residual),
    ]


def _describe_attention(cfg: ModelConfig) -> str:
    """Heads and their widths; positions are named where attention works them in."""
    if cfg.attention != "softmax":
        return cfg.attention
    text = f"{cfg.n_head} head{'s' * (cfg.n_head > 1)} of {cfg.d_head}"
    if cfg.kv_heads != cfg.n_head:
        text += f", {cfg.kv_heads} of keys"
    if getattr(accounting.chosen_part(cfg, "positions"), "relative", False):
        text += f", {cfg.positions}"
    return text


def size_note(preset: str, cfg: ModelConfig) -> str | None:
    """Return how the size that a name carries compares with the count; None if it carries none."""
    match = re.search(r"(\d+(?:\.\d+)?)([kmb])\b", preset, re.IGNORECASE)
    if not match:
        return None
    claimed = float(match[1]) * MAGNITUDES[match[2].lower()]
    parameters = accounting.count_parameters(cfg)
    excess = 100 * (parameters.total / claimed - 1)
    note = f"{preset} has {parameters.total:,} parameters"
    if abs(excess) < 1:
        return f"{note}, as its name says"
    direction = "more" if excess > 0 else "fewer"
    note += f", {abs(excess):.1f} % {direction} than its name says"
    if cfg.tied and excess < 0:
        # Published sizes often count a tied embedding as embedding and as head.
        twice = parameters.total + parameters.token_embedding
        verdict = "still falls short" if twice < 0.99 * claimed else "is what the name rests on"
        note += f"; counting the tied token embedding twice gives {twice:,}, which {verdict}"
    return note


def _part_rows(cfg: ModelConfig, name: str, axis: str, about: str) -> list[PartRow]:
    """A part of all blocks and, one deeper, its tensors and what it multiplies besides them."""
    part = accounting.chosen_part(cfg, axis)
    joins = ("join1.", "join2.") if axis == "residual" else ("",)
    kinds = accounting.block_kinds(cfg)
    parameters = sum(n * len(joins) * int(part.count(layer)) for layer, n in kinds)
    flops = sum(n * len(joins) * float(part.flops(layer)) for layer, n in kinds)
    tensors = [row for join in joins for row in _tensor_rows(cfg, part, join)]
    products = _product_rows(cfg, part) if tensors else []
    whole = PartRow(name, 1, cfg.n_layer, None, about, parameters, flops)
    return [whole, *tensors, *products]


def _tensor_rows(cfg: ModelConfig, part: Any, prefix: str) -> list[PartRow]:
    """The parameters of a part; none where they differ from block to block."""
    first, *others = (shapes_of(part, layer) for layer, _ in accounting.block_kinds(cfg))
    if any(shapes != first for shapes in others):
        return []
    n = cfg.n_layer
    rows = []
    for leaf, shape in first.items():
        flops = float(n * matmul_flops(shape))
        rows.append(PartRow(f"{prefix}{leaf}", 2, n, shape, None, n * math.prod(shape), flops))
    return rows


def _product_rows(cfg: ModelConfig, part: Any) -> list[PartRow]:
    """FLOPs beyond those of the part's own matrices: of attention, those of scores and values."""
    rows = []
    kinds = accounting.block_kinds(cfg)
    for layer, n in kinds:
        of_matrices = sum(matmul_flops(shape) for shape in shapes_of(part, layer).values())
        flops = float(part.flops(layer)) - of_matrices
        if not flops:
            continue
        name = "other"
        if issubclass(part, Attention):
            mask = "causal" if layer.window is None else f"window {layer.window}"
            name = f"scores and values, {mask}"
            name += f", {n} blocks" if len(kinds) > 1 else ""
        rows.append(PartRow(name, 2, n, flops=n * flops))
    return rows


def _with_total(costs: accounting.Flops | accounting.MemoryEstimate) -> dict[str, float]:
    return costs._asdict() | {"total": costs.total}


def _with_vocabulary(cfg: ModelConfig) -> tuple[ModelConfig, list[str]]:
    """The configuration with a vocabulary to count, and a note about it."""
    if cfg.vocab_size is not None:
        return cfg, []
    note = f"vocab_size is the tokenizer's: counted with {BYTES}, bytes"
    return cfg.model_copy(update={"vocab_size": BYTES}), [note]
