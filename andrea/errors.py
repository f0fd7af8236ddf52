"""The two ways in which a command ends badly, told apart by their exit status."""


class AndreaError(Exception):
    """Base of every error that a user sees as one line: what is wrong, where, how to mend it."""

    exit_status = 1


class UserError(AndreaError):
    """The request itself is wrong (a name, a value, a file): nothing was started or written."""

    exit_status = 2


class StudyError(AndreaError):
    """A run, a study or the disk failed on the way: the same command given again resumes."""
