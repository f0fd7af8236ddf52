"""The W&B mirror beside a command that trains: never in its way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from andrea.errors import warn

if TYPE_CHECKING:
    from andrea.store.runs import RunStore
    from andrea.tracking.mirror import Mirror
    from andrea.tracking.subject import Subject

INTERRUPTED_WAIT_S = 3.0
"""Seconds that the mirror may still take after Ctrl-C or an error."""


@dataclass(frozen=True)
class MirrorOptions:
    """The options of a command that begin with `--wandb`; None where one is not given."""

    wandb: Literal["off", "offline", "online"] | None
    project: str | None
    entity: str | None
    tags: str | None

    @property
    def mode(self) -> Literal["off", "offline", "online"]:
        """`--wandb`, else WANDB_MODE, else offline.

        Raises:
            UserError: WANDB_MODE is no mode.
        """
        from andrea.tracking.destination import resolve_mode

        return resolve_mode(self.wandb)

    def require_valid(self) -> None:
        """Refuse options that W&B would not take, before anything is trained.

        Raises:
            UserError: an unknown mode, or no name for a project.
        """
        from andrea.tracking.destination import resolve_destination

        if self.mode != "off":
            resolve_destination(self.mode, self.project, self.entity, self.tags)


@contextmanager
def open_mirror(
    subject: "Subject", store: "RunStore", options: MirrorOptions, say: Callable[[str], None]
) -> Iterator["Mirror | None"]:
    """Mirror the subject for as long as the block takes, then let the mirror write the rest.

    Where the block ended by Ctrl-C or an error the mirror gets only `INTERRUPTED_WAIT_S` for that.
    A tracker that does not start or end costs one warning, never the study.
    """
    mirror = _start(subject, store, options, say)
    try:
        yield mirror
    except BaseException:
        _close(mirror, INTERRUPTED_WAIT_S)
        raise
    _close(mirror)


def _start(
    subject: "Subject", store: "RunStore", options: MirrorOptions, say: Callable[[str], None]
) -> "Mirror | None":
    mode = options.mode
    if mode == "off":
        return None
    try:
        from andrea.tracking.destination import resolve_destination
        from andrea.tracking.mirror import Mirror

        destination = resolve_destination(
            mode, options.project, options.entity, options.tags, subject
        )
        return Mirror(subject, store, destination, warn=say)
    except Exception as error:
        warn(f"no W&B mirror ({error}); `andrea sync` publishes later")
        return None


def _close(mirror: "Mirror | None", wait_s: float | None = None) -> None:
    try:
        if mirror is not None:
            mirror.close(wait_s)
    except Exception as error:
        warn(f"the W&B mirror is not complete ({error}); `andrea sync` publishes the rest")
