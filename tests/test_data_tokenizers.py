"""Tokenizers: exact round trips, exact sizes, the same tokens in every process and in every cut of
the text.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.data.tokenizers import (
    END,
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    make_tokenizer,
    split_pieces,
    train_bpe,
)
from andrea.errors import UserError

TEXT = " ".join(
    f"the {word} of the {word}ing, we've said so.\n"
    for word in ("state", "union", "house", "war", "tariff", "treasury") * 30
)
WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "lmnr"]
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
BPE = train_bpe([TEXT], 300)


@given(ANY)
def test_bytes_come_back_as_the_text_they_were(text: str) -> None:
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text


@given(ANY)
@settings(deadline=None)
def test_bpe_comes_back_as_the_text_it_was(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text
    assert int(BPE.token_bytes()[BPE.encode(text)].sum()) == len(text.encode())


@given(ANY)
def test_characters_come_back_as_the_text_they_were(text: str) -> None:
    tokenizer = CharTokenizer(text or "x")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert int(tokenizer.token_bytes()[tokenizer.encode(text)].sum()) == len(text.encode())


@given(
    st.lists(
        st.sampled_from(["word", " ", "\n", "  ", "\t", "9", "'s", "é", "\u3000", "\x1c", "!"])
    ).map("".join)
)
@settings(deadline=None)
def test_encoding_a_text_in_pieces_gives_the_tokens_of_the_whole(text: str) -> None:
    cut = list(split_pieces(text, 5))
    assert "".join(cut) == text
    assert [i for piece in cut for i in BPE.encode(piece)] == list(BPE.encode(text))


def test_a_long_text_without_white_space_stays_one_piece() -> None:
    assert list(split_pieces("x" * 100, 10)) == ["x" * 100]
    assert list(split_pieces("", 10)) == []


def test_bpe_has_exactly_the_tokens_asked_for_and_the_end_of_text_among_them() -> None:
    assert BPE.vocab_size == 300
    assert BPE.end is not None and BPE.decode([BPE.end]) == END
    assert BPE.token_bytes()[BPE.end] == 0
    assert len(BPE.encode(TEXT)) < len(TEXT.encode()) / 2


def test_the_end_of_text_written_in_a_text_stays_text() -> None:
    ids = BPE.encode(f"a{END}b")
    assert BPE.end not in ids
    assert BPE.decode(ids) == f"a{END}b"


def test_a_text_too_small_for_so_many_tokens_says_how_many_it_yields() -> None:
    with pytest.raises(
        UserError, match=r"bpe-8449: the train part is too small, it yields only (\d+) tokens"
    ):
        train_bpe([TEXT], 8449)


def test_training_gives_the_same_tokens_in_every_process() -> None:
    code = (
        "import hashlib, json; from andrea.data.tokenizers import train_bpe; "
        f"text = ' '.join(w for w in {WORDS!r} for _ in range(5)); "
        "print(hashlib.sha256(json.dumps(train_bpe([text], 320).to_dict()).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel},
        ).stdout
        for seed, parallel in (("1", "true"), ("2", "false"), ("3", "true"))
    }
    assert len(digests) == 1


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    BPE.encode("word")
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    BPE.encode("word")
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


@pytest.mark.parametrize(
    "tokenizer", [ByteTokenizer(), CharTokenizer(TEXT), BPE], ids=["byte", "char", "bpe"]
)
def test_a_described_tokenizer_is_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    again = make_tokenizer(tokenizer.to_dict())
    assert type(again) is type(tokenizer) and again.vocab_size == tokenizer.vocab_size
    assert np.array_equal(again.encode(TEXT), tokenizer.encode(TEXT))
    assert np.array_equal(again.token_bytes(), tokenizer.token_bytes())


def test_an_unknown_character_is_named() -> None:
    with pytest.raises(UserError, match="'é'"):
        CharTokenizer("abc").encode("bé")


def test_a_cut_character_does_not_stop_the_decoding() -> None:
    assert ByteTokenizer().decode([0xE9, 65]) == "\ufffdA"
    assert isinstance(BPE, BpeTokenizer)
