"""How commands end badly: one line, the right exit status, no traceback."""

import errno
import os

import pytest
from typer.testing import CliRunner

from andrea.cli import guard
from andrea.cli.app import app
from andrea.errors import StudyError, UserError, disk_full
from andrea.store.runs import RunBusy

SECRET = "hunter2"


def end(monkeypatch, error, *arguments):
    """Let `andrea schema` raise and see how the command ends."""
    password = SECRET  # a local variable, which a pretty traceback would print

    def broken(*_, **__):
        assert password
        raise error

    monkeypatch.setattr("andrea.cli.commands.schema.print_json", broken)
    return CliRunner().invoke(app, ["schema", "run", *arguments], prog_name="andrea")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("heads do not divide"), 2, "andrea: heads do not divide\n"),
        (StudyError("3 runs failed"), 1, "andrea: 3 runs failed\n"),
        (RunBusy("run ab is being trained"), 1, "andrea: run ab is being trained\n"),
        (UserError("a.yaml:1: one\na.yaml:2: two\n"), 2, "andrea: a.yaml:1: one; a.yaml:2: two\n"),
        (KeyboardInterrupt(), 130, "andrea: interrupted\n"),
        (
            ZeroDivisionError("by zero"),
            1,
            "andrea: ZeroDivisionError: by zero (--debug shows where)\n",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            1,
            "andrea: /x: Permission denied (--debug shows where)\n",
        ),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(monkeypatch, error, status, line):
    result = end(monkeypatch, error)
    assert (result.exit_code, result.stderr, result.stdout) == (status, line, "")


def test_no_traceback_and_no_local_variable_reaches_the_user(monkeypatch):
    monkeypatch.setattr(guard, "RESUMABLE", {"schema"})
    result = end(monkeypatch, RuntimeError("broken"))
    assert result.stderr == "andrea: RuntimeError: broken (--debug shows where)\n"
    shown = end(monkeypatch, RuntimeError("broken"), "--debug")
    assert "Traceback" in shown.stderr
    assert SECRET not in shown.stderr


def test_a_full_disk_is_told_wherever_it_is_in_the_chain_of_causes():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/x")
    try:
        try:
            raise full
        except OSError as error:
            raise RuntimeError("journal") from error
    except RuntimeError as error:
        status, line = guard.exit_status_and_message(error, "ablate")
        assert disk_full(error) is full
    assert status == 1 and disk_full(RuntimeError()) is None
    assert (
        line
        == "the disk is full at /runs/x; free some space, then the same command given again resumes"
    )


def test_ctrl_c_says_how_to_resume_where_something_can_be_resumed():
    assert guard.exit_status_and_message(KeyboardInterrupt(), "ablate") == (
        130,
        "interrupted; the same command given again resumes",
    )
    assert guard.exit_status_and_message(KeyboardInterrupt(), "status") == (130, "interrupted")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ablat"], "No such command 'ablat'. Did you mean 'ablate'?"),
        (["ablate"], "Missing argument 'NAME'."),
        (["train", "--tokns", "5"], "No such option: --tokns"),
        (["--verson"], "No such option: --verson"),
        (["train", "--tokens", "0"], "Invalid value for '--tokens': Input should be greater"),
        (["train", "--tokens", "-5"], "Invalid value for '--tokens': Input should be greater"),
        (["train", "--tokens", "many"], "Invalid value for '--tokens'"),
        (["ablate", "x", "--trials", "0"], "Invalid value for '--trials'"),
        (["ablate", "x", "--seeds", "0"], "Invalid value for '--seeds'"),
        (["ablate", "x", "--slots", "-1"], "Invalid value for '--slots'"),
        (["sweep", "x", "--controls"], "No such option: --controls"),
        (["ablate", "x", "--executor", "ray"], "Invalid value for '--executor'"),
        (["model", "show"], "Missing argument 'PRESET'."),
    ],
)
def test_a_slip_on_the_command_line_is_one_line_and_2(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments, prog_name="andrea")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"andrea: {expected}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []
