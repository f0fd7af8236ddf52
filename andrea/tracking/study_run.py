"""The study-level run of W&B: verdicts, effects, tuned rates and outcomes as tables, the report as
an artifact.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from andrea.config import dotted
from andrea.records.base import Settings
from andrea.records.run import RunResult, RunSpec
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.store.verdict_rows import EffectRow, VerdictRow, effect_rows, verdict_rows
from andrea.tracking.destination import Destination
from andrea.tracking.projection import LAYER_METRICS, Projection, as_tags, short_name
from andrea.tracking.published import is_done, load_entry, unique_runs
from andrea.tracking.subject import study_key

NUMBERS = ("mean", "low", "high", "level", "n", "p", "p_holm", "regret", "smallest_visible")
VERDICT_COLUMNS = ["arm", "verdict", "cause", *NUMBERS, "lr", "reason"]
EFFECT_COLUMNS = ["name", "kind", "verdict", "cause", *NUMBERS, "reason"]
WITH_CHECKPOINT = " with checkpoint"
ATTACHED = (".html", ".csv")
"""Files of the report's folder that go along as an artifact."""


@dataclass(frozen=True)
class Table:
    """A W&B Table; every row has a value or None for every column."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True, kw_only=True)
class StudyProjection(Projection):
    """The study as one W&B run, written when its runs are."""

    job_type: str = "report"
    tables: dict[str, Table]
    """By their keys in the summary: what W&B's panels ask for."""
    files: dict[str, Path] = field(default_factory=dict)
    """Of the report, by their names in the artifact."""
    checkpoint: Path | None = None

    @property
    def stamp(self) -> str:
        """Digest of everything that is sent."""
        tables = {name: [table.columns, table.rows] for name, table in self.tables.items()}
        content = [self.config, self.summary, tables, self.tags]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode())
        for name, path in sorted(self.files.items()):
            digest.update(name.encode() + path.read_bytes())
        return digest.hexdigest()[:16] + (WITH_CHECKPOINT if self.checkpoint else "")


class PlannedRun(NamedTuple):
    """A run of a study, with its result once it has one."""

    spec: RunSpec
    result: RunResult | None

    @property
    def ending(self) -> str:
        """The outcome. `stalled` is one here: it is what a reader counts."""
        if self.result is None:
            return "missing"
        return "stalled" if self.result.stalled else self.result.outcome

    @property
    def loss(self) -> float | None:
        """On all evaluated tokens at the end."""
        return self.result.loss if self.result else None


def is_judged(folder: StudyFolder) -> bool:
    """Return whether the study has verdicts, or a sweep its best config."""
    return folder.load_verdict() is not None or folder.load_best() is not None


def study_id(folder: StudyFolder) -> str:
    """Return the id of the study's own run in W&B."""
    return f"study-{study_key(folder)[:12]}"


def project_study(
    folder: StudyFolder, store: RunStore, tags: Sequence[str] = (), *, checkpoint: bool = False
) -> StudyProjection:
    """Return the projection of a study in whatever state it is.

    Args:
        tags: the user's.
        checkpoint: with the checkpoint of the best run (`best_run`), where the store still has it.
    """
    info, question = folder.load_info(), folder.load_question()
    config = dotted({**question.to_json(), "study": folder.path.name})
    # W&B has it as the run's name.
    config.pop("name", None)
    runs = load_planned_runs(folder, store)
    best = best_run(runs)
    best_checkpoint = _checkpoint(store, best) if checkpoint and best else None
    return StudyProjection(
        id=study_id(folder),
        name=f"{info.name}: {'best config' if info.kind == 'sweep' else 'verdicts'}",
        group=folder.path.name,
        tags=as_tags([info.name, info.kind, question.preset, *tags]),
        config=config,
        summary=_summary(folder, best),
        tables=study_tables(folder, store, runs),
        files=_report_files(folder),
        checkpoint=best_checkpoint,
    )


def pending_study(
    folder: StudyFolder, store: RunStore, to: Destination, *, checkpoint: bool = False
) -> StudyProjection | None:
    """Return the own run of a study that was judged; None where W&B has it as it is now."""
    if not is_judged(folder):
        return None
    projection = project_study(folder, store, to.tags, checkpoint=checkpoint)
    entry = load_entry(folder, projection.id)
    if entry is not None and entry.stamp and not checkpoint:
        # A checkpoint that was attached once stays attached.
        stamp = entry.stamp.removesuffix(WITH_CHECKPOINT)
        entry = entry.model_copy(update={"stamp": stamp})
    return None if is_done(folder, entry, to, projection.stamp) else projection


