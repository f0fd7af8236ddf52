"""A model as a folder: what it is in `config.json`, its weights in `model.safetensors` under
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
from andrea.errors import UserError, disk_full
from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT
from andrea.model.memory_limit import require_room

FORMAT = 1
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
READ = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Precisions of weights; 8 bits and fewer mean little without the scales that went with them."""
SHOWN = 4
"""Names of tensors that a message lists."""


def save_model(model: GPT, path: Path, files: Mapping[str, Any] | None = None) -> None:
    """Write a model folder, which appears whole or not at all.

    Args:
        files: further JSON files by name (a tokenizer).

    Raises:
        UserError: something is there already, or the folder above is missing.
    """
    with new_folder(path) as folder:
        written(folder / CONFIG, {"format": FORMAT, "model": model.config.model_dump(mode="json")})
        write_tensors(folder / WEIGHTS, weights(model))
        for name, content in (files or {}).items():
            written(folder / name, content)


def load_model(path: Path) -> GPT:
    """The model of a folder that `save_model` wrote, float32, on the CPU.

    Raises:
        UserError: a file is missing, torn or unfamiliar, or config and weights do not fit.
    """
    described = read_description(path)
    if "format" not in described or not isinstance(described.get("model"), dict):
        theirs = described.get("model_type")
        hint = f"; it is transformers' ({theirs}): `andrea import hf` reads it" if theirs else ""
        raise UserError(f"{path / CONFIG}: does not describe a model of andrea's{hint}")
    if described["format"] != FORMAT:
        raise UserError(
            f"{path / CONFIG}: of format {described['format']}, this andrea reads {FORMAT}; update "
            "andrea"
        )
    cfg = build(ModelConfig, described["model"], str(path / CONFIG))
    return filled(cfg, read_tensors(path), str(path))


def weights(model: GPT) -> dict[str, Tensor]:
    """The weights by name, a tied head left out, since it is the token table."""
    return {
        name: tensor.detach()
        for name, tensor in model.state_dict().items()
        if not _repeats(model.config, name)
    }


def _repeats(cfg: ModelConfig, name: str) -> bool:
    return cfg.tied and name == "head.weight"


def filled(cfg: ModelConfig, tensors: Mapping[str, Tensor], where: str) -> GPT:
    """A model with these weights, in evaluation mode; torch's global generator is left as it was.

    Raises:
        UserError: tensors are missing, left over or of another shape; `where` stands before what is
            wrong.
    """
    if cfg.n_layer > len(tensors):
        raise UserError(
            f"{where}: {len(tensors)} tensors cannot be the weights of {cfg.n_layer:,} blocks"
        )
    require_room(cfg, f"{where}: ")
    expected = meta_weights(cfg)
    given = {name: tensor for name, tensor in tensors.items() if not _repeats(cfg, name)}
    if missing := [name for name in expected if name not in given]:
        raise UserError(f"{where}: missing tensors: {named(missing)}")
    if extra := [name for name in given if name not in expected]:
        raise UserError(f"{where}: tensors that have no place in such a model: {named(extra)}")
    for name, tensor in given.items():
        if tensor.shape != expected[name].shape:
            raise UserError(
                f"{where}: {name} is {size(tensor)}, the configuration makes it "
                f"{size(expected[name])}"
            )
    with torch.random.fork_rng(devices=[]):
        model = GPT(cfg)
    tied = {"head.weight": given["token_embedding.weight"]} if cfg.tied else {}
    model.load_state_dict({**given, **tied})
    return model.eval()


def meta_weights(cfg: ModelConfig) -> dict[str, Tensor]:
    """Names and shapes of the weights, on the meta device: nothing is allocated."""
    with torch.device("meta"):
        return weights(GPT(cfg))


def size(tensor: Tensor) -> str:
    """The shape of a tensor as people write it."""
    return " × ".join(map(str, tensor.shape)) or "a number"


