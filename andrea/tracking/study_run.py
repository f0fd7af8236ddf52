"""The study-level run of W&B: verdicts, effects, tuned rates and outcomes as tables, the report as
an artifact.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from andrea.config import dotted
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.store.verdict_rows import effect_rows, verdict_rows
from andrea.tracking import published as ledger
from andrea.tracking.projection import LAYER_METRICS, as_tags, short
from andrea.tracking.subject import Destination, study_key

JOB_TYPE = "report"
NUMBERS = ("mean", "low", "high", "level", "n", "p", "p_holm", "regret", "smallest_visible")
VERDICT_COLUMNS = ["arm", "verdict", "cause", *NUMBERS, "lr", "reason"]
EFFECT_COLUMNS = ["name", "kind", "verdict", "cause", *NUMBERS, "reason"]
WITH_CHECKPOINT = " with checkpoint"
ATTACHED = (".html", ".csv")
"""What of the report's folder goes along as an artifact."""


@dataclass(frozen=True)
class Table:
    """A W&B Table; every row has a value or None for every column."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class StudyProjection:
    """The study as one W&B run, written when its runs are."""

    id: str
    name: str
    group: str
    tags: list[str]
    config: dict[str, Any]
    summary: dict[str, Any]
    tables: dict[str, Table]
    files: dict[str, Path] = field(default_factory=dict)
    """Of the report, by their names in the artifact."""
    checkpoint: Path | None = None

    @property
    def stamp(self) -> str:
        """Digest of all that is told."""
        told = [
            self.config,
            self.summary,
            {name: [t.columns, t.rows] for name, t in self.tables.items()},
            self.tags,
        ]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
        for name, path in sorted(self.files.items()):
            digest.update(name.encode() + path.read_bytes())
        return digest.hexdigest()[:16] + (WITH_CHECKPOINT if self.checkpoint else "")


def is_judged(folder: StudyFolder) -> bool:
    """Whether there is something to tell of the study as a whole: verdicts, or a sweep's best
    config.
    """
    return bool(folder.read("verdict.json") or folder.read("best.json"))


def study_id(folder: StudyFolder) -> str:
    """The id of the study's own run in W&B."""
    return f"study-{study_key(folder)[:12]}"


def project_study(
    folder: StudyFolder, store: RunStore, tags: Sequence[str] = (), *, checkpoint: bool = False
) -> StudyProjection:
    """The projection of a study in whatever state it is.

    Args:
        tags: what the user adds.
        checkpoint: with the checkpoint of the best run (`best_run`), where the store still has it.
    """
    about, protocol = folder.about, folder.protocol()
    found = [about.get("name"), about.get("kind"), protocol.get("preset"), *tags]
    best = best_run(folder, store)
    return StudyProjection(
        id=study_id(folder),
        name=f"{about.get('name')}: "
        f"{'best config' if about.get('kind') == 'sweep' else 'verdicts'}",
        group=folder.path.name,
        tags=as_tags(found),
        config={
            key: value
            for key, value in dotted({**protocol, "study": folder.path.name}).items()
            if key != "name"
        },
        summary=_summary(folder, best),
        tables=tables(folder, store),
        files=_report_files(folder),
        checkpoint=_checkpoint(store, best) if checkpoint and best else None,
    )


def pending_study(
    folder: StudyFolder, store: RunStore, to: Destination, *, checkpoint: bool = False
) -> StudyProjection | None:
    """The own run of a study that was judged, unless it is there as it is now."""
    if not is_judged(folder):
        return None
    told = project_study(folder, store, to.tags, checkpoint=checkpoint)
    known = ledger.entry(folder, told.id)
    if known and "stamp" in known and not checkpoint:  # what was attached once stays attached
        known["stamp"] = known["stamp"].removesuffix(WITH_CHECKPOINT)
    return None if ledger.is_done(folder, known, to, told.stamp) else told


def tables(folder: StudyFolder, store: RunStore) -> dict[str, Table]:
    """Every table by its key in the run's summary: what W&B's panels ask for."""
    results = [(run, store.result(run["run_id"])) for run in _planned(folder)]
    found = {"outcomes": _outcomes(results)}
    if folder.about.get("kind") == "sweep":
        return found | {"trials": _trials(results)}
    found["verdicts"] = _table(VERDICT_COLUMNS, verdict_rows(folder))
    effects = effect_rows(folder)
    if effects:
        found["effects"] = _table(EFFECT_COLUMNS, effects)
    return found | {"rates": _rates(results), "layers": _layers(results, store)}


