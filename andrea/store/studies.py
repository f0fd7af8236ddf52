"""Study folders: what was asked, what was planned, what came out.

studies/<name>-<digest>/
  study.json      kind, name, digest, created
  protocol.yaml   the protocol as asked; its digest names the study
  resolved.json   what `auto` became, arms in full, data fingerprint; reread on a resume
  runs.jsonl      one line per run that belongs to the study
  choices.json    the learning rate of every arm, and how it was found
  verdict.json    projection of the verdicts
  optuna.journal  projection of the trials
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from andrea.errors import StudyError, UserError, nearest
from andrea.store.files import append_line, is_locked, locked, read_json, read_lines, write_json, write_lines
from andrea.store.runs import RunStore


class StudyFolder:
    """One study on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def about(self) -> dict[str, Any]:
        """study.json."""
        about: dict[str, Any] = read_json(self.path / "study.json") or {}
        return about

    def protocol(self) -> dict[str, Any]:
        """protocol.yaml: what was asked, as asked.

        Raises:
            StudyError: the file is missing or no mapping, so this is no study.
        """
        path = self.path / "protocol.yaml"
        try:
            asked = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise StudyError(f"{path}: cannot be read ({error}); the study has lost what it asked") from error
        if not isinstance(asked, dict):
            raise StudyError(f"{path}: not a mapping; the study has lost what it asked")
        return asked

    @property
    def complete(self) -> bool:
        """Whether everything that was planned has a result and was judged (a sweep: its best config chosen)."""
        ended = self.read("verdict.json") or self.read("best.json") or {}
        return bool(ended.get("complete"))

    def read(self, name: str) -> Any:
        """A JSON file of the study, or None."""
        return read_json(self.path / name)

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file of the study, atomically."""
        write_json(self.path / name, value)

    def runs(self) -> list[dict[str, Any]]:
        """The planned runs in order: run_id, arm, phase (tune, replicate), why, lr, seed, trial, generation."""
        return read_lines(self.path / "runs.jsonl")

    def add_run(self, record: dict[str, Any]) -> None:
        """Append a planned run."""
        append_line(self.path / "runs.jsonl", record)

    def write_runs(self, records: list[dict[str, Any]]) -> None:
        """Replace the planned runs, atomically."""
        write_lines(self.path / "runs.jsonl", records)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the one controller of this study.

        Raises:
            UserError: another controller is at it.
        """
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(locked(self.path / "lock", wait=False))
                    break
                except BlockingIOError:
                    # A controller, or somebody who looked just then; lookers are no obstacle to each other.
                    self.require_free()
                    time.sleep(0.001)
            yield

    def require_free(self) -> None:
        """Make sure that no controller is at it.

        Raises:
            UserError: one is.
        """
        if self.live:
            raise UserError(
                f"study {self.path.name} is being run by another command; wait for it or watch it with "
                f"`andrea status {self.path.name}`"
            )

    @property
    def live(self) -> bool:
        """Whether a controller is at it now; to look never keeps one out."""
        return is_locked(self.path / "lock")


def studies(store: RunStore) -> list[StudyFolder]:
    """All studies of a store, oldest first."""
    found = [StudyFolder(p.parent) for p in (store.root / "studies").glob("*/study.json")]
    return sorted(found, key=lambda s: (s.about.get("created", ""), s.path.name))


def find(store: RunStore, name: str) -> StudyFolder:
    """The study of that folder name, or the latest of that bare name.

    Raises:
        UserError: there is none.
    """
    every = studies(store)
    exact = [s for s in every if s.path.name == name]
    named = [s for s in every if s.about.get("name") == name]
    if exact or named:
        return (exact or named)[-1]
    names = [s.path.name for s in every] + [str(s.about.get("name")) for s in every]
    raise UserError(f"no study {name!r} in {store.root}; {nearest(name, sorted(set(names)))}")
