"""A report for programs: its numbers as JSON, CSV and Parquet. No NaN, no infinity, no type that
only pandas knows.
"""

import csv
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pandas as pd

from andrea.analysis.report import Callout, Report, Section, Table
from andrea.text.numbers import absent

FORMAT = 1
"""Of report.json; raised when a key goes or changes its meaning."""
_MADE_WITH = ("andrea", "pandas", "numpy", "scipy")


def as_json(report: Report) -> str:
    """report.json: what was asked, what came out, every table that is shown, as it is shown and
    raw.

    Keys: `format`, `title`, `question`, `answer`, `details` (name → text), `verdicts` (as in
        verdict.json), `notes`
    (what must not be overlooked), `tables`, `figures` and `versions` (of what made it). A table has
    `name`, `caption`, `section`, `columns` (`header`, `keys` of the raw rows behind it, `numeric`),
    `shown` (rows of text, as in every format) and `rows` (raw: name → value). What is no number
    (NaN, an infinity) is null.
    """
    told = {
        "format": FORMAT,
        "title": report.title,
        "question": report.question,
        "answer": report.answer,
        "details": dict(report.details),
        "verdicts": report.verdicts,
        "notes": [
            {"kind": item.kind, "title": item.title, "text": item.body}
            for item in report.items()
            if isinstance(item, Callout)
        ],
        "tables": [
            _table(item, section)
            for section, items in _parts(report.head, report.sections)
            for item in items
            if isinstance(item, Table)
        ],
        "figures": [
            {"name": figure.name, "caption": figure.caption, "description": figure.description}
            for figure in report.figures()
        ],
        "versions": _versions(),
    }
    return json.dumps(plain(told), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _parts(
    head: Sequence[Any], sections: Sequence[Section]
) -> list[tuple[str | None, Sequence[Any]]]:
    return [(None, head), *((section.title, section.items) for section in sections)]


def _table(table: Table, section: str | None) -> dict[str, Any]:
    return {
        "name": table.name,
        "caption": table.caption,
        "section": section,
        "columns": [
            {"header": c.header, "keys": list(c.keys), "numeric": c.numeric} for c in table.columns
        ],
        "shown": [[cell.text for cell in row] for row in table.rows()],
        "rows": table.frame.to_dict("records"),
    }


def plain(value: Any) -> Any:
    """The value in JSON's own types: None for NaN and infinities, numbers out of numpy's and
    pandas' boxes.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return plain(value.tolist())
    if absent(value):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _MADE_WITH:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # andrea may run from a checkout that nobody has installed
            continue
    return found


def format_csv(frame: pd.DataFrame, digits: str | None = None) -> str:
    """The table with every digit of its numbers, or in that format; what is no number is empty.

    Texts stand as they are, `=1+1` too: a file of numbers that marked them would be another file.
    """
    endless = [
        key for key, column in frame.items() if column.dtype.kind == "f" and np.isinf(column).any()
    ]
    if endless:
        frame = frame.assign(
            **{str(key): frame[key].replace([np.inf, -np.inf], np.nan) for key in endless}
        )
    told: Callable[..., Any] = partial(
        frame.to_csv, index=False, lineterminator="\n", float_format=digits
    )
    text = str(told())
    # A carriage return ends a row, which Python's writer of CSV forgets, unless it stands in
    # quotes.
    return str(told(quoting=csv.QUOTE_NONNUMERIC)) if "\r" in text else text


def as_parquet(frame: pd.DataFrame) -> bytes:
    """The same, typed."""
    return columnar(frame).to_parquet(index=False)


def columnar(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with columns of mixed values (settings of several kinds) as text, which Parquet can
    hold.
    """
    told = frame.copy()
    for key in told.columns:
        if told[key].dtype == object and len({type(value) for value in told[key].dropna()}) > 1:
            told[key] = [None if value is None else str(value) for value in told[key]]
    return told
