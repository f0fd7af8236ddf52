"""Weights under the names and in the layout of an architecture, and back: rows move, no number
changes.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.folder import expected_weights, require_same_tensors
from andrea.model.hf.architecture import Architecture

BUFFERS = re.compile(
    r"\.(attn|attention|self_attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$"
)
"""Tensors of older files besides weights: masks and frequencies."""
LEAVES = {"weight": "weight", "bias": "bias", "offset": "weight"}
"""Names of parameters inside a module: andrea's, theirs."""

Tensors = Mapping[str, Tensor]


def to_hf(
    architecture: type[Architecture], cfg: ModelConfig, tensors: Tensors
) -> dict[str, Tensor]:
    """Return their tensors from andrea's (weights, or gradients)."""
    parts = _split_qkv(architecture, cfg, tensors)
    converted: dict[str, Tensor] = {}
    for module, names in architecture.layout(cfg).items():
        for leaf, hf_leaf in LEAVES.items():
            pieces = [parts[f"{name}.{leaf}"] for name in names if f"{name}.{leaf}" in parts]
            if pieces:
                converted[f"{module}.{hf_leaf}"] = _fuse(architecture, cfg, module, pieces)
    return converted


def from_hf(
    architecture: type[Architecture], cfg: ModelConfig, tensors: Tensors
) -> dict[str, Tensor]:
    """Return andrea's tensors from theirs: the inverse of `to_hf`, bit for bit.

    Raises:
        UserError: tensors are missing, left over, or of another shape.
    """
    expected = expected_weights(cfg, len(tensors))
    weights = _without_extras(architecture, cfg, tensors)
    unknown = f"{architecture.model_type} does not have"
    require_same_tensors(weights, to_hf(architecture, cfg, expected), unknown)
    expected_parts = _split_qkv(architecture, cfg, expected)
    parts: dict[str, Tensor] = {}
    for module, names in architecture.layout(cfg).items():
        for leaf, hf_leaf in LEAVES.items():
            if f"{names[0]}.{leaf}" not in expected_parts:
                continue
            leaves = [f"{name}.{leaf}" for name in names]
            rows = [len(expected_parts[name]) for name in leaves]
            pieces = _take_apart(architecture, cfg, module, weights[f"{module}.{hf_leaf}"], rows)
            parts |= zip(leaves, pieces, strict=True)
    return _merge_qkv(architecture, cfg, parts)


def _without_extras(
    architecture: type[Architecture], cfg: ModelConfig, tensors: Tensors
) -> dict[str, Tensor]:
    """Their weights without buffers, with the prefix that files of the bare model lack, without the
    repeated head of a tied model.
    """
    weights = {name: tensor for name, tensor in tensors.items() if not BUFFERS.search(name)}
    if not any(name.startswith(architecture.prefix) for name in weights):
        weights = {
            name if name.startswith("lm_head.") else architecture.prefix + name: tensor
            for name, tensor in weights.items()
        }
    if cfg.tied and "lm_head.weight" in weights:
        head = weights.pop("lm_head.weight")
        embedding = next(
            module for module, name in architecture.outside.items() if name == "token_embedding"
        )
        embedding_weight = weights.get(f"{architecture.prefix}{embedding}.weight", head)
        if not torch.equal(head, embedding_weight):
            raise UserError(
                "the configuration ties the head to the token embedding, but the file has another "
                "head"
            )
    return weights


def _split_qkv(
    architecture: type[Architecture], cfg: ModelConfig, tensors: Tensors
) -> dict[str, Tensor]:
    """Andrea's tensors with queries, keys and values apart, their rows in the order of theirs where
    RoPE pairs other dimensions.
    """
    queries, keys = cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        block, fused, leaf = name.rpartition(".attn.qkv.")
        if not fused:
            parts[name] = tensor
            continue
        q, k, v = torch.split(tensor, [queries, keys, keys])
        if architecture.paired_rope:
            order = _neighbours_paired(cfg)
            q, k = _reorder_rows(q, order), _reorder_rows(k, order)
        for letter, part in (("q", q), ("k", k), ("v", v)):
            parts[f"{block}.attn.{letter}.{leaf}"] = part
    return parts


def _merge_qkv(
    architecture: type[Architecture], cfg: ModelConfig, parts: Tensors
) -> dict[str, Tensor]:
    """The inverse of `_split_qkv`."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in parts.items():
        match = re.fullmatch(r"(.*)\.attn\.([qkv])\.(.*)", name)
        if match is None:
            tensors[name] = tensor
            continue
        block, letter, leaf = match.groups()
        if letter != "q":
            continue  # joined with its queries
        q, k, v = (parts[f"{block}.attn.{part}.{leaf}"] for part in "qkv")
        if architecture.paired_rope:
            order = torch.argsort(torch.tensor(_neighbours_paired(cfg))).tolist()
            q, k = _reorder_rows(q, order), _reorder_rows(k, order)
        tensors[f"{block}.attn.qkv.{leaf}"] = torch.cat([q, k, v])
    return tensors


def _neighbours_paired(cfg: ModelConfig) -> list[int]:
    """Order of andrea's dimensions of a head where theirs pairs neighbours: i and i + R/2 become 2i
    and 2i + 1.
    """
    half = cfg.rope_dim // 2
    rotated = [dimension for i in range(half) for dimension in (i, i + half)]
    return [*rotated, *range(cfg.rope_dim, cfg.d_head)]


def _reorder_rows(tensor: Tensor, order: list[int]) -> Tensor:
    """The rows of every head in another order."""
    return tensor.reshape(-1, len(order), *tensor.shape[1:])[:, order].flatten(0, 1)


def _is_transposed(architecture: type[Architecture], module: str, tensor: Tensor) -> bool:
    in_block = f"{architecture.prefix}{architecture.layers}." in module
    return architecture.conv1d and tensor.dim() == 2 and in_block


def _fuse(
    architecture: type[Architecture], cfg: ModelConfig, module: str, pieces: list[Tensor]
) -> Tensor:
    """One tensor of theirs from the pieces it consists of."""
    if len(pieces) == 1:
        whole = pieces[0]
    elif architecture.by_head:
        heads = [piece.reshape(cfg.n_head, -1, *piece.shape[1:]) for piece in pieces]
        whole = torch.stack(heads, 1).flatten(0, 2)
    else:
        whole = torch.cat(pieces)
    return whole.t() if _is_transposed(architecture, module, whole) else whole


def _take_apart(
    architecture: type[Architecture], cfg: ModelConfig, module: str, whole: Tensor, rows: list[int]
) -> list[Tensor]:
    """The inverse of `_fuse`; `rows` are those of the pieces."""
    if _is_transposed(architecture, module, whole):
        whole = whole.t()
    if len(rows) > 1 and architecture.by_head:
        heads = whole.reshape(cfg.n_head, len(rows), -1, *whole.shape[1:])
        return [part.flatten(0, 1) for part in heads.unbind(1)]
    return list(torch.split(whole, rows))
