"""What W&B is told about a run: computed from the run store alone, without wandb and without a
clock.

The same store gives the same projection, so a mirror can be thrown away and written again at any
time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from andrea.config import dotted
from andrea.store.runs import RunStore
from andrea.text.numbers import setting
from andrea.tracking.subject import Subject, wandb_id

AXES = ("step", "train/*", "eval/*", "layers/*")
"""Every logged metric is drawn over `tokens`, also when a run was resumed or batches differ in
size.
"""
ON_TUNE_PART = {
    "loss": "tune_loss",
    "bpb": "tune_bpb",
    "full_loss": "tune_full_loss",
    "full_bpb": "tune_full_bpb",
}
"""A loss on the tune part of the text is another metric than one on the verdict part, and has a
name of its own.
"""
LAYER_METRICS = ("grad_norm", "attn_rms", "mlp_rms", "residual_rms")
NAMED_BY_WHY = ("control", "budget")
ENDED_WELL = ("completed", "stopped", "pruned")
LONGEST_TAG = 64


@dataclass(frozen=True)
class Projection:
    """One W&B run."""

    id: str
    name: str
    group: str
    job_type: str
    tags: list[str]
    config: dict[str, Any]
    history: list[dict[str, Any]]
    """One row per optimizer step at which something was recorded, each with `step` and `tokens`. A
    list is a value per layer: entry i is block i's; of the residual stream, what enters it. The
    rows of a run never change, so that those which a server has need not be sent again.
    """
    summary: dict[str, Any]
    exit_code: int


def project_run(
    subject: Subject, store: RunStore, planned: Mapping[str, Any], tags: Sequence[str] = ()
) -> Projection:
    """The projection of one run: as it ended, or as far as it has come.

    Without a result the last row is left out, which may lack what is recorded next. An attempt that
    goes on from a checkpoint records the rows after it anew: the same ones on a CPU, as good as the
    same on a GPU.

    Args:
        planned: the run's line in the study's runs.jsonl.
        tags: what the user adds.
    """
    run_id = planned["run_id"]
    result = store.result(run_id)
    metrics = store.metrics(run_id)
    ended = result or _unfinished(store, run_id)
    history = _history(metrics, ended) if ended.get("eval_part") or result else []
    return Projection(
        id=wandb_id(subject, run_id),
        name=_name(planned),
        group=subject.path.name if planned.get("phase") != "train" else "train",
        job_type=str(planned.get("phase", "run")),
        tags=_tags(subject, planned, ended, tags),
        config=_config(subject, store, planned),
        history=history if result else history[:-1],
        summary=_summary(ended, metrics),
        exit_code=0 if ended.get("outcome") in ENDED_WELL else 1,
    )


def _unfinished(store: RunStore, run_id: str) -> dict[str, Any]:
    """What stands in for the result of a run whose last attempt failed, or that is being trained.

    Where its config cannot be read at the moment (an attempt takes the place of another), nobody
    knows the part of the text that its losses are of.
    """
    config = (store.config(run_id) or {}).get("config") or {}
    failure = store.failure(run_id)
    ended = {"outcome": "failed", "reason": failure.get("reason")} if failure else {}
    return {**ended, "eval_part": (config.get("data") or {}).get("eval_part")}


def _name(planned: Mapping[str, Any]) -> str:
    """Every value stands behind its key, so that two runs never share a name by accident."""
    varied = {
        key: value for key, value in (planned.get("params") or {}).items() if key != "train.lr"
    }
    settings = {"lr": planned.get("lr"), **varied, "seed": planned.get("seed")}
    parts = [planned["arm"]] if planned.get("arm") else []
    if planned.get("phase") == "trial" and planned.get("trial") is not None:
        parts.append(f"trial={planned['trial']}")
    if planned.get("phase") in NAMED_BY_WHY:
        parts.append(_what(planned))
    return " ".join(
        [
            *parts,
            *(f"{key}={setting(value)}" for key, value in settings.items() if value is not None),
        ]
    )


def _tags(
    subject: Subject, planned: Mapping[str, Any], result: Mapping[str, Any], own: Sequence[str]
) -> list[str]:
    outcome = result.get("outcome")
    found = [
        subject.about.get("name"),
        subject.about.get("kind"),
        planned.get("arm"),
        subject.protocol().get("preset"),
        outcome if outcome != "completed" else None,
        "stalled" if result.get("stalled") else None,
        *own,
    ]
    return as_tags(found)


def as_tags(found: Sequence[Any]) -> list[str]:
    """Each once and no longer than W&B takes."""
    return list(dict.fromkeys(str(tag)[:LONGEST_TAG] for tag in found if tag))


def _config(subject: Subject, store: RunStore, planned: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, with dotted keys as on andrea's command line, so that every setting can be filtered on.

    What panels group and draw by stands under short names: W&B takes a dotted key in a panel for a
    nested one.
    """
    stored = store.config(planned["run_id"]) or {}
    resolved = stored.get("config", stored)
    config = dotted({key: value for key, value in resolved.items() if key != "identity"})
    config.update(dotted({"env": store.env(planned["run_id"]) or {}}))
    config.update({short(key): value for key, value in (planned.get("params") or {}).items()})
    config.update({key: value for key, value in planned.items() if not isinstance(value, Mapping)})
    frozen = subject.read("resolved.json") or {}
    config["series"] = series(planned)
    config["study"] = subject.path.name
    config["ablation"] = subject.about.get("name")
    config.update(
        {key: frozen[key] for key in ("baseline", "fingerprint", "exploratory") if key in frozen}
    )
    return config


