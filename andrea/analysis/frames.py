"""Tidy tables from a study's runs: one pass over the store, nothing interpolated, nothing dropped."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from andrea.store.runs import RunStore
from andrea.verdict.records import good

RUNS = {
    "arm": "str: name of the arm",
    "phase": "str: tune, replicate or trial",
    "why": "str: grid, extension, midpoint, replicate or trial",
    "lr": "float: peak learning rate",
    "seed": "int: sets initial weights, batches and dropout together",
    "trial": "int or NA: number of the Optuna trial",
    "generation": "int or NA: generation of trials it was asked in",
    "run_id": "str: name of the run in the store",
    "outcome": "str: completed, diverged, stopped, pruned; or failed, running, missing where there is no result",
    "stalled": "bool: completed with a final loss of at least 0.99 × the unigram loss",
    "ok": "bool: completed, not stalled, and with a final loss",
    "reason": "str: why it diverged, stopped or failed",
    "loss": "float, nats per token on all evaluated tokens at the end; NaN where there is none",
    "bpb": "float, bits per byte: the same loss per UTF-8 byte of the evaluated text",
    "initial_loss": "float, nats: the same tokens before training",
    "unigram_loss": "float, nats: the same tokens under the training part's token frequencies",
    "train_loss": "float, nats: mean training loss of the last tenth of the steps",
    "steps": "int: optimizer steps done",
    "tokens": "int: tokens trained",
    "unique_tokens": "int: distinct positions of the training part among them",
    "epochs": "float: tokens trained over tokens in the training part",
    "seconds": "float, s: training time; runs share the machine, so no benchmark",
    "tokens_per_s": "float: tokens trained per second of training, likewise",
    "parameters": "int: parameters of the model",
    "flops": "float: floating-point operations of the training, forward and backward",
    "peak_memory_bytes": "float, bytes: largest memory of the process or device",
    "attempts": "int: times it was started",
    "eval_part": "str: part of the corpus that is evaluated, tune or verdict",
    "eval_tokens": "int: tokens evaluated",
    "eval_digest": "str: digest over the evaluated tokens and their positions",
    "finished_at": "str: time of completion",
}
"""Columns of `runs`: one row per planned run, in the order of the plan."""

KEYS = ("arm", "phase", "seed", "lr", "run_id")
"""Columns that say which run a row of `curves`, `layers` or `documents` belongs to."""

CURVES = {
    "arm": RUNS["arm"],
    "phase": RUNS["phase"],
    "seed": RUNS["seed"],
    "lr": RUNS["lr"],
    "run_id": RUNS["run_id"],
    "kind": "str: train (mean since the last record) or eval (curve subset of the evaluated tokens)",
    "step": "int: optimizer steps done",
    "tokens": "int: tokens trained so far, the axis along which runs are aligned",
    "loss": "float, nats per token; NaN where the loss was not finite",
    "bpb": "float, bits per byte; NaN for train",
    "grad_norm": "float: global gradient norm before clipping; NaN for eval",
    "tokens_per_s": "float: tokens per second since the last record; NaN for eval",
}
"""Columns of `curves`: one row per logged value, at the step at which it was logged."""

LAYERS = {
    "arm": RUNS["arm"],
    "phase": RUNS["phase"],
    "seed": RUNS["seed"],
    "lr": RUNS["lr"],
    "run_id": RUNS["run_id"],
    "step": CURVES["step"],
    "tokens": CURVES["tokens"],
    "layer": "int: block 1 … L; 0 is the embedding",
    "quantity": "str: grad_norm, attn_rms, mlp_rms (output of the branch) or residual_rms (stream after the block)",
    "value": "float; NaN where it was not finite",
}
"""Columns of `layers`: one row per block, quantity and logged step."""

DOCUMENTS = {
    "arm": RUNS["arm"],
    "phase": RUNS["phase"],
    "seed": RUNS["seed"],
    "lr": RUNS["lr"],
    "run_id": RUNS["run_id"],
    "document": "str: name of the evaluated document",
    "tokens": "int: evaluated tokens in it",
    "loss": "float, nats per token",
}
"""Columns of `documents`: final loss of every run on every evaluated document."""

_LAYER_QUANTITIES = {"grad_norm": 1, "attn_rms": 1, "mlp_rms": 1, "residual_rms": 0}
"""Quantity, number of its first layer."""

_WHOLE = ("seed", "trial", "generation", "steps", "tokens", "unique_tokens", "parameters", "attempts", "eval_tokens")


def run_rows(store: RunStore, planned: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row of `RUNS` for each planned run, plus its `params` where it has any."""
    rows, seen = [], set()
    for plan in planned:
        key = (plan.get("arm"), plan.get("phase"), plan["run_id"], plan.get("trial"))
        if key not in seen:
            seen.add(key)
            rows.append(_run_row(store, plan))
    return rows


