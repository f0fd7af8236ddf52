"""Finds ablations, sweeps and reports by name: the working folder first, then the shipped ones. Loads nothing heavy."""

import ast
import difflib
import hashlib
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

import andrea
from andrea.errors import UserError

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
    """Everything of a kind, by name; the working folder's come before shipped ones of the same name."""
    shipped = _names(_shipped(kind), kind)
    # In a checkout both are one folder.
    here = {} if _here(kind).resolve() == _shipped(kind).resolve() else _names(_here(kind), kind)
    found = [Entry(name, path, "here", shadows=name in shipped) for name, path in here.items()]
    found += [Entry(name, path, "shipped", False) for name, path in shipped.items() if name not in here]
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
            print(f"{kind}/{known[text].path.name} of this folder hides the shipped {text}", file=sys.stderr)
        return known[text].path
    close = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known) or 'none'}"
    raise UserError(f"no {kind.removesuffix('s')} {text!r} in ./{kind} or among the shipped ones; {hint}")


def title(path: Path) -> str:
    """What a file asks (YAML) or makes (the docstring of a report), in one line; empty where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        content = yaml.safe_load(text)
    except (OSError, ValueError, SyntaxError, yaml.YAMLError):
        return ""
    asked = content.get("question") if isinstance(content, dict) else None
    return " ".join(str(asked).split()) if asked else ""


def load_user_variants(path: Path) -> UserVariants | None:
    """Import the Python file beside a YAML (`mine.py` beside `mine.yaml`), which may `register` variants.

    The module is `andrea_user_<stem>`, so a variant in it is registered as `f"{__name__}:MyClass"`. Loading it again is
    free; every process that builds such a model has to load it once.

    Raises:
        UserError: the file cannot be imported; with the line at fault.
    """
    script = path.with_suffix(".py").absolute()
    if not script.is_file():
        return None
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    name = MODULE + "".join(c if c.isalnum() else "_" for c in script.stem)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__andrea_digest__", None) == digest:
        return UserVariants(script, digest)
    spec = importlib.util.spec_from_file_location(name, script)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{script}:{_line(error, script)}: {type(error).__name__}: {error}") from error
    module.__dict__["__andrea_digest__"] = digest
    return UserVariants(script, digest)


def _line(error: Exception, script: Path) -> int:
    """The last line of the user's own file that the error went through."""
    if isinstance(error, SyntaxError) and error.filename == str(script):
        return error.lineno or 1
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(script)]
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
    near = sorted(p.name for p in path.parent.glob(f"*{ENDINGS[kind]}")) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, near, n=1)
    hint = f"; did you mean {path.parent / close[0]}?" if close else ""
    raise UserError(f"no file {path.absolute()}{hint}")
