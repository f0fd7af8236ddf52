"""A study as tidy tables, whatever state it is in."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from andrea.analysis.tables import frames, judged
from andrea.analysis.tables.cache import RunLogs
from andrea.analysis.tables.judged import DIFFERENCES as DIFFERENCES
from andrea.analysis.tables.judged import EFFECTS as EFFECTS
from andrea.analysis.tables.judged import VERDICTS as VERDICTS
from andrea.analysis.tables.run_view import RunView as RunView
from andrea.analysis.tables.run_view import load_run as load_run
from andrea.analysis.tables.run_view import opened
from andrea.errors import StudyError, warn
from andrea.store.files import read_json, read_mapping
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder, find, studies
from andrea.store.usual import DEFAULT_RUNS
from andrea.store.verdict_rows import (
    Row,
    arm_names,
    baseline_name,
    effect_rows,
    level_label,
    verdict_rows,
)
from andrea.text.names import line
from andrea.text.numbers import bare, listing


@dataclass(frozen=True)
class Study:
    """One study: what was asked, what came out, and tables of every number.

    The columns of the tables are documented in `andrea.analysis.tables.frames` (RUNS, CURVES,
    LAYERS, DOCUMENTS) and `andrea.analysis.tables.judged` (VERDICTS, DIFFERENCES, EFFECTS). Losses
    are in nats per token; curves stand at the tokens at which they were logged. A table is read
    when it is first asked for.
    """

    path: Path
    """The study's folder."""
    about: dict[str, Any]
    """study.json: kind, name, digest, created."""
    protocol: dict[str, Any]
    """protocol.yaml: question, hypothesis, arms, sections, `protocol`: what was asked, as asked."""
    resolved: dict[str, Any]
    """resolved.json: arms in full, data fingerprint, platform; empty before the freeze ended."""
    choices: dict[str, Any]
    """choices.json: the learning rate of every arm and how it was found; empty before tuning ended.
    """
    verdict: dict[str, Any]
    """verdict.json; empty before the study was judged."""
    best: dict[str, Any]
    """best.json of a sweep; empty before it ended."""
    corpus: dict[str, Any]
    """meta.json of the prepared data: source, documents, bytes, tokens per part; empty where it is
    not there.
    """
    live: bool
    """Whether a controller is at it now."""
    speed: dict[str, Any]
    """speed.json: the arms' measured speeds; empty where none were measured."""
    asked: dict[str, Any]
    """asked.json: which controls, confirmation and equal budgets were asked for; empty where none
    were.
    """
    planned: list[dict[str, Any]]
    """The lines of runs.jsonl: every run in the order of the plan."""
    logs: RunLogs
    """What the runs logged, through the cache."""
    judged: list[Row]
    """Rows of `verdict_rows`: what `verdicts` is made of."""
    effects: pd.DataFrame
    """Of a factorial design, else empty."""

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return frames.run_rows(self.logs, self.planned)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per planned run (`RUNS`)."""
        return frames.runs_frame(self._rows)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Every logged loss (`CURVES`), of all runs at once: a large study is better read in parts."""
        return self.part("curves")

    @cached_property
    def layers(self) -> pd.DataFrame:
        """What was measured block by block (`LAYERS`)."""
        return self.part("layers")

    @cached_property
    def documents(self) -> pd.DataFrame:
        """Final loss on every evaluated document (`DOCUMENTS`)."""
        return self.part("documents")

    def part(self, table: str, columns: Sequence[str] | None = None, **where: Any) -> pd.DataFrame:
        """Some rows and columns of `curves`, `layers` or `documents`, without the rest in memory.

            study.part("curves", ["arm", "seed", "tokens", "loss"], phase="replicate", kind="eval")

        Args:
            table: its name.
            columns: the ones that are wanted; None for all.
            where: column=value or column=[values]: arm, phase, seed, lr, run_id, kind, quantity,
                document.

        Raises:
            UserError: a table, a column or a filter that there is not.
        """
        return frames.read_part(self.logs, self._rows, table, columns, **where)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """The rows of `runs` that tune, with `score`: the final loss, or the loss at initialisation
        where not ok.
        """
        return judged.trials(self.runs)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One row per arm, baseline first (`VERDICTS`)."""
        return judged.verdicts(self.judged, self.runs, self.label)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """One row per arm and replicate seed (`DIFFERENCES`)."""
        return judged.differences(self.runs, arm_names(self.protocol, self.resolved), self.baseline)

    @cached_property
    def environments(self) -> list[tuple[dict[str, Any], int]]:
        """Every distinct env.json with the number of runs that have it."""
        found: dict[str, tuple[dict[str, Any], int]] = {}
        for _, env in self.logs.outcomes.values():
            if env is not None:
                key = json.dumps(env, sort_keys=True)
                found[key] = (env, found.get(key, (env, 0))[1] + 1)
        return list(found.values())

    @property
    def store(self) -> RunStore:
        """The store that its runs lie in."""
        return self.logs.store

    @property
    def name(self) -> str:
        """The study's bare name."""
        return str(self.about.get("name") or self.path.name)

    @property
    def kind(self) -> str:
        """`ablation` or `sweep`."""
        return str(self.about.get("kind") or "ablation")

    @cached_property
    def arms(self) -> list[str]:
        """The arms in declared order, the baseline first: the order of colours and rows everywhere."""
        named = arm_names(self.protocol, self.resolved)
        return named or [str(arm) for arm in self.runs["arm"].drop_duplicates()]

    @property
    def baseline(self) -> str | None:
        """The arm that the others are compared with."""
        return baseline_name(self.protocol, self.resolved)

    @property
    def rules(self) -> dict[str, Any]:
        """The `protocol` section: m, seeds, trials, alpha, …"""
        rules = self.protocol.get("protocol")
        return rules if isinstance(rules, dict) else {}

    @property
    def m(self) -> float | None:
        """Smallest effect of interest, nats."""
        return float(self.rules["m"]) if self.rules.get("m") is not None else None

    @property
    def complete(self) -> bool:
        """Whether every planned run has a result and the study was judged (or its best config
        chosen).
        """
        ended = (
            bool(self.best)
            if self.kind == "sweep"
            else bool(self.verdict.get("complete", bool(self.verdict)))
        )
        return ended and not self.runs["outcome"].isin(frames.UNFINISHED).any()

    def label(self, arm: str) -> str:
        """What the arm is called: its label, else its name."""
        return arm_label(self.protocol, self.resolved, arm)

    def called(self, *arms: str) -> str:
        """Arms in a sentence: a label that is a bare number has the factor before it, as in
        `mlp_ratio 1 and 8/3`; the levels of a cell are joined by a plus sign.
        """
        labels = [
            self.label(arm).replace(", ", " + ") if self.factors else self.label(arm)
            for arm in arms
        ]
        if labels and all(map(bare, labels)):
            return f"{self.factor} {listing(labels)}"
        return listing([f"{self.factor} {label}" if bare(label) else label for label in labels])

    @property
    def factor(self) -> str:
        """What the arms differ in, short."""
        named = line(self.protocol.get("factor") or "arm").split(" × ")
        return " × ".join(name.rpartition(".")[2] for name in named)

    @property
    def factors(self) -> dict[str, dict[str, str]]:
        """Of a factorial design: by factor, the labels of its levels by name; else empty."""
        told = self.protocol.get("factors") or {}
        return {
            f: {level: level_label(told, f, level) for level in levels}
            for f, levels in told.items()
        }

    @property
    def centers(self) -> dict[str, float]:
        """Learning rate in the middle of the grid of every arm that was given its own."""
        arms = self.protocol.get("arms") or {}
        return {
            arm: float(told["center"])
            for arm, told in arms.items()
            if told.get("center") is not None
        }

    def replicates(self) -> pd.DataFrame:
        """The runs that verdicts compare."""
        return self.runs[self.runs["phase"] == "replicate"]

    def frames(self) -> frames.Frames:
        """Every table by name, as it is written beside a report, read when it is looked up."""
        names = ["runs", "curves", "layers", "trials", "documents"]
        names += [] if self.kind == "sweep" else ["verdicts", "differences"]
        names += ["effects"] if self.factors else []
        large = {name: partial(self.part, name) for name in frames.TABLES}
        return frames.Frames(
            {name: large.get(name) or partial(getattr, self, name) for name in names}
        )


