"""Finds ablations, sweeps and reports by name: the working folder first, then the shipped ones.
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
    """Something that can be asked for by name."""

    name: str
    path: Path
    origin: Literal["here", "shipped"]
    shadows: bool
    """Whether a shipped entry of this name is hidden by this one."""

    @property
    def title(self) -> str:
        """What it asks, in a line."""
        return title(self.path)


@dataclass(frozen=True)
class UserVariants:
    """A user's own variants, as loaded."""

    path: Path
    digest: str
    """SHA-256 of the source."""


def entries(kind: Kind) -> list[Entry]:
    """Everything of a kind, by name; the working folder's come before shipped ones of the same
    name.
    """
    shipped = _names(_shipped(kind), kind)
    # In a checkout both are one folder.
    here = {} if _here(kind).resolve() == _shipped(kind).resolve() else _names(_here(kind), kind)
    found = [Entry(name, path, "here", shadows=name in shipped) for name, path in here.items()]
    found += [
        Entry(name, path, "shipped", False) for name, path in shipped.items() if name not in here
    ]
    return sorted(found, key=lambda entry: entry.name)


def names(kind: Kind) -> list[str]:
    """Names of everything of a kind."""
    return [entry.name for entry in entries(kind)]


def find(kind: Kind, name_or_path: str | Path) -> Path:
    """The file of a name, or of a path.

    A name that hides a shipped one is said on stderr.

    Raises:
        UserError: there is none; with the name that comes closest.
    """
    text = str(name_or_path)
    path = Path(text).expanduser()
    if path.suffix in (ENDINGS[kind], ".yml") or len(path.parts) > 1:
        return _file(kind, path)
    known = {entry.name: entry for entry in entries(kind)}
    if text in known:
        if known[text].shadows:
            print(
                f"{kind}/{known[text].path.name} of this folder hides the shipped {text}",
                file=sys.stderr,
            )
        return known[text].path
    raise UserError(
        f"no {kind.removesuffix('s')} {text!r} in ./{kind} or among the shipped ones; "
        f"{nearest(text, known)}"
    )


def title(path: Path) -> str:
    """What a file asks (YAML) or makes (the docstring of a report), in one line; empty where it
    cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        content = yaml.safe_load(text)
    except (OSError, ValueError, SyntaxError, RecursionError, yaml.YAMLError):
        return ""
    asked = content.get("question") if isinstance(content, dict) else None
    return " ".join(str(asked).split()) if asked else ""


def load_user_variants(path: Path) -> UserVariants | None:
    """Import the Python file beside a YAML (`mine.py` beside `mine.yaml`), which may `register`
    variants.

    It is one file, so that its digest stands for all of it: it may import what is installed, torch
    too, but no module that lies beside it. It becomes the module `andrea_user_<stem>`, so a variant
    in it is registered as `f"{__name__}:MyClass"`. Loading it again is free; every process that
    builds such a model has to load it once.

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
        raise UserError(f"{script}:{_line(error, script)}: {reason(error)}") from error
    module.__dict__["__andrea_digest__"] = digest
    return UserVariants(script, digest)


def _require_one_file(source: bytes, script: Path) -> None:
    """Refuse imports, wherever in the file, of what lies beside it: a change there would go unseen.

    Raises:
        UserError: with the line of the first such import.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return  # the import itself says it with its line
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            asked = [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            asked = [alias.name for alias in node.names]
        else:
            continue
        for module in asked:
            if _lies_beside(module, script):
                raise UserError(
                    f"{script}:{node.lineno}: imports {module}, a file beside it; a user's "
                    "variants are one file: "
                    f"put everything into {script.name}"
                )


def _lies_beside(module: str, script: Path) -> bool:
    """Whether an absolute or relative (with a leading dot) module is a file or folder in the
    script's own folder.
    """
    folder = script.parent
    first, second = [*module.split("."), ""][:2]
    if not first:
        return True
    if first == folder.name and second and _is_module(folder / second):
        return True
    if not _is_module(folder / first):
        return False
    # Where something installed has the same name, that is what is imported.
    found = importlib.util.find_spec(first)
    places = [found.origin, *(found.submodule_search_locations or [])] if found else []
    return all(Path(place).is_relative_to(folder) for place in places if place)


def _is_module(path: Path) -> bool:
    return path.with_name(f"{path.name}.py").is_file() or any(path.glob("*.py"))


def _line(error: BaseException, script: Path) -> int:
    """The last line of the user's own file that the error went through."""
    if isinstance(error, SyntaxError) and error.filename == str(script):
        return error.lineno or 1
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(script)
    ]
    return (lines[-1] if lines else None) or 1


def _here(kind: Kind) -> Path:
    return Path.cwd() / kind


def _shipped(kind: Kind) -> Path:
    """In a wheel `andrea/content/<kind>`; in a checkout the folder beside the package."""
    package = Path(andrea.__file__).resolve().parent
    content = package / "content"
    return (content if content.is_dir() else package.parent) / kind


def _names(folder: Path, kind: Kind) -> dict[str, Path]:
    found = sorted(folder.glob(f"*{ENDINGS[kind]}")) if folder.is_dir() else []
    return {p.stem: p for p in found if not p.name.startswith(("_", "."))}


def _file(kind: Kind, path: Path) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        raise UserError(f"{path} is a folder; name one file in it")
    if path.exists():
        raise UserError(f"{path} is not a regular file")
    near = (
        sorted(p.name for p in path.parent.glob(f"*{ENDINGS[kind]}"))
        if path.parent.is_dir()
        else []
    )
    raise UserError(
        f"no file {path.absolute()}" + (f"; {nearest(path.name, near)}" if near else "")
    )