def named(names: list[str]) -> str:
    """Names for a message: the first few, and how many more."""
    return ", ".join(names[:SHOWN]) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to write into; it gets that name when the block ends well, and is gone
    when it does not.

    Raises:
        UserError: something is there already, or the folder above is missing.
    """
    taken = UserError(f"{path}: is there already; name another folder, or remove it first")
    if os.path.lexists(path):
        raise taken
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")
    try:
        partial = Path(
            tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        )
    except OSError as error:
        if disk_full(error):
            raise
        raise UserError(
            f"{path}: cannot be made ({error.strerror}); name another folder"
        ) from error
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if (
            path.exists()
        ):  # written by another command meanwhile; a rename would replace an empty folder
            raise taken
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    """What new files may not be: `mkdtemp` makes folders for one user alone."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def written(path: Path, value: Any) -> None:
    """Write readable JSON to the disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write safetensors to the disk.

    Raises:
        OSError: the disk is full.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))  # a full disk, most likely
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_description(folder: Path) -> dict[str, Any]:
    """config.json of a model folder, andrea's or transformers'.

    Raises:
        UserError: the folder or the file is missing, or it is no JSON object.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such folder" if not folder.exists() else f"{folder}: not a folder"
        )
    return read_object(folder / CONFIG, f"no model folder: it has no {CONFIG}")


def read_object(path: Path, absent: str = "") -> dict[str, Any]:
    """The JSON object in a file of a model folder.

    Args:
        absent: what to say of the folder where there is no such file.

    Raises:
        UserError: it is missing, cannot be read, or is no JSON object.
    """
    if not path.is_file():  # a pipe would wait for ever
        raise UserError(
            f"{path}: not a file" if os.path.lexists(path) else f"{path.parent}: {absent}"
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged, not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: damaged, not a JSON object")
    return found


def read_tensors(folder: Path, ignored: re.Pattern[str] | None = None) -> dict[str, Tensor]:
    """The weights of a folder, one file or several with an index; half precision becomes float32.

    Args:
        ignored: names of tensors that are no weights.

    Raises:
        UserError: a file is missing or torn, holds what is no weight, or the weights are a pickle,
            which could run foreign code and is not opened.
    """
    found: dict[str, Tensor] = {}
    for path in _files(folder):
        tensors = _read_file(path)
        kept = {
            name: tensor
            for name, tensor in tensors.items()
            if not (ignored and ignored.search(name))
        }
        if strange := [name for name, tensor in kept.items() if tensor.dtype not in READ]:
            raise UserError(
                f"{path}: quantized or no weights: {named(strange)} ({kept[strange[0]].dtype})"
            )
        single = {name: tensor.to(torch.float32) for name, tensor in kept.items()}
        if broken := [name for name, tensor in single.items() if not tensor.isfinite().all()]:
            raise UserError(
                f"{path}: numbers that are not finite in float32: {named(broken)}; such a model is "
                "broken"
            )
        found |= single
    return found


def _files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        index = read_object(folder / INDEX, "")
        places = index.get("weight_map")
        if not isinstance(places, dict) or not all(
            isinstance(name, str) for name in places.values()
        ):
            raise UserError(f"{folder / INDEX}: damaged, it has no weight_map")
        names = sorted(set(places.values()))
        if outside := [name for name in names if Path(name).name != name]:
            raise UserError(f"{folder / INDEX}: names files outside the folder: {named(outside)}")
        if absent := [name for name in names if not (folder / name).is_file()]:
            raise UserError(f"{folder}: the index names files that are missing: {named(absent)}")
        return [folder / name for name in names]
    if pickles := sorted(path.name for path in folder.glob("*.bin")):
        raise UserError(
            f"{folder}: its weights are a pickle ({pickles[0]}), which could run foreign code and "
            "is not opened; "
            "save the model as safetensors first"
        )
    raise UserError(f"{folder}: it has no {WEIGHTS}")


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: torn or no safetensors file ({error})") from error
    return tensors
