"""One run as W&B is to have it, computed from the run store alone, without wandb and without a
clock.

The same store gives the same projection, so a mirror can be thrown away and written again at any
time.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from andrea.config import dotted
from andrea.records.base import Settings
from andrea.records.run import Environment, MetricRecord, RunResult, RunSpec
from andrea.records.study import ResolvedStudy
from andrea.store.runs import RunStore
from andrea.text.numbers import setting
from andrea.tracking.subject import Subject, load_config, study_key, wandb_id

AXES = ("step", "train/*", "eval/*", "layers/*")
"""Every logged metric is drawn over `tokens`, also when a run was resumed or batches differ in
size.
"""
KINDS = ("train", "eval", "layers")
"""Kinds of records that W&B gets."""
LAYER_METRICS = ("grad_norm", "attn_rms", "mlp_rms", "residual_rms")
SUMMARY_NAMES = {"loss": "final_loss", "bpb": "final_bpb"}
NAMED_BY_WHY = ("control", "budget")
ENDED_WELL = ("completed", "stopped", "pruned")
LONGEST_TAG = 64

Row: TypeAlias = dict[str, float | list[float]]
"""The values recorded at one optimizer step, with `step` and `tokens`. A list has a value per
layer: entry i is block i's; of the residual stream, what enters it.
"""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The fields that every W&B run has."""

    id: str
    name: str
    group: str
    job_type: str
    tags: list[str]
    config: Settings
    summary: Settings


@dataclass(frozen=True, kw_only=True)
class RunProjection(Projection):
    """The W&B run of a training."""

    history: list[Row]
    """By step. The rows of a run never change, so that those which a server has need not be sent
    again.
    """
    exit_code: int


def project_run(
    subject: Subject, store: RunStore, spec: RunSpec, tags: Sequence[str] = ()
) -> RunProjection:
    """Return the projection of one run: as it ended, or as far as it has come.

    Without a result the last row is left out, which may lack what is recorded next. An attempt that
    goes on from a checkpoint records the rows after it anew: the same ones on a CPU, as good as the
    same on a GPU.

    Args:
        tags: the user's.
    """
    result = store.load_result(spec.run_id)
    ending = result or _unfinished_ending(store, spec.run_id)
    records = store.load_metrics(spec.run_id)
    history = _history(records, ending.eval_part)
    if result is None:
        # While an attempt takes the place of another, nobody can read which part of the text the
        # losses are of.
        history = history[:-1] if ending.eval_part else []
    return RunProjection(
        id=wandb_id(study_key(subject), spec.run_id),
        name=_run_name(spec),
        # All runs of `andrea train` are one group.
        group="train" if spec.phase == "train" else subject.path.name,
        job_type=spec.phase,
        tags=_run_tags(subject, spec, ending, tags),
        config=_run_config(subject, store, spec),
        history=history,
        summary=_run_summary(ending, records),
        exit_code=int(ending.outcome not in ENDED_WELL),
    )


def _unfinished_ending(store: RunStore, run_id: str) -> RunResult:
    """Return what stands in for the result of a run whose last attempt failed, or that is being
    trained; the outcome of the latter is empty.
    """
    eval_part = load_config(store, run_id).get("data.eval_part")
    failure = store.load_failure(run_id)
    if failure is None:
        return RunResult(outcome="", eval_part=eval_part)
    return RunResult(outcome="failed", reason=failure.reason, eval_part=eval_part)


def _run_name(spec: RunSpec) -> str:
    """Every value stands behind its key, so that two runs never share a name by accident."""
    words = [spec.arm]
    if spec.phase == "trial" and spec.trial is not None:
        words.append(f"trial={spec.trial}")
    if spec.phase in NAMED_BY_WHY:
        words.append(spec.why)
    settings = {"lr": spec.lr, **(spec.params or {}), "seed": spec.seed}
    for key, value in settings.items():
        if key != "train.lr" and value is not None:
            words.append(f"{key}={setting(value)}")
    return " ".join(filter(None, words))


def _run_tags(
    subject: Subject, spec: RunSpec, ending: RunResult, user_tags: Sequence[str]
) -> list[str]:
    info = subject.load_info()
    tags = [info.name, info.kind, spec.arm, subject.load_question().preset]
    if spec.phase == "train":
        tags.append("train")
    if ending.outcome != "completed":
        tags.append(ending.outcome)
    if ending.stalled:
        tags.append("stalled")
    return as_tags([*tags, *user_tags])


def as_tags(words: Iterable[str | None]) -> list[str]:
    """Return each word once and no longer than W&B takes."""
    return list(dict.fromkeys(word[:LONGEST_TAG] for word in words if word))


