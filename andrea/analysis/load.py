"""A study as tidy tables, whatever state it is in."""

import sys
from collections import Counter
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
from andrea.analysis.tables.run_view import open_store
from andrea.errors import StudyError, warn
from andrea.records.base import ByName, Record
from andrea.records.extras import Extras
from andrea.records.run import Environment, RunSpec
from andrea.records.study import (
    AskedStudy,
    BestTrial,
    Choice,
    ResolvedArm,
    ResolvedStudy,
    StudyInfo,
    StudySpeed,
)
from andrea.records.verdict import StudyVerdict
from andrea.store.files import read_mapping
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder, find_study, list_studies
from andrea.store.usual import DEFAULT_RUNS
from andrea.store.verdict_rows import EffectRow, VerdictRow, effect_rows, verdict_rows
from andrea.text.names import one_line
from andrea.text.numbers import bare, listing
from andrea.verdict.protocol import Protocol

_NO_RULES = Protocol.model_construct(m=0.0)
"""The rules of a sweep: every default, and a smallest effect of interest that nothing reads."""


class Corpus(Record):
    """meta.json of prepared data, as far as reports tell of it."""

    documents: int | None = None
    bytes: int | None = None
    tokens: ByName[int] = {}
    """By part: train, tune, verdict."""


@dataclass(frozen=True, repr=False)
class Study:
    """One study: what was asked, what came out, and tables of every number.

    The columns of the tables are documented in `andrea.analysis.tables.frames` (RUNS, CURVES,
    LAYERS, DOCUMENTS) and `andrea.analysis.tables.judged` (VERDICTS, DIFFERENCES, EFFECTS). Losses
    are in nats per token; curves stand at the tokens at which they were logged. A table is read
    when it is first asked for.
    """

    path: Path
    """The study's folder."""
    about: StudyInfo
    """study.json: kind, name, digest, created."""
    protocol: AskedStudy
    """protocol.yaml: question, hypothesis, arms, sections, `protocol`: what was asked, as asked."""
    resolved: ResolvedStudy
    """resolved.json: arms in full, data fingerprint, platform; empty before the freeze ended."""
    choices: dict[str, Choice]
    """choices.json: the learning rate of every arm and how it was found; empty before tuning ended.
    """
    verdict: StudyVerdict
    """verdict.json; empty before the study was judged."""
    best: BestTrial
    """best.json of a sweep; empty before it ended."""
    corpus: Corpus
    """meta.json of the prepared data; empty where it is not there."""
    live: bool
    """A controller is at it now."""
    speed: StudySpeed
    """speed.json: the arms' measured speeds; empty where none were measured."""
    asked: Extras
    """asked.json: which controls, confirmation and equal budgets were asked for."""
    planned: list[RunSpec]
    """The lines of runs.jsonl: every run in the order of the plan."""
    logs: RunLogs
    """What the runs logged, through the cache."""
    judged: list[VerdictRow]
    """Rows of `verdict_rows`: what `verdicts` is made of."""
    effect_rows: list[EffectRow]
    """Of a factorial design, else empty."""

    def __repr__(self) -> str:
        verdicts = Counter(row.verdict for row in self.judged if row.verdict != "baseline")
        outcomes = self.runs["outcome"].value_counts()
        counts, runs = (
            ", ".join(f"{count} {word}" for word, count in numbers.items())
            for numbers in (verdicts, outcomes)
        )
        return (
            f"<Study {self.name}: {self.kind}, {'complete' if self.complete else 'unfinished'}>\n"
            f"arms: {', '.join(self.arms)}\n"
            f"runs: {runs or 'none planned'}\n"
            f"verdicts: {counts or 'none'}\n"
            f"tables: {', '.join(self.frames())}; folder: {self.path}"
        )

    @cached_property
    def _rows(self) -> list[frames.RunRow]:
        return frames.run_rows(self.logs, self.planned)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per planned run (`RUNS`)."""
        return frames.runs_frame(self._rows)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Every logged loss (`CURVES`), of all runs at once: a large study is better read in
        parts.
        """
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
        """Return some rows and columns of `curves`, `layers` or `documents`, without the rest in
        memory.

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
        return judged.tuning_trials(self.runs)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One row per arm, baseline first (`VERDICTS`)."""
        return judged.verdict_table(self.judged, self.runs, self.label)

    @cached_property
    def effects(self) -> pd.DataFrame:
        """One row per effect of a factorial design (`EFFECTS`)."""
        return judged.effect_table(self.effect_rows)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """One row per arm and replicate seed (`DIFFERENCES`)."""
        return judged.paired_differences(self.runs, self._declared_arms, self.baseline)

    @cached_property
    def environments(self) -> list[tuple[Environment, int]]:
        """Every distinct env.json with the number of runs that have it."""
        environments = (outcome.environment for outcome in self.logs.outcomes.values())
        counts = Counter(environment for environment in environments if environment)
        return list(counts.items())

    @property
    def question_yaml(self) -> str:
        """The text of protocol.yaml, to be copied."""
        return (self.path / "protocol.yaml").read_text(encoding="utf-8")

    @property
    def store(self) -> RunStore:
        """The store that its runs lie in."""
        return self.logs.store

    @property
    def name(self) -> str:
        """The study's bare name."""
        return self.about.name or self.path.name

    @property
    def kind(self) -> str:
        """`ablation` or `sweep`."""
        return self.about.kind or "ablation"

    @property
    def _declared_arms(self) -> list[str]:
        return self.protocol.arm_names or self.resolved.arm_names

    @cached_property
    def arms(self) -> list[str]:
        """The arms in declared order, the baseline first: the order of colours and rows
        everywhere.
        """
        return self._declared_arms or [str(arm) for arm in self.runs["arm"].drop_duplicates()]

    @property
    def baseline(self) -> str | None:
        """The arm that the others are compared with."""
        return self.protocol.baseline or self.resolved.baseline

    @property
    def rules(self) -> Protocol:
        """The `protocol` section: seeds, trials, alpha, …; all at their defaults in a sweep."""
        return self.protocol.protocol or _NO_RULES

    @property
    def m(self) -> float | None:
        """Smallest effect of interest, nats; None in a sweep."""
        return self.protocol.protocol.m if self.protocol.protocol else None

    @property
    def is_decided(self) -> bool:
        """There is a verdict, or the best trial of a sweep."""
        decision = self.best if self.kind == "sweep" else self.verdict
        return bool(decision.model_fields_set)

    @property
    def complete(self) -> bool:
        """Every planned run has a result and the study was judged (or its best config chosen)."""
        ended = self.is_decided
        if self.kind != "sweep" and "complete" in self.verdict.model_fields_set:
            ended = self.verdict.complete
        return ended and not self.runs["outcome"].isin(frames.UNFINISHED).any()

    def resolved_arm(self, arm: str | None) -> ResolvedArm:
        """Return an arm of resolved.json; an empty one before the freeze ended."""
        return self.resolved.arms.get(arm or "", ResolvedArm())

    def choice(self, arm: str | None) -> Choice:
        """Return how an arm came to its learning rate; an empty choice before tuning ended."""
        return self.choices.get(arm or "", Choice())

    def label(self, arm: str) -> str:
        """Return what the arm is called: its label, else its name."""
        for arms in (self.protocol.arms, self.resolved.arms):
            if arm in arms and arms[arm].label:
                return one_line(arms[arm].label) or arm
        return arm

    def called(self, *arms: str) -> str:
        """Return arms in a sentence: a label that is a bare number has the factor before it, as in
        `mlp_ratio 1 and 8/3`; the levels of a cell are joined by a plus sign.
        """
        labels = [self.label(arm) for arm in arms]
        if self.factors:
            labels = [label.replace(", ", " + ") for label in labels]
        if labels and all(map(bare, labels)):
            return f"{self.factor} {listing(labels)}"
        return listing([f"{self.factor} {label}" if bare(label) else label for label in labels])

    @property
    def baseline_label(self) -> str:
        """The baseline in a sentence."""
        return self.called(self.baseline or "")

    @property
    def factor(self) -> str:
        """What the arms differ in, short."""
        names = one_line(self.protocol.factor or "arm").split(" × ")
        return " × ".join(name.rpartition(".")[2] for name in names)

    @property
    def factors(self) -> dict[str, dict[str, str]]:
        """Of a factorial design: by factor, the labels of its levels by name; else empty."""
        return {
            factor: {name: one_line(level.label or "") or name for name, level in levels.items()}
            for factor, levels in (self.protocol.factors or {}).items()
        }

    @property
    def centers(self) -> dict[str, float]:
        """Learning rate in the middle of the grid of every arm that was given its own."""
        return self.protocol.centers

    def replicates(self) -> pd.DataFrame:
        """Return the runs that verdicts compare."""
        return self.runs[self.runs["phase"] == "replicate"]

    def frames(self) -> frames.Frames:
        """Return every table by name, as it is written beside a report, read when it is
        looked up.
        """
        names = ["runs", "curves", "layers", "trials", "documents"]
        if self.kind != "sweep":
            names += ["verdicts", "differences"]
        if self.factors:
            names.append("effects")
        readers = {name: partial(getattr, self, name) for name in names}
        in_parts = {name: partial(self.part, name) for name in frames.TABLES}
        return frames.Frames(readers | in_parts)


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
    folder, run_store = _find_study(study, store)
    resolved = folder.load_resolved()
    planned = folder.load_runs()
    run_ids = list(dict.fromkeys(run.run_id for run in planned))
    asked = Extras.from_json(read_mapping(folder.path / "asked.json"), folder.path / "asked.json")
    return Study(
        path=folder.path,
        about=folder.load_info(),
        protocol=folder.load_question(),
        resolved=resolved or ResolvedStudy(),
        choices=folder.load_choices(),
        verdict=folder.load_verdict() or StudyVerdict(),
        best=folder.load_best() or BestTrial(),
        corpus=_load_corpus(run_store, resolved),
        live=folder.live,
        speed=folder.load_speed() or StudySpeed(),
        asked=asked or Extras(),
        planned=planned,
        logs=RunLogs(run_store, folder.path.name, run_ids),
        judged=verdict_rows(folder),
        effect_rows=effect_rows(folder),
    )


def _find_study(
    study: StudyFolder | str | Path, store: RunStore | str | Path | None
) -> tuple[StudyFolder, RunStore]:
    folder: StudyFolder | None = None
    if isinstance(study, StudyFolder):
        folder = study
    elif (Path(study) / "study.json").is_file():
        folder = StudyFolder(Path(study).absolute())
    if store is None:
        store = folder.path.parents[1] if folder else DEFAULT_RUNS
    run_store = open_store(store)
    return folder or find_study(run_store, str(study)), run_store


def load_all(store: RunStore | str | Path = DEFAULT_RUNS) -> list[Study]:
    """Return every study of a store, oldest first; of one that is damaged it only warns."""
    run_store = open_store(store)
    loaded = []
    for folder in list_studies(run_store):
        try:
            loaded.append(load(folder, run_store))
        except StudyError as error:
            warn(str(error))
    return loaded


def _load_corpus(store: RunStore, resolved: ResolvedStudy | None) -> Corpus:
    if resolved is None or not resolved.fingerprint:
        return Corpus()
    path = store.root / "data" / resolved.fingerprint / "meta.json"
    return Corpus.from_json(read_mapping(path), path) or Corpus()


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
