"""What a user gets from `pip install`: the `andrea` command, with its content, far from any
checkout.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAST_SETTINGS = (
    "--set",
    "model.n_layer=1",
    "--set",
    "model.d_model=16",
    "--set",
    "data.eval_tokens=512",
)

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Installed:
    """A virtual environment with andrea from the wheel and everything else from the environment of
    the tests.
    """

    bin: Path
    elsewhere: Path
    wheel: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder that is no checkout."""
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        arguments = [str(self.bin / command[0]), *command[1:]]
        return subprocess.run(
            arguments, cwd=self.elsewhere, env=env, capture_output=True, text=True, timeout=300
        )

    def succeed(self, *command: str) -> str:
        """What the program prints; it must end well."""
        answer = self.run(*command)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy in which someone has worked: compiled files and runs lie
    about.
    """
    source = tmp_path_factory.mktemp("source") / "andrea"
    ignored = shutil.ignore_patterns(
        ".venv", ".git", "andrea-runs", "__pycache__", ".*_cache", "wandb"
    )
    shutil.copytree(ROOT, source, ignore=ignored)
    for folder in ("reports", "andrea"):
        (source / folder / "__pycache__").mkdir()
        (source / folder / "__pycache__" / "left.cpython-311.pyc").write_bytes(b"")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(source / "dist"),
        str(source),
    ]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own.

    The tests' packages are lent by a .pth file: their folder comes onto the path, but the .pth
    files in it are not followed, so the editable install of the checkout stays out.
    """
    home = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(
        subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    )
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(home / "bin", tmp_path_factory.mktemp("elsewhere"), wheel)


def test_the_wheel_holds_the_package_and_its_content_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"andrea", "andrea-0.1.0.dist-info"}
    assert "andrea/content/ablations/norm-placement.yaml" in names
    assert "andrea/content/sweeps/lr.yaml" in names
    assert "andrea/content/reports/comparison.py" in names
    assert any(name.startswith("andrea/content/reports/templates/") for name in names)
    for name in ("rt.cuh", "cross_entropy.cu", "norm.cu", "activation.cu", "reduce.cu", "adamw.cu"):
        assert f"andrea/kernels/{name}" in names
    assert not [name for name in names if "__pycache__" in name]


def test_the_command_comes_from_the_wheel_and_not_from_the_checkout(installed: Installed) -> None:
    where = installed.succeed("python", "-c", "import andrea; print(andrea.__file__)").strip()
    assert where.startswith(str(installed.bin.parent))
    assert installed.succeed("andrea", "--version").strip() == "andrea 0.1.0"
    assert "ablate" in installed.succeed("andrea", "--help")


def test_no_module_of_the_users_own_names_is_taken(installed: Installed) -> None:
    program = "import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    names = ["ablations", "sweeps", "reports", "cli"]
    assert installed.succeed("python", "-c", program.format(names=names)).strip() == "[]"


def test_the_shipped_content_is_found_from_another_folder(installed: Installed) -> None:
    listing = installed.succeed("andrea", "list")
    for name in ("norm-placement", "activation", "mlp-ratio", "lr-wd", "lr-warmup", "andrea-120m"):
        assert name in listing


def test_a_model_is_counted_from_another_folder(installed: Installed) -> None:
    assert "92,331,264" in installed.succeed("andrea", "model", "show", "andrea-120m")
    assert installed.succeed("andrea", "model", "show", "tiny")


def test_an_ablation_is_planned_from_another_folder_and_nothing_is_started(
    installed: Installed,
) -> None:
    command = (
        "andrea",
        "ablate",
        "norm-placement",
        "--dry-run",
        "--tokens",
        "2048",
        *FAST_SETTINGS,
    )
    assert "post" in installed.succeed(*command)
    runs = installed.elsewhere / "andrea-runs"
    assert not list(runs.glob("studies/*"))
    assert not list(runs.glob("runs/*"))


def test_an_ablation_runs_to_its_report_from_another_folder(installed: Installed) -> None:
    text = "".join(f"Line {i}: it was a dark and stormy night.\n" for i in range(3000))
    (installed.elsewhere / "book.txt").write_text(text)
    command = (
        "andrea",
        "ablate",
        "norm-placement",
        "--tokens",
        "8192",
        "--seeds",
        "2",
        "--trials",
        "1",
        "--json",
    )
    settings = (
        "data.source=text:book.txt",
        "model.n_head=1",
        "model.context=16",
        "train.batch_size=4",
    )
    more = [option for setting in settings for option in ("--set", setting)]
    answer = json.loads(installed.succeed(*command, *FAST_SETTINGS, *more))
    assert answer["complete"] is True and answer["failed_runs"] == []
    assert [verdict["arm"] for verdict in answer["verdicts"]] == ["post"]
    page = Path(answer["report"]).read_text(encoding="utf-8")
    style = (
        zipfile.ZipFile(installed.wheel)
        .read("andrea/content/reports/templates/report.css")
        .decode()
    )
    assert style.partition("{#")[0].strip() in page and "norm-placement" in page
    assert installed.succeed("andrea", "status").splitlines()[1].split()[1:3] == ["done", "6/6"]
