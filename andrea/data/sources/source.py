"""The interface of a corpus: a class per source, made known with one line in
`andrea.data.sources.registry`.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple


class SourceFile(NamedTuple):
    """One file of a corpus."""

    name: str
    """Path relative to the corpus, with `/`."""
    path: Path


class Source(ABC):
    """A corpus that `data.source` names, as `NAME` or `NAME:ARGUMENT`."""

    usage: ClassVar[str]
    """What a user writes: the name alone, or with a colon and a placeholder, as in `text:PATH`."""

    def __init__(self, argument: str) -> None:
        self.argument = argument

    @abstractmethod
    def files(self) -> list[SourceFile]:
        """List the files in a fixed order.

        Raises:
            UserError: there are none.
        """
