"""Input that a careless or hostile hand could give: one line, exit 2, nothing written; and streams
that fail.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner
from waiting import PATIENT_S

from andrea.cli.app import app
from andrea.config import parse_value

ABLATION = """\
question: Does it matter?
hypothesis: yes
factor: activation
baseline: gelu
arms:
  gelu: {model.activation: gelu}
  relu: {model.activation: relu}
model: {n_layer: 1, d_model: 8, n_head: 1, context: 16}
data: {eval_tokens: 64}
train: {tokens: 512, batch_size: 2, compile: off}
protocol: {m: 0.05, seeds: 2, trials: 1}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (tmp_path / "mine.yaml").write_text(ABLATION)
    return tmp_path


def andrea(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="andrea")


def assert_refused(here, result, *parts):
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("andrea: ") and result.stderr.count("\n") == 1
    assert len(result.stderr) < 700
    for part in parts:
        assert part in result.stderr
    assert list((here / "work").iterdir()) == []


REFUSED = {
    "compile is no boolean": (["--set", "train.compile=true"], ["'auto', 'on' or 'off', not true"]),
    "a tokenizer beyond all measure": (
        ["--set", "data.tokenizer=bpe-999999999999"],
        ["at most 1,048,576"],
    ),
    "threads beyond all measure": (["--set", "train.threads=100000"], ["train.threads", "1024"]),
    "more threads than cores": (
        ["--set", "train.threads=1024"],
        ["train.threads 1024: this machine has"],
    ),
    "true is no number": (
        ["--set", "train.threads=true"],
        ["train.threads: input should be a number, not true"],
    ),
    "a width": (
        ["--set", "model.d_model=100000000"],
        ["needs about", "TiB", "GiB: make the model smaller"],
    ),
    "a vocabulary": (["--set", "model.vocab_size=100000000000"], ["needs about", "TiB"]),
    "a ratio": (["--set", "model.mlp_ratio=1e30"], ["model.mlp_ratio", "1000000000000"]),
    "a depth": (["--set", "model.n_layer=1000000000"], ["needs about", "TiB"]),
    "a batch": (
        ["--set", "train.batch_size=100000000000"],
        ["needs about", "lower train.micro_batch"],
    ),
    "nobody's home": (["--set", "data.source=text:~nouser/x"], ["text:~nouser/x"]),
    "a part that is none": (
        ["--set", "data.eval_tokens=64", "--set", "data.curve_tokens=65"],
        ["curve_tokens 65"],
    ),
    "a source without a path": (
        ["--set", "data.source=text:"],
        ["unknown source 'text:'; there are"],
    ),
    "a path with what YAML calls a comment": (
        ["--set", "data.source=text:a #b"],
        ["no file or folder", "a #b"],
    ),
    "an endless number": (["--set", f"train.tokens={'9' * 6000}"], ["train.tokens"]),
    "an endless depth": (["--set", f"data.split={'[' * 20_000}"], ["data.split"]),
    "an alias": (["--set", "train={lr: &x [*x]}"], ["train"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_absurd_settings_are_refused_in_a_line_before_anything_is_built(here, case):
    options, parts = REFUSED[case]
    assert_refused(here, andrea("ablate", here / "mine.yaml", *options), *parts)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--tokens", "4096", "--set", "train.tokens=-5"], "--tokens and --set train.tokens"),
        (["--seeds", "2", "--set", "protocol.seeds=1"], "--seeds and --set protocol.seeds"),
        (["--trials", "1000000"], "less than or equal to 64"),
        (["--trials", "64"], "learning rates from"),
        (["--set", "protocol.center=1e9"], "protocol.center"),
        (["--study", ""], "--study ''"),
    ],
)
def test_options_do_not_hide_settings_and_a_protocol_has_bounds(here, options, part):
    assert_refused(here, andrea("ablate", here / "mine.yaml", *options), part)


def test_train_refuses_a_setting_given_twice_and_a_model_that_does_not_fit(here):
    assert_refused(
        here, andrea("train", "--tokens", "4096", "--set", "train.tokens=-5"), "give one"
    )
    assert_refused(here, andrea("train", "--seed", "1", "--set", "seed=-5"), "give one")
    assert_refused(here, andrea("train", "--set", "model.d_model=100000000"), "needs about")


LAUGH = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]\n" for i in range(9))

