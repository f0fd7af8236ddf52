"""The rules between the rooms: who may import whom, and what loads what."""

import ast
import json
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
    "store": set(),
    "model": {"config"},
    "data": {
        "store",
        "config",
    },  # prepared data are files of the store's root: its digests, locks, atomic files
    "kernels": {
        "model"
    },  # `apply` gives its modules another forward; the model knows nothing of kernels
    "training": {"model", "data", "kernels", "store", "config"},
    "text": set(),
    "records": {"verdict", "store", "text"},
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
    "catalogue": {"config", "model"},
    "config": {"model", "data", "training", "verdict"},
    "errors": set(),
    "schema": set(),
}
"""What a room may import besides itself and FREE. `cli` may import all."""
LEAVES_ONLY = {("study", "model"), ("catalogue", "model")}
"""Here only the torch-free part of the other room: its config and its accounting."""
TORCH_FREE = {
    "andrea.model.config",
    "andrea.model.accounting",
    "andrea.model.describe",
    "andrea.model.size_matching",
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


def test_a_rooms_config_is_a_leaf() -> None:
    for path in PACKAGE.glob("*/config.py"):
        rooms = {name for name in imports_of(path) if name.startswith("andrea.")}
        rooms -= {"andrea.model.checks.faults"}  # its own half, as free of torch as it (S46)
        assert all(name.split(".")[1] in FREE for name in rooms), (
            f"{path.relative_to(ROOT)} imports {rooms}"
        )


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


def loaded_by(tmp_path: Path, *arguments: str) -> set[str]:
    """The top-level modules that an `andrea` command has loaded when it ends."""
    program = (
        "import atexit, json, sys\n"
        "from pathlib import Path\n"
        "atexit.register(lambda: Path(sys.argv[-1]).write_text(json.dumps(sorted(sys.modules))))\n"
        "seen, sys.argv = sys.argv, ['andrea', *sys.argv[1:-1]]\n"
        "from andrea.cli.app import main\n"
        "sys.argv, arguments = seen, sys.argv\n"
        "from unittest.mock import patch\n"
        "with patch.object(sys, 'argv', arguments):\n"
        "    main()\n"
    )
    report = tmp_path / "modules.json"
    command = [sys.executable, "-c", program, *arguments, str(report)]
    answer = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENT_S
    )
    assert answer.returncode == 0, answer.stderr
    return {name.split(".")[0] for name in json.loads(report.read_text())}


def test_s46_help_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"torch", "wandb", "optuna", "pandas", "scipy", "numpy", "tokenizers"}
    assert not loaded_by(tmp_path, "--help") & heavy


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("status",), ("report", "--help"), ("ablate", "--help"), ("model", "show", "tiny")],
)
def test_s46_what_only_looks_loads_no_torch(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert not loaded_by(tmp_path, *arguments) & {"torch", "wandb"}


def test_nothing_that_is_committed_names_the_workplace_it_was_written_in() -> None:
    """Tests and documents stand on their own: no absolute path of a developer's machine, no sibling
    folder.
    """
    words = ("/work" + "/", ".." + "/shared")
    folders = ("andrea", "tests", "docs", "ablations", "sweeps", "reports", "benchmarks", ".ci")
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8", errors="ignore") if path.suffix != ".pyc" else ""
        found += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert not found
