"""Models to and from folders of Hugging Face transformers, without the library itself and without
network.

name, notes = export_hf(model, Path("folder")); model = import_hf(Path("folder"))
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.folder import (
    CONFIG,
    model_with_weights,
    read_description,
    read_tensors,
    weights_of,
    write_folder,
)
from andrea.model.gpt import GPT
from andrea.model.hf.architecture import (
    DROPOUTS,
    Architecture,
    is_same_value,
    read_back,
    resolve_settings,
)
from andrea.model.hf.registry import (
    Dtype,
    choose_architecture,
    read_config,
    require_architecture,
    write_config,
)
from andrea.model.hf.tensors import BUFFERS, from_hf, to_hf


def export_hf(
    model: GPT,
    path: Path,
    architecture: type[Architecture] | None = None,
    dtype: Dtype = "float32",
    end: int | None = None,
    files: Mapping[str, Any] | None = None,
) -> tuple[str, list[str]]:
    """Write a folder that transformers' `from_pretrained` loads; it appears whole or not at all.

    Args:
        end: the token that ends a text.
        files: further JSON files by name (a tokenizer).

    Returns:
        The model type, and what a reader of the folder should know.

    Raises:
        UserError: no architecture computes this model, or something is at `path` already.
    """
    cfg = model.config
    if architecture is None:
        architecture = choose_architecture(cfg)
    else:
        require_architecture(architecture, cfg)
    tensors = to_hf(architecture, cfg, weights_of(model))
    rounded = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    write_folder(path, write_config(architecture, cfg, dtype, end), rounded, files or {})
    return architecture.model_type, _notes(architecture, cfg, dtype)


def _notes(architecture: type[Architecture], cfg: ModelConfig, dtype: Dtype) -> list[str]:
    """Settings and precision that are lost, though the folder computes the same."""
    settings = resolve_settings(cfg)
    written = resolve_settings(read_back(architecture, cfg))
    dropouts = []
    for name in DROPOUTS:
        if not is_same_value(settings[name], written[name]):
            dropouts.append(f"{name} {settings[name]:g}")
    notes = []
    if dropouts:
        notes.append(
            f"{', '.join(dropouts)}: no place in {architecture.model_type}, "
            "matters in training only"
        )
    if dtype != "float32":
        notes.append(
            f"weights are rounded to {dtype}: logits differ, and importing does not give them back"
        )
    return notes


def import_hf(path: Path) -> GPT:
    """Return the model of a folder of transformers, float32, on the CPU.

    Raises:
        UserError: an architecture or setting that andrea does not have, files that are missing or
            torn, weights that do not fit.
    """
    architecture, cfg = read_config(read_description(path), str(path / CONFIG))
    tensors = read_tensors(path, BUFFERS)
    try:
        weights = from_hf(architecture, cfg, tensors)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return model_with_weights(cfg, weights, str(path))
