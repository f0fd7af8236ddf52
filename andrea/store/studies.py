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
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andrea.errors import UserError
from andrea.store.files import append_line, locked, read_json, read_lines, write_json
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

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the one controller of this study.

        Raises:
            UserError: another controller is at it.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / "lock", wait=False))
            except BlockingIOError as error:
                raise UserError(
                    f"study {self.path.name} is being run by another command; wait for it or watch it with "
                    f"`andrea status {self.path.name}`"
                ) from error
            yield

    @property
    def live(self) -> bool:
        """Whether a controller is at it now."""
        if not (self.path / "lock").exists():
            return False
        try:
            with locked(self.path / "lock", wait=False):
                return False
        except BlockingIOError:
            return True


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
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(set(names))) or 'none yet'}"
    raise UserError(f"no study {name!r} in {store.root}; {hint}")