def short(setting: str) -> str:
    """The last part of a dotted setting, as panels name it: `train.weight_decay` is
    `weight_decay`.
    """
    return setting.rpartition(".")[2]


def series(planned: Mapping[str, Any]) -> str:
    """What a run is one of in a curve with a band: its arm, or, outside replication, its arm in
    that phase.
    """
    arm, what = str(planned.get("arm") or ""), _what(planned)
    return arm if what == "replicate" else " · ".join(filter(None, [arm, what]))


def _what(planned: Mapping[str, Any]) -> str:
    """The phase, or what a control or a budget's run is: `a/a`, `half tokens`, `equal flops`."""
    return str(planned.get("why" if planned.get("phase") in NAMED_BY_WHY else "phase") or "")


def _history(metrics: list[dict[str, Any]], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Records of the same step become one row. What is null (a loss that was not finite) is left
    out of its row.
    """
    rows: dict[int, dict[str, Any]] = {}
    names = ON_TUNE_PART if result.get("eval_part") == "tune" else {}
    for record in metrics:
        if record.get("kind") not in ("train", "eval", "layers"):
            continue
        row = rows.setdefault(record["step"], {"step": record["step"], "tokens": record["tokens"]})
        values = _layers(record) if record["kind"] == "layers" else record
        told = {
            key: v
            for key, v in values.items()
            if key not in ("kind", "step", "tokens") and _finite(v)
        }
        if record["kind"] == "eval":
            told = {names.get(key, key): v for key, v in told.items()}
        row.update({f"{record['kind']}/{key}": v for key, v in told.items()})
    return [rows[step] for step in sorted(rows)]


def _layers(record: Mapping[str, Any]) -> dict[str, Any]:
    """The profile over layers, and the first and last layer's value for curves, whatever the
    depth.
    """
    values: dict[str, Any] = {"embedding_grad_norm": record.get("embedding_grad_norm")}
    for metric in LAYER_METRICS:
        if profile := record.get(metric):
            values |= {
                metric: profile,
                f"{metric}_first": profile[0],
                f"{metric}_last": profile[-1],
            }
    return values


def _summary(result: Mapping[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """The result's plain values. One NaN would spoil a column of W&B's run table for good, so there
    is none.
    """
    renamed = {"loss": "final_loss", "bpb": "final_bpb"}
    summary = {
        renamed.get(key, key): value
        for key, value in result.items()
        if isinstance(value, str) or (not isinstance(value, list) and _finite(value))
    }
    if groups := result.get("parameters"):
        summary["parameters"] = sum(groups.values())
        summary.update({f"parameters.{group}": count for group, count in groups.items()})
    summary["reason"] = (
        result.get("reason") or ""
    )  # always there: what an earlier attempt said would stay otherwise
    if result.get("eval_part") == "tune" and "final_loss" in summary:
        summary["final_tune_loss"] = summary["final_loss"]
    return summary | _where(result, metrics)


def _where(result: Mapping[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """The lowest loss of the curve, and at which tokens a run left the road: where it ended when it
    diverged; where it stopped getting better when it stalled.
    """
    evals = [
        record for record in metrics if record.get("kind") == "eval" and _finite(record.get("loss"))
    ]
    best = min(evals, key=lambda record: float(record["loss"]), default=None)
    told = (
        {} if best is None else {"best_loss": best["loss"], "best_loss_at_tokens": best["tokens"]}
    )
    if result.get("outcome") == "diverged":
        told["diverged_at_tokens"] = result.get(
            "tokens", max((record["tokens"] for record in metrics), default=0)
        )
    if result.get("stalled") and best is not None:
        told["stalled_since_tokens"] = best["tokens"]
    return told


def _finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_finite, value))
    return isinstance(value, (bool, int, float)) and math.isfinite(value)
