"""The columnar cache beside the store: what finished runs logged, as columns, so that no line of
JSON is parsed twice.

    cache/<study>/<table>.parquet      runs, documents, curves, layers

When runs have finished or changed, a file is made anew and takes the place of the old one in one
step: rows of unchanged runs are copied, the others parsed. A damaged file is made anew from all
runs. The folder may be deleted at any time. Where nothing can be written, the files stand in a
temporary folder for as long as the study is in use.

A run without a valid result, and one with damaged lines, is in no file: it is read from its own
files every time, which also says every time what is damaged.
"""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from andrea.analysis.tables import parsing
from andrea.analysis.tables.column_file import (
    ColumnFile,
    ColumnFileWriter,
    FileState,
    Filters,
    encode_texts,
    filter_mask,
)
from andrea.records.run import Environment, RunResult
from andrea.store.files import read_mapping, replacing
from andrea.store.runs import RunStore

WATCHED = ("metrics.jsonl", "result.json", "env.json")
"""Files of a run that decide what is cached of it."""
RESULTS = pa.schema({"result": pa.string(), "env": pa.string()})
"""A row per run: its result without the documents, and its environment, as JSON."""
SCHEMAS = parsing.SCHEMAS | {"runs": RESULTS}
FROM_METRICS, FROM_RESULT = ("curves", "layers"), ("runs", "documents")
"""Tables that come from the same file of a run, and are made together."""
ABANDONED_S = 3600.0
"""After this time a half written file is of a process that was killed."""


class RunOutcome(NamedTuple):
    """What a run left behind when it ended."""

    result: RunResult | None
    """Without the documents; None before the run ended."""
    environment: Environment | None


