"""The columnar cache beside the store: what finished runs logged, as columns, so that no line of
JSON is read twice.

cache/<study>/<digest>.<table>.shard

A shard holds up to `SHARD` finished runs that follow each other in the plan. Its name digests their
ids and the sizes and times of their files: what has changed has another name, so a shard is never
stale and never overwritten, and two processes that make the same one make the same bytes. What no
shard is called any more is removed by whoever makes one. All of it may be deleted at any time.
Where nothing can be written, shards stand in a temporary folder for as long as the study is in use.

A run without a valid result, and one with damaged lines, is in no shard: it is read from its own
files every time, which also says every time what is damaged.
"""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from andrea.analysis.tables import points, shards
from andrea.analysis.tables.shards import chosen
from andrea.store.digest import digest
from andrea.store.files import write_atomic
from andrea.store.runs import RunStore

FORMAT = 1
"""Of the shards; raise it when the same files give other tables."""
SHARD = 64
"""Runs in a shard: what is built, and read, at once."""
WATCHED = ("metrics.jsonl", "result.json", "env.json")
"""Files of a run that decide what is in its shard."""
RESULTS = pa.schema({"result": pa.string(), "env": pa.string()})
"""A row per run: its result without the documents, and its environment, as JSON."""
SCHEMAS = points.SCHEMAS | {"results": RESULTS}
METRICS, FROM_RESULT = ("curves", "layers"), ("results", "documents")
"""Tables that come from the same file of a run, and are made together."""
ABANDONED_S = 3600.0
"""After this time a half written file is of a process that was killed."""

Told = tuple[dict[str, Any] | None, dict[str, Any] | None]


