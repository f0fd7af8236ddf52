"""Child interpreters that run exactly this process's code.

An interpreter that is started with `-c` or `-m` looks for modules in the current folder first: in
the standard library's place it would import a `random.py` that lies there, and in andrea's place
another checkout. Children get the parent's search path instead, and compare the files of the
package with those that the parent found when it began.
"""

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import andrea

PACKAGE = Path(andrea.__file__).resolve().parent


def import_variables() -> dict[str, str]:
    """Return the environment variables with which a child imports what this process imports."""
    entries = []
    for entry in sys.path:
        # An empty entry is the current folder, whichever that is. It stays only where andrea itself
        # was imported from there.
        if entry or (Path(entry) / "andrea").resolve() == PACKAGE:
            with contextlib.suppress(OSError):  # relative to a folder that was deleted
                entries.append(str(Path(entry).absolute()))
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(entries)), "PYTHONSAFEPATH": "1"}


@contextlib.contextmanager
def same_imports() -> Iterator[None]:
    """Set `import_variables` for the interpreters that are started within the block."""
    before = _variables()
    os.environ.update(import_variables())
    try:
        yield
    finally:
        _set_variables(before)


def _variables() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@dataclass(frozen=True)
class ParentCode:
    """The code of a process, for its children to compare theirs with."""

    package: Path
    """Folder of andrea."""
    manifest: Mapping[str, str]
    """Digest of every file of the package when the process began to have children, by path."""
    variables: Mapping[str, str | None]
    """Environment variables of imports as the user has them."""

    @classmethod
    def of_this_process(cls) -> Self:
        """Return the code of this process."""
        return cls(PACKAGE, _package_manifest(), _variables())

    def enter_child(self) -> str:
        """Give a child the user's own variables; return how its code differs, empty where not.

        Only modules that are loaded count: who edits a report does not disturb a training.
        """
        _set_variables(self.variables)
        if self.package != PACKAGE:
            return f"a worker imports andrea from {PACKAGE}, its controller from {self.package}"
        for name, module in sorted(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name.partition(".")[0] == "andrea" and file:
                path = Path(file).resolve()
                if self.manifest.get(str(path.relative_to(PACKAGE))) != _digest(path):
                    return f"{path} has changed since the command began"
        return ""


@functools.cache
def _package_manifest() -> dict[str, str]:
    files = (path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".cu", ".cuh"))
    return {str(path.relative_to(PACKAGE)): _digest(path) for path in files}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""