class RunLogs:
    """What the runs of one study logged.

    Finished runs are looked up once, when the first table is asked for, so that all tables tell
    of the same runs.
    """

    def __init__(self, store: RunStore, study: str | None, run_ids: Sequence[str]) -> None:
        """Args:
        store: where the runs are.
        study: name of the study's folder; None reads everything from the runs' own files.
        run_ids: its runs in the order of the plan, each once.
        """
        self.store = store
        self.run_ids = list(run_ids)
        self.cached = study is not None
        self.folder = store.root / "cache" / (study or "")

    @cached_property
    def states(self) -> dict[str, FileState]:
        """By finished run, the sizes and times of its files; empty without a cache."""
        run_ids = self.run_ids if self.cached else []
        states = {run_id: _file_state(self.store.folder(run_id)) for run_id in run_ids}
        return {run_id: state for run_id, state in states.items() if state is not None}

    @cached_property
    def outcomes(self) -> dict[str, RunOutcome]:
        """By run: its result without documents, and its environment."""
        cached = self._cached_tables("runs", RESULTS.names, self.run_ids, {})
        outcomes = {}
        for run_id in self.run_ids:
            if run_id in cached:
                (row,) = cached[run_id].to_pylist()
                folder = self.store.folder(run_id)
                result = RunResult.from_json(json.loads(row["result"]), folder / "result.json")
                environment = Environment.from_json(json.loads(row["env"]), folder / "env.json")
            else:
                result = self.store.load_result(run_id)
                environment = self.store.load_environment(run_id)
            outcomes[run_id] = RunOutcome(result, environment)
        return outcomes

    def tables(
        self, table: str, columns: Sequence[str], run_ids: Collection[str], filters: Filters
    ) -> dict[str, pa.Table]:
        """Return rows of `curves`, `layers` or `documents` by run, in the order of the plan.

        Args:
            table: its name.
            columns: of `parsing.SCHEMAS`.
            run_ids: the runs that are wanted.
            filters: column of text → values that are wanted.
        """
        selected = [run_id for run_id in self.run_ids if run_id in run_ids]
        cached = self._cached_tables(table, columns, selected, filters)
        tables = {}
        for run_id in selected:
            if run_id in cached:
                tables[run_id] = cached[run_id]
            else:
                rows = self._parse_run(table, run_id).tables[table]
                rows = rows.filter(pa.array(filter_mask(rows, filters)))
                tables[run_id] = rows.select(list(columns))
        return tables

    @cached_property
    def temporary(self) -> Path:
        """Where files stand that cannot be written beside the store; removed with this object."""
        self._temporary = tempfile.TemporaryDirectory(
            prefix="andrea-cache-", ignore_cleanup_errors=True
        )
        return Path(self._temporary.name)

    def _cached_tables(
        self, table: str, columns: Sequence[str], run_ids: Sequence[str], filters: Filters
    ) -> dict[str, pa.Table]:
        """Return what the cache holds of these runs, after bringing it up to date."""
        if not self.states:
            return {}
        file = self._current_file(table)
        if file is None:
            return {}
        held = [
            run_id
            for run_id in run_ids
            if run_id in self.states and file.holds(run_id, self.states[run_id])
        ]
        return file.read(held, columns, filters)

    def _current_file(self, table: str) -> ColumnFile | None:
        """Return the table's file, up to date; None where it can be written nowhere."""
        places = [self.folder, *([self.temporary] if "temporary" in self.__dict__ else [])]
        for folder in places:
            file = ColumnFile.open(_file_path(folder, table))
            if file is not None and self._is_current(file):
                return file
        together = FROM_METRICS if table in FROM_METRICS else FROM_RESULT
        old = _open_files(places[-1], together)
        for place in ("folder", "temporary"):
            # The disk is full or the store is on a read-only mount: the next place may do.
            with contextlib.suppress(OSError):
                folder = getattr(self, place)
                self._write_files(folder, together, old)
                return ColumnFile.open(_file_path(folder, table))
        return None

    def _is_current(self, file: ColumnFile) -> bool:
        return all(file.knows(run_id, state) for run_id, state in self.states.items())

    def _write_files(
        self, folder: Path, together: Sequence[str], old: dict[str, ColumnFile]
    ) -> None:
        """Write these tables of all finished runs, a run at a time."""
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            writers = {
                table: ColumnFileWriter(
                    stack.enter_context(replacing(_file_path(folder, table))), SCHEMAS[table]
                )
                for table in together
            }
            for run_id, state in self.states.items():
                if old and all(file.holds(run_id, state) for file in old.values()):
                    for table, writer in writers.items():
                        writer.add_run(run_id, state, old[table].run_table(run_id))
                    continue
                parsed = self._parse_run(together[0], run_id)
                for table, writer in writers.items():
                    if parsed.sound:
                        writer.add_run(run_id, state, parsed.tables[table])
                    else:
                        writer.add_unsound_run(run_id, state)
            for writer in writers.values():
                writer.close()
        with contextlib.suppress(OSError):
            self._remove_leftovers()

    def _parse_run(self, table: str, run_id: str) -> parsing.ParsedRun:
        """Return this table, and those made with it, from the run's own files."""
        if table in FROM_METRICS:
            current = self.store.current(run_id) or self.store.folder(run_id)
            return parsing.parse_metrics(current / "metrics.jsonl")
        result = self.store.load_result(run_id)
        if result is None:
            empty = {table: encode_texts(SCHEMAS[table].empty_table()) for table in FROM_RESULT}
            return parsing.ParsedRun(empty, sound=False)
        texts = [
            record.model_dump_json(exclude_unset=True, exclude={"documents"}) if record else "null"
            for record in (result, self.store.load_environment(run_id))
        ]
        tables = {
            "runs": encode_texts(parsing.table_of_rows(RESULTS, [texts])),
            "documents": parsing.document_table(result.documents),
        }
        # A damaged field was read as absent: it is not written back.
        content = read_mapping(self.store.folder(run_id) / "result.json")
        return parsing.ParsedRun(tables, sound=result.to_json() == content)

    def _remove_leftovers(self) -> None:
        """Remove files of older versions and of killed processes, and caches of studies that are
        gone.
        """
        current = {_file_path(self.folder, table) for table in SCHEMAS}
        for path in self.folder.iterdir():
            if path not in current and (path.suffix == ".shard" or _is_abandoned(path)):
                path.unlink(missing_ok=True)
        for folder in self.folder.parent.iterdir():
            if not (self.store.root / "studies" / folder.name).exists():
                shutil.rmtree(folder, ignore_errors=True)


def _file_path(folder: Path, table: str) -> Path:
    return folder / f"{table}.parquet"


def _open_files(folder: Path, together: Sequence[str]) -> dict[str, ColumnFile]:
    """Return the files of these tables; empty unless all are there and whole."""
    files = {table: ColumnFile.open(_file_path(folder, table)) for table in together}
    whole = {table: file for table, file in files.items() if file is not None}
    return whole if len(whole) == len(files) else {}


def _is_abandoned(path: Path) -> bool:
    return path.suffix == ".partial" and time.time() - path.stat().st_mtime > ABANDONED_S


def _file_state(folder: Path) -> FileState | None:
    """Return sizes and times of a finished run's files; None where it has no result."""
    state: FileState = []
    for name in WATCHED:
        try:
            status = (folder / name).stat()
        except OSError:
            if name == "result.json":
                return None
            state.append(None)
        else:
            state.append([status.st_size, status.st_mtime_ns])
    return state
