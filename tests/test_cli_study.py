"""Whole studies from the command line: plan, run, interrupt, resume, a full disk."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner
from waiting import PATIENT_S

from andrea.cli.app import app

QUESTION = """
question: Does a ReLU do as well?
hypothesis: It does.
factor: activation
baseline: gelu
arms:
  gelu: {model.activation: gelu}
  relu: {model.activation: relu}
model: {n_layer: 1, d_model: 8, n_head: 1, context: 16}
data: {eval_tokens: 512, curve_tokens: 64}
train: {batch_size: 2, evals: 2, logs: 4, diagnostics: 0, tokens: 3200}
protocol: {m: 0.05, seeds: 2, trials: 2}
"""
SWEEP = """
question: Which rate?
space: {train.lr: {choices: [0.003, 0.01]}}
sampler: grid
trials: 2
model: {n_layer: 1, d_model: 8, n_head: 1, context: 16}
data: {eval_tokens: 512, curve_tokens: 64}
train: {batch_size: 2, evals: 2, logs: 4, diagnostics: 0, tokens: 1600}
"""
ANDREA = [sys.executable, "-c", "from andrea.cli.app import main; main()"]


@pytest.fixture
def place(tmp_path):
    """A folder of its own with a text and two questions about it."""
    (tmp_path / "book.txt").write_text(
        "".join(f"Line {i}: it was a dark and stormy night.\n" for i in range(3000))
    )
    (tmp_path / "mine.yaml").write_text(QUESTION)
    (tmp_path / "rates.yaml").write_text(SWEEP)
    return tmp_path


def arguments(*own, tokens=None):
    budget = [] if tokens is None else ["--tokens", str(tokens)]
    return [*own, "--set", "data.source=text:book.txt", "--wandb", "off", *budget]


def run(place, *own, timeout=500, **more):
    return subprocess.run(
        [*ANDREA, *arguments(*own, **more)],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_a_dry_run_as_json_is_the_plan_alone_and_starts_nothing(place, monkeypatch):
    monkeypatch.chdir(place)
    result = CliRunner().invoke(
        app, arguments("ablate", "mine.yaml", "--dry-run", "--json", "--slots", "3")
    )
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert (plan["runs"], plan["tokens_per_run"], plan["tokens"], plan["slots"]) == (
        8,
        3200,
        25_600,
        3,
    )
    assert list(plan["arms"]) == ["gelu", "relu"]
    assert plan["arms"]["relu"]["config"]["model"]["activation"] == "relu"
    assert plan["estimate_s"] > 0
    assert "Does a ReLU do as well?" in result.stderr
    assert sorted(path.name for path in (place / "andrea-runs").iterdir()) == ["data", "store.json"]


def test_the_plan_says_question_arms_parameters_runs_and_time(place, monkeypatch):
    monkeypatch.chdir(place)
    text = (
        CliRunner()
        .invoke(app, arguments("ablate", "mine.yaml", "--dry-run", "--slots", "2"))
        .stdout
    )
    assert "mine: Does a ReLU do as well?" in text
    assert "8 runs of 3,200 tokens, 2 at once: about" in text
    assert (
        "rates of every arm: 0.001, 0.01\nsmallest effect of interest m = 0.05 nats, 2 pairs, "
        "alpha 0.05" in text
    )
    assert {"gelu", "relu"} <= {line.split()[0] for line in text.splitlines() if line}


def test_more_slots_than_cores_are_noted(place, monkeypatch):
    monkeypatch.chdir(place)
    said = "99 slots are more than the"
    assert (
        said
        in CliRunner()
        .invoke(app, arguments("ablate", "mine.yaml", "--dry-run", "--slots", "99"))
        .stdout
    )
    assert said not in CliRunner().invoke(app, arguments("ablate", "mine.yaml", "--dry-run")).stdout


def test_a_sweep_finds_the_variants_beside_it(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "rates.py").write_text(
        "from andrea.model.registry import register\n"
        "from andrea.model.mlps import Relu\n"
        "class Mine(Relu): pass\n"
        "register('activation', 'of_the_sweep', f'{__name__}:Mine')\n"
    )
    (place / "rates.yaml").write_text(
        SWEEP.replace("n_layer: 1", "activation: of_the_sweep, n_layer: 1")
    )
    plan = json.loads(
        CliRunner().invoke(app, arguments("sweep", "rates.yaml", "--dry-run", "--json")).stdout
    )
    assert plan["arms"]["rates"]["config"]["model"]["activation"] == "of_the_sweep"


def test_failed_runs_are_counted_and_end_with_1(place, monkeypatch):
    from andrea.study.session import FailedRun, Summary

    failed = FailedRun("ab" * 32, "relu", "tune", "RuntimeError: broken")
    monkeypatch.setattr("andrea.cli.study_command.run_study", lambda *_: Summary(False, [failed]))
    monkeypatch.chdir(place)
    result = CliRunner().invoke(app, arguments("ablate", "mine.yaml", "--json"))
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["complete"] is False
    assert answer["failed_runs"] == ["abababababab (relu, tune): RuntimeError: broken"]
    assert result.stderr.endswith("says why); the same command given again tries them once more\n")


def test_a_tracker_or_a_report_that_breaks_costs_a_warning_and_not_the_study(place, monkeypatch):
    from andrea.study.session import Summary

    def broken(*_, **__):
        raise RuntimeError("no such thing")

    monkeypatch.setattr("andrea.cli.study_command.run_study", lambda *_: Summary(True))
    monkeypatch.setattr("andrea.tracking.mirror.Mirror", broken)
    monkeypatch.setattr("andrea.analysis.formats.build.make_report", broken)
    monkeypatch.chdir(place)
    own = [*arguments("ablate", "mine.yaml"), "--wandb", "offline"]
    result = CliRunner().invoke(app, own)
    assert result.exit_code == 0, result.output
    mirror, report = result.stderr.splitlines()
    assert mirror == "warning: no W&B mirror (no such thing); `andrea sync` publishes later"
    assert report.startswith(
        "warning: no report (RuntimeError: no such thing); `andrea report mine-"
    )


@pytest.mark.slow
def test_an_ablation_ends_in_verdicts_and_a_report_and_is_found_done_the_second_time(place):
    first = run(place, "ablate", "mine.yaml", "--executor", "inline")
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert sum(line.startswith("[") for line in lines) == 8
    assert any(line.split()[:2] == ["gelu", "baseline"] for line in lines)
    page = lines[-1].removeprefix("report: ")
    assert page.endswith("report.html")
    assert not any(ord(c) < 32 for c in first.stdout.replace("\n", ""))
    again = run(place, "ablate", "mine.yaml", "--executor", "inline", "--json")
    assert again.returncode == 0
    answer = json.loads(again.stdout)
    assert answer["complete"] is True and answer["failed_runs"] == [] and answer["report"] == page
    assert [verdict["arm"] for verdict in answer["verdicts"]] == ["relu"]
    assert "8 of 8 runs are in the store already" in again.stderr
    assert "\n[" not in again.stderr and " left" not in again.stderr
    assert "m = 0.05 nats; n = 2 pairs; 3,200 tokens a run" in lines
    status = CliRunner().invoke(app, ["status", "--runs", str(place / "andrea-runs")])
    assert "8/8" in status.stdout


@pytest.mark.slow
def test_a_sweep_ends_in_trials_and_the_best_config_to_copy(place):
    learns = ["--set", "model.d_model=32", "--set", "model.init_std=0.08"]
    done = run(
        place, "sweep", "rates.yaml", "--executor", "inline", "--json", *learns, tokens=16_000
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [trial["params"]["train.lr"] for trial in answer["trials"]] == [0.003, 0.01]
    command = answer["best"]["command"]
    assert (
        command in done.stderr
        and f"--set train.lr={answer['best']['params']['train.lr']}" in command
    )
    trained = subprocess.run(
        [*ANDREA, *shlex.split(command)[1:]], cwd=place, capture_output=True, text=True
    )
    assert trained.stdout.startswith("this config is trained already"), trained.stderr


@pytest.mark.slow
def test_ctrl_c_ends_at_once_with_130_and_the_same_command_resumes(place):
    command = [
        *ANDREA,
        *arguments("ablate", "mine.yaml", "--slots", "2", tokens=64_000),
        "--wandb",
        "offline",
    ]
    work = subprocess.Popen(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in work.stdout:
            if line.startswith("[1/8]"):
                break
        work.send_signal(signal.SIGINT)
        _, said = work.communicate(timeout=PATIENT_S)
    finally:
        work.kill()
    assert work.returncode == 130
    # How far the mirror came is the machine's affair: it may say that it still writes, or that
    # `andrea sync` has to go on.
    lines = [line for line in said.splitlines() if not line.startswith("W&B")]
    assert lines == ["andrea: interrupted; the same command given again resumes"]
    state = json.loads(
        CliRunner().invoke(app, ["status", "--runs", str(place / "andrea-runs"), "--json"]).stdout
    )
    assert state[0]["live"] is False and state[0]["runs"]["running"] == 0
    assert state[0]["phase"] == "tune, interrupted"
    resumed = run(place, "ablate", "mine.yaml", "--slots", "2", tokens=64_000)
    assert resumed.returncode == 0, resumed.stderr
    found = int(re.search(r"(\d+) of 8 runs are in the store already", resumed.stdout)[1])
    assert found >= 1 and resumed.stdout.count("\n[") == 8 - found


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 6 MiB."""
    mount = shutil.which("mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], capture_output=True
        ).returncode
    ):
        pytest.skip("cannot mount a small tmpfs here (needs root and CAP_SYS_ADMIN)")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "inline"])
def test_a_full_disk_ends_with_1_and_the_same_command_resumes_after_space_is_made(
    place, small_disk, executor, monkeypatch
):
    own = ["ablate", "mine.yaml", "--executor", executor, "--runs", str(small_disk / "runs")]
    monkeypatch.chdir(place)
    assert CliRunner().invoke(app, arguments(*own, "--dry-run")).exit_code == 0
    free = shutil.disk_usage(small_disk).free
    (small_disk / "ballast").write_bytes(bytes(free - 150_000))
    full = run(place, *own)
    assert full.returncode == 1, full.stdout + full.stderr
    assert full.stderr.startswith("andrea: ") and full.stderr.count("\n") == 1
    assert "space" in full.stderr and "same command" in full.stderr
    (small_disk / "ballast").unlink()
    done = run(place, *own)
    assert done.returncode == 0, done.stderr
    assert "[8/8]" in done.stdout
