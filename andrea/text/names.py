"""Text by others, as labels, names and reasons: what can be shown of it, whatever stands in it."""

import re
from typing import Any

_UNSHOWN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, overrides of the direction of writing (they would turn the numbers behind
them round), halves of surrogate pairs, and what is no character: no drawing can hold them.
"""
_BREAKS = re.compile("[ \t\r\n\x85\u2028\u2029]+")


def line(told: object) -> str:
    """A text in one line, without what nothing can show."""
    return _BREAKS.sub(" ", shown(str(told))).strip()


def shown(told: str) -> str:
    """A text with � for every sign that nothing can show; its lines stay."""
    return _UNSHOWN.sub("\N{REPLACEMENT CHARACTER}", told)


def shown_in(part: Any) -> Any:
    """The same of every text in a specification."""
    if isinstance(part, str):
        return shown(part)
    if isinstance(part, dict):
        return {key: shown_in(inner) for key, inner in part.items()}
    return [shown_in(inner) for inner in part] if isinstance(part, list | tuple) else part
