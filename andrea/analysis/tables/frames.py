"""Tidy tables from a study's runs: what was logged, nothing interpolated, nothing dropped."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from andrea.analysis.tables.cache import RunLogs
from andrea.errors import UserError, nearest, warn
from andrea.store.runs import RunStore
from andrea.verdict.replicates import is_good_run

RUNS = {
    "arm": "str: name of the arm",
    "phase": "str: tune, replicate, control, confirm or budget; trial in a sweep",
    "why": "str: grid, extension or midpoint; replicate; repeat, a/a, half tokens or double "
    "tokens; confirmation; "
    "equal flops or equal time; trial",
    "lr": "float: peak learning rate",
    "seed": "int: sets initial weights, batches and dropout together",
    "trial": "int or NA: number of the Optuna trial",
    "generation": "int or NA: generation of trials it was asked in",
    "run_id": "str: name of the run in the store",
    "outcome": "str: completed, diverged, stopped, pruned; or failed, running, missing where there "
    "is no result",
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
    "kind": "str: train (mean since the last record) or eval (curve subset of the evaluated "
    "tokens)",
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
    "quantity": "str: grad_norm, attn_rms, mlp_rms (output of the branch) or residual_rms (stream "
    "after the block)",
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

UNFINISHED = ("failed", "running", "missing")
"""Outcomes of runs that have no result."""

_INTEGERS = (
    "seed",
    "trial",
    "generation",
    "steps",
    "tokens",
    "unique_tokens",
    "parameters",
    "attempts",
    "eval_tokens",
)
_NUMBERS = [key for key, meaning in RUNS.items() if meaning.startswith(("float", "int"))]


def run_rows(logs: RunLogs, planned: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row of `RUNS` for each planned run, plus its `params` where it has any."""
    rows = []
    seen = set()
    for plan in planned:
        key = tuple(plan.get(name) for name in ("arm", "phase", "why", "run_id", "trial"))
        if key not in seen:
            seen.add(key)
            rows.append(_run_row(logs, plan))
    return rows


def _run_row(logs: RunLogs, plan: Mapping[str, Any]) -> dict[str, Any]:
    result = logs.outcomes[plan["run_id"]].result
    row: dict[str, Any] = {
        key: plan.get(key)
        for key in ("phase", "why", "lr", "seed", "trial", "generation", "run_id")
    }
    row["arm"] = str(plan["arm"]) if plan.get("arm") is not None else "sweep"
    row["params"] = dict(plan.get("params") or {})
    if row["lr"] is None:
        row["lr"] = row["params"].get("train.lr")
    if result is None:
        outcome, reason = _unfinished(logs.store, plan["run_id"])
        return row | {"outcome": outcome, "reason": reason, "stalled": False, "ok": False}
    row |= {
        key: result.get(key) for key in RUNS if key not in row and key not in ("ok", "parameters")
    }
    groups = result.get("parameters")
    if isinstance(groups, dict):
        row["parameters"] = sum(filter(_is_number, groups.values())) or None
    wrong = [key for key in _NUMBERS if row.get(key) is not None and not _is_number(row[key])]
    if wrong:
        path = logs.store.folder(plan["run_id"]) / "result.json"
        warn(f"{path}: no numbers, left out: {', '.join(wrong)}")
        row |= dict.fromkeys(wrong)
    row["stalled"] = bool(result.get("stalled"))
    row["ok"] = is_good_run(row["outcome"], row["stalled"], row["loss"])
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unfinished(store: RunStore, run_id: str) -> tuple[str, str]:
    """Return outcome and reason of a run without a result: held, failed at its last attempt, or
    waiting.
    """
    if store.lease(run_id):
        return "running", ""
    failure = store.failure(run_id)
    if failure:
        return "failed", str(failure.get("reason") or "")
    return "missing", ""


