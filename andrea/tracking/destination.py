"""Where to mirror to, as options, WANDB_* variables and the study's last mirror say."""

import os
from typing import Literal

from andrea.errors import UserError, nearest
from andrea.tracking.published import remembered
from andrea.tracking.subject import Destination, Subject, WandbMode

MODES: tuple[Literal["off", "offline", "online"], ...] = ("off", "offline", "online")
LONGEST_PROJECT, NOT_IN_PROJECTS = 128, "/\\#?%:"
"""What wandb takes for a project's name."""


def resolve_mode(option: str | None) -> Literal["off", "offline", "online"]:
    """`--wandb` where it is given, else WANDB_MODE, else offline.

    Raises:
        UserError: neither andrea nor wandb knows the mode.
    """
    asked, where = (
        (option, "--wandb")
        if option is not None
        else (os.environ.get("WANDB_MODE", ""), "WANDB_MODE")
    )
    synonyms = {"": "offline", "disabled": "off", "dryrun": "offline", "run": "online"}
    mode = synonyms.get(asked.lower(), asked.lower())
    for known in MODES:
        if mode == known:
            return known
    raise UserError(f"{where}: unknown mode {asked!r}; {nearest(mode, MODES)}")


def resolve_destination(
    mode: WandbMode,
    project: str | None = None,
    entity: str | None = None,
    tags: str | None = None,
    subject: Subject | None = None,
) -> Destination:
    """Where to mirror to: as asked, else what WANDB_PROJECT, WANDB_ENTITY and WANDB_TAGS say, else
    where this study was mirrored before, else `andrea`.

    Args:
        tags: with commas between them.

    Raises:
        UserError: a name that W&B takes for no project.
    """
    before = {} if subject is None else remembered(subject)
    own = tags if tags is not None else os.environ.get("WANDB_TAGS")
    told = before.get("tags", []) if own is None else [tag.strip() for tag in own.split(",")]
    named = project or os.environ.get("WANDB_PROJECT") or before.get("project") or "andrea"
    if len(named) > LONGEST_PROJECT or set(named) & set(NOT_IN_PROJECTS):
        raise UserError(
            f"W&B project {named!r}: use up to {LONGEST_PROJECT} characters other than "
            f"{' '.join(NOT_IN_PROJECTS)}"
        )
    return Destination(
        mode,
        named,
        entity or os.environ.get("WANDB_ENTITY") or before.get("entity") or "",
        tuple(filter(None, told)),
    )
