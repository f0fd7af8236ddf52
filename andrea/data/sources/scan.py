"""The documents of a source: strict UTF-8, each content once, in a fixed order."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from andrea.data.sources.index import FileIndex
from andrea.data.sources.registry import make_source
from andrea.data.sources.source import SourceFile
from andrea.errors import StudyError, UserError, reason


@dataclass(frozen=True)
class Document:
    """One text file as it was when the corpus was scanned."""

    name: str
    """Path relative to the corpus, with `/`: what the split hashes and reports show."""
    path: Path
    digest: str
    """SHA-256 of the bytes."""
    size: int
    """Bytes."""

    def read_text(self) -> str:
        """Return the text.

        Raises:
            StudyError: the file is gone, or no longer what was scanned.
        """
        try:
            data = self.path.read_bytes()
        except OSError as error:
            message = f"{self.path}: {error.strerror}; it was there when the corpus was scanned"
            raise StudyError(message) from error
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise StudyError(
                f"{self.path} changed while the corpus was being prepared; give the command again"
            )
        return data.decode()


@dataclass(frozen=True)
class Scan:
    """The documents of a source, each content once."""

    documents: list[Document]
    duplicates: int
    """Files left out because an earlier one has the same bytes: a copy in another part would leak.
    """
    empty: int
    """Files without a byte."""


def scan_source(reference: str, index: FileIndex | None = None) -> Scan:
    """List the documents of a source with their digests and sizes. Each file is read once, or not
    at all where the index has it unchanged.

    Raises:
        UserError: nothing there, no text in it, or a file that is not UTF-8 (with the byte where it
            stops being so).
    """
    try:
        files = make_source(reference).files()
    except (OSError, RuntimeError, ValueError) as error:
        # An unknown ~user, a name too long, a folder that disappeared.
        raise UserError(f"data.source {reference}: cannot be looked at: {reason(error)}") from error
    by_digest: dict[str, Document] = {}
    empty = 0
    for file in files:
        document = _scan_file(file, index or FileIndex(None))
        if document.size == 0:
            empty += 1
        else:
            by_digest.setdefault(document.digest, document)
    if not by_digest:
        raise UserError(
            f"data.source {reference}: empty, there is no text in it; name a file or folder with "
            "text"
        )
    documents = list(by_digest.values())
    return Scan(documents, duplicates=len(files) - empty - len(documents), empty=empty)


def _scan_file(file: SourceFile, index: FileIndex) -> Document:
    name, path = file
    try:
        state, now = path.stat(), time.time_ns()
        indexed = index.digest_of(path, state)
        if indexed is not None:
            return Document(name, path, indexed, state.st_size)
        # A file that claims to be empty is not read: below /proc reading could last for ever.
        data = path.read_bytes() if state.st_size else b""
    except (OSError, MemoryError, OverflowError) as error:
        message = f"data.source: cannot read {path}: {getattr(error, 'strerror', 'too large')}"
        raise UserError(message) from error
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"data.source: {path} is not UTF-8: {error.reason} at byte {error.start} "
            f"(0x{data[error.start]:02x}); convert it to UTF-8, or name only the text files "
            "(text:'folder/**/*.txt')"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    index.add(path, state, digest, now)
    return Document(name, path, digest, len(data))
