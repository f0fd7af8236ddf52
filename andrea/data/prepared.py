"""A prepared corpus on disk: the tokens of every part, memory-mapped, and their counts.

data/<fingerprint>/
  meta.json                 source, tokenizer, counts, size, time and digest of every file
  tokenizer.json            description of the tokenizer, from which it is made again
  <part>.bin                tokens, uint16 (uint32 above 65,535 tokens), little endian
  <part>.documents.json     names and first tokens of the part's documents
  token_bytes.npy           UTF-8 bytes that each token stands for, [V]
  unigram.npy               occurrences of each token in the train part, [V]
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from andrea.data.config import Part
from andrea.data.split import PARTS
from andrea.data.tokenizers import Tokenizer, make_tokenizer
from andrea.errors import StudyError, UserError
from andrea.store.files import read_json, read_mapping


class PartCounts(BaseModel):
    """Size of one part."""

    documents: int = 0
    bytes: int = 0
    characters: int = 0
    tokens: int = 0


class FileRecord(BaseModel):
    """A file of the folder as it was written."""

    size: int
    mtime_ns: int | None = None
    sha256: str

    @classmethod
    def of_file(cls, path: Path) -> "FileRecord":
        """Record a file."""
        state = path.stat()
        return cls(size=state.st_size, mtime_ns=state.st_mtime_ns, sha256=file_digest(path))

    def agrees(self, path: Path, *, thorough: bool) -> bool:
        """True where the file has the size it was written with; `thorough`: and also the time, or
        else the digest.
        """
        state = path.stat()
        if state.st_size != self.size:
            return False
        if not thorough or state.st_mtime_ns == self.mtime_ns:
            return True
        return file_digest(path) == self.sha256


class CorpusMeta(BaseModel):
    """meta.json: how the corpus was made, and its counts."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)
    FORMAT: ClassVar[Literal[1]] = 1
    FILES: ClassVar = (
        "tokenizer.json",
        "token_bytes.npy",
        "unigram.npy",
        *(f"{part}.bin" for part in PARTS),
        *(f"{part}.documents.json" for part in PARTS),
    )
    """Every file of the folder but meta.json."""

    format: Literal[1]
    source: str
    tokenizer: str
    split: list[float]
    vocab_size: int
    """Tokens that the tokenizer knows, V."""
    dtype: str
    """numpy's name of the type in which tokens are stored."""
    documents: int
    duplicates: int = 0
    """Documents left out because another has the same bytes."""
    empty: int = 0
    """Files left out because they are empty."""
    bytes: int
    """UTF-8 bytes of the documents."""
    characters: int
    tokens: dict[Part, int]
    parts: dict[Part, PartCounts]
    files: dict[str, FileRecord]
    versions: dict[str, str]
    fingerprint: str
    """Digest of source bytes, split and tokenizer."""


@dataclass(frozen=True)
class Prepared:
    """The tokens of one corpus under one tokenizer and split. Cheap to copy to another process."""

    folder: Path
    meta: CorpusMeta

    @property
    def fingerprint(self) -> str:
        """Digest of source bytes, split and tokenizer."""
        return self.meta.fingerprint

    @property
    def vocab_size(self) -> int:
        """Tokens that the tokenizer knows, V."""
        return self.meta.vocab_size

    def tokens(self, part: Part) -> npt.NDArray[Any]:
        """The tokens of a part, a read-only memory map, [N] uint16 or uint32.

        Every call makes a new map: the pages that a map has read count as memory of this process
        until the map is dropped.
        """
        return np.memmap(self.folder / f"{part}.bin", dtype=np.dtype(self.meta.dtype), mode="r")

    def documents(self, part: Part) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Names of a part's documents, and the position of the first token of each."""
        content = read_json(self.folder / f"{part}.documents.json")
        return content["names"], np.array(content["starts"], dtype=np.int64)

    def token_bytes(self) -> npt.NDArray[np.int64]:
        """UTF-8 bytes that each token stands for, [V]."""
        table: npt.NDArray[np.int64] = np.load(self.folder / "token_bytes.npy")
        return table

    def unigram_counts(self) -> npt.NDArray[np.int64]:
        """Occurrences of each token in the train part, [V]."""
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


def load_tokenizer(prepared: Prepared) -> Tokenizer:
    """The tokenizer of a prepared corpus."""
    return make_tokenizer(read_json(prepared.folder / "tokenizer.json"))


def read_meta(folder: Path, *, thorough: bool = False) -> CorpusMeta | None:
    """meta.json if the folder is whole, that is, every file agrees with its record."""
    try:
        meta = CorpusMeta.model_validate(read_mapping(folder / "meta.json"))
        whole = all(
            meta.files[name].agrees(folder / name, thorough=thorough) for name in meta.FILES
        )
    except (OSError, KeyError, ValidationError):
        return None
    return meta if whole else None


def file_digest(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_vocab(prepared: Prepared, vocab_size: int | None) -> int:
    """Return the size of the model's vocabulary: by default, and at least, the tokenizer's.

    Raises:
        UserError: the tokenizer has tokens that the model would not know.
    """
    if vocab_size is not None and vocab_size < prepared.vocab_size:
        raise UserError(
            f"model.vocab_size {vocab_size}: the tokenizer {prepared.meta.tokenizer} has "
            f"{prepared.vocab_size} tokens; set it to {prepared.vocab_size} or more, or leave it "
            "empty"
        )
    return vocab_size or prepared.vocab_size
