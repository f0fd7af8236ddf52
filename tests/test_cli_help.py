"""Help is quick, ends in examples, and options do not change by accident."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from andrea.cli.app import app

HEAVY = ("torch", "wandb", "optuna", "pandas", "scipy", "numpy", "altair", "rich", "tokenizers")

RUN = {
    "NAME",
    "--preset",
    "--set",
    "--tokens",
    "--trials",
    "--seeds",
    "--study",
    "--slots",
    "--executor",
    "--device",
    "--wandb",
    "--wandb-project",
    "--wandb-entity",
    "--wandb-tags",
    "--runs",
    "--dry-run",
    "--json",
}
OPTIONS = {
    "ablate": RUN | {"--controls", "--confirm", "--equal"},
    "sweep": RUN,
    "train": {
        "--preset",
        "--set",
        "--variants",
        "--tokens",
        "--seed",
        "--device",
        "--wandb",
        "--wandb-project",
        "--wandb-entity",
        "--wandb-tags",
        "--runs",
        "--json",
    },
    "trace": {
        "TEXT",
        "--preset",
        "--set",
        "--variants",
        "--seed",
        "--run",
        "--token",
        "--logit-lens",
        "--top",
        "--html",
        "--runs",
        "--json",
    },
    "report": {
        "STUDY...",
        "--format",
        "--out",
        "--kind",
        "--watch",
        "--runs",
        "--json",
    },
    "status": {"STUDY", "--runs", "--json"},
    "dashboard": {"STUDY", "--port", "--host", "--runs"},
    "sync": {
        "STUDY",
        "--wandb",
        "--online",
        "--wandb-project",
        "--wandb-entity",
        "--wandb-tags",
        "--checkpoint",
        "--runs",
        "--dry-run",
        "--json",
    },
    "list": {"KIND", "--runs", "--json"},
    "model show": {"PRESET", "--set", "--variants", "--batch", "--optimizer", "--json"},
    "model compare": {"MODEL...", "--set", "--match", "--by", "--variants", "--json"},
    "data prepare": {"SOURCE", "--tokenizer", "--set", "--runs", "--json"},
    "data info": {"SOURCE", "--tokenizer", "--set", "--runs", "--json"},
    "export hf": {"RUN|FOLDER", "--out", "--arch", "--dtype", "--runs", "--json"},
    "import hf": {"FOLDER", "--out", "--json"},
    "kernels check": {"--device", "--quick", "--json"},
    "kernels bench": {"--device", "--rows", "--width", "--vocabulary", "--json"},
    "kernels show": {"--arch", "--json"},
    "doctor": {"--runs", "--json"},
    "schema": {"WHAT"},
}
"""Every command with its arguments and options; `--debug` and `--help` are everywhere."""


def commands():
    """Every command of the app by its full name, as Typer has built it."""
    from typer.main import get_command

    def walk(command, name):
        if hasattr(command, "commands"):
            for key, below in command.commands.items():
                yield from walk(below, f"{name} {key}".strip())
        else:
            yield name, command

    return dict(walk(get_command(app), ""))


def test_the_command_line_has_exactly_these_commands_and_options():
    found = {
        name: {
            opt
            for param in command.params
            for opt in (
                param.opts
                if param.param_type_name == "option"
                else [param.metavar or param.name.upper()]
            )
        }
        for name, command in commands().items()
    }
    assert found == {name: options | {"--debug"} for name, options in OPTIONS.items()}


@pytest.mark.parametrize("command", ["", *OPTIONS])
def test_every_help_text_ends_in_examples_with_their_line_breaks(command):
    result = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="andrea")
    assert result.exit_code == 0
    head, _, examples = result.output.partition("Examples:\n")
    assert "Usage: andrea" in head
    lines = examples.rstrip("\n").split("\n")
    assert lines and all(line.startswith("    ") for line in lines)
    assert lines[0].strip().startswith(f"andrea {command}".strip())


def test_the_root_help_gives_each_command_one_whole_line():
    output = CliRunner().invoke(app, ["--help"], prog_name="andrea").output
    listed = output.partition("Commands:\n")[2].partition("\n\n")[0]
    assert "..." not in listed


def loaded_by(commands, modules, place):
    """What of some modules has been loaded after each of some commands, given one after another to
    one interpreter.
    """
    code = (
        "import json, sys\n"
        "from andrea.cli.app import main\n"
        "commands, modules = json.loads(sys.argv[1])\n"
        "for arguments in commands:\n"
        "    sys.argv = ['andrea', *arguments]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, arguments\n"
        "    loaded = [module for module in modules if module in sys.modules]\n"
        "    print(json.dumps([arguments, loaded]), file=sys.stderr)\n"
    )
    task = json.dumps([commands, modules])
    command = [sys.executable, "-c", code, task]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place, check=True)
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_help_loads_nothing_heavy(tmp_path):
    commands = [["--help"], ["ablate", "--help"], ["report", "--help"], ["--version"]]
    assert loaded_by(commands, HEAVY, tmp_path) == [[arguments, []] for arguments in commands]


def test_reading_commands_load_no_torch(tmp_path):
    commands = [
        ["list"],
        ["list", "variants"],
        ["status"],
        ["model", "show", "gpt2"],
        ["model", "show", "tiny"],
        ["schema"],
        ["doctor", "--help"],
        ["list", "presets", "--json"],
    ]
    modules = ("torch", "wandb", "optuna", "pandas")
    assert loaded_by(commands, modules, tmp_path) == [[arguments, []] for arguments in commands]


def documented():
    """Every command line of the README, of docs and of the examples of `--help`, without its
    remark.
    """
    root = Path(__file__).resolve().parents[1]
    for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield from re.findall(r"^    (andrea .*)|`(andrea .*?)`", line)
    for command in ("", *OPTIONS):
        output = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="andrea").output
        yield from ((line.strip(), "") for line in output.partition("Examples:\n")[2].splitlines())


def test_every_documented_command_line_is_one():
    found = {
        re.split(r"\s{2,}| [>#] |…", block or inline)[0].strip() for block, inline in documented()
    }
    lines = [shlex.split(line) for line in sorted(found) if line.startswith("andrea ")]
    assert len(lines) > 30
    for _, *arguments in lines:
        if arguments == ["--install-completion"]:
            continue  # typer's own
        # The parser meets every option before it meets --help.
        result = CliRunner().invoke(app, [*arguments, "--help"], prog_name="andrea")
        assert result.exit_code == 0, f"andrea {shlex.join(arguments)}: {result.stderr}"
        assert f"Usage: andrea {arguments[0]}" in result.output or arguments[0].startswith("-")


def test_without_a_command_the_help_is_shown():
    result = CliRunner().invoke(app, [], prog_name="andrea")
    assert result.exit_code == 0
    assert "Commands:" in result.output


def test_completion_offers_names_of_presets_and_settings():
    from andrea.cli import completion

    assert "andrea-120m" in completion.preset_names("andrea-")
    assert completion.setting_paths("model.mlp_r") == ["model.mlp_ratio="]
    assert "train.lr=" in completion.setting_paths("train.")


def test_completion_of_a_model_goes_on_after_its_colon():
    from andrea.cli import completion

    assert completion.model_expressions("tin") == ["tiny"]
    assert completion.model_expressions("gpt2:mlp_r") == ["gpt2:mlp_ratio="]
    assert completion.model_expressions("gpt2:activation=swi") == ["gpt2:activation=swiglu"]
    assert completion.model_expressions("gpt2:n_layer=2,activation=silu,n_kv") == [
        "gpt2:n_layer=2,activation=silu,n_kv_head="
    ]
    assert completion.model_expressions("mlp_r") == ["mlp_ratio="], (
        "bash hands over what stands after the colon"
    )
    assert completion.model_expressions("gpt2:n_layer=") == []


def test_completion_finds_the_studies_of_the_runs_folder(tmp_path, monkeypatch):
    from andrea.cli import completion

    for name in ("norm-placement-ab12", "other-cd34"):
        (tmp_path / "studies" / name).mkdir(parents=True)
        (tmp_path / "studies" / name / "study.json").write_text("{}")
    monkeypatch.setenv("ANDREA_RUNS", str(tmp_path))
    assert completion.study_names("norm") == ["norm-placement-ab12"]
