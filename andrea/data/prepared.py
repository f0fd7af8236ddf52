"""A prepared corpus on disk: tokens of every part, memory-mapped, with the counts that go with
them.

data/<fingerprint>/
  meta.json                 source, tokenizer, counts, size, time and digest of every file
  tokenizer.json            from which the tokenizer is made again
  <part>.bin                tokens, uint16 (uint32 above 65,535 tokens), little endian
  <part>.documents.json     names and first tokens of the part's documents
  token_bytes.npy           UTF-8 bytes that each token stands for, [V]
  unigram.npy               how often each token occurs in the train part, [V]
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea.data import tokenizers
from andrea.data.config import Part
from andrea.data.split import PARTS
from andrea.errors import StudyError, UserError
from andrea.store.files import read_json, read_mapping

FORMAT = 1
FILES = (
    "tokenizer.json",
    "token_bytes.npy",
    "unigram.npy",
    *(f"{part}.bin" for part in PARTS),
    *(f"{part}.documents.json" for part in PARTS),
)


@dataclass(frozen=True)
class Prepared:
    """The tokens of one corpus under one tokenizer and split. Cheap to copy to another process."""

    folder: Path
    meta: dict[str, Any]
    """`source`, `tokenizer`, `split`, `vocab_size`, `dtype`; totals `documents`, `bytes`,
    `characters`, `duplicates`, `empty`; `tokens` {part: count}; `parts` {part: documents, bytes,
    characters, tokens}; `files`, `versions`.
    """

    @property
    def fingerprint(self) -> str:
        """Digest of source bytes, split and tokenizer."""
        return str(self.meta["fingerprint"])

    @property
    def vocab_size(self) -> int:
        """Tokens that the tokenizer knows, V."""
        return int(self.meta["vocab_size"])

    def tokens(self, part: Part) -> npt.NDArray[Any]:
        """The tokens of a part, a read-only memory map, [N] uint16 or uint32.

        A new map at every call: pages that a map has touched count as this process's memory until
            it is dropped.
        """
        return np.memmap(self.folder / f"{part}.bin", dtype=np.dtype(self.meta["dtype"]), mode="r")

    def documents(self, part: Part) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Names of a part's documents and the position of each one's first token."""
        found = read_json(self.folder / f"{part}.documents.json")
        return found["names"], np.array(found["starts"], dtype=np.int64)

    def token_bytes(self) -> npt.NDArray[np.int64]:
        """UTF-8 bytes that each token stands for, [V]."""
        table: npt.NDArray[np.int64] = np.load(self.folder / "token_bytes.npy")
        return table

    def unigram(self) -> npt.NDArray[np.int64]:
        """How often each token occurs in the train part, [V]."""
        counts: npt.NDArray[np.int64] = np.load(self.folder / "unigram.npy")
        return counts


def open_prepared(folder: Path) -> Prepared:
    """Open what `prepare` wrote.

    Raises:
        StudyError: it is not there, or not whole.
    """
    meta = read_meta(folder)
    if meta is None:
        raise StudyError(
            f"prepared data in {folder} are missing or damaged; give the command again to prepare "
            "them anew"
        )
    return Prepared(folder, meta)


def load_tokenizer(prepared: Prepared) -> tokenizers.Tokenizer:
    """The tokenizer of a prepared corpus."""
    return tokenizers.load(read_json(prepared.folder / "tokenizer.json"))


def read_meta(folder: Path, *, thorough: bool = False) -> dict[str, Any] | None:
    """meta.json if the folder is whole: every file has the size it was written with; `thorough`:
    and the time, or else the digest.
    """
    try:
        meta = read_mapping(folder / "meta.json")
        if meta is None or meta.get("format") != FORMAT:
            return None
        for name in FILES:
            then, now = meta["files"][name], (folder / name).stat()
            if now.st_size != then["size"]:
                return None
            if (
                thorough
                and now.st_mtime_ns != then.get("mtime_ns")
                and file_digest(folder / name) != then["sha256"]
            ):
                return None
    except (OSError, KeyError, TypeError):
        return None
    return meta


def written(path: Path) -> dict[str, Any]:
    """What meta.json says of a file."""
    state = path.stat()
    return {"size": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": file_digest(path)}


def file_digest(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_vocab(prepared: Prepared, vocab_size: int | None) -> int:
    """The model's vocabulary: the tokenizer's where none is asked for, and never less.

    Raises:
        UserError: the tokenizer has tokens that the model would not know.
    """
    if vocab_size is not None and vocab_size < prepared.vocab_size:
        raise UserError(
            f"model.vocab_size {vocab_size}: the tokenizer {prepared.meta['tokenizer']} has "
            f"{prepared.vocab_size} tokens; set it to {prepared.vocab_size} or more, or leave it "
            "empty"
        )
    return vocab_size or prepared.vocab_size
