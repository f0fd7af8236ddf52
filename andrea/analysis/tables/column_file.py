"""One file of the cache: a table of a study's runs as Parquet, and behind it its CRC-32.

Runs are written one after the other, a row group at a time, so that neither writing nor reading
holds the whole table. The file's metadata say where every run's rows stand and of which state of
the run's own files they are.
"""

import io
import itertools
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FORMAT = 2
"""Of the files; raise it when the same runs give other tables."""
GROUP_ROWS = 1 << 17
"""Rows of a row group, about: what is held in memory at once."""
_CRC_BYTES = 4
_BLOCK_BYTES = 1 << 20

FileState = list[list[int] | None]
"""Size and time of each file that decides a run's rows; None for a file that is not there."""
Filters = Mapping[str, Sequence[str]]
"""Column of text → the values that are wanted."""


class RunRows(NamedTuple):
    """Where the rows of one run stand in a file."""

    state: FileState
    group: int
    """Row group; -1 for a run without rows, and for one that is not `sound`."""
    start: int
    """First row within the group."""
    rows: int
    sound: bool
    """False for a run with damaged lines: it is read from its own files every time."""


def encode_texts(table: pa.Table) -> pa.Table:
    """Return the table with its texts as dictionaries: few texts, many rows."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(index, field.name, table[field.name].dictionary_encode())
    return table


def filter_mask(table: pa.Table, filters: Filters) -> np.ndarray:
    """Return one boolean per row: its texts are among the wanted ones, in every column."""
    mask = np.ones(len(table), dtype=bool)
    for column, values in filters.items():
        texts = table[column].cast(pa.string())
        mask &= pc.is_in(texts, pa.array(values, pa.string())).to_numpy()
    return mask


class _ChecksummedSink(io.RawIOBase):
    """Passes bytes on to a file and keeps their CRC-32."""

    def __init__(self, file: IO[bytes]) -> None:
        self.crc = 0
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: "io.BufferedIOBase | bytes") -> int:  # type: ignore[override]
        content = bytes(data)  # type: ignore[arg-type]
        self.crc = zlib.crc32(content, self.crc)
        return self._file.write(content)


class ColumnFileWriter:
    """Writes a column file run by run; memory is bounded by one row group."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        """Args:
        file: open for writing; closed by the caller.
        schema: of the table, texts as plain strings.
        """
        self._file = file
        self._sink = _ChecksummedSink(file)
        stored = encode_texts(schema.empty_table()).schema
        self._parquet = pq.ParquetWriter(self._sink, stored, compression="zstd")
        self._runs: dict[str, RunRows] = {}
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._group = 0

    def add_run(self, run_id: str, state: FileState, table: pa.Table) -> None:
        """Add the rows of a run."""
        group = self._group if len(table) else -1
        self._runs[run_id] = RunRows(state, group, self._waiting_rows, len(table), sound=True)
        self._waiting.append(table)
        self._waiting_rows += len(table)
        if self._waiting_rows >= GROUP_ROWS:
            self._write_group()

    def add_unsound_run(self, run_id: str, state: FileState) -> None:
        """Note that this run is damaged, so that nobody takes it for missing."""
        self._runs[run_id] = RunRows(state, -1, 0, 0, sound=False)

    def _write_group(self) -> None:
        if self._waiting_rows:
            rows = pa.concat_tables(self._waiting).unify_dictionaries().combine_chunks()
            self._parquet.write_table(rows, row_group_size=len(rows))
            self._group += 1
        self._waiting = []
        self._waiting_rows = 0

    def close(self) -> None:
        """Write what is left, the metadata and the checksum."""
        self._write_group()
        contents = json.dumps({"format": FORMAT, "runs": self._runs})
        self._parquet.add_key_value_metadata({"contents": contents})
        self._parquet.close()
        self._file.write(self._sink.crc.to_bytes(_CRC_BYTES, "big"))


class _WithoutChecksum(io.FileIO):
    """A file whose last bytes, the checksum, are hidden, as the reader of Parquet wants it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._length = os.fstat(self.fileno()).st_size - _CRC_BYTES

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            return super().seek(self._length + offset)
        return super().seek(offset, whence)


class ColumnFile:
    """A column file that was found whole; stays open, so that it may be replaced meanwhile."""

    def __init__(self, parquet: pq.ParquetFile, runs: dict[str, RunRows]) -> None:
        self._parquet = parquet
        self._runs = runs
        self._whole_group: tuple[int, pa.Table] = (-1, None)

    @classmethod
    def open(cls, path: Path) -> "ColumnFile | None":
        """Open a file; None where there is none, and where it is damaged or of another format.

        Parquet's own checksums leave out the names of columns and where they begin: the CRC is
        over everything.
        """
        try:
            if not _is_whole(path):
                return None
            parquet = pq.ParquetFile(pa.PythonFile(_WithoutChecksum(path), mode="r"))
            contents = json.loads(parquet.metadata.metadata[b"contents"])
        except (OSError, KeyError, pa.ArrowException):
            return None
        if contents["format"] != FORMAT:
            return None
        runs = {run_id: RunRows(*values) for run_id, values in contents["runs"].items()}
        return cls(parquet, runs)

    def knows(self, run_id: str, state: FileState) -> bool:
        """Return True if the file was made from this state of the run's own files."""
        return run_id in self._runs and self._runs[run_id].state == state

    def holds(self, run_id: str, state: FileState) -> bool:
        """Return True if the file holds the rows of this state of the run."""
        return self.knows(run_id, state) and self._runs[run_id].sound

    def run_table(self, run_id: str) -> pa.Table:
        """Return all rows of one run; quick where runs are asked for in the order of the file."""
        place = self._runs[run_id]
        if place.group < 0:
            return self._parquet.schema_arrow.empty_table()
        if self._whole_group[0] != place.group:
            self._whole_group = (place.group, self._parquet.read_row_group(place.group))
        return self._whole_group[1].slice(place.start, place.rows)

    def read(
        self, run_ids: Iterable[str], columns: Sequence[str], filters: Filters
    ) -> dict[str, pa.Table]:
        """Return, by run, these columns of the rows that are wanted."""
        names = list(dict.fromkeys([*columns, *filters]))
        by_group = defaultdict(list)
        for run_id in run_ids:
            by_group[self._runs[run_id].group].append(run_id)
        tables: dict[str, pa.Table] = {}
        for group, members in by_group.items():
            if group < 0:
                empty = self._parquet.schema_arrow.empty_table().select(list(columns))
                tables |= dict.fromkeys(members, empty)
                continue
            rows = self._parquet.read_row_group(group, columns=names)
            mask = filter_mask(rows, filters)
            kept_before = np.concatenate([[0], np.cumsum(mask)])
            rows = rows.filter(pa.array(mask)) if filters else rows
            rows = rows.select(list(columns))
            for run_id in members:
                place = self._runs[run_id]
                start, end = kept_before[place.start], kept_before[place.start + place.rows]
                tables[run_id] = rows.slice(start, end - start)
        return tables


def _is_whole(path: Path) -> bool:
    """Return True if the file's checksum is that of its content."""
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size - _CRC_BYTES
        if length < 0:
            return False
        crc = 0
        for start in itertools.count(0, _BLOCK_BYTES):
            block = file.read(min(_BLOCK_BYTES, length - start))
            crc = zlib.crc32(block, crc)
            if start + _BLOCK_BYTES >= length:
                break
        return file.read() == crc.to_bytes(_CRC_BYTES, "big")
