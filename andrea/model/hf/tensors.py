"""Weights under the names and in the layout of an architecture, and back: rows move, no number
changes.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.folder import format_shape, list_names, meta_weights
from andrea.model.hf.architecture import Architecture
from andrea.model.memory_limit import require_room

BUFFERS = re.compile(
    r"\.(attn|attention|self_attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$"
)
"""What older files hold besides weights: masks and frequencies."""
LEAVES = {"weight": "weight", "bias": "bias", "offset": "weight"}
"""Names of parameters inside a module: ours, theirs."""


def to_hf(
    architecture: type[Architecture], cfg: ModelConfig, ours: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Their tensors from ours (weights, or gradients)."""
    parts = _split(architecture, cfg, ours)
    found: dict[str, Tensor] = {}
    for theirs, names in architecture.layout(cfg).items():
        for leaf, called in LEAVES.items():
            pieces = [parts[f"{name}.{leaf}"] for name in names if f"{name}.{leaf}" in parts]
            if pieces:
                found[f"{theirs}.{called}"] = _fused(architecture, cfg, theirs, pieces)
    return found


def from_hf(
    architecture: type[Architecture], cfg: ModelConfig, theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Our tensors from theirs: the inverse of `to_hf`, bit for bit.

    Raises:
        UserError: tensors are missing, left over, or of another shape.
    """
    if cfg.n_layer > len(theirs):
        raise UserError(f"{len(theirs)} tensors cannot be the weights of {cfg.n_layer:,} blocks")
    require_room(cfg)
    ours = meta_weights(cfg)
    expected = to_hf(architecture, cfg, ours)
    given = _cleaned(architecture, cfg, theirs)
    if missing := [name for name in expected if name not in given]:
        raise UserError(f"missing tensors: {list_names(missing)}")
    if extra := [name for name in given if name not in expected]:
        raise UserError(
            f"tensors that {architecture.model_type} does not have: {list_names(extra)}"
        )
    for name, tensor in given.items():
        if tensor.shape != expected[name].shape:
            raise UserError(
                f"{name} is {format_shape(tensor)}, the configuration makes it {format_shape(expected[name])}"
            )
    parts: dict[str, Tensor] = {}
    pieces = _split(architecture, cfg, ours)
    for module, names in architecture.layout(cfg).items():
        for leaf, called in LEAVES.items():
            if f"{names[0]}.{leaf}" in pieces:
                sizes = [len(pieces[f"{name}.{leaf}"]) for name in names]
                found = _apart(architecture, cfg, module, given[f"{module}.{called}"], sizes)
                parts |= {f"{name}.{leaf}": part for name, part in zip(names, found, strict=True)}
    return _merged(architecture, cfg, parts)


def _cleaned(
    architecture: type[Architecture], cfg: ModelConfig, theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Without buffers, with the prefix that files of the bare model lack, without the repeated head
    of a tied model.
    """
    given = {name: tensor for name, tensor in theirs.items() if not BUFFERS.search(name)}
    if not any(name.startswith(architecture.prefix) for name in given):
        bare = {
            name: name if name.startswith("lm_head.") else architecture.prefix + name
            for name in given
        }
        given = {bare[name]: tensor for name, tensor in given.items()}
    if cfg.tied and "lm_head.weight" in given:
        head = given.pop("lm_head.weight")
        table = next(
            theirs for theirs, ours in architecture.outside.items() if ours == "token_embedding"
        )
        if not torch.equal(head, given.get(f"{architecture.prefix}{table}.weight", head)):
            raise UserError(
                "the configuration ties the head to the token embedding, but the file has another "
                "head"
            )
    return given


def _split(
    architecture: type[Architecture], cfg: ModelConfig, ours: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Our tensors with queries, keys and values apart, and turned as theirs where RoPE pairs other
    dimensions.
    """
    widths = [cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head, cfg.kv_heads * cfg.d_head]
    parts: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        before, fused, leaf = name.rpartition(".attn.qkv.")
        if not fused:
            parts[name] = tensor
            continue
        for letter, part in zip("qkv", torch.split(tensor, widths), strict=True):
            turned = architecture.paired_rope and letter != "v"
            parts[f"{before}.attn.{letter}.{leaf}"] = _rows(part, _paired(cfg)) if turned else part
    return parts


def _merged(
    architecture: type[Architecture], cfg: ModelConfig, parts: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The inverse of `_split`."""
    ours: dict[str, Tensor] = {}
    for name, tensor in parts.items():
        before, letter, leaf = re.fullmatch(r"(?:(.*)\.attn\.([qkv])\.)?(.*)", name).groups()  # type: ignore[union-attr]
        if letter is None:
            ours[name] = tensor
        elif letter == "q":
            queries, keys, values = (parts[f"{before}.attn.{one}.{leaf}"] for one in "qkv")
            if architecture.paired_rope:
                back = torch.argsort(torch.tensor(_paired(cfg))).tolist()
                queries, keys = _rows(queries, back), _rows(keys, back)
            ours[f"{before}.attn.qkv.{leaf}"] = torch.cat([queries, keys, values])
    return ours


def _paired(cfg: ModelConfig) -> list[int]:
    """Which of our dimensions of a head stands where theirs pairs neighbours: i and i + R/2 become
    2i and 2i + 1.
    """
    half = cfg.rope_dim // 2
    turned = [dimension for i in range(half) for dimension in (i, i + half)]
    return [*turned, *range(cfg.rope_dim, cfg.d_head)]


def _rows(tensor: Tensor, order: list[int]) -> Tensor:
    """Rows of every head in another order."""
    return tensor.reshape(-1, len(order), *tensor.shape[1:])[:, order].flatten(0, 1)


def _transposed(architecture: type[Architecture], module: str, tensor: Tensor) -> bool:
    return (
        architecture.conv1d
        and tensor.dim() == 2
        and f"{architecture.prefix}{architecture.layers}." in module
    )


def _fused(
    architecture: type[Architecture], cfg: ModelConfig, module: str, pieces: list[Tensor]
) -> Tensor:
    if len(pieces) == 1:
        whole = pieces[0]
    elif architecture.by_head:
        heads = [piece.reshape(cfg.n_head, -1, *piece.shape[1:]) for piece in pieces]
        whole = torch.stack(heads, 1).flatten(0, 2)
    else:
        whole = torch.cat(pieces)
    return whole.t() if _transposed(architecture, module, whole) else whole


def _apart(
    architecture: type[Architecture], cfg: ModelConfig, module: str, whole: Tensor, sizes: list[int]
) -> list[Tensor]:
    """The inverse of `_fused`."""
    if _transposed(architecture, module, whole):
        whole = whole.t()
    if len(sizes) > 1 and architecture.by_head:
        heads = whole.reshape(cfg.n_head, len(sizes), -1, *whole.shape[1:])
        return [part.flatten(0, 1) for part in heads.unbind(1)]
    return list(torch.split(whole, sizes))
