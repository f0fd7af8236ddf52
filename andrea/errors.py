"""The two ways in which a command ends badly, told apart by their exit status, and the words for
what went wrong.
"""

import errno
import functools
import sys
from collections.abc import Iterable


class AndreaError(Exception):
    """Base of every error that a user sees as one line: what is wrong, where, how to mend it."""

    exit_status = 1


class UserError(AndreaError):
    """The request itself is wrong (a name, a value, a file): nothing was started or written."""

    exit_status = 2


class StudyError(AndreaError):
    """A run, a study or the disk failed on the way: the same command given again resumes."""


@functools.cache
def warn(line: str) -> None:
    """Say on stderr what a reader should know though the command goes on; the same line once per
    process.
    """
    print(f"warning: {line}", file=sys.stderr)


def did_you_mean(name: str) -> str:
    """What to say where one name is meant."""
    return f"did you mean {name!r}?"


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown name: `did you mean 'pre'?`, or all there are where none comes
    close.
    """
    import difflib

    names = [str(one) for one in known]
    close = difflib.get_close_matches(name, names, n=1)
    return did_you_mean(close[0]) if close else f"there are {', '.join(names) or 'none'}"


def disk_full(error: BaseException) -> OSError | None:
    """The error, or the one in its chain of causes, that says that no space is left."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def reason(error: BaseException) -> str:
    """Why a run failed, in one line: the first of its message. Knows torch's out-of-memory error
    without torch.
    """
    kind, text = type(error).__name__, str(error).strip()
    if isinstance(error, AndreaError):
        return " ".join(text.split())
    text = text.partition("\n")[0].strip()
    if (
        isinstance(error, MemoryError)
        or kind == "OutOfMemoryError"
        or "can't allocate memory" in text
    ):
        return f"out of memory: {text or 'the process got no more'}; lower train.micro_batch"
    return f"{kind}: {text}" if text else kind
