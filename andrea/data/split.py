"""The split of a corpus into the parts train, tune and verdict, made before any token exists.

Several documents are assigned by a hash of their names, so adding one moves no other. A single
document is cut into three stretches with a gap between them, so that no passage continues from one
part into the next.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from andrea.data.config import Part
from andrea.data.sources.scan import Document
from andrea.errors import UserError

PARTS: tuple[Part, ...] = get_args(Part)
GAP = 1024
"""Characters left out at the end of a stretch: the longest context of the presets; at most a
hundredth of the text.
"""


@dataclass(frozen=True)
class Split:
    """Documents by part. With a single document all parts hold it, and `cut_stretches` gives the
    characters of each.
    """

    parts: dict[Part, list[Document]]
    shares: tuple[float, float, float]

    @property
    def is_one_document(self) -> bool:
        """True where a single document was cut into stretches."""
        return self.parts["train"] == self.parts["verdict"]

    def read_texts(self, part: Part) -> Iterator[tuple[str, str]]:
        """Yield name and text of every document of a part, read one at a time.

        Raises:
            UserError: one document, too short to leave something in every part.
        """
        for document in self.parts[part]:
            text = document.read_text()
            if self.is_one_document:
                start, end = cut_stretches(len(text), self.shares, document.name)[part]
                text = text[start:end]
            yield document.name, text


def split_documents(documents: list[Document], shares: tuple[float, float, float]) -> Split:
    """Assign documents to parts.

    Raises:
        UserError: several documents, and a part got none.
    """
    # By its hash, a single document would fall to one part and leave the others empty.
    if len(documents) == 1:
        return Split(dict.fromkeys(PARTS, documents), shares)
    parts: dict[Part, list[Document]] = {part: [] for part in PARTS}
    for document in documents:
        parts[part_of(document.name, shares)].append(document)
    missing = [part for part in PARTS if not parts[part]]
    if missing:
        raise UserError(
            f"data.split {_format_shares(shares)}: none of the {len(documents)} documents fell to "
            f"{' and '.join(missing)} (they are assigned by a hash of their names); join them into "
            "one file, which is cut into stretches, or give those parts a larger share, as in "
            "data.split=[60,20,20]"
        )
    return Split(parts, shares)


def part_of(name: str, shares: tuple[float, float, float]) -> Part:
    """The part of a document: its name's hash, uniform on [0, 1), against the cumulative shares."""
    total = sum(shares)
    uniform = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    cumulative = 0.0
    for part, share in zip(PARTS, shares, strict=True):
        cumulative += share / total
        if uniform < cumulative:
            return part
    return PARTS[-1]


def cut_stretches(
    length: int, shares: tuple[float, float, float], name: str
) -> dict[Part, tuple[int, int]]:
    """Start and end of each part in a text of `length` characters. The gap is taken from the end of
    the earlier part.

    Raises:
        UserError: a part would be empty.
    """
    gap = min(GAP, length // 100)
    tune_start = round(length * shares[0] / sum(shares))
    verdict_start = round(length * (shares[0] + shares[1]) / sum(shares))
    stretches: dict[Part, tuple[int, int]] = {
        "train": (0, tune_start - gap),
        "tune": (tune_start, verdict_start - gap),
        "verdict": (verdict_start, length),
    }
    empty = [part for part, (start, end) in stretches.items() if end <= start]
    if empty:
        raise UserError(
            f"data.split {_format_shares(shares)}: {name} is too short ({length} characters): "
            f"nothing would be left for {' and '.join(empty)}; use a longer text or give those "
            "parts a larger share"
        )
    return stretches


def _format_shares(shares: tuple[float, float, float]) -> str:
    return "[" + ", ".join(f"{share:g}" for share in shares) + "]"
