"""Tokenizers: bytes, characters, byte-level BPE. Decoding restores the text exactly."""

import contextlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from andrea.errors import StudyError, UserError, reason

if TYPE_CHECKING:
    import tokenizers

END = "<|endoftext|>"
"""Put after every document by the BPE tokenizer; it stands for no byte of the text."""
PIECE = 1 << 17
"""Characters encoded at a time, so that memory does not grow with the length of a document."""

Ids = npt.NDArray[np.int64]
Description: TypeAlias = dict[str, Any]
"""A tokenizer as JSON: `kind`, and what that kind needs."""


class Tokenizer(Protocol):
    """Text to tokens and back."""

    vocab_size: int
    end: int | None
    """Token put after every document, or None."""

    def encode(self, text: str) -> Ids:
        """Tokens of a text, without the end token."""

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of tokens; bytes that are not UTF-8 (a window may cut a character) become
        U+FFFD.
        """

    def token_bytes(self) -> Ids:
        """UTF-8 bytes of text that each token stands for, [V]."""

    def to_dict(self) -> Description:
        """JSON from which `make_tokenizer` makes this tokenizer again."""


class ByteTokenizer:
    """One token per UTF-8 byte."""

    vocab_size = 256
    end: int | None = None

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        return bytes(np.asarray(ids, dtype=np.uint8)).decode(errors="replace")

    def token_bytes(self) -> Ids:
        return np.ones(256, dtype=np.int64)

    def to_dict(self) -> Description:
        return {"kind": "byte"}


class CharTokenizer:
    """One token per character of the corpus, in the order of code points."""

    end: int | None = None

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = sorted(set(characters))
        self._points = np.array([ord(c) for c in self.characters], dtype=np.uint32)
        self.vocab_size = len(self.characters)

    def encode(self, text: str) -> Ids:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        ids = np.searchsorted(self._points, points).clip(max=self.vocab_size - 1).astype(np.int64)
        # searchsorted gives the nearest known character for one that is unknown.
        unknown = np.flatnonzero(self._points[ids] != points)
        if unknown.size:
            raise UserError(
                f"character {text[unknown[0]]!r} does not occur in the corpus of this char "
                "tokenizer"
            )
        return ids

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        return "".join(self.characters[int(i)] for i in ids)

    def token_bytes(self) -> Ids:
        return np.array([len(c.encode()) for c in self.characters], dtype=np.int64)

    def to_dict(self) -> Description:
        return {"kind": "char", "characters": "".join(self.characters)}


class BpeTokenizer:
    """Byte-level BPE in GPT-2's manner: 256 bytes, the end of text, merges."""

    def __init__(self, inner: "tokenizers.Tokenizer") -> None:
        self._inner = inner
        # A text that contains the literal `<|endoftext|>` keeps it as text: only documents end with
        # the token.
        self._inner.encode_special_tokens = True
        self.vocab_size = inner.get_vocab_size()
        self.end: int | None = inner.token_to_id(END)

    def encode(self, text: str) -> Ids:
        with _one_thread():
            return np.array(self._inner.encode(text).ids, dtype=np.int64)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        return str(self._inner.decode([int(i) for i in ids], skip_special_tokens=False))

    def token_bytes(self) -> Ids:
        # The byte-level alphabet writes each byte as one character.
        tokens = [self._inner.id_to_token(i) or "" for i in range(self.vocab_size)]
        sizes = [0 if token == END else len(token) for token in tokens]
        return np.array(sizes, dtype=np.int64)

    def to_dict(self) -> Description:
        return {"kind": "bpe", "tokenizer": json.loads(self._inner.to_str())}


def train_bpe(texts: Iterable[str], vocab_size: int) -> BpeTokenizer:
    """Learn merges until there are exactly `vocab_size` tokens; a pair seen once is not merged.

    Raises:
        UserError: the texts are too small for so many tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (piece for text in texts for piece in split_pieces(text))
    with _one_thread():
        inner.train_from_iterator(pieces, trainer=trainer)
    reached = inner.get_vocab_size()
    if reached != vocab_size:
        raise UserError(
            f"data.tokenizer bpe-{vocab_size}: the train part is too small, it yields only "
            f"{reached} tokens; use bpe-{reached} or fewer, or a longer text"
        )
    return BpeTokenizer(inner)


def make_tokenizer(description: Description) -> Tokenizer:
    """Make a tokenizer from what its `to_dict` returned.

    Raises:
        StudyError: the description is damaged.
    """
    try:
        kind = description["kind"]
        if kind == "byte":
            return ByteTokenizer()
        if kind == "char":
            return CharTokenizer(description["characters"])
        from tokenizers import Tokenizer

        return BpeTokenizer(Tokenizer.from_str(json.dumps(description["tokenizer"])))
    except Exception as error:  # the library raises nothing more special
        message = f"the description of the tokenizer is damaged ({reason(error)})"
        raise StudyError(message) from error


def tokenizer_version(name: str) -> str:
    """Version of the code that makes the tokens: our own and, for BPE, the library's."""
    if name.startswith("bpe-"):
        return f"1, tokenizers {importlib.metadata.version('tokenizers')}"
    return "1"


def split_pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Cut a text where no BPE token can cross: between a visible character and the white space
    after it.

    GPT-2's pattern lets a token begin with a space but never contain one after something else, so
    the tokens of the pieces are the tokens of the whole.
    """
    start = 0
    while start < len(text):
        end = _piece_end(text, start + size)
        yield text[start:end]
        start = end


def _piece_end(text: str, earliest: int) -> int:
    for end in range(earliest, len(text)):
        if text[end] in " \n" and not text[end - 1].isspace():
            return end
    return len(text)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keep the tokenizers library to one thread: its own threads would break a later fork and take
    the cores of other runs.
    """
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