def arm_label(protocol: dict[str, Any], resolved: dict[str, Any], arm: str) -> str:
    """The label that the ablation gives an arm, else its name."""
    for arms in (protocol.get("arms"), resolved.get("arms")):
        told = arms.get(arm) if isinstance(arms, dict) else None
        if isinstance(told, dict) and told.get("label"):
            return line(told["label"]) or arm
    return arm


def load(study: StudyFolder | str | Path, store: RunStore | str | Path | None = None) -> Study:
    """Read a study, finished or not. Its tables are read when they are asked for.

        from andrea.analysis.load import load
        study = load("norm-placement")

    Args:
        study: name of a study (the latest of that name), name of its folder, or the folder.
        store: the runs folder or the opened store; by default the one that the study's folder lies
            in, or `./andrea-runs`.

    Raises:
        UserError: there is no such study, or no such store.
        StudyError: the folder has no readable protocol.yaml.
    """
    folder, there = _found(study, store)
    protocol, resolved = folder.protocol(), folder.read("resolved.json") or {}
    planned = folder.runs()
    return Study(
        path=folder.path,
        about=folder.about,
        protocol=protocol,
        resolved=resolved,
        choices=folder.read("choices.json") or {},
        verdict=folder.read("verdict.json") or {},
        best=folder.read("best.json") or {},
        corpus=_corpus(there, resolved),
        live=folder.live,
        speed=read_mapping(folder.path / "speed.json") or {},
        asked=read_mapping(folder.path / "asked.json") or {},
        planned=planned,
        logs=RunLogs(
            there, folder.path.name, list(dict.fromkeys(plan["run_id"] for plan in planned))
        ),
        judged=verdict_rows(folder),
        effects=judged.effects(effect_rows(folder)),
    )


