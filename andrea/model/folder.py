"""A model as a folder: its configuration in `config.json`, its weights in `model.safetensors` under
andrea's own names.

model = load_model(Path("folder"))
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from andrea.config import build
from andrea.errors import UserError, disk_full, list_first
from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT
from andrea.model.memory_limit import require_room

FORMAT = 1
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
READABLE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Precisions of weights; 8 bits and fewer mean little without the scales that went with them."""
NAMES_IN_MESSAGES = 4
"""Names of tensors that a message lists."""


def save_model(model: GPT, path: Path, files: Mapping[str, Any] | None = None) -> None:
    """Write a model folder, which appears whole or not at all.

    Args:
        files: further JSON files by name (a tokenizer).

    Raises:
        UserError: something is there already, or the folder above is missing.
    """
    description = {"format": FORMAT, "model": model.config.model_dump(mode="json")}
    write_folder(path, description, weights_of(model), files or {})


def write_folder(
    path: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], files: Mapping[str, Any]
) -> None:
    """Write config.json, the weights and further JSON files by name as a folder, which appears
    whole or not at all.

    Raises:
        UserError: something is there already, or the folder above is missing.
    """
    with new_folder(path) as folder:
        for name, content in {CONFIG: config, **files}.items():
            _write_json(folder / name, content)
        _write_tensors(folder / WEIGHTS, weights)


def load_model(path: Path) -> GPT:
    """Return the model of a folder that `save_model` wrote, float32, on the CPU.

    Raises:
        UserError: a file is missing, torn or unfamiliar, or config and weights do not fit.
    """
    description = read_description(path)
    if "format" not in description or not isinstance(description.get("model"), dict):
        model_type = description.get("model_type")
        hint = f"; it is transformers' ({model_type}): `andrea import hf` reads it"
        raise UserError(
            f"{path / CONFIG}: does not describe a model of andrea's{hint if model_type else ''}"
        )
    if description["format"] != FORMAT:
        raise UserError(
            f"{path / CONFIG}: of format {description['format']}, this andrea reads {FORMAT}; "
            "update andrea"
        )
    cfg = build(ModelConfig, description["model"], str(path / CONFIG))
    return model_with_weights(cfg, read_tensors(path), str(path))


def weights_of(model: GPT) -> dict[str, Tensor]:
    """Return the weights by name, a tied head left out, since it is the token embedding."""
    return {
        name: tensor.detach()
        for name, tensor in model.state_dict().items()
        if not _is_tied_head(model.config, name)
    }


def _is_tied_head(cfg: ModelConfig, name: str) -> bool:
    return cfg.tied and name == "head.weight"


def model_with_weights(cfg: ModelConfig, tensors: Mapping[str, Tensor], where: str) -> GPT:
    """Return a model with these weights, in evaluation mode; torch's global generator is left as it
    was.

    Raises:
        UserError: tensors are missing, left over or of another shape; `where` stands before the
            message.
    """
    weights = {name: tensor for name, tensor in tensors.items() if not _is_tied_head(cfg, name)}
    try:
        expected = expected_weights(cfg, len(tensors))
        require_same_tensors(weights, expected, "have no place in such a model")
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    with torch.random.fork_rng(devices=[]):
        model = GPT(cfg)
    if cfg.tied:
        weights["head.weight"] = weights["token_embedding.weight"]
    model.load_state_dict(weights)
    return model.eval()


def expected_weights(cfg: ModelConfig, n_tensors: int) -> dict[str, Tensor]:
    """Return the weights by name on the meta device: shapes without numbers.

    Raises:
        UserError: so few tensors cannot be the weights, or the model is larger than the memory.
    """
    # Before a model is built: a damaged configuration may ask for any number of blocks.
    if cfg.n_layer > n_tensors:
        raise UserError(f"{n_tensors} tensors cannot be the weights of {cfg.n_layer:,} blocks")
    require_room(cfg)
    with torch.device("meta"):
        return weights_of(GPT(cfg))


def require_same_tensors(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], misplaced: str
) -> None:
    """Check names and shapes; `misplaced` is said of tensors that are left over.

    Raises:
        UserError: tensors are missing, left over or of another shape.
    """
    missing = [name for name in expected if name not in weights]
    if missing:
        raise UserError(f"missing tensors: {list_names(missing)}")
    extra = [name for name in weights if name not in expected]
    if extra:
        raise UserError(f"tensors that {misplaced}: {list_names(extra)}")
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            raise UserError(
                f"{name} is {_format_shape(tensor)}, the configuration makes it "
                f"{_format_shape(expected[name])}"
            )


