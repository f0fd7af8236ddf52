"""Tidy tables from a study's runs: what was logged, nothing interpolated, nothing dropped."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from andrea.analysis.tables.cache import Runs
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

_WHOLE = (
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


def run_rows(runs: Runs, planned: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row of `RUNS` for each planned run, plus its `params` where it has any."""
    rows, seen = [], set()
    for plan in planned:
        key = (
            plan.get("arm"),
            plan.get("phase"),
            plan.get("why"),
            plan["run_id"],
            plan.get("trial"),
        )
        if key not in seen:
            seen.add(key)
            rows.append(_run_row(runs, plan))
    return rows


def _run_row(runs: Runs, plan: Mapping[str, Any]) -> dict[str, Any]:
    result, _ = runs.told[plan["run_id"]]
    row: dict[str, Any] = {
        key: plan.get(key)
        for key in ("phase", "why", "lr", "seed", "trial", "generation", "run_id")
    }
    row["arm"] = str(plan["arm"]) if plan.get("arm") is not None else "sweep"
    row["params"] = dict(plan.get("params") or {})
    if row["lr"] is None:
        row["lr"] = row["params"].get("train.lr")
    if result is None:
        outcome, reason = _unfinished(runs.store, plan["run_id"])
        return row | {"outcome": outcome, "reason": reason, "stalled": False, "ok": False}
    row |= {
        key: result.get(key) for key in RUNS if key not in row and key not in ("ok", "parameters")
    }
    groups = result.get("parameters")
    row["parameters"] = (
        sum(filter(_is_number, groups.values())) or None if isinstance(groups, dict) else None
    )
    wrong = [key for key in _NUMBERS if row.get(key) is not None and not _is_number(row[key])]
    if wrong:
        warn(
            f"{runs.store.folder(plan['run_id']) / 'result.json'}: no numbers, left out: "
            f"{', '.join(wrong)}"
        )
        row |= dict.fromkeys(wrong)
    row["stalled"] = bool(result.get("stalled"))
    row["ok"] = is_good_run(row["outcome"], row["stalled"], row["loss"])
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
            frame[key] = pd.Series(
                [None if value is None else str(value) for value in columns[key]], dtype="str"
            )
    return frame


def typed(frame: pd.DataFrame, meanings: Mapping[str, str]) -> pd.DataFrame:
    """Numbers as numbers, by what the columns are documented to be."""
    for key, meaning in meanings.items():
        if meaning.startswith(("int", "float")):
            frame[key] = pd.to_numeric(frame[key]).astype(
                "Int64" if meaning.startswith("int") else "float64"
            )
    return frame


def part(
    runs: Runs,
    rows: Sequence[Mapping[str, Any]],
    table: str,
    columns: Sequence[str] | None = None,
    **where: Any,
) -> pd.DataFrame:
    """Rows of `curves`, `layers` or `documents`, unfinished runs included as far as they are.

    Args:
        runs: what they logged.
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
    meanings = _known("table", table, TABLES)
    names = list(meanings) if columns is None else list(columns)
    for name in [*names, *where]:
        _known(f"column of {table}", name, meanings)
    wanted: dict[str, list[Any]] = {
        key: [value] if pd.api.types.is_scalar(value) else list(value)
        for key, value in where.items()
    }
    by_run: dict[str, list[Mapping[str, Any]]] = {}
    for row in _once(rows):
        if all(row.get(key) in wanted[key] for key in KEYS if key in wanted):
            by_run.setdefault(row["run_id"], []).append(row)
    own = [name for name in names if name not in KEYS]
    texts = {key: values for key, values in wanted.items() if key not in KEYS}
    found = [
        (row, points)
        for run_id, points in runs.tables(table, own or ["tokens"], by_run, texts)
        for row in by_run[run_id]
    ]
    return _joined(found, names, meanings)


class Frames(Mapping[str, pd.DataFrame]):
    """Tables by name, each read when it is looked up and held by nobody: a report writes one file
    after the other.
    """

    def __init__(self, read: Mapping[str, Callable[[], pd.DataFrame]]) -> None:
        self._read = dict(read)

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self._read[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)

    def __or__(self, more: Mapping[str, pd.DataFrame]) -> "Frames":
        """These and some that are read already."""
        return Frames(self._read | {name: partial(more.__getitem__, name) for name in more})


TABLES = {"curves": CURVES, "layers": LAYERS, "documents": DOCUMENTS}
"""Columns by table, of those that are read in parts."""


def _known(what: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise UserError(f"no {what} is called {name!r}; {nearest(name, known)}")
    return known[name]


def _once(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows without a sweep's repeated trials, which share one run."""
    return list({(row["arm"], row["phase"], row["run_id"]): row for row in rows}.values())


def _joined(
    found: list[tuple[Mapping[str, Any], pa.Table]],
    names: Sequence[str],
    meanings: Mapping[str, str],
) -> pd.DataFrame:
    """One table of all runs. Column by column, each freed as soon as it is copied: twice the whole
    is never held.
    """
    who, lengths = [row for row, _ in found], [len(points) for _, points in found]
    whole = pa.concat_tables([points for _, points in found]) if found else None
    found.clear()
    columns: dict[str, Any] = {}
    for name in [name for name in names if name not in KEYS]:
        if whole is None:
            columns[name] = _repeated([], [], meanings[name])
        else:
            column, whole = whole[name], whole.drop_columns([name])
            columns[name] = (
                _text_column(column) if _kind(meanings[name]) == "str" else _number_column(column)
            )
            del column
    for name in [name for name in names if name in KEYS]:
        columns[name] = _repeated([row.get(name) for row in who], lengths, meanings[name])
    return pd.DataFrame(columns, columns=list(names), copy=False)


def _kind(meaning: str) -> str:
    """str, int or float: the word that a column's meaning begins with."""
    return meaning.replace(":", " ").replace(",", " ").split()[0]


def _repeated(told: Sequence[Any], lengths: Sequence[int], meaning: str) -> Any:
    """What is the same in all rows of a run."""
    codes = np.repeat(np.arange(len(told), dtype="int32"), lengths)
    if _kind(meaning) == "str":
        return _texts(told, codes)
    numbers = pd.to_numeric(pd.Series(list(told), dtype=object))
    return numbers.astype("Int64" if _kind(meaning) == "int" else "float64").array[codes]


TEXT = pd.StringDtype("python", na_value=np.nan)
"""pandas' `str` over shared texts: ten million run ids are ten million pointers, not as many times
64 letters.
"""


def _texts(told: Any, codes: Any) -> Any:
    shared = np.array([np.nan if value is None else str(value) for value in told], dtype=object)
    return pd.array(shared[codes], dtype=TEXT)


def _text_column(column: pa.ChunkedArray) -> Any:
    column = column.unify_dictionaries()
    chunks = [chunk.indices for chunk in column.chunks]
    told = [*(column.chunk(0).dictionary.to_pylist() if chunks else []), None]
    codes = [chunk.fill_null(len(told) - 1).to_numpy() for chunk in chunks]
    return _texts(told, np.concatenate([*codes, np.array([], dtype="int32")]))


def _number_column(column: pa.ChunkedArray) -> Any:
    if pa.types.is_integer(column.type):
        return pd.arrays.IntegerArray(_own(column.fill_null(0)), _own(column.is_null()))
    return _own(column)


def _own(column: pa.ChunkedArray) -> Any:
    """Numbers that may be written to: Arrow lends those of a single run."""
    return np.require(column.to_numpy(), requirements="W")