def _run_config(subject: Subject, store: RunStore, spec: RunSpec) -> Settings:
    """Return every setting under its dotted name, so that all can be filtered on, and under short
    names what panels group and draw by: W&B takes a dotted key in a panel for a nested one.
    """
    environment = store.load_environment(spec.run_id) or Environment()
    resolved = subject.load_resolved() or ResolvedStudy()
    config = load_config(store, spec.run_id) | dotted({"env": environment.to_json()})
    for key, value in (spec.params or {}).items():
        config[short_name(key)] = value
    config |= spec.model_dump(mode="json", exclude={"params"}, exclude_unset=True)
    config["series"] = _series(spec)
    config["study"] = subject.path.name
    config["ablation"] = subject.load_info().name
    frozen = {"baseline", "fingerprint", "exploratory"}
    return config | resolved.model_dump(include=frozen, exclude_unset=True)


def short_name(setting: str) -> str:
    """Return the last part of a dotted setting, as panels name it: `train.weight_decay` is
    `weight_decay`.
    """
    return setting.rpartition(".")[2]


def _series(spec: RunSpec) -> str:
    """Return the curve with a band that a run belongs to: its arm, or, outside replication, its arm
    in that phase: `pre · tune`, `pre · half tokens`.
    """
    # Panels of verdicts are of replicates: an arm's name alone is theirs.
    if spec.phase == "replicate":
        return spec.arm
    purpose = spec.why if spec.phase in NAMED_BY_WHY else spec.phase
    return " · ".join(filter(None, [spec.arm, purpose]))


def _history(records: Sequence[MetricRecord], eval_part: str | None) -> list[Row]:
    """Return one row for all records of a step. What is null (a loss that was not finite) is left
    out of its row.
    """
    rows: dict[int, Row] = {}
    for record in records:
        if record.kind not in KINDS:
            continue
        row = rows.setdefault(record.step, {"step": record.step, "tokens": record.tokens})
        # A loss on the tune part of the text is another metric than one on the verdict part.
        on_tune_part = record.kind == "eval" and eval_part == "tune"
        prefix = "eval/tune_" if on_tune_part else f"{record.kind}/"
        row |= {f"{prefix}{metric}": value for metric, value in _metrics(record).items()}
    return [rows[step] for step in sorted(rows)]


def _metrics(record: MetricRecord) -> Row:
    """Return the finite values of a record.

    Of layers these are the profile over layers, and the first and last layer's value for curves,
    whatever the depth.
    """
    values = record.model_dump(exclude={"kind", "step", "tokens"}, exclude_unset=True)
    if record.kind == "layers":
        values = {"embedding_grad_norm": record.embedding_grad_norm}
        for metric in LAYER_METRICS:
            if profile := getattr(record, metric):
                values |= {metric: profile, f"{metric}_first": profile[0]}
                values[f"{metric}_last"] = profile[-1]
    return {metric: value for metric, value in values.items() if _is_finite(value)}


def _run_summary(ending: RunResult, records: Sequence[MetricRecord]) -> Settings:
    """Return the plain values of a result. One NaN would spoil a column of W&B's run table for
    good, so there is none.
    """
    summary: Settings = {}
    for key, value in ending.to_json().items():
        if isinstance(value, str) or _is_number(value):
            summary[SUMMARY_NAMES.get(key, key)] = value
    if ending.parameters:
        summary |= {f"parameters.{group}": n for group, n in ending.parameters.items()}
        summary["parameters"] = sum(ending.parameters.values())
    # Always there: what an earlier attempt said would stay otherwise.
    summary["reason"] = ending.reason or ""
    if ending.eval_part == "tune" and "final_loss" in summary:
        summary["final_tune_loss"] = summary["final_loss"]
    return summary | _curve_summary(ending, records)


def _curve_summary(ending: RunResult, records: Sequence[MetricRecord]) -> Settings:
    """Return the lowest loss of the curve, and the tokens at which a run diverged or stalled.

    It diverged where it ended, and stalled where it stopped getting better.
    """
    summary: Settings = {}
    curve = [
        (record.loss, record.tokens)
        for record in records
        if record.kind == "eval" and record.loss is not None and math.isfinite(record.loss)
    ]
    if curve:
        summary["best_loss"], summary["best_loss_at_tokens"] = min(curve)
    if ending.outcome == "diverged":
        recorded = max((record.tokens for record in records), default=0)
        summary["diverged_at_tokens"] = recorded if ending.tokens is None else ending.tokens
    if ending.stalled and curve:
        summary["stalled_since_tokens"] = summary["best_loss_at_tokens"]
    return summary


def _is_finite(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_number, value))
    return _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)
