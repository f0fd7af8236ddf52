"""The place that a study is mirrored to, as options, WANDB_* variables and its last mirror say."""

import configparser
import contextlib
import netrc
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from andrea.errors import UserError, nearest
from andrea.records.base import Record
from andrea.store.files import read_mapping, write_json
from andrea.store.usual import runs_option
from andrea.tracking.subject import Subject, wandb_folder

WandbMode = Literal["offline", "online"]
MODES: dict[str, Literal["off"] | WandbMode] = {
    "": "offline",
    "off": "off",
    "offline": "offline",
    "online": "online",
    "disabled": "off",
    "dryrun": "offline",
    "run": "online",
}
"""The words of `--wandb` and of WANDB_MODE, wandb's own among them."""
LONGEST_PROJECT, NOT_IN_PROJECTS = 128, "/\\#?%:"
"""Limits of wandb for the name of a project."""


@dataclass(frozen=True)
class Destination:
    """The place to mirror to. An empty entity is the account's default one."""

    mode: WandbMode
    project: str = "andrea"
    entity: str = ""
    tags: Sequence[str] = ()
    """The user's, beside those that say what a run is."""

    @property
    def where(self) -> str:
        """Name of the place: a run that is on one server, or in one project, is not in another."""
        server = _named_server() if self.mode == "online" else "files"
        return "/".join([server, self.entity, self.project])

    @property
    def address(self) -> str:
        """The project for people, with its entity and server: `team/andrea at https://…`."""
        project = "/".join(filter(None, [self.entity, self.project]))
        return f"{project} at {server_url()}" if self.mode == "online" else project


class LastDestination(Record):
    """wandb/destination.json: where a study was mirrored to last."""

    project: str = ""
    entity: str = ""
    tags: tuple[str, ...] = ()


def load_last_destination(subject: Subject) -> LastDestination:
    """Return where this study was mirrored to last; empty before the first time."""
    path = wandb_folder(subject) / "destination.json"
    return LastDestination.from_json(read_mapping(path), path) or LastDestination()


def save_last_destination(subject: Subject, to: Destination) -> None:
    """Write down where this study is mirrored to: a later command that does not say goes on
    there.
    """
    last = LastDestination(project=to.project, entity=to.entity, tags=tuple(to.tags))
    if load_last_destination(subject) != last:
        write_json(wandb_folder(subject) / "destination.json", last.to_json())


def resolve_mode(option: str | None) -> Literal["off"] | WandbMode:
    """Return `--wandb` where it is given, else WANDB_MODE, else offline.

    Raises:
        UserError: neither andrea nor wandb knows the mode.
    """
    source, word = "--wandb", option
    if word is None:
        source, word = "WANDB_MODE", os.environ.get("WANDB_MODE", "")
    mode = MODES.get(word.lower())
    if mode is None:
        hint = nearest(word.lower(), ("off", "offline", "online"))
        raise UserError(f"{source}: unknown mode {word!r}; {hint}")
    return mode


def resolve_destination(
    mode: WandbMode,
    project: str | None = None,
    entity: str | None = None,
    tags: str | None = None,
    subject: Subject | None = None,
) -> Destination:
    """Return the options, else WANDB_PROJECT, WANDB_ENTITY and WANDB_TAGS, else where this study
    was mirrored before, else the project `andrea`.

    Args:
        tags: with commas between them.

    Raises:
        UserError: a name that W&B takes for no project.
    """
    last = LastDestination() if subject is None else load_last_destination(subject)
    if tags is None:
        tags = os.environ.get("WANDB_TAGS")
    tag_list = last.tags if tags is None else tuple(tag.strip() for tag in tags.split(","))
    name = project or os.environ.get("WANDB_PROJECT") or last.project or "andrea"
    if len(name) > LONGEST_PROJECT or set(name) & set(NOT_IN_PROJECTS):
        raise UserError(
            f"W&B project {name!r}: use up to {LONGEST_PROJECT} characters other than "
            f"{' '.join(NOT_IN_PROJECTS)}"
        )
    entity = entity or os.environ.get("WANDB_ENTITY") or last.entity
    return Destination(mode, name, entity, tuple(filter(None, tag_list)))


def sync_command(subject: Subject, mode: WandbMode) -> str:
    """Return the whole command that completes the mirror: it finds the runs folder from where this
    command was given.
    """
    online = ["--wandb", "online"] if mode == "online" else []
    runs = runs_option(subject.path.parents[1])
    return shlex.join(["andrea", "sync", subject.path.name, *online, *runs])


def server_url() -> str:
    """Return the address of the server that wandb will ask."""
    return _named_server() or "https://api.wandb.ai"


def missing_key(mode: str) -> str | None:
    """Return the sentence that wandb will find no key for its server, or None.

    None where it finds one, which may be wrong, and where it needs none. wandb itself is not
    loaded: environment, netrc and settings are read here as it reads them.
    """
    variables = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
    if mode != "online" or any(os.environ.get(name) for name in variables):
        return None
    if _wandb_setting("api_key") or _netrc_key(urlsplit(server_url()).netloc):
        return None
    return f"W&B: no key found for {server_url()}: `wandb login`, or set WANDB_API_KEY"


def _named_server() -> str:
    """Return the server of WANDB_BASE_URL or `wandb login --host`; empty for W&B's own."""
    return (os.environ.get("WANDB_BASE_URL") or _wandb_setting("base_url")).rstrip("/")


def _wandb_setting(key: str) -> str:
    """Return a value of this user's settings of wandb; empty where there is none."""
    # A key may hold a per cent sign.
    settings = configparser.ConfigParser(interpolation=None)
    folder = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    # A file that wandb cannot read either says nothing.
    with contextlib.suppress(configparser.Error, OSError, UnicodeDecodeError):
        settings.read(folder / "settings")
        return settings.get("default", key, fallback="")
    return ""


def _netrc_key(host: str) -> str:
    variable = os.environ.get("NETRC")
    for path in [variable] if variable else ["~/.netrc", "~/_netrc"]:
        with contextlib.suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            _, _, key = netrc.netrc(Path(path).expanduser()).authenticators(host) or ("", "", "")
            return key or ""
    return ""
