"""Ablations, sweeps and reports by name: those of the working folder first, then the shipped ones.
Loads nothing heavy.
"""

import ast
import hashlib
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

import andrea
from andrea.errors import UserError, nearest, reason

Kind = Literal["ablations", "sweeps", "reports"]
ENDINGS: dict[Kind, str] = {"ablations": ".yaml", "sweeps": ".yaml", "reports": ".py"}
MODULE = "andrea_user_"
"""Prefix of the module that a file of user variants becomes."""


@dataclass(frozen=True)
class Entry:
    """An ablation, a sweep or a report that has a name."""

    name: str
    path: Path
    origin: Literal["here", "shipped"]
    shadows: bool
    """True where it hides a shipped entry of the same name."""

    @property
    def title(self) -> str:
        """Its question, or a report's first line."""
        return read_title(self.path)


@dataclass(frozen=True)
class UserVariants:
    """A user's own variants, as loaded."""

    path: Path
    digest: str
    """SHA-256 of the source."""


def list_entries(kind: Kind) -> list[Entry]:
    """List the entries of a kind by name. One of the working folder hides a shipped one."""
    shipped_folder, working_folder = _shipped_folder(kind), Path.cwd() / kind
    entries = {
        name: Entry(name, path, "shipped", shadows=False)
        for name, path in _files_by_name(shipped_folder, kind).items()
    }
    # In a checkout both are one folder.
    if working_folder.resolve() != shipped_folder.resolve():
        for name, path in _files_by_name(working_folder, kind).items():
            entries[name] = Entry(name, path, "here", shadows=name in entries)
    return sorted(entries.values(), key=lambda entry: entry.name)


def entry_names(kind: Kind) -> list[str]:
    """Names of the entries of a kind."""
    return [entry.name for entry in list_entries(kind)]


def find_file(kind: Kind, name_or_path: str | Path) -> Path:
    """Return the file of a name, or of a path. Prints on stderr that a name hides a shipped one.

    Raises:
        UserError: there is none; with the nearest name.
    """
    text = str(name_or_path)
    path = Path(text).expanduser()
    if path.suffix in (ENDINGS[kind], ".yml") or len(path.parts) > 1:
        return _require_file(kind, path)
    entries = {entry.name: entry for entry in list_entries(kind)}
    entry = entries.get(text)
    if entry is None:
        raise UserError(
            f"no {kind.removesuffix('s')} {text!r} in ./{kind} or among the shipped ones; "
            f"{nearest(text, entries)}"
        )
    if entry.shadows:
        print(f"{kind}/{entry.path.name} of this folder hides the shipped {text}", file=sys.stderr)
    return entry.path


def read_title(path: Path) -> str:
    """Return the question of a YAML file or the first line of a report's docstring, in one line;
    empty where it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        content = yaml.safe_load(text)
    except (OSError, ValueError, SyntaxError, RecursionError, yaml.YAMLError):
        return ""
    question = content.get("question") if isinstance(content, dict) else None
    return " ".join(str(question or "").split())


def load_user_variants(path: Path) -> UserVariants | None:
    """Import the Python file beside a YAML (`mine.py` beside `mine.yaml`), which may `register`
    variants.

    It is a single file, so that its digest stands for all of it: it may import installed packages,
    torch too, but no module that lies beside it. It becomes the module `andrea_user_<stem>`, so a
    variant in it is registered as `f"{__name__}:MyClass"`. Loading it again is free; every process
    that builds such a model has to load it once.

    Raises:
        UserError: the file cannot be imported, or imports a file beside it; with the line at fault.
    """
    script = path.with_suffix(".py").absolute()
    if not script.is_file():
        return None
    source = script.read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    name = MODULE + "".join(c if c.isalnum() else "_" for c in script.stem)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__andrea_digest__", None) == digest:
        return UserVariants(script, digest)
    _require_one_file(source, script)
    spec = importlib.util.spec_from_file_location(name, script)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{script}:{_line_in_script(error, script)}: {reason(error)}") from error
    module.__dict__["__andrea_digest__"] = digest
    return UserVariants(script, digest)


def _require_one_file(source: bytes, script: Path) -> None:
    """Refuse imports of files beside the script, wherever they stand: its digest would not change
    with those files.

    Raises:
        UserError: with the line of the first such import.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return  # importing it reports the fault with its line
    for node in nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        prefix = (
            f"{'.' * node.level}{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        )
        for alias in node.names:
            module = prefix + alias.name
            if _lies_beside(module, script):
                raise UserError(
                    f"{script}:{node.lineno}: imports {module}, a file beside it; a user's "
                    f"variants are one file: put everything into {script.name}"
                )


def _lies_beside(module: str, script: Path) -> bool:
    """True where a module (a leading dot: relative) is a file or folder in the script's folder."""
    folder = script.parent
    first, second = [*module.split("."), ""][:2]
    if not first:
        return True
    if first == folder.name and second and _is_module(folder / second):
        return True
    if not _is_module(folder / first):
        return False
    # An installed package of the same name takes precedence.
    spec = importlib.util.find_spec(first)
    locations = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
    return all(Path(location).is_relative_to(folder) for location in locations if location)


def _is_module(path: Path) -> bool:
    return path.with_name(f"{path.name}.py").is_file() or any(path.glob("*.py"))


def _line_in_script(error: BaseException, script: Path) -> int:
    """The last line of the script that the error came through; 1 where there is none."""
    if isinstance(error, SyntaxError) and error.filename == str(script):
        return error.lineno or 1
    line = 1
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(script):
            line = frame.lineno or 1
    return line


def _shipped_folder(kind: Kind) -> Path:
    """In a wheel `andrea/content/<kind>`; in a checkout the folder beside the package."""
    package = Path(andrea.__file__).resolve().parent
    content = package / "content"
    return (content if content.is_dir() else package.parent) / kind


def _files_by_name(folder: Path, kind: Kind) -> dict[str, Path]:
    files = sorted(folder.glob(f"*{ENDINGS[kind]}"))
    return {file.stem: file for file in files if not file.name.startswith(("_", "."))}


def _require_file(kind: Kind, path: Path) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        raise UserError(f"{path} is a folder; name one file in it")
    if path.exists():
        raise UserError(f"{path} is not a regular file")
    neighbours = sorted(file.name for file in path.parent.glob(f"*{ENDINGS[kind]}"))
    hint = f"; {nearest(path.name, neighbours)}" if neighbours else ""
    raise UserError(f"no file {path.absolute()}{hint}")
