"""Which text is trained on, which tunes, which judges: decided before any token exists.

Several documents are assigned by a hash of their names, so adding one moves no other. One document
is cut into three stretches with a gap between them, so that no passage continues from one part into
the next.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from andrea.data.config import Part
from andrea.data.sources import Document
from andrea.errors import UserError

PARTS: tuple[Part, ...] = get_args(Part)
GAP = 1024
"""Characters left out at the end of a stretch: the longest context of the presets; at most a
hundredth of the text.
"""


@dataclass(frozen=True)
class Split:
    """Documents by part. With a single document all parts name it and `stretches` says which
    characters.
    """

    parts: dict[Part, list[Document]]
    shares: tuple[float, float, float]

    @property
    def single(self) -> bool:
        """Whether one document was cut into stretches."""
        return self.parts["train"] == self.parts["verdict"]

    def texts(self, part: Part) -> Iterator[tuple[str, str]]:
        """Name and text of every document of a part, read one at a time.

        Raises:
            UserError: one document, too short to leave something in every part.
        """
        for document in self.parts[part]:
            text = document.read()
            if self.single:
                start, end = stretches(len(text), self.shares, document.name)[part]
                text = text[start:end]
            yield document.name, text


def split(documents: list[Document], shares: tuple[float, float, float]) -> Split:
    """Assign documents to parts.

    Raises:
        UserError: several documents, and a part got none.
    """
    if len(documents) == 1:
        return Split(dict.fromkeys(PARTS, documents), shares)
    parts: dict[Part, list[Document]] = {part: [] for part in PARTS}
    for document in documents:
        parts[part_of(document.name, shares)].append(document)
    missing = [part for part in PARTS if not parts[part]]
    if missing:
        raise UserError(
            f"data.split {_shown(shares)}: none of the {len(documents)} documents fell to "
            f"{' and '.join(missing)} "
            "(they are assigned by a hash of their names); join them into one file, which is cut "
            "into stretches, "
            "or give those parts a larger share, as in data.split=[60,20,20]"
        )
    return Split(parts, shares)


def part_of(name: str, shares: tuple[float, float, float]) -> Part:
    """The part of a document: its name's hash, uniform on [0, 1), against the cumulative shares."""
    uniform = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    reached = 0.0
    for part, share in zip(PARTS, shares, strict=True):
        reached += share / sum(shares)
        if uniform < reached:
            return part
    return PARTS[-1]


def stretches(
    length: int, shares: tuple[float, float, float], name: str
) -> dict[Part, tuple[int, int]]:
    """Start and end of each part in a text of `length` characters; the gap is taken from the
    earlier part's end.

    Raises:
        UserError: a part would be empty.
    """
    gap = min(GAP, length // 100)
    first = round(length * shares[0] / sum(shares))
    second = round(length * (shares[0] + shares[1]) / sum(shares))
    cut: dict[Part, tuple[int, int]] = {
        "train": (0, first - gap),
        "tune": (first, second - gap),
        "verdict": (second, length),
    }
    short = [part for part, (start, end) in cut.items() if end <= start]
    if short:
        raise UserError(
            f"data.split {_shown(shares)}: {name} is too short ({length} characters): nothing "
            "would be left for "
            f"{' and '.join(short)}; use a longer text or give those parts a larger share"
        )
    return cut


def _shown(shares: tuple[float, float, float]) -> str:
    return "[" + ", ".join(f"{share:g}" for share in shares) + "]"
