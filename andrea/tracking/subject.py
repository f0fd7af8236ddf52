"""What is mirrored together, the runs of a study or one run that belongs to none, and where to."""

import configparser
import contextlib
import netrc
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from andrea.store.runs import RunStore
from andrea.store.usual import runs_option

WandbMode = Literal["offline", "online"]


class Subject(Protocol):
    """What a mirror reads of a study folder; `SingleRun` looks the same."""

    path: Path

    @property
    def about(self) -> dict[str, Any]:
        """`kind`, `name`, `digest`, `key`."""

    def protocol(self) -> dict[str, Any]:
        """What was asked."""

    def read(self, name: str) -> Any:
        """A JSON file of the study, or None."""

    def runs(self) -> list[dict[str, Any]]:
        """The planned runs in order."""


class SingleRun:
    """A run of `andrea train`: its own group in W&B is `train`, its files lie in
    `<runs>/train/<id>/wandb`.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self.run_id = run_id
        self.path = store.root / "train" / run_id[:12]
        self._store = store

    @property
    def about(self) -> dict[str, Any]:
        """As of a study; the digest ends the run's id in W&B."""
        return {"kind": "train", "name": "", "digest": "train"}

    def protocol(self) -> dict[str, Any]:
        """Nothing was asked of a study."""
        return {}

    def read(self, name: str) -> Any:
        """There are no files of a study."""
        return None

    def runs(self) -> list[dict[str, Any]]:
        """The one run."""
        config = (self._store.config(self.run_id) or {}).get("config") or {}
        rate = (config.get("train") or {}).get("lr")
        return [{"run_id": self.run_id, "phase": "train", "lr": rate, "seed": config.get("seed")}]


@dataclass(frozen=True)
class Destination:
    """Where the mirror is to be. An empty entity is the account's default one."""

    mode: WandbMode
    project: str = "andrea"
    entity: str = ""
    tags: Sequence[str] = ()
    """Beside those that say what a run is."""

    @property
    def where(self) -> str:
        """Names the place: a run that is on one server, or in one project, is not in another."""
        server = _named_server() if self.mode == "online" else "files"
        return "/".join([server, self.entity, self.project])


def server() -> str:
    """The address of the server that wandb will ask."""
    return _named_server() or "https://api.wandb.ai"


def _named_server() -> str:
    """The server as WANDB_BASE_URL or `wandb login --host` names it; empty for W&B's own."""
    return (os.environ.get("WANDB_BASE_URL") or _setting("base_url")).rstrip("/")


def _setting(key: str) -> str:
    """What wandb's settings of this user say, read without wandb; empty where they say nothing."""
    settings = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(configparser.Error, OSError, UnicodeDecodeError):
        settings.read(
            Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb", "settings").expanduser()
        )
        return settings.get("default", key, fallback="")
    return ""


def missing_key(mode: str) -> str | None:
    """What to say where wandb will find no key for its server; None where it finds one, which may
    be wrong, or needs none. Told without wandb, from where it looks: environment, netrc, settings.
    """
    if (
        mode != "online"
        or os.environ.get("WANDB_API_KEY")
        or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    ):
        return None
    if _setting("api_key") or _netrc_key(urlsplit(server()).netloc):
        return None
    return f"W&B: no key found for {server()}: `wandb login`, or set WANDB_API_KEY"


def _netrc_key(host: str) -> str:
    named = os.environ.get("NETRC")
    for path in [named] if named else ["~/.netrc", "~/_netrc"]:
        with contextlib.suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            _, _, key = netrc.netrc(Path(path).expanduser()).authenticators(host) or ("", "", "")
            return key or ""
    return ""


def wandb_folder(subject: Subject) -> Path:
    """Where wandb keeps its files of this study."""
    return subject.path / "wandb"


def wandb_id(subject: Subject, run_id: str) -> str:
    """`run_id[:12]-study[:6]`: a run that two studies share appears once in each."""
    return f"{run_id[:12]}-{study_key(subject)[:6]}"


def study_key(subject: Subject) -> str:
    """What tells a study from others, also from one of the same protocol under another name; older
    ones have a digest alone.
    """
    about = subject.about
    return str(about.get("key") or about.get("digest") or subject.path.name.rpartition("-")[2])


def sync_command(subject: Subject, mode: WandbMode) -> str:
    """The command that completes the mirror, whole: it finds the runs folder from where this
    command was given.
    """
    online = ["--wandb", "online"] if mode == "online" else []
    return shlex.join(
        ["andrea", "sync", subject.path.name, *online, *runs_option(subject.path.parents[1])]
    )
