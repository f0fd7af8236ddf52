"""One file of the cache: a table of several runs as Parquet, made run by run, and behind it its
CRC-32.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 1 << 17
"""Rows of a row group, about: what a writer holds before it compresses them."""
_CRC_BYTES = 4


def stored(schema: pa.Schema) -> pa.Schema:
    """The schema of a file: `run`, the number of the run, and the table's columns; texts as
    dictionaries.
    """
    return pa.schema([pa.field("run", pa.int32()), *coded(schema.empty_table()).schema])


def coded(table: pa.Table) -> pa.Table:
    """The table with its texts as dictionaries: few texts, many rows."""
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(at, field.name, table[field.name].dictionary_encode())
    return table


def chosen(table: pa.Table, where: Mapping[str, Sequence[str]]) -> pa.Table:
    """The rows whose texts are among the wanted ones, by column."""
    for key, values in where.items():
        table = table.filter(pc.is_in(table[key].cast(pa.string()), pa.array(values, pa.string())))
    return table


class Writer:
    """A file in memory that grows run by run."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema, self._file = stored(schema), BytesIO()
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        self._held: list[int] = []
        self._waiting: list[pa.Table] = []

    def add(self, run: int, table: pa.Table) -> None:
        """Add the rows of the run with this number; numbers ascend."""
        self._held.append(run)
        numbers = pa.array([run], pa.int32()).take(pa.array([0] * len(table), pa.int32()))
        self._waiting.append(table.add_column(0, self._schema.field("run"), numbers))
        if sum(map(len, self._waiting)) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(
                pa.concat_tables(self._waiting).unify_dictionaries().combine_chunks()
            )
        self._waiting = []

    def close(self) -> bytes:
        """The whole file."""
        self._flush()
        self._writer.add_key_value_metadata({"runs": json.dumps(self._held)})
        self._writer.close()
        content = self._file.getvalue()
        return content + _crc(content)


def _crc(content: bytes | memoryview) -> bytes:
    return zlib.crc32(content).to_bytes(_CRC_BYTES, "big")


def load(
    content: bytes, columns: Sequence[str], where: Mapping[str, Sequence[str]]
) -> tuple[list[int], pa.Table] | None:
    """Numbers of the runs that a file holds, and these columns of the rows that are wanted; None if
    it is damaged.

    Parquet's own checksums leave out the names of columns and where they begin: the CRC is over
    everything.
    """
    whole = memoryview(content)
    if whole[-_CRC_BYTES:] != _crc(whole[:-_CRC_BYTES]):
        return None
    with pq.ParquetFile(pa.BufferReader(pa.py_buffer(whole[:-_CRC_BYTES]))) as file:
        held = json.loads(file.metadata.metadata[b"runs"])
        return held, chosen(file.read(columns=list(columns)), where)
