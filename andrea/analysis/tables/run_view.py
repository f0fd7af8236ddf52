"""One run of the store by itself: its configuration, its result, and its tables."""

import difflib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from andrea.analysis.tables import frames
from andrea.analysis.tables.cache import RunLogs
from andrea.config import dotted
from andrea.errors import StudyError, UserError, did_you_mean, warn
from andrea.records.base import Settings
from andrea.records.run import Environment, RunResult, RunSettings, RunSpec
from andrea.store.runs import RunStore
from andrea.store.studies import list_studies

SHORTEST = 6
"""Digits of a run's id that may stand for it, where no other run begins with them."""


class Membership(NamedTuple):
    """A run's place in a study."""

    study: str
    """Name of the study's folder."""
    spec: RunSpec


@dataclass(frozen=True, repr=False)
class RunView:
    """One run, finished or not: what it was, what came out, and tables of what it logged.

    The columns of the tables are those of a study's (`andrea.analysis.tables.frames`); where no
    study planned the run, its arm and phase are `run` and `train`.
    """

    store: RunStore
    run_id: str
    path: Path
    """Its folder, or its latest attempt's."""
    config: Settings
    """The resolved configuration (`config` of config.json); empty where the file is damaged."""
    identity: Settings
    """What the run's id digests beside it: data, versions, platform."""
    env: Environment
    """env.json: versions, git state, device; empty where it is damaged."""
    result: RunResult | None
    """result.json; None before the run ended."""
    planned: list[Membership]
    """The studies that it belongs to."""

    def __repr__(self) -> str:
        studies = ", ".join(member.study for member in self.planned) or "none"
        return "\n".join(
            [
                f"<Run {self.run_id[:12]}: {self.row['outcome']}, loss {self.row.get('loss')}>",
                f"arm {self.row['arm']}, {self.row['phase']}, learning rate {self.row['lr']}, "
                f"seed {self.row['seed']}",
                f"studies: {studies}",
                "tables: curves, layers, documents",
                f"folder: {self.path}",
            ]
        )

    @cached_property
    def row(self) -> frames.RunRow:
        """The run as a row of `RUNS`: outcome (running, failed, missing where there is no result),
        reason, losses, …
        """
        if self.planned:
            spec = self.planned[0].spec
        else:
            settings = dotted(self.config)
            # Not validated: a damaged configuration has no seed.
            place: Settings = {"lr": settings.get("train.lr"), "seed": settings.get("seed")}
            place |= {"run_id": self.run_id, "arm": "run", "phase": "train", "why": "train"}
            spec = RunSpec.model_construct(**place)
        return frames.run_rows(self._logs, [spec])[0]

    @cached_property
    def _logs(self) -> RunLogs:
        return RunLogs(self.store, None, [self.run_id])

    @cached_property
    def curves(self) -> pd.DataFrame:
        """`CURVES` of this run."""
        return self._table("curves")

    @cached_property
    def layers(self) -> pd.DataFrame:
        """`LAYERS` of this run."""
        return self._table("layers")

    @cached_property
    def documents(self) -> pd.DataFrame:
        """`DOCUMENTS` of this run."""
        return self._table("documents")

    def _table(self, name: str) -> pd.DataFrame:
        return frames.read_part(self._logs, [self.row], name)


def open_store(store: RunStore | str | Path) -> RunStore:
    """Return the store, or the one in this runs folder, without making anything."""
    return store if isinstance(store, RunStore) else RunStore(Path(store), create=False)


def load_run(store: RunStore | str | Path, run_id: str) -> RunView:
    """Return one run by its id or the beginning of it.

    Raises:
        UserError: no run's id begins so, or several do, or fewer than six hexadecimal digits are
            given.
    """
    store = open_store(store)
    run_id = resolve_run_id(store, run_id)
    path = store.current(run_id)
    if path is None:
        raise UserError(
            f"run {run_id[:12]} in {store.root}: it has no folder any more; nothing is left to show"
        )
    settings = store.load_settings(run_id) or RunSettings()
    return RunView(
        store=store,
        run_id=run_id,
        path=path,
        config=settings.config,
        identity=settings.identity,
        env=store.load_environment(run_id) or Environment(),
        result=store.load_result(run_id),
        planned=_memberships(store, run_id),
    )


def resolve_run_id(store: RunStore, prefix: str) -> str:
    """Return the id of the one run, finished or not, that begins with these digits.

    Raises:
        UserError: none does, or several do, or fewer than six hexadecimal digits are given.
    """
    digits = prefix.strip().lower()
    if not re.fullmatch(f"[0-9a-f]{{{SHORTEST},64}}", digits):
        raise UserError(
            f"run {prefix!r}: no run id; give the first {SHORTEST} or more of its hexadecimal "
            "digits"
        )
    run_ids = store.ids(digits)
    if len(run_ids) == 1:
        return run_ids[0]
    if run_ids:
        listed = ", ".join(run_id[:16] for run_id in run_ids[:4])
        raise UserError(
            f"run {prefix!r}: {len(run_ids)} runs begin so ({listed}); give more digits"
        )
    near = [run_id[: len(digits)] for run_id in store.ids(digits[:2])]
    close = difflib.get_close_matches(digits, near, n=1)
    hint = did_you_mean(close[0]) if close else "a study's report lists its runs under *Every run*"
    raise UserError(f"no run of {store.root} begins with {prefix!r}; {hint}")


def _memberships(store: RunStore, run_id: str) -> list[Membership]:
    members = []
    for folder in list_studies(store):
        try:
            specs = [spec for spec in folder.load_runs() if spec.run_id == run_id]
        except StudyError as error:
            warn(str(error))
            continue
        members += [Membership(folder.path.name, spec) for spec in specs]
    return members