def _format_shape(tensor: Tensor) -> str:
    """Return the shape of a tensor as text: `3 × 4`."""
    return " × ".join(map(str, tensor.shape)) or "a number"


def list_names(names: list[str]) -> str:
    """Return names for a message: the first few, and how many more there are."""
    return list_first(names, NAMES_IN_MESSAGES)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a folder beside `path` to write into; it gets that name when the block ends well, and is
    removed when it does not.

    Raises:
        UserError: something is there already, or the folder above is missing.
    """
    taken = UserError(f"{path}: is there already; name another folder, or remove it first")
    if os.path.lexists(path):
        raise taken
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")
    try:
        name = tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        partial = Path(name)
    except OSError as error:
        if disk_full(error):
            raise
        message = f"{path}: cannot be made ({error.strerror}); name another folder"
        raise UserError(message) from error
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())  # `mkdtemp` makes folders for one user alone
        # Written by another command meanwhile? A rename would replace an empty folder.
        if path.exists():
            raise taken
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    """The process's mask of permissions, which can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_json(path: Path, value: Any) -> None:
    """Write indented JSON to the disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write safetensors to the disk.

    Raises:
        OSError: the disk is full.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, path, metadata={"format": "pt"})
    except SafetensorError as error:
        # safetensors words the system's error, which a full disk is recognised by.
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error
    # safetensors leaves its file to the system's cache: a crash could tear it after the rename.
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_description(folder: Path) -> dict[str, Any]:
    """Return config.json of a model folder, andrea's or transformers'.

    Raises:
        UserError: the folder or the file is missing, or it is no JSON object.
    """
    if not folder.exists():
        raise UserError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise UserError(f"{folder}: not a folder")
    return read_json_object(folder / CONFIG, f"no model folder: it has no {CONFIG}")


def read_json_object(path: Path, absent: str = "") -> dict[str, Any]:
    """Return the JSON object in a file of a model folder.

    Args:
        absent: the message about a folder that has no such file.

    Raises:
        UserError: it is missing, cannot be read, or is no JSON object.
    """
    if not os.path.lexists(path):
        raise UserError(f"{path.parent}: {absent}")
    if not path.is_file():  # a pipe would block the reader
        raise UserError(f"{path}: not a file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged, not JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged, not a JSON object")
    return content


def read_tensors(folder: Path, ignored: re.Pattern[str] | None = None) -> dict[str, Tensor]:
    """Return the weights of a folder, one file or several with an index, in float32.

    Args:
        ignored: names of tensors that are no weights.

    Raises:
        UserError: a file is missing or torn, holds what is no weight, or the weights are a pickle,
            which could run foreign code and is not opened.
    """
    weights: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        try:
            tensors: dict[str, Tensor] = load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path}: torn or no safetensors file ({error})") from error
        if ignored:
            tensors = {name: t for name, t in tensors.items() if not ignored.search(name)}
        weights |= _as_float32(tensors, path)
    return weights


def _as_float32(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    unreadable = [name for name, tensor in tensors.items() if tensor.dtype not in READABLE]
    if unreadable:
        dtype = tensors[unreadable[0]].dtype
        raise UserError(f"{path}: quantized or no weights: {list_names(unreadable)} ({dtype})")
    weights = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    broken = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if broken:
        raise UserError(
            f"{path}: numbers that are not finite in float32: {list_names(broken)}; such a model "
            "is broken"
        )
    return weights


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return [folder / name for name in _indexed_files(folder)]
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles:
        raise UserError(
            f"{folder}: its weights are a pickle ({pickles[0]}), which could run foreign code and "
            "is not opened; save the model as safetensors first"
        )
    raise UserError(f"{folder}: it has no {WEIGHTS}")


def _indexed_files(folder: Path) -> list[str]:
    """Names of the files that an index lists, all of them in the folder."""
    index = read_json_object(folder / INDEX)
    files = index.get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise UserError(f"{folder / INDEX}: damaged, it has no weight_map")
    names = sorted(set(files.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise UserError(f"{folder / INDEX}: names files outside the folder: {list_names(outside)}")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder}: the index names files that are missing: {list_names(missing)}")
    return names
