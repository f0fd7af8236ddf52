"""Parses what one run logged into Arrow tables: its curves, its layers, its documents."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from andrea.analysis.tables.column_file import encode_texts
from andrea.errors import warn
from andrea.records.run import DocumentLoss
from andrea.store.files import read_lines

Record = Mapping[str, Any]

NUMBERS = {key: pa.float64() for key in ("loss", "bpb", "grad_norm", "tokens_per_s")}
CURVES = pa.schema({"kind": pa.string(), "step": pa.int64(), "tokens": pa.int64(), **NUMBERS})
LAYERS = pa.schema(
    {
        "step": pa.int64(),
        "tokens": pa.int64(),
        "layer": pa.int64(),
        "quantity": pa.string(),
        "value": pa.float64(),
    }
)
DOCUMENTS = pa.schema({"document": pa.string(), "tokens": pa.int64(), "loss": pa.float64()})
SCHEMAS = {"curves": CURVES, "layers": LAYERS, "documents": DOCUMENTS}
"""Columns that the run itself decides; arm, phase, seed and rate are its place in a study."""

CURVE_KINDS = ("train", "eval")
_FIRST_LAYER = {"grad_norm": 1, "attn_rms": 1, "mlp_rms": 1, "residual_rms": 0}
"""Quantity, number of its first layer."""
_NOT_NUMBERS = (pa.ArrowException, TypeError, LookupError, OverflowError)


class ParsedRun(NamedTuple):
    """Tables of one run, by name."""

    tables: dict[str, pa.Table]
    sound: bool
    """Every whole line of the file was good."""


def parse_metrics(path: Path) -> ParsedRun:
    """Return `curves` and `layers` of a metrics.jsonl.

    A torn last line (a kill in the middle of a write) is dropped; a damaged line, and a record
    whose numbers are not numbers, is skipped with a warning.
    """
    content = b""
    with contextlib.suppress(FileNotFoundError):
        content = path.read_bytes()
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    parsed = _parse_all_lines(lines) or _parse_each_line(path, len(lines))
    return ParsedRun(
        {name: encode_texts(table) for name, table in parsed.tables.items()}, parsed.sound
    )


def _parse_all_lines(lines: Sequence[bytes]) -> ParsedRun | None:
    """Parse all lines at once, in a third of the time; None where any is out of the ordinary.

    Arrow's own reader of JSON would be quicker still, but ends the process with a segmentation
    fault at some lines that are not objects.
    """
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")
        # Two objects on one line would be two records, one object over two lines one.
        if len(records) != len(lines) or not all(type(record) is dict for record in records):
            return None
        return ParsedRun(_tables_of_records(records), sound=True)
    except (ValueError, *_NOT_NUMBERS):
        return None


def _parse_each_line(path: Path, lines: int) -> ParsedRun:
    """Parse record by record, so that what is damaged costs itself alone."""
    records = read_lines(path)
    sound = [record for record in records if _is_sound(record)]
    if len(sound) < len(records):
        warn(f"{path}: records without numbers skipped: {len(records) - len(sound)}")
    return ParsedRun(_tables_of_records(sound), len(sound) == lines)


def _tables_of_records(records: Sequence[Record]) -> dict[str, pa.Table]:
    curves = [record for record in records if record.get("kind") in CURVE_KINDS]
    layers = [record for record in records if record.get("kind") == "layers"]
    return {"curves": _curve_table(curves), "layers": _layer_table(layers)}


def _is_sound(record: Record) -> bool:
    try:
        _tables_of_records([record])
    except _NOT_NUMBERS:
        return False
    return True


def _curve_table(records: Sequence[Record]) -> pa.Table:
    columns = [
        pa.array([record.get(field.name) for record in records], field.type) for field in CURVES
    ]
    return pa.table(columns, schema=CURVES)


def _layer_table(records: Sequence[Record]) -> pa.Table:
    rows: list[tuple[Any, ...]] = []
    for record in records:
        step, tokens = record["step"], record["tokens"]
        if "embedding_grad_norm" in record:
            rows.append((step, tokens, 0, "grad_norm", record["embedding_grad_norm"]))
        for quantity, first_layer in _FIRST_LAYER.items():
            values = record.get(quantity) or []
            for layer, value in enumerate(values, start=first_layer):
                rows.append((step, tokens, layer, quantity, value))
    return table_of_rows(LAYERS, rows)


def document_table(documents: Sequence[DocumentLoss]) -> pa.Table:
    """Return `documents` of a result: its loss on every evaluated document."""
    rows = [(document.name, document.tokens, document.loss) for document in documents]
    return encode_texts(table_of_rows(DOCUMENTS, rows))


def table_of_rows(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows as a table of these columns."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
