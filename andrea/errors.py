"""The two kinds of error of a command, each with its exit status, and wordings that recur."""

import errno
import functools
import sys
from collections.abc import Iterable


class AndreaError(Exception):
    """Base of every error that a user sees as one line: the fault, its place, and the remedy."""

    exit_status = 1


class UserError(AndreaError):
    """The request itself is wrong (a name, a value, a file): nothing was started or written."""

    exit_status = 2


class StudyError(AndreaError):
    """A run, a study or the disk failed on the way: the same command given again resumes."""


@functools.cache
def warn(line: str) -> None:
    """Print a warning on stderr, the same line once per process."""
    print(f"warning: {line}", file=sys.stderr)


def did_you_mean(name: str) -> str:
    """Word the hint that one name is meant."""
    return f"did you mean {name!r}?"


def nearest(name: str, valid_names: Iterable[str]) -> str:
    """Word the hint after an unknown name: `did you mean 'pre'?`, or all valid names where none is
    close.
    """
    import difflib

    names = [str(valid) for valid in valid_names]
    close = difflib.get_close_matches(name, names, n=1)
    return did_you_mean(close[0]) if close else f"there are {', '.join(names) or 'none'}"


def list_first(names: list[str], most: int) -> str:
    """Word a list by its first names and how many more there are: `a, b and 3 more`."""
    text = ", ".join(names[:most])
    n_more = len(names) - most
    return f"{text} and {n_more} more" if n_more > 0 else text


def disk_full(error: BaseException) -> OSError | None:
    """Return the error of a full disk in the error's chain of causes; None where there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def reason(error: BaseException) -> str:
    """Word the reason of a failure in one line, the first of its message."""
    kind, text = type(error).__name__, str(error).strip()
    if isinstance(error, AndreaError):
        return " ".join(text.split())
    text = text.partition("\n")[0].strip()
    # torch's errors are recognised by name and text: this file does not load torch.
    torch_out_of_memory = kind == "OutOfMemoryError" or "can't allocate memory" in text
    if isinstance(error, MemoryError) or torch_out_of_memory:
        return f"out of memory: {text or 'the process got no more'}; lower train.micro_batch"
    return f"{kind}: {text}" if text else kind
