"""Tidy tables from a study's runs: what was logged, nothing interpolated, nothing dropped."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from andrea.analysis.tables.cache import RunLogs
from andrea.errors import UserError, nearest
from andrea.records.run import RunSpec
from andrea.store.runs import RunStore

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
    "outcome": "str: completed, diverged; or failed, running, missing where there is no result",
    "stalled": "bool: completed with a final loss of at least 0.99 × the unigram loss",
    "ok": "bool: completed, not stalled, and with a final loss",
    "reason": "str: why it diverged or failed",
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
    **{key: RUNS[key] for key in KEYS},
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
    **{key: RUNS[key] for key in KEYS},
    "step": CURVES["step"],
    "tokens": CURVES["tokens"],
    "layer": "int: block 1 … L; 0 is the embedding",
    "quantity": "str: grad_norm, attn_rms, mlp_rms (output of the branch) or residual_rms (stream "
    "after the block)",
    "value": "float; NaN where it was not finite",
}
"""Columns of `layers`: one row per block, quantity and logged step."""

DOCUMENTS = {
    **{key: RUNS[key] for key in KEYS},
    "document": "str: name of the evaluated document",
    "tokens": "int: evaluated tokens in it",
    "loss": "float, nats per token",
}
"""Columns of `documents`: final loss of every run on every evaluated document."""

UNFINISHED = ("failed", "running", "missing")
"""Outcomes of runs that have no result."""

PLACE = {"arm", "phase", "why", "lr", "seed", "trial", "generation", "run_id"}
"""Columns of `runs` that stand in the plan; the result decides the others."""


RunRow: TypeAlias = dict[str, Any]
"""A row of `RUNS` by column, plus `params`: the settings of a sweep's trial by dotted name."""


def run_rows(logs: RunLogs, planned: Iterable[RunSpec]) -> list[RunRow]:
    """Return a row for each planned run."""
    unique: dict[tuple[object, ...], RunSpec] = {}
    for spec in planned:
        unique.setdefault((spec.arm, spec.phase, spec.why, spec.run_id, spec.trial), spec)
    return [_run_row(logs, spec) for spec in unique.values()]


def _run_row(logs: RunLogs, spec: RunSpec) -> RunRow:
    row: RunRow = spec.model_dump(include=PLACE)
    row["params"] = spec.params or {}
    if spec.lr is None:
        row["lr"] = row["params"].get("train.lr")
    result = logs.outcomes[spec.run_id].result
    if result is None:
        outcome, reason = _unfinished(logs.store, spec.run_id)
        return row | {"outcome": outcome, "reason": reason, "stalled": False, "ok": False}
    row |= {key: value for key, value in dict(result).items() if key in RUNS and key not in row}
    row["parameters"] = sum(result.parameters.values()) or None
    row["ok"] = result.is_good
    return row


def _unfinished(store: RunStore, run_id: str) -> tuple[str, str]:
    """Return outcome and reason of a run without a result: held, failed at its last attempt, or
    waiting.
    """
    if store.lease(run_id):
        return "running", ""
    failure = store.load_failure(run_id)
    if failure is not None:
        return "failed", failure.reason
    return "missing", ""


def runs_frame(rows: Sequence[RunRow]) -> pd.DataFrame:
    """Return rows of `run_rows` as a table; parameters of trials become columns of their dotted
    names.
    """
    params = list(dict.fromkeys(name for row in rows for name in row["params"]))
    columns: dict[str, list[Any]] = {key: [row.get(key) for row in rows] for key in RUNS}
    columns |= {name: [row["params"].get(name) for row in rows] for name in params}
    frame = with_number_types(pd.DataFrame(columns), RUNS)
    for key, meaning in RUNS.items():
        if _dtype_word(meaning) == "bool":
            frame[key] = frame[key].astype(bool)
        elif _dtype_word(meaning) == "str":
            texts = [None if value is None else str(value) for value in columns[key]]
            frame[key] = pd.Series(texts, dtype="str")
    return frame


def with_floats(frame: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Return the table with these columns as floats; a column that it lacks is all NaN."""
    nothing = pd.Series(index=frame.index, dtype="float64")
    floats = {key: pd.to_numeric(frame.get(key, nothing)).astype("float64") for key in keys}
    return frame.assign(**floats)


def with_number_types(frame: pd.DataFrame, meanings: Mapping[str, str]) -> pd.DataFrame:
    """Make numbers of the columns that are documented to be numbers."""
    for key, meaning in meanings.items():
        if _dtype_word(meaning) in _PANDAS_TYPES:
            frame[key] = pd.to_numeric(frame[key]).astype(_PANDAS_TYPES[_dtype_word(meaning)])
    return frame


def read_part(
    logs: RunLogs,
    rows: Sequence[RunRow],
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
    by_run: dict[str, list[RunRow]] = {}
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


def _without_repeats(rows: Iterable[RunRow]) -> list[RunRow]:
    """Return the rows without a sweep's repeated trials, which share one run."""
    return list({(row["arm"], row["phase"], row["run_id"]): row for row in rows}.values())


def _join(
    parts: list[tuple[RunRow, pa.Table]],
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
    return re.split("[:;, ]", meaning)[0]


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
