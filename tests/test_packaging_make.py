"""`make`, `.ci/run` and what CI makes of a skipped test."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "-C", str(ROOT), *arguments], capture_output=True, text=True, env=env
    )


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """What looks to make like a finished installation."""
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", ".torch", ".installed", ".installed-dev", ".axe"):
        (tmp_path / name).touch()
    return tmp_path


def test_help_names_the_two_commands_of_a_newcomer() -> None:
    answer = make("help").stdout
    assert "ablation" in answer
    assert "test" in answer


def test_a_second_call_installs_nothing(venv: Path) -> None:
    plan = make("-n", "test", f"VENV={venv}").stdout
    assert "pip" not in plan and "npm" not in plan
    assert "pip" not in make("-n", "ablation", f"VENV={venv}").stdout


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_changed_dependencies_are_installed(venv: Path, changed: str) -> None:
    assert "install -e '.[dev]'" in make("-n", "-W", changed, "test", f"VENV={venv}").stdout


def test_torch_is_installed_first_and_its_arguments_are_handed_to_pip(tmp_path: Path) -> None:
    plan = make(
        "-n", "ablation", f"VENV={tmp_path}/none", "TORCH_ARGS=--index-url URL", "ARGS=--seeds 3"
    ).stdout
    steps = [line for line in plan.splitlines() if "pip" in line and "install" in line]
    assert "--index-url URL" in steps[0]
    assert "^torch==" in steps[0]
    assert "install -e . -c constraints.txt" in steps[1]
    assert "andrea ablate norm-placement --seeds 3" in plan
    assert (
        f'echo ". {tmp_path}/none/bin/activate gives you the andrea command"' in plan.splitlines()
    )


def test_a_missing_python_is_one_clear_line(tmp_path: Path) -> None:
    answer = make("install", f"VENV={tmp_path}/none", "PYTHON=/nowhere/python3")
    assert answer.returncode == 2
    assert "andrea needs Python 3.11 or newer" in answer.stderr
    assert not (tmp_path / "none").exists()


def test_every_pinned_version_satisfies_the_ranges() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        if (
            wanted.name == "nvidia-cuda-nvrtc"
        ):  # a CUDA build of torch asks for one version of it, its own
            continue
        pinned = pins[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(pinned, prereleases=True), (
            f"{text}, but constraints.txt has {pinned}"
        )


def test_ci_runs_what_a_developer_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["sh", "-n", str(script)]).returncode == 0
    assert script.read_text().rstrip().endswith("make test")


SKIPPING = """
import pytest

def test_that_passes():
    pass

def test_that_needs_what_is_not_there():
    pytest.skip("no such program")
"""


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0), ("false", 0)])
def test_in_ci_a_skipped_test_is_a_failure_and_is_named(
    tmp_path: Path, ci: str, status: int
) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(SKIPPING)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
    ]
    env = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert answer.returncode == status, answer.stdout
    assert ("SKIPPED IN CI test_some.py::test_that_needs_what_is_not_there" in answer.stdout) == (
        status == 1
    )
    assert answer.stdout.strip().splitlines()[-1].startswith("1 passed, 1 skipped")