def load_planned_runs(folder: StudyFolder, store: RunStore) -> list[PlannedRun]:
    """Return the runs of a study in planned order, each once."""
    return [PlannedRun(spec, store.load_result(spec.run_id)) for spec in unique_runs(folder)]


def study_tables(
    folder: StudyFolder, store: RunStore, runs: Sequence[PlannedRun]
) -> dict[str, Table]:
    """Return every table by its key in the run's summary."""
    outcomes = {"outcomes": _outcomes(runs)}
    if folder.load_info().kind == "sweep":
        return outcomes | {"trials": _trials(runs)}
    verdicts = {"verdicts": _table(VERDICT_COLUMNS, verdict_rows(folder))}
    if effects := effect_rows(folder):
        verdicts["effects"] = _table(EFFECT_COLUMNS, effects)
    return outcomes | verdicts | {"rates": _rates(runs), "layers": _layers(runs, store)}


def best_run(runs: Sequence[PlannedRun]) -> str | None:
    """Return the good run with the lowest loss on the part of the text that is judged: a replicate,
    or a sweep's trial.
    """
    losses = [
        (run.loss, run.spec.run_id)
        for run in runs
        if run.spec.phase in ("replicate", "trial")
        and run.ending == "completed"
        and run.loss is not None
    ]
    return min(losses)[1] if losses else None


def _summary(folder: StudyFolder, best: str | None) -> Settings:
    summary: Settings = {"complete": folder.complete, "best_run": (best or "")[:12]}
    if folder.load_info().kind != "sweep":
        for row in verdict_rows(folder):
            if row.verdict != "baseline":
                summary[f"verdict.{row.arm}"] = row.verdict
    trial = folder.load_best()
    if trial is not None and trial.params:
        summary |= {f"best.{short_name(key)}": value for key, value in trial.params.items()}
    return summary


def _table(columns: list[str], rows: Sequence[VerdictRow | EffectRow]) -> Table:
    return Table(columns, [[getattr(row, column) for column in columns] for row in rows])


def _outcomes(runs: Sequence[PlannedRun]) -> Table:
    counts = Counter((run.spec.arm, run.spec.phase, run.ending) for run in runs)
    return Table(["arm", "phase", "outcome", "runs"], [[*key, n] for key, n in counts.items()])


def _rates(runs: Sequence[PlannedRun]) -> Table:
    """The tuning runs: the loss on the tune part at every rate."""
    table = Table(["arm", "lr", "seed", "loss", "outcome"], [])
    for run in runs:
        spec = run.spec
        if spec.phase == "tune":
            table.rows.append([spec.arm, spec.lr, spec.seed, run.loss, run.ending])
    return table


def _trials(runs: Sequence[PlannedRun]) -> Table:
    names = list(dict.fromkeys(name for run in runs for name in run.spec.params or {}))
    table = Table(["trial", "seed", *map(short_name, names), "loss", "outcome"], [])
    for run in runs:
        params = run.spec.params or {}
        settings = [params.get(name) for name in names]
        table.rows.append([run.spec.trial, run.spec.seed, *settings, run.loss, run.ending])
    return table


def _layers(runs: Sequence[PlannedRun], store: RunStore) -> Table:
    """Means over an arm's good replicates at every checkpoint of the diagnostics, by layer."""
    seeds: dict[tuple[str, int, int], list[tuple[float, ...]]] = {}
    for run in runs:
        if run.spec.phase != "replicate" or run.ending != "completed":
            continue
        for record in store.load_metrics(run.spec.run_id):
            if record.kind != "layers":
                continue
            profiles = [getattr(record, metric) or [] for metric in LAYER_METRICS]
            # The residual stream has one more than there are layers.
            for layer, values in enumerate(zip(*profiles, strict=False)):
                if None not in values:
                    seeds.setdefault((run.spec.arm, record.tokens, layer), []).append(values)
    table = Table(["arm", "tokens", "layer", "seeds", *LAYER_METRICS], [])
    for key, rows in seeds.items():
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        table.rows.append([*key, len(rows), *means])
    return table


def _report_files(folder: StudyFolder) -> dict[str, Path]:
    report = folder.path / "report"
    paths = (path for path in report.rglob("*") if path.suffix in ATTACHED and path.is_file())
    return {str(path.relative_to(report)): path for path in sorted(paths)}


def _checkpoint(store: RunStore, run_id: str) -> Path | None:
    path = store.folder(run_id) / "checkpoint"
    return path if path.exists() else None
