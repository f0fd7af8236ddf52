"""What W&B is told about a run: computed from the run store alone, without wandb and without a clock.

The same store gives the same projection, so a mirror can be thrown away and written again at any time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andrea.analysis.text import setting
from andrea.config import dotted
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder

AXES = ("train/*", "eval/*", "layers/*")
"""Every logged metric is drawn over `tokens`, also when a run was resumed or batches differ in size."""
LAYER_METRICS = ("grad_norm", "attn_rms", "mlp_rms", "residual_rms")
ENDED_WELL = ("completed", "stopped", "pruned")
LONGEST_TAG = 64


@dataclass(frozen=True)
class Projection:
    """One W&B run: what is written, whole, when the run has a result."""

    id: str
    name: str
    group: str
    job_type: str
    tags: list[str]
    config: dict[str, Any]
    history: list[dict[str, Any]]
    """One row per optimizer step at which something was recorded, each with `step` and `tokens`. A list is a value per
    layer: entry i is block i's; of the residual stream, what enters it."""
    summary: dict[str, Any]
    exit_code: int


def wandb_id(folder: StudyFolder, run_id: str) -> str:
    """`run_id[:12]-study[:6]`: a run that two studies share appears once in each."""
    study = str(folder.about.get("digest") or folder.path.name.rpartition("-")[2])
    return f"{run_id[:12]}-{study[:6]}"


def project_run(folder: StudyFolder, store: RunStore, planned: Mapping[str, Any]) -> Projection:
    """The projection of one finished run.

    Args:
        planned: the run's line in the study's runs.jsonl.
    """
    run_id = planned["run_id"]
    result = store.result(run_id) or {}
    return Projection(
        id=wandb_id(folder, run_id),
        name=_name(planned),
        group=folder.path.name,
        job_type=str(planned.get("phase", "run")),
        tags=_tags(folder, planned, result),
        config=_config(folder, store, planned),
        history=_history(store.metrics(run_id)),
        summary=_summary(result),
        exit_code=0 if result.get("outcome") in ENDED_WELL else 1,
    )


def _name(planned: Mapping[str, Any]) -> str:
    """Every value stands behind its key, so that two runs never share a name by accident."""
    settings = {"lr": planned.get("lr"), **(planned.get("params") or {}), "seed": planned.get("seed")}
    parts = [planned["arm"]] if planned.get("arm") else []
    if planned.get("phase") == "trial" and planned.get("trial") is not None:
        parts.append(f"trial={planned['trial']}")
    return " ".join([*parts, *(f"{key}={setting(value)}" for key, value in settings.items() if value is not None)])


def _tags(folder: StudyFolder, planned: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    outcome = result.get("outcome")
    found = [
        folder.about.get("name"),
        folder.about.get("kind"),
        planned.get("arm"),
        folder.protocol().get("preset"),
        outcome if outcome != "completed" else None,
        "stalled" if result.get("stalled") else None,
    ]
    return list(dict.fromkeys(str(tag)[:LONGEST_TAG] for tag in found if tag))


def _config(folder: StudyFolder, store: RunStore, planned: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, with dotted keys as on andrea's command line, so that every setting can be filtered on."""
    stored = store.config(planned["run_id"]) or {}
    resolved = stored.get("config", stored)
    config = dotted({key: value for key, value in resolved.items() if key != "identity"})
    config.update(dotted({"env": store.env(planned["run_id"]) or {}}))
    config.update({key: value for key, value in planned.items() if not isinstance(value, Mapping)})
    frozen = folder.read("resolved.json") or {}
    config["study"] = folder.path.name
    config["ablation"] = folder.about.get("name")
    config.update({key: frozen[key] for key in ("baseline", "fingerprint", "exploratory") if key in frozen})
    return config


def _history(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of the same step become one row. What is null (a loss that was not finite) is left out of its row."""
    rows: dict[int, dict[str, Any]] = {}
    for record in metrics:
        if record.get("kind") not in ("train", "eval", "layers"):
            continue
        row = rows.setdefault(record["step"], {"step": record["step"], "tokens": record["tokens"]})
        values = _layers(record) if record["kind"] == "layers" else record
        skip = ("kind", "step", "tokens")
        row.update({f"{record['kind']}/{key}": v for key, v in values.items() if key not in skip and _finite(v)})
    return [rows[step] for step in sorted(rows)]


def _layers(record: Mapping[str, Any]) -> dict[str, Any]:
    """The profile over layers, and the first and last layer's value for curves, whatever the depth."""
    values: dict[str, Any] = {"embedding_grad_norm": record.get("embedding_grad_norm")}
    for metric in LAYER_METRICS:
        if profile := record.get(metric):
            values |= {metric: profile, f"{metric}_first": profile[0], f"{metric}_last": profile[-1]}
    return values


def _summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result's plain values. One NaN would spoil a column of W&B's run table for good, so there is none."""
    renamed = {"loss": "final_loss", "bpb": "final_bpb"}
    summary = {
        renamed.get(key, key): value
        for key, value in result.items()
        if isinstance(value, str) or (not isinstance(value, list) and _finite(value))
    }
    if groups := result.get("parameters"):
        summary["parameters"] = sum(groups.values())
        summary.update({f"parameters.{group}": count for group, count in groups.items()})
    return summary


def _finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_finite, value))
    return isinstance(value, (bool, int, float)) and math.isfinite(value)


def folder_of(folder: StudyFolder) -> Path:
    """Where wandb keeps its files of this study."""
    return folder.path / "wandb"