def _found(
    study: StudyFolder | str | Path, store: RunStore | str | Path | None
) -> tuple[StudyFolder, RunStore]:
    if isinstance(study, StudyFolder):
        folder: StudyFolder | None = study
    else:
        folder = (
            StudyFolder(Path(study).absolute()) if (Path(study) / "study.json").is_file() else None
        )
    if store is None:
        store = folder.path.parents[1] if folder else DEFAULT_RUNS
    there = opened(store)
    return folder or find(there, str(study)), there


def load_all(store: RunStore | str | Path = DEFAULT_RUNS) -> list[Study]:
    """Every study of a store, oldest first; of one that is damaged it only warns."""
    there = opened(store)
    found = []
    for folder in studies(there):
        try:
            found.append(load(folder, there))
        except StudyError as error:
            warn(str(error))
    return found


def _corpus(store: RunStore, resolved: dict[str, Any]) -> dict[str, Any]:
    fingerprint = resolved.get("fingerprint")
    found = read_json(store.root / "data" / str(fingerprint) / "meta.json") if fingerprint else None
    return found if isinstance(found, dict) else {}


class _Callable(ModuleType):
    """This module, which may be called as well: `from andrea.analysis import load; study =
    load("norm-placement")`.

    An empty `__init__` keeps `import andrea.text.numbers` from loading pandas, so the name cannot
    stand there.
    """

    def __call__(
        self, study: StudyFolder | str | Path, store: RunStore | str | Path | None = None
    ) -> Study:
        """`load(study, store)`."""
        return load(study, store)


sys.modules[__name__].__class__ = _Callable