def runs_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows of `run_rows` as a table; parameters of trials become columns of their dotted
    names.
    """
    params = list(dict.fromkeys(name for row in rows for name in row["params"]))
    columns: dict[str, list[Any]] = {key: [row.get(key) for row in rows] for key in RUNS}
    columns |= {name: [row["params"].get(name) for row in rows] for name in params}
    frame = pd.DataFrame(columns)
    for key, meaning in RUNS.items():
        if key in _INTEGERS:
            frame[key] = pd.to_numeric(frame[key]).astype("Int64")
        elif meaning.startswith("float"):
            frame[key] = pd.to_numeric(frame[key]).astype("float64")
        elif meaning.startswith("bool"):
            frame[key] = frame[key].astype(bool)
        else:
            texts = [None if value is None else str(value) for value in columns[key]]
            frame[key] = pd.Series(texts, dtype="str")
    return frame


def with_number_types(frame: pd.DataFrame, meanings: Mapping[str, str]) -> pd.DataFrame:
    """Make numbers of the columns that are documented to be numbers."""
    for key, meaning in meanings.items():
        if _dtype_word(meaning) in _PANDAS_TYPES:
            frame[key] = pd.to_numeric(frame[key]).astype(_PANDAS_TYPES[_dtype_word(meaning)])
    return frame


def read_part(
    logs: RunLogs,
    rows: Sequence[Mapping[str, Any]],
    table: str,
    columns: Sequence[str] | None = None,
    **where: Any,
) -> pd.DataFrame:
    """Return rows of `curves`, `layers` or `documents`, unfinished runs included as far as they
    are.

    Args:
        logs: what the runs logged.
        rows: of `run_rows`.
        table: its name.
        columns: the ones that are wanted; None for all.
        where: column → value or values that are wanted: of KEYS, and texts of the table itself.

    Returns:
        The rows in the order of the plan; a run that stands in it twice has its rows twice, one
        after the other.

    Raises:
        UserError: a table, a column or a filter that there is not.
    """
    _require("table", table, TABLES)
    meanings = TABLES[table]
    names = list(meanings) if columns is None else list(columns)
    for name in [*names, *where]:
        _require(f"column of {table}", name, meanings)
    filters: dict[str, list[Any]] = {
        key: [value] if pd.api.types.is_scalar(value) else list(value)
        for key, value in where.items()
    }
    by_run: dict[str, list[Mapping[str, Any]]] = {}
    for row in _without_repeats(rows):
        if all(row.get(key) in filters[key] for key in KEYS if key in filters):
            by_run.setdefault(row["run_id"], []).append(row)
    logged_columns = [name for name in names if name not in KEYS]
    text_filters = {key: values for key, values in filters.items() if key not in KEYS}
    tables = logs.tables(table, logged_columns or ["tokens"], by_run, text_filters)
    parts = [(row, rows_of_run) for run_id, rows_of_run in tables.items() for row in by_run[run_id]]
    del tables  # `_join` frees column by column
    return _join(parts, names, meanings)


class Frames(Mapping[str, pd.DataFrame]):
    """Tables by name, each read when it is looked up and not kept: a report writes one file after
    the other.
    """

    def __init__(self, readers: Mapping[str, Callable[[], pd.DataFrame]]) -> None:
        self._readers = dict(readers)

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __or__(self, more: Mapping[str, pd.DataFrame]) -> "Frames":
        """Return these and some that are read already."""
        return Frames(self._readers | {name: partial(more.__getitem__, name) for name in more})


TABLES = {"curves": CURVES, "layers": LAYERS, "documents": DOCUMENTS}
"""Columns by table, of those that are read in parts."""
_PANDAS_TYPES: dict[str, Any] = {"int": "Int64", "float": "float64"}


def _require(what: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise UserError(f"no {what} is called {name!r}; {nearest(name, names)}")


def _without_repeats(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows without a sweep's repeated trials, which share one run."""
    return list({(row["arm"], row["phase"], row["run_id"]): row for row in rows}.values())


def _join(
    parts: list[tuple[Mapping[str, Any], pa.Table]],
    names: Sequence[str],
    meanings: Mapping[str, str],
) -> pd.DataFrame:
    """Return one table of all runs. Empties `parts`.

    Column by column, each freed as soon as it is copied: twice the whole is never held.
    """
    rows = [row for row, _ in parts]
    lengths = [len(table) for _, table in parts]
    whole = pa.concat_tables([table for _, table in parts]) if parts else None
    parts.clear()
    columns: dict[str, Any] = {}
    for name in [name for name in names if name not in KEYS]:
        if whole is None:
            columns[name] = _repeat_per_run([], [], meanings[name])
            continue
        column, whole = whole[name], whole.drop_columns([name])
        to_pandas = _text_column if _dtype_word(meanings[name]) == "str" else _number_column
        columns[name] = to_pandas(column)
        del column
    for name in [name for name in names if name in KEYS]:
        columns[name] = _repeat_per_run([row.get(name) for row in rows], lengths, meanings[name])
    return pd.DataFrame(columns, columns=list(names), copy=False)


def _dtype_word(meaning: str) -> str:
    """Return str, int, float or bool: the word that a column's meaning begins with."""
    return meaning.replace(":", " ").replace(",", " ").replace(";", " ").split()[0]


def _repeat_per_run(values: Sequence[Any], lengths: Sequence[int], meaning: str) -> Any:
    """Return a column that is constant within a run: one value and one length per run."""
    codes = np.repeat(np.arange(len(values), dtype="int32"), lengths)
    word = _dtype_word(meaning)
    if word == "str":
        return _shared_texts(values, codes)
    numbers = pd.to_numeric(pd.Series(list(values), dtype=object))
    return numbers.astype(_PANDAS_TYPES[word]).array[codes]


TEXT = pd.StringDtype("python", na_value=np.nan)
"""pandas' `str` over shared texts: ten million run ids are ten million pointers, not as many times
64 letters.
"""


def _shared_texts(values: Sequence[Any], codes: Any) -> Any:
    texts = [np.nan if value is None else str(value) for value in values]
    shared = np.array(texts, dtype=object)
    return pd.array(shared[codes], dtype=TEXT)


def _text_column(column: pa.ChunkedArray) -> Any:
    column = column.unify_dictionaries()
    chunks = [chunk.indices for chunk in column.chunks]
    values = column.chunk(0).dictionary.to_pylist() if chunks else []
    absent = len(values)
    codes = [chunk.fill_null(absent).to_numpy() for chunk in chunks]
    return _shared_texts([*values, None], np.concatenate([*codes, np.array([], dtype="int32")]))


def _number_column(column: pa.ChunkedArray) -> Any:
    if pa.types.is_integer(column.type):
        return pd.arrays.IntegerArray(_writable(column.fill_null(0)), _writable(column.is_null()))
    return _writable(column)


def _writable(column: pa.ChunkedArray) -> Any:
    """Return numbers that may be written to: Arrow lends those of a single run."""
    return np.require(column.to_numpy(), requirements="W")
