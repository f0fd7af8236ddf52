"""The state of a run in one file: written atomically, read without running foreign code, verified
by its digest.

The file is the output of `torch.save` followed by its SHA-256: torch itself reads a flipped bit
without complaint.
"""

import hashlib
from pathlib import Path
from typing import IO, Any, TypeAlias

import torch

from andrea.store.files import replacing

State: TypeAlias = dict[str, Any]
"""Tensors, numbers, strings, lists and dicts, by name."""
FORMAT = 1
DIGEST_BYTES = hashlib.sha256().digest_size
BLOCK = 2**20
"""Bytes read at once."""


class CheckpointError(Exception):
    """The file is no checkpoint that this version can read."""


def save(path: Path, state: State) -> None:
    """Replace the checkpoint.

    Raises:
        OSError: the disk is full; the checkpoint that was there stays.
    """
    with replacing(path) as file:
        writer = _HashingWriter(file)
        try:
            torch.save({**state, "format": FORMAT}, writer)  # type: ignore[arg-type]
        except RuntimeError as error:
            # torch hides the disk's error behind one about its own count of bytes.
            raise (writer.error or error) from error
        file.write(writer.hash.digest())


def load(path: Path, device: torch.device | str = "cpu") -> State:
    """Read a checkpoint.

    Raises:
        CheckpointError: torn, damaged, or of another format.
    """
    with path.open("rb") as file:
        if not _has_valid_digest(file, path.stat().st_size - DIGEST_BYTES):
            raise CheckpointError("torn or damaged")
        file.seek(0)
        state: State = torch.load(file, map_location=device, weights_only=True)
    if state.get("format") != FORMAT:
        raise CheckpointError(f"format {state.get('format')}, this version reads {FORMAT}")
    return state


class _HashingWriter:
    """Hashes bytes on their way into a file, so that no second copy of the state is held."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _has_valid_digest(file: IO[bytes], size: int) -> bool:
    """True where the first `size` bytes are followed by their digest."""
    content_hash = hashlib.sha256()
    while size > 0:
        block = file.read(min(BLOCK, size))
        if not block:
            return False
        content_hash.update(block)
        size -= len(block)
    return file.read() == content_hash.digest()
