"""The W&B mirror beside a command that trains: never in its way."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from andrea.store.runs import RunStore
    from andrea.tracking.mirror import Mirror
    from andrea.tracking.subject import Subject

INTERRUPTED_WAIT_S = 3.0
"""What the mirror may still take after Ctrl-C or an error."""


@dataclass(frozen=True)
class MirrorOptions:
    """What the options say of the mirror."""

    mode: Literal["off", "offline", "online"]
    project: str | None
    entity: str | None
    tags: str | None


def asked(
    wandb: str | None, project: str | None, entity: str | None, tags: str | None
) -> MirrorOptions:
    """The options of the mirror.

    Raises:
        UserError: a mode that nobody knows, of `--wandb` or WANDB_MODE, or no name for a project.
    """
    from andrea.tracking.destination import resolve_destination, resolve_mode

    mode = resolve_mode(wandb)
    if mode != "off":
        resolve_destination(mode, project, entity, tags)  # said before anything is trained
    return MirrorOptions(mode, project, entity, tags)


@contextmanager
def mirrored(
    subject: "Subject", store: "RunStore", to: MirrorOptions, warn: Callable[[str], None]
) -> Iterator["Mirror | None"]:
    """A mirror for as long as the block takes, which then gets its time to write the rest; not for
    long where the block ended by Ctrl-C or an error. A tracker that does not start or end costs one
    warning, never the study.
    """
    mirror = _started(subject, store, to, warn)
    try:
        yield mirror
    except BaseException:
        _close(mirror, INTERRUPTED_WAIT_S)
        raise
    _close(mirror)


def _started(
    subject: "Subject", store: "RunStore", to: MirrorOptions, warn: Callable[[str], None]
) -> Any:
    if to.mode == "off":
        return None
    try:
        from andrea.tracking.destination import resolve_destination
        from andrea.tracking.mirror import Mirror

        place = resolve_destination(to.mode, to.project, to.entity, to.tags, subject)
        return Mirror(subject, store, place, warn=warn)
    except Exception as error:
        print(f"warning: no W&B mirror ({error}); `andrea sync` publishes later", file=sys.stderr)
        return None


def _close(mirror: Any, wait_s: float | None = None) -> None:
    try:
        if mirror is not None:
            mirror.close(wait_s)
    except Exception as error:
        print(
            f"warning: the W&B mirror is not complete ({error}); `andrea sync` publishes the rest",
            file=sys.stderr,
        )
