"""A report for programs: its numbers as JSON, CSV and Parquet. No NaN, no infinity, no type that
only pandas knows.
"""

import csv
import json
import math
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pandas as pd

from andrea.analysis.report import Callout, Report, Table
from andrea.text.numbers import absent

FORMAT = 1
"""Of report.json; raised when a key goes or changes its meaning."""
_MADE_WITH = ("andrea", "pandas", "numpy", "scipy")


def format_json(report: Report) -> str:
    """Return report.json: what was asked, what came out, every table as shown and raw.

    Keys: `format`, `title`, `question`, `answer`, `details` (name → text), `verdicts` (as in
    verdict.json), `notes` (what must not be overlooked), `tables`, `figures` and `versions` (of
    what made it). A table has `name`, `caption`, `section`, `columns` (`header`, `keys` of the raw
    rows behind it, `numeric`), `shown` (rows of text, as in every format) and `rows` (raw: name →
    value). What is no number (NaN, an infinity) is null.
    """
    sections = [(None, report.head), *((part.title, part.items) for part in report.sections)]
    content = {
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
            _table_json(item, section)
            for section, items in sections
            for item in items
            if isinstance(item, Table)
        ],
        "figures": [
            {"name": figure.name, "caption": figure.caption, "description": figure.description}
            for figure in report.figures()
        ],
        "versions": _library_versions(),
    }
    return json.dumps(to_plain_json(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _table_json(table: Table, section: str | None) -> dict[str, Any]:
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


def to_plain_json(value: Any) -> Any:
    """Return the value in JSON's own types: None for NaN and infinities, numbers out of numpy's and
    pandas' boxes.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain_json(inner) for key, inner in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [to_plain_json(inner) for inner in value]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return to_plain_json(value.tolist())
    if absent(value):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def _library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _MADE_WITH:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # andrea may run from a checkout that nobody has installed
            continue
    return versions


def format_csv(frame: pd.DataFrame, digits: str | None = None) -> str:
    """Return the table as CSV with every digit of its numbers, or in that format; NaN is empty.

    Texts stand as they are, `=1+1` too: a file of numbers that marked them would be another file.
    """
    infinite = [
        key for key, column in frame.items() if column.dtype.kind == "f" and np.isinf(column).any()
    ]
    if infinite:
        finite = {str(key): frame[key].replace([np.inf, -np.inf], np.nan) for key in infinite}
        frame = frame.assign(**finite)
    write = partial(frame.to_csv, None, index=False, lineterminator="\n", float_format=digits)
    text = str(write())
    # A carriage return ends a row, which Python's writer of CSV forgets, unless it stands in
    # quotes.
    return str(write(quoting=csv.QUOTE_NONNUMERIC)) if "\r" in text else text


def format_parquet(frame: pd.DataFrame) -> bytes:
    """Return the table as Parquet, typed."""
    return with_uniform_columns(frame).to_parquet(index=False)


def with_uniform_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with columns of mixed values (settings of several kinds) as text, which
    Parquet can hold.
    """
    uniform = frame.copy()
    for key, column in frame.items():
        if column.dtype == object and column.dropna().map(type).nunique() > 1:
            uniform[key] = [None if value is None else str(value) for value in column]
    return uniform
