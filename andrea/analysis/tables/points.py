"""What one run logged, as Arrow tables: its curves, its layers, its documents."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from andrea.analysis.tables.shards import coded
from andrea.errors import warn
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


def logged(path: Path) -> tuple[dict[str, pa.Table], bool]:
    """`curves` and `layers` of a metrics.jsonl, and whether every whole line of it was good.

    A torn last line (a kill in the middle of a write) is dropped; a damaged line, and a record
    whose numbers are no numbers, is skipped with a warning.
    """
    content = b""
    with contextlib.suppress(FileNotFoundError):
        content = path.read_bytes()
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    curves, layers, sound = _quickly(lines) or _carefully(path, len(lines))
    return {"curves": coded(curves), "layers": coded(layers)}, sound


def _quickly(lines: Sequence[bytes]) -> tuple[pa.Table, pa.Table, bool] | None:
    """All lines parsed at once, in a third of the time; None where anything is out of the ordinary.

    Arrow's own reader of JSON would be quicker still, but ends the process with a segmentation
    fault at some lines that are no object.
    """
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")
        # Two objects on one line would be two records, one object over two lines one.
        if len(records) != len(lines) or not all(type(record) is dict for record in records):
            return None
        curves = _curves([record for record in records if record.get("kind") in CURVE_KINDS])
        return (
            curves,
            _layers([record for record in records if record.get("kind") == "layers"]),
            True,
        )
    except (ValueError, *_NOT_NUMBERS):
        return None


def _carefully(path: Path, lines: int) -> tuple[pa.Table, pa.Table, bool]:
    """Record by record, so that what is damaged costs itself alone."""
    records = read_lines(path)
    sound = [record for record in records if _sound(record)]
    if len(sound) < len(records):
        warn(f"{path}: records without numbers skipped: {len(records) - len(sound)}")
    curves = [record for record in sound if record.get("kind") in CURVE_KINDS]
    layers = [record for record in sound if record.get("kind") == "layers"]
    return _curves(curves), _layers(layers), len(sound) == lines


def _sound(record: Record) -> bool:
    try:
        if record.get("kind") in CURVE_KINDS:
            _curves([record])
        elif record.get("kind") == "layers":
            _layers([record])
    except _NOT_NUMBERS:
        return False
    return True


def _curves(records: Sequence[Record]) -> pa.Table:
    columns = [
        pa.array([record.get(field.name) for record in records], field.type) for field in CURVES
    ]
    return pa.table(columns, schema=CURVES)


def _layers(records: Sequence[Record]) -> pa.Table:
    rows: list[tuple[Any, ...]] = []
    for record in records:
        values = (
            [("grad_norm", 0, record["embedding_grad_norm"])]
            if "embedding_grad_norm" in record
            else []
        )
        for quantity, first in _FIRST_LAYER.items():
            values += [
                (quantity, first + i, value) for i, value in enumerate(record.get(quantity) or [])
            ]
        rows += [
            (record["step"], record["tokens"], layer, quantity, value)
            for quantity, layer, value in values
        ]
    return table_of(LAYERS, rows)


def documents(result: Record, folder: Path) -> tuple[pa.Table, bool]:
    """`documents` of the result in this folder: its loss on every evaluated document; and whether
    they are sound.
    """
    try:
        told = [(one["name"], one["tokens"], one["loss"]) for one in result.get("documents") or []]
        return coded(table_of(DOCUMENTS, told)), True
    except _NOT_NUMBERS:
        warn(f"{folder / 'result.json'}: its documents are damaged and left out")
        return coded(DOCUMENTS.empty_table()), False


def table_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows as a table of these columns."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