def _run_row(store: RunStore, plan: Mapping[str, Any]) -> dict[str, Any]:
    result = store.result(plan["run_id"])
    row: dict[str, Any] = {
        key: plan.get(key) for key in ("phase", "why", "lr", "seed", "trial", "generation", "run_id")
    }
    row["arm"] = str(plan["arm"]) if plan.get("arm") is not None else "sweep"
    row["params"] = dict(plan.get("params") or {})
    if row["lr"] is None:
        row["lr"] = row["params"].get("train.lr")
    if result is None:
        outcome, reason = _unfinished(store, plan["run_id"])
        return row | {"outcome": outcome, "reason": reason, "stalled": False, "ok": False}
    row |= {key: result.get(key) for key in RUNS if key not in row and key not in ("ok", "parameters")}
    row["parameters"] = sum((result.get("parameters") or {}).values()) or None
    row["stalled"] = bool(result.get("stalled"))
    row["ok"] = good(row["outcome"], row["stalled"], row["loss"])
    return row


def _unfinished(store: RunStore, run_id: str) -> tuple[str, str]:
    """Who holds the run now, else why the last attempt failed, else it waits."""
    if store.lease(run_id):
        return "running", ""
    failure = store.failure(run_id)
    return ("failed", str(failure.get("reason") or "")) if failure else ("missing", "")


def runs_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of `run_rows` as a table; parameters of trials become columns of their dotted names."""
    params = list(dict.fromkeys(name for row in rows for name in row["params"]))
    columns: dict[str, list[Any]] = {key: [row.get(key) for row in rows] for key in RUNS}
    columns |= {name: [row["params"].get(name) for row in rows] for name in params}
    frame = pd.DataFrame(columns)
    for key, meaning in RUNS.items():
        if key in _WHOLE:
            frame[key] = pd.to_numeric(frame[key]).astype("Int64")
        elif meaning.startswith("float"):
            frame[key] = pd.to_numeric(frame[key]).astype("float64")
        elif meaning.startswith("bool"):
            frame[key] = frame[key].astype(bool)
        else:
            frame[key] = pd.Series([None if value is None else str(value) for value in columns[key]], dtype="str")
    return frame


def metric_frames(store: RunStore, rows: Iterable[Mapping[str, Any]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`curves` and `layers` of these runs, unfinished ones included as far as they are."""
    curves: dict[str, list[Any]] = {key: [] for key in CURVES}
    layers: dict[str, list[Any]] = {key: [] for key in LAYERS}
    for row in _once(rows):
        who = {key: row.get(key) for key in KEYS}
        for record in store.metrics(row["run_id"]):
            if record.get("kind") in ("train", "eval"):
                for key in CURVES:
                    curves[key].append(who[key] if key in who else record.get(key))
            elif record.get("kind") == "layers":
                _add_layers(layers, who, record)
    return _numeric(curves, CURVES), _numeric(layers, LAYERS)


def _once(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows without a sweep's repeated trials, which share one run."""
    return list({(row["arm"], row["phase"], row["run_id"]): row for row in rows}.values())


def _add_layers(layers: dict[str, list[Any]], who: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    values = [("grad_norm", 0, record["embedding_grad_norm"])] if "embedding_grad_norm" in record else []
    for quantity, first in _LAYER_QUANTITIES.items():
        values += [(quantity, first + i, value) for i, value in enumerate(record.get(quantity) or [])]
    for quantity, layer, value in values:
        entry = {**who, "step": record["step"], "tokens": record["tokens"], "layer": layer, "quantity": quantity}
        for key in LAYERS:
            layers[key].append(entry.get(key, value))


def documents_frame(store: RunStore, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """`documents` of the finished runs."""
    columns: dict[str, list[Any]] = {key: [] for key in DOCUMENTS}
    for row in _once(rows):
        for document in (store.result(row["run_id"]) or {}).get("documents") or []:
            entry = {
                **{key: row.get(key) for key in KEYS},
                "document": document["name"],
                "tokens": document["tokens"],
                "loss": document["loss"],
            }
            for key in DOCUMENTS:
                columns[key].append(entry[key])
    return _numeric(columns, DOCUMENTS)


def _numeric(columns: Mapping[str, list[Any]], meanings: Mapping[str, str]) -> pd.DataFrame:
    """The table with every column of the kind that its meaning begins with, however few rows there are."""
    frame = pd.DataFrame(dict(columns), columns=list(meanings))
    for key, meaning in meanings.items():
        if meaning.startswith("str"):
            frame[key] = frame[key].astype("str")
        else:
            whole = meaning.startswith("int")
            frame[key] = pd.to_numeric(frame[key]).astype("Int64" if whole else "float64")
    return frame
