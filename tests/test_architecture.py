"""The rules between the rooms: who may import whom, and what loads what."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENT_S

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "andrea"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "content" not in path.parts)

FREE = {"errors", "schema"}
ALLOWED = {
    "verdict": set(),
    "store": {"records", "text"},
    "model": {"config"},
    "data": {
        "store",
        "config",
    },  # prepared data are files of the store's root: its digests, locks, atomic files
    "kernels": {
        "model"
    },  # `apply` gives its modules another forward; the model knows nothing of kernels
    "training": {"model", "data", "kernels", "records", "store", "config"},
    "text": set(),
    "records": {"verdict"},
    "execution": {"training", "store", "records", "catalogue", "config"},
    "study": {
        "training",
        "verdict",
        "store",
        "records",
        "execution",
        "data",
        "model",
        "catalogue",
        "config",
    },
    "tracking": {"store", "records", "text", "config"},
    "analysis": {"verdict", "store", "records", "text", "catalogue", "config"},
    "catalogue": {"config"},
    "config": {"model", "data", "training", "verdict"},
    "errors": set(),
    "schema": set(),
}
"""What a room may import besides itself and FREE. `cli` may import all."""
LEAVES_ONLY = {("study", "model")}
"""Here only the torch-free part of the other room: its configuration and what is counted from it.
"""
TORCH_FREE = {
    f"andrea.model.{name}"
    for name in ("registry", "settings", "config", "presets", "accounting", "size_matching")
}


def room_of(path: Path) -> str:
    """`andrea/store/runs.py` is of the room `store`, `andrea/errors.py` of `errors`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, at the top, in functions and for typing."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    """`andrea/store/runs.py` is `andrea.store.runs`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_between_files() -> dict[str, set[str]]:
    """The modules of the package that each module of it imports, wherever in the file."""
    names = {module_name(path) for path in MODULES}
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        # `from andrea.model import accounting` names a module, `from andrea.errors import x` not.
        imported = {name if name in names else name.rpartition(".")[0] for name in imports_of(path)}
        graph[module_name(path)] = imported & names - {module_name(path)}
    return graph


def reachable_from(start: str, graph: dict[str, set[str]]) -> set[str]:
    """What a module imports, directly or through others; itself only if it is in a circle."""
    reached: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached


def test_rooms_import_only_what_the_design_lets_them() -> None:
    faults = []
    for path in MODULES:
        room = room_of(path)
        if room in ("cli", "__init__"):
            continue
        for name in imports_of(path):
            if not name.startswith("andrea."):
                continue
            other = name.split(".")[1]
            if other == room or other in FREE:
                continue
            leaf = (room, other) not in LEAVES_ONLY or any(
                name.startswith(free) for free in TORCH_FREE
            )
            if other not in ALLOWED[room] or not leaf:
                faults.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not faults, "\n".join(faults)


def test_a_rooms_config_needs_no_other_room() -> None:
    graph = imports_between_files()
    for path in PACKAGE.glob("*/config.py"):
        others = {name.split(".")[1] for name in reachable_from(module_name(path), graph)}
        assert others <= FREE | {room_of(path)}, f"{path.relative_to(ROOT)} needs {others}"


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = imports_between_files()
    reachable = {name: reachable_from(name, graph) for name in graph}
    circles = {
        frozenset(other for other in reachable[name] if name in reachable[other])
        for name in graph
        if name in reachable[name]
    }
    assert not circles


def test_trackers_and_tuners_stay_out_of_what_trains() -> None:
    """The machine with the GPU has neither, and a training must not depend on them."""
    for path in MODULES:
        if room_of(path) in ("model", "data", "kernels", "training", "verdict", "store"):
            found = {name.split(".")[0] for name in imports_of(path)} & {
                "wandb",
                "optuna",
                "pandas",
                "typer",
            }
            assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_only_what_writes_to_wandb_imports_it() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in MODULES
        if any(name.split(".")[0] in ("wandb", "wandb_workspaces") for name in imports_of(path))
    }
    assert found == {
        f"tracking/{name}.py" for name in ("writer", "service", "refusals", "dashboards")
    }


@pytest.mark.slow
def test_a_worker_loads_no_tracker_and_no_tuner() -> None:
    """What the fork server has loaded, every worker has; a run and a measurement of speed need no
    more.
    """
    from andrea.execution.local import PRELOAD

    program = f"import sys, andrea.training.speed, {', '.join(PRELOAD)}; print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=True,
    )
    assert "andrea.training.loop" in answer.stdout.split()
    assert not {"wandb", "wandb_workspaces", "optuna", "pandas"} & set(answer.stdout.split())


def test_init_files_are_empty() -> None:
    full = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("__init__.py")
        if path.read_text().strip()
    ]
    assert not full


def test_every_folder_of_the_package_is_a_package() -> None:
    assert all((path.parent / "__init__.py").exists() for path in MODULES)


def test_nothing_that_is_committed_names_the_workplace_it_was_written_in() -> None:
    """Tests and documents stand on their own: no absolute path of a developer's machine, no sibling
    folder.
    """
    words = ("/work" + "/", ".." + "/shared")
    folders = ("andrea", "tests", "docs", "ablations", "sweeps", "reports", "benchmarks", ".ci")
    files = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8", errors="ignore") if path.suffix != ".pyc" else ""
        found += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert not found