class Runs:
    """What the runs of one study logged, read a shard at a time.

    What is finished is looked at once, when the first table is asked for, so that all tables tell
    of the same runs.
    """

    def __init__(self, store: RunStore, study: str | None, run_ids: Sequence[str]) -> None:
        """Args:
        store: where the runs are.
        study: name of the study's folder; None reads everything from the runs' own files.
        run_ids: its runs in the order of the plan, each once.
        """
        self.store, self.run_ids = store, list(run_ids)
        self.cached, self.folder = study is not None, store.root / "cache" / (study or "")

    @cached_property
    def shards(self) -> list["Shard"]:
        """The runs in groups that a finished run changes one of."""
        return [
            Shard(self, self.run_ids[start : start + SHARD])
            for start in range(0, len(self.run_ids), SHARD)
        ]

    @cached_property
    def told(self) -> dict[str, Told]:
        """By run: its result without documents, and its environment; None where there is none."""
        return {run_id: told for shard in self.shards for run_id, told in shard.told()}

    def tables(
        self,
        table: str,
        columns: Sequence[str],
        run_ids: Collection[str],
        where: Mapping[str, Sequence[str]],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Rows of `curves`, `layers` or `documents`, run by run in the order of the plan.

        Args:
            table: its name.
            columns: of `points.SCHEMAS`.
            run_ids: the runs that are wanted.
            where: column of text → values that are wanted.
        """
        for shard in self.shards:
            wanted = [run_id for run_id in shard.run_ids if run_id in run_ids]
            if wanted:
                yield from shard.tables(table, columns, wanted, where)

    @cached_property
    def temporary(self) -> Path:
        """Where shards stand that cannot be written beside the store; removed with this object."""
        self._temporary = tempfile.TemporaryDirectory(
            prefix="andrea-cache-", ignore_cleanup_errors=True
        )
        return Path(self._temporary.name)

    def places(self) -> list[Path]:
        """Where a shard may be."""
        return [self.folder, *([self.temporary] if "temporary" in self.__dict__ else [])]

    def keep(self, files: Mapping[str, bytes]) -> None:
        """Write files of a shard where that is possible."""
        for place in ("folder", "temporary"):
            try:
                folder: Path = getattr(self, place)
                folder.mkdir(parents=True, exist_ok=True)
                for name, content in files.items():
                    write_atomic(folder / name, content)
                break
            except OSError:
                continue
        with contextlib.suppress(OSError):
            self._tidy()

    def _tidy(self) -> None:
        """Remove what no shard of this study is called any more, and caches of studies that are
        gone.
        """
        named = {shard.name for shard in self.shards}
        for path in self.folder.iterdir():
            if path.name.split(".")[0] not in named and (
                path.suffix == ".shard" or _abandoned(path)
            ):
                path.unlink(missing_ok=True)
        for folder in self.folder.parent.iterdir():
            if not (self.store.root / "studies" / folder.name).exists():
                shutil.rmtree(folder, ignore_errors=True)


def _abandoned(path: Path) -> bool:
    return path.suffix == ".partial" and time.time() - path.stat().st_mtime > ABANDONED_S


class Shard:
    """Runs that follow each other in the plan, and the files of those that are finished."""

    def __init__(self, runs: Runs, run_ids: Sequence[str]) -> None:
        self._runs, self._store, self.run_ids = runs, runs.store, run_ids
        kept = run_ids if runs.cached else []
        states = {run_id: state for run_id in kept if (state := _state(runs.store.folder(run_id)))}
        self._finished = list(states)
        self.name = digest({"format": FORMAT, "runs": list(states.items())})[:32]

    def told(self) -> Iterator[tuple[str, Told]]:
        """By run: its result and its environment."""
        held, rows = self._read("results", RESULTS.names, {})
        cached = {self._finished[at]: row for at, row in zip(held, rows.to_pylist(), strict=True)}
        for run_id in self.run_ids:
            if row := cached.get(run_id):
                yield run_id, (json.loads(row["result"]), json.loads(row["env"]))
            else:
                yield run_id, (self._store.result(run_id), self._store.env(run_id))

    def tables(
        self,
        table: str,
        columns: Sequence[str],
        wanted: Sequence[str],
        where: Mapping[str, Sequence[str]],
    ) -> Iterator[tuple[str, pa.Table]]:
        """The wanted runs' rows."""
        held, rows = self._read(table, columns, where)
        cached = dict.fromkeys((self._finished[at] for at in held), (0, 0))
        lengths = pc.run_end_encode(rows["run"].combine_chunks())
        ends = [0, *lengths.run_ends.to_pylist()]
        for at, start, end in zip(lengths.values.to_pylist(), ends, ends[1:], strict=False):
            cached[self._finished[at]] = (start, end - start)
        rows = rows.select(list(columns))
        for run_id in wanted:
            if run_id in cached:
                yield run_id, rows.slice(*cached[run_id])
            else:
                own, _ = self._own(table, run_id)
                yield run_id, chosen(own[table], where).select(list(columns))

    def _read(
        self, table: str, columns: Sequence[str], where: Mapping[str, Sequence[str]]
    ) -> tuple[list[int], pa.Table]:
        """Numbers of the finished runs that the shard holds, and their rows with `run`, their
        number.

        The shard is made if it is not there or damaged; who tidies up may have been quicker than
        this look.
        """
        names = list(dict.fromkeys(["run", *columns, *where]))
        if not self._finished:
            return [], shards.stored(SCHEMAS[table]).empty_table().select(names)
        for place in self._runs.places():
            with contextlib.suppress(OSError):
                if (
                    found := shards.load((place / self._file(table)).read_bytes(), names, where)
                ) is not None:
                    return found
        made = shards.load(self._build(table), names, where)
        assert made is not None, "a file that was just made is whole"
        return made

    def _file(self, table: str) -> str:
        return f"{self.name}.{table}.shard"

    def _build(self, asked: str) -> bytes:
        """Make this table's file and those that come with it, a run at a time."""
        writers = {name: shards.Writer(SCHEMAS[name]) for name in _together(asked)}
        for at, run_id in enumerate(self._finished):
            tables, sound = self._own(asked, run_id)
            if sound:
                for name, writer in writers.items():
                    writer.add(at, tables[name])
        files = {self._file(name): writer.close() for name, writer in writers.items()}
        self._runs.keep(files)
        return files[self._file(asked)]

    def _own(self, asked: str, run_id: str) -> tuple[dict[str, pa.Table], bool]:
        """This table, and those that come with it, from the run's own files; and whether those are
        sound.
        """
        if asked in METRICS:
            current = self._store.current(run_id) or self._store.folder(run_id)
            return points.logged(current / "metrics.jsonl")
        result, env = self._store.result(run_id), self._store.env(run_id)
        told = {key: value for key, value in (result or {}).items() if key != "documents"}
        row = [json.dumps(told), json.dumps(env)]
        documents, sound = points.documents(result or {}, self._store.folder(run_id))
        tables = {"results": shards.coded(points.table_of(RESULTS, [row])), "documents": documents}
        return tables, sound and result is not None


def _together(table: str) -> tuple[str, str]:
    return METRICS if table in METRICS else FROM_RESULT


def _state(folder: Path) -> list[list[int] | None] | None:
    """Sizes and times of a finished run's files; None where it has no result."""
    found: list[list[int] | None] = []
    for name in WATCHED:
        try:
            status = (folder / name).stat()
            found.append([status.st_size, status.st_mtime_ns])
        except OSError:
            if name == "result.json":
                return None
            found.append(None)
    return found
