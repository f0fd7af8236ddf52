"""One run of the store by itself: its configuration, its result, and its tables."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from andrea.analysis.tables import frames
from andrea.analysis.tables.cache import RunLogs
from andrea.errors import StudyError, UserError, did_you_mean, warn
from andrea.store.runs import RunStore
from andrea.store.studies import studies

SHORTEST = 6
"""Digits of a run's id that may stand for it, where no other run begins with them."""


@dataclass(frozen=True)
class RunView:
    """One run, finished or not: what it was, what came out, and tables of what it logged.

    The columns of the tables are those of a study's (`andrea.analysis.tables.frames`); where no
    study planned the run, its arm and phase are `run` and `train`.
    """

    store: RunStore
    run_id: str
    path: Path
    """Its folder, or its latest attempt's."""
    config: dict[str, Any]
    """The resolved configuration (`config` of config.json); empty where the file is damaged."""
    identity: dict[str, Any]
    """What the run's id digests beside it: data, versions, platform."""
    env: dict[str, Any]
    """env.json: versions, git state, device; empty where it is damaged."""
    result: dict[str, Any] | None
    """result.json; None before the run ended."""
    planned: list[tuple[str, dict[str, Any]]]
    """The studies that it belongs to: name of the study's folder, its line of runs.jsonl."""

    @cached_property
    def row(self) -> dict[str, Any]:
        """The run as a row of `RUNS`: outcome (running, failed, missing where there is no result),
        reason, losses, …
        """
        train = self.config.get("train") or {}
        alone = {
            "arm": "run",
            "phase": "train",
            "why": "train",
            "lr": train.get("lr"),
            "seed": self.config.get("seed"),
        }
        plan = self.planned[0][1] if self.planned else alone
        return frames.run_rows(self._logs, [{**plan, "run_id": self.run_id}])[0]

    @cached_property
    def _logs(self) -> RunLogs:
        return RunLogs(self.store, None, [self.run_id])

    @cached_property
    def curves(self) -> pd.DataFrame:
        """`CURVES` of this run."""
        return self._part("curves")

    @cached_property
    def layers(self) -> pd.DataFrame:
        """`LAYERS` of this run."""
        return self._part("layers")

    @cached_property
    def documents(self) -> pd.DataFrame:
        """`DOCUMENTS` of this run."""
        return self._part("documents")

    def _part(self, table: str) -> pd.DataFrame:
        return frames.read_part(self._logs, [self.row], table)


def opened(store: RunStore | str | Path) -> RunStore:
    """The store, or the one in this runs folder, without making anything."""
    return store if isinstance(store, RunStore) else RunStore(Path(store), create=False)


def load_run(store: RunStore | str | Path, run_id: str) -> RunView:
    """One run by its id or the beginning of it.

    Raises:
        UserError: no run's id begins so, or several do, or fewer than six hexadecimal digits are
            given.
    """
    store = opened(store)
    run_id = resolve(store, run_id)
    path = store.current(run_id)
    if path is None:
        raise UserError(
            f"run {run_id[:12]} in {store.root}: it has no folder any more; nothing is left to show"
        )
    described = store.config(run_id) or {}
    return RunView(
        store=store,
        run_id=run_id,
        path=path,
        config=_mapping(described, "config"),
        identity=_mapping(described, "identity"),
        env=store.env(run_id) or {},
        result=store.result(run_id),
        planned=_planned(store, run_id),
    )


def _mapping(described: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = described.get(key)
    return found if isinstance(found, dict) else {}


def resolve(store: RunStore, prefix: str) -> str:
    """The id of the one run, finished or not, that begins with these digits.

    Raises:
        UserError: none does, or several do, or fewer than six hexadecimal digits are given.
    """
    wanted = prefix.strip().lower()
    if not re.fullmatch(f"[0-9a-f]{{{SHORTEST},64}}", wanted):
        raise UserError(
            f"run {prefix!r}: no run id; give the first {SHORTEST} or more of its hexadecimal "
            "digits"
        )
    found = store.beginning(wanted)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(run_id[:16] for run_id in found[:4])
        raise UserError(f"run {prefix!r}: {len(found)} runs begin so ({listed}); give more digits")
    near = [run_id[: len(wanted)] for run_id in store.beginning(wanted[:2])]
    close = difflib.get_close_matches(wanted, near, n=1)
    hint = did_you_mean(close[0]) if close else "a study's report lists its runs under *Every run*"
    raise UserError(f"no run of {store.root} begins with {prefix!r}; {hint}")


def _planned(store: RunStore, run_id: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for folder in studies(store):
        try:
            found += [
                (folder.path.name, plan) for plan in folder.runs() if plan.get("run_id") == run_id
            ]
        except StudyError as error:
            warn(str(error))
    return found
