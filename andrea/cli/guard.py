"""Errors of commands: one line on stderr and an exit status; no traceback unless `--debug`."""

import contextlib
import os
import sys
import traceback
from typing import IO, Any

import typer
from typer.core import TyperGroup

from andrea.errors import AndreaError, disk_full, reason

RESUMABLE = {"ablate", "sweep", "train"}
INTERRUPTED = 130


class GuardedGroup(TyperGroup):
    """The root of the commands; every error of every command passes here."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Parse the root's own options; a fault in them is one line."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except (typer.TyperException, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise _report_error(error) from error

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError, SystemExit):
            raise
        except BaseException as error:
            if ctx.meta.get("andrea.debug"):
                traceback.print_exc()
            raise _report_error(error, ctx.invoked_subcommand) from error


def mend_streams() -> None:
    """Open closed streams on /dev/null, and replace characters that the output's encoding lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # The lowest free descriptor is the closed one; processes started later inherit it.
            stream = open(os.devnull, mode)  # noqa: PTH123, SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
        elif mode == "w":
            stream.reconfigure(errors="replace")


def redirect_to_devnull(stream: IO[str]) -> None:
    """Drop what can no longer be written, so that Python does not try again at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report_error(error: BaseException, command: str | None = None) -> typer.Exit:
    """Write the line of an error to stderr; returns the exit to raise."""
    status, message = exit_status_and_message(error, command)
    parts = [" ".join(part.split()) for part in message.splitlines() if part.strip()]
    # What libraries left in stdout's buffer comes first; a reader that is gone must not hide the
    # line.
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        redirect_to_devnull(sys.stdout)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"andrea: {'; '.join(parts)}\n")
        sys.stderr.flush()
    return typer.Exit(status)


def exit_status_and_message(error: BaseException, command: str | None = None) -> tuple[int, str]:
    """Return the exit status and the message for an exception that ended `command`."""
    again = "the same command given again resumes" if command in RESUMABLE else ""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, f"interrupted; {again}" if again else "interrupted"
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        return error.exit_code, error.format_message().replace("Value error, ", "") + hint
    full = disk_full(error)
    if full is not None:
        where = f" at {full.filename}" if full.filename else ""
        return 1, f"the disk is full{where}; free some space" + (f", then {again}" if again else "")
    if isinstance(error, AndreaError):
        return error.exit_status, str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return 1, f"{where}{error.strerror} (--debug shows where)"
    return 1, f"{reason(error)} (--debug shows where)"
