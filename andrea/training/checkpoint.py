"""The state of a run in one file: written atomically, read without running foreign code, checked against its digest.

The file is what `torch.save` writes, followed by its SHA-256: torch itself reads a flipped bit without a word.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from andrea.store.files import write_atomic

FORMAT = 1
DIGEST_BYTES = hashlib.sha256().digest_size


class CheckpointError(Exception):
    """The file is no checkpoint that this version can read."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint. `state` holds tensors, numbers, strings, lists and dicts.

    Raises:
        OSError: the disk is full; the checkpoint that was there stays.
    """
    buffer = io.BytesIO()
    torch.save({**state, "format": FORMAT}, buffer)
    buffer.write(hashlib.sha256(buffer.getbuffer()).digest())
    write_atomic(path, buffer.getvalue())


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        CheckpointError: torn, damaged, or of another format.
    """
    data = path.read_bytes()
    content, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise CheckpointError("torn or damaged")
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    if state.get("format") != FORMAT:
        raise CheckpointError(f"format {state.get('format')}, this version reads {FORMAT}")
    return state
