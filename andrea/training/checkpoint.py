"""The state of a run in one file: written atomically, read without running foreign code, checked
against its digest.

The file is what `torch.save` writes, followed by its SHA-256: torch itself reads a flipped bit
without a word.
"""

import hashlib
from pathlib import Path
from typing import IO, Any

import torch

from andrea.store.files import replacing

FORMAT = 1
DIGEST_BYTES = hashlib.sha256().digest_size
BLOCK = 2**20
"""Bytes read at once."""


class CheckpointError(Exception):
    """The file is no checkpoint that this version can read."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint. `state` holds tensors, numbers, strings, lists and dicts.

    Raises:
        OSError: the disk is full; the checkpoint that was there stays.
    """
    with replacing(path) as file:
        writer = _Hashing(file)
        try:
            torch.save({**state, "format": FORMAT}, writer)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise (
                writer.refused or error
            ) from error  # torch says only that its own count of bytes is off
        file.write(writer.hash.digest())


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        CheckpointError: torn, damaged, or of another format.
    """
    with path.open("rb") as file:
        if not _whole(file, path.stat().st_size - DIGEST_BYTES):
            raise CheckpointError("torn or damaged")
        file.seek(0)
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    if state.get("format") != FORMAT:
        raise CheckpointError(f"format {state.get('format')}, this version reads {FORMAT}")
    return state


class _Hashing:
    """Hashes what is written on its way into a file, so that the state is never held a second time."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash = file, hashlib.sha256()
        self.refused: OSError | None = None

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.refused = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _whole(file: IO[bytes], size: int) -> bool:
    """Whether the digest of the first `size` bytes is what follows them."""
    found = hashlib.sha256()
    while size > 0:
        block = file.read(min(BLOCK, size))
        if not block:
            return False
        found.update(block)
        size -= len(block)
    return file.read() == found.digest()