FILES = {
    "a factor that no arm toggles": (
        ABLATION.replace("factor: activation", "factor: activaton"),
        ["mine.yaml:3: factor 'activaton'", "did you mean 'activation'?"],
    ),
    "a factor by its path": (
        ABLATION.replace("factor: activation", "factor: model.actvation"),
        ["mine.yaml:3", "did you mean 'model.activation'?"],
    ),
    "a name for an arm": (
        ABLATION.replace("  relu:", "  <script>:"),
        ["mine.yaml:7: arms.<script>: an arm's name has"],
    ),
    "depth": ("question: " + "[" * 100_000, ["mine.yaml:1: nested too deep"]),
    "a billion laughs": (LAUGH, ["too much in it"]),
    "size": ("question: " + "x" * 2_000_000, ["larger than 1 MiB"]),
}


@pytest.mark.parametrize("case", FILES)
def test_a_hostile_or_mistaken_file_is_refused_in_a_line(here, case):
    text, parts = FILES[case]
    (here / "mine.yaml").write_text(text)
    assert_refused(here, andrea("ablate", here / "mine.yaml"), *parts)


def test_a_pipe_is_no_file_of_settings(here):
    os.mkfifo(here / "pipe.yaml")
    assert_refused(here, andrea("ablate", here / "pipe.yaml"), "is not a regular file")


def test_variants_that_end_the_process_are_a_fault_of_their_file(here):
    (here / "mine.py").write_text("import sys\nsys.exit(3)\n")
    assert_refused(here, andrea("ablate", here / "mine.yaml"), "mine.py:2: SystemExit: 3")


def test_fewer_tokens_to_judge_on_than_asked_for_are_said(here):
    result = andrea(
        "ablate", here / "mine.yaml", "--dry-run", "--set", "data.eval_tokens=100000000"
    )
    assert result.exit_code == 0, result.output
    assert "data.eval_tokens 100,000,000: only 5" in result.stdout


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("True", True),
        ("~", None),
        ("", None),
        (".5", 0.5),
        ("1.", 1.0),
        ("010", 10),
        ("1e-3", 0.001),
        ("2024-01-01", "2024-01-01"),
        ("12:30", "12:30"),
        ("[90, 5, 5]", [90, 5, 5]),
        ("{a: off, b: 1e-3}", {"a": "off", "b": 0.001}),
        ("text: x", "text: x"),
        ("- a", "- a"),
        ("text:a #b", "text:a #b"),
        ("[a", "[a"),
    ],
)
def test_a_value_is_json_or_a_yaml_number_or_what_is_written(text, value):
    assert parse_value(text) == value


# What follows starts processes: a stream that is closed cannot be had inside the test's own.


@pytest.fixture
def shelled(here):
    """Run a line of bash in which `$A` is the command line of this checkout."""
    script = Path(__file__).parents[1] / "cli.py"

    def run(command, **environment):
        return subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=here / "work",
            env={**os.environ, "A": f"{sys.executable} {script}", **environment},
            capture_output=True,
            text=True,
            timeout=PATIENT_S,
        )

    return run


@pytest.mark.parametrize(
    "command", ["$A --help", "$A ablate --help", "$A --version", "$A list presets"]
)
def test_a_full_output_is_one_line(shelled, command):
    result = shelled(f"{command} >/dev/full")
    assert result.returncode == 1
    assert result.stderr.startswith("andrea: the disk is full") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&- <&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_nowhere_to_write_to(shelled, closed):
    result = shelled(f"$A list presets {closed}")
    assert result.returncode == 0
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_a_fresh_study_without_a_word_and_it_resumes(here, shelled):
    study = f"$A ablate {here}/mine.yaml --wandb off --executor inline"
    gone = shelled(f"{study} | head -1")
    assert gone.returncode in (1, 141) and gone.stderr == ""
    assert gone.stdout.startswith("preparing sotu")
    assert "report: " in shelled(study).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_an_output_that_lacks_a_character_does_not_end_a_study(here, shelled, environment):
    result = shelled(
        f"$A ablate {here}/mine.yaml --wandb off --executor inline | cat -v", **environment
    )
    assert result.returncode == 0, result.stderr
    assert "report: " in result.stdout and "Error" not in result.stderr