def best_run(folder: StudyFolder, store: RunStore) -> str | None:
    """The good run with the lowest loss on the part of the text that is judged: a replicate, or a
    sweep's trial.
    """
    judged = [run for run in _planned(folder) if run.get("phase") in ("replicate", "trial")]
    results = {run["run_id"]: store.result(run["run_id"]) or {} for run in judged}
    losses = {
        run_id: float(result["loss"])
        for run_id, result in results.items()
        if _ending(result) == "completed" and result.get("loss") is not None
    }
    return min(losses, key=lambda run_id: losses[run_id], default=None)


def _planned(folder: StudyFolder) -> list[dict[str, Any]]:
    return list({run["run_id"]: run for run in reversed(folder.runs())}.values())[::-1]


def _summary(folder: StudyFolder, best: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {"complete": folder.complete, "best_run": best[:12] if best else ""}
    told |= {f"verdict.{row['arm']}": row["verdict"] for row in _judged(folder)}
    chosen = (folder.read("best.json") or {}).get("params") or {}
    return told | {f"best.{short(key)}": value for key, value in chosen.items()}


def _judged(folder: StudyFolder) -> list[dict[str, Any]]:
    rows = [] if folder.about.get("kind") == "sweep" else verdict_rows(folder)
    return [row for row in rows if row["verdict"] != "baseline"]


def _table(columns: list[str], rows: list[dict[str, Any]]) -> Table:
    return Table(columns, [[row.get(column) for column in columns] for row in rows])


def _ending(result: dict[str, Any] | None) -> str:
    """`stalled` is a way to end here: it is what a reader counts."""
    if result is None:
        return "missing"
    return "stalled" if result.get("stalled") else str(result.get("outcome"))


def _outcomes(results: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> Table:
    counted = Counter(
        (str(run.get("arm") or ""), str(run.get("phase") or ""), _ending(result))
        for run, result in results
    )
    return Table(["arm", "phase", "outcome", "runs"], [[*key, n] for key, n in counted.items()])


def _rates(results: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> Table:
    """The tuning runs: the loss on the tune part at every rate."""
    rows = [
        [
            run.get("arm"),
            run.get("lr"),
            run.get("seed"),
            (result or {}).get("loss"),
            _ending(result),
        ]
        for run, result in results
        if run.get("phase") == "tune"
    ]
    return Table(["arm", "lr", "seed", "loss", "outcome"], rows)


def _trials(results: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> Table:
    names = list(dict.fromkeys(key for run, _ in results for key in run.get("params") or {}))
    rows = [
        [
            *(run.get(key) for key in ("trial", "seed")),
            *((run.get("params") or {}).get(name) for name in names),
            *((result or {}).get("loss"), _ending(result)),
        ]
        for run, result in results
    ]
    return Table(["trial", "seed", *map(short, names), "loss", "outcome"], rows)


def _layers(results: list[tuple[dict[str, Any], dict[str, Any] | None]], store: RunStore) -> Table:
    """Means over an arm's good replicates at every checkpoint of the diagnostics: arm, tokens,
    layer.
    """
    values: dict[tuple[str, int, int], list[list[float]]] = {}
    for run, result in results:
        if run.get("phase") != "replicate" or _ending(result) != "completed":
            continue
        for record in store.metrics(run["run_id"]):
            profiles = [record.get(metric) for metric in LAYER_METRICS]
            if record.get("kind") != "layers" or not all(profiles):
                continue
            for layer, row in enumerate(
                zip(*profiles, strict=False)
            ):  # the residual stream has one more
                if None not in row:
                    values.setdefault(
                        (str(run.get("arm") or ""), record["tokens"], layer), []
                    ).append(list(row))
    rows = [
        [*key, len(seeds), *(sum(column) / len(seeds) for column in zip(*seeds, strict=True))]
        for key, seeds in values.items()
    ]
    return Table(["arm", "tokens", "layer", "seeds", *LAYER_METRICS], rows)


def _report_files(folder: StudyFolder) -> dict[str, Path]:
    report = folder.path / "report"
    found = sorted(path for path in report.rglob("*") if path.suffix in ATTACHED and path.is_file())
    return {str(path.relative_to(report)): path for path in found}


def _checkpoint(store: RunStore, run_id: str) -> Path | None:
    path = store.folder(run_id) / "checkpoint"
    return path if path.exists() else None
