"""The user's own text: a file, a folder without its hidden files, or a glob."""

import glob
import os
from pathlib import Path

from andrea.data.sources.source import Source, SourceFile
from andrea.errors import UserError


class TextFiles(Source):
    """Files below a path, by their names relative to it."""

    usage = "text:PATH"

    def files(self) -> list[SourceFile]:
        """List the files; those of a glob are named relative to the part before its wildcards."""
        path = Path(self.argument).expanduser()
        if path.is_file():
            return [SourceFile(path.name, path.absolute())]
        if path.is_dir():
            root = path
            matches = [p for p in path.rglob("*") if not _is_hidden(p.relative_to(path))]
        elif glob.has_magic(self.argument):
            root = _path_before_wildcards(path)
            matches = list(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207 (Path.glob refuses absolute patterns)
        else:
            raise UserError(
                f"data.source: no file or folder {path.absolute()}; name one that exists, or a glob"
            )
        files = sorted(
            SourceFile(_document_name(p.relative_to(root)), p.absolute())
            for p in matches
            if p.is_file()
        )
        if not files:
            raise UserError(
                f"data.source: no text files in {path.absolute()}; name a file, a folder or a glob "
                "that has some"
            )
        return files


def _document_name(path: Path) -> str:
    """A relative path as text; bytes of a file name that are not UTF-8 become U+FFFD."""
    return os.fsencode(path.as_posix()).decode(errors="replace")


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _path_before_wildcards(pattern: Path) -> Path:
    fixed = Path()
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed
