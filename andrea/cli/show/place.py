"""Where an option says that a file is to be written."""

from pathlib import Path

from andrea.errors import UserError, disk_full


def require_place(path: Path, option: str) -> None:
    """Refuse a file that could not be written, before anything is computed.

    Raises:
        UserError: it is no place for a file; a device or a pipe would be replaced by it.
    """
    try:
        if path.is_dir():
            raise UserError(f"{option} {path}: is a folder; name a file")
        if path.exists() and not path.is_file():
            raise UserError(f"{option} {path}: a device or pipe; name a file")
        if not path.parent.is_dir():
            raise UserError(f"{option} {path}: there is no folder {path.parent}")
    except OSError as error:
        raise UserError(f"{option} {path}: {error.strerror}; name another file") from error


def save(path: Path, content: str, option: str) -> None:
    """Write a file in one step.

    Raises:
        UserError: nothing may be written there.
    """
    from andrea.store.files import write_atomic

    try:
        write_atomic(path, content)
    except OSError as error:
        if disk_full(error):
            raise
        raise UserError(
            f"{option} {path}: cannot be written ({error.strerror}); name another file"
        ) from error
