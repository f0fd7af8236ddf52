"""Printable forms of text that others wrote: labels, names, reasons."""

import re
from typing import Any

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, overrides of the direction of writing (they would turn the numbers behind
them round), halves of surrogate pairs, and non-characters: no drawing can hold them.
"""
_BREAKS = re.compile("[ \t\r\n\x85\u2028\u2029]+")


def one_line(text: object) -> str:
    """Return a text in one line, without unprintable characters."""
    return _BREAKS.sub(" ", printable(str(text))).strip()


def printable(text: str) -> str:
    """Return a text with � for every unprintable character; its lines stay."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def printable_in(part: Any) -> Any:
    """Return a specification with every text in it printable."""
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, dict):
        return {key: printable_in(inner) for key, inner in part.items()}
    return [printable_in(inner) for inner in part] if isinstance(part, list | tuple) else part
