"""Reads what wandb wrote offline: a file of LevelDB-framed protobuf records, also one whose writer
was killed.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK = 32_768
HEADER = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """One offline run as a server would come to know it."""

    id: str = ""
    name: str = ""
    project: str = ""
    group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, list[str]] = field(default_factory=dict)
    """The files of each."""
    axes: dict[str, str] = field(default_factory=dict)
    """Metric or glob of metrics, and the metric it is drawn over."""
    exit_code: int | None = None
    """None: the run was never finished."""


def read_offline_runs(study: Path) -> dict[str, OfflineRun]:
    """The offline runs under `<study>/wandb`, by id. Two folders of one id are an error."""
    runs: dict[str, OfflineRun] = {}
    for path in sorted(study.glob("wandb/offline-run-*/*.wandb")):
        run = read_offline_run(path)
        assert run.id not in runs, f"{run.id} was written twice"
        runs[run.id] = run
    return runs


def read_offline_run(path: Path) -> OfflineRun:
    """One `.wandb` file."""
    run = OfflineRun()
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        _apply(run, record)
    return run


def _records(data: bytes) -> Iterator[bytes]:
    """The framed records; a torn last one is dropped."""
    if not data:
        return
    assert data[:4] == b":W&B", "not a wandb file"
    position, parts = HEADER, b""
    while position + HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        if kind == 0:
            position += left
            continue
        part = data[position + HEADER : position + HEADER + length]
        if len(part) < length:
            return
        position += HEADER + length
        parts = part if kind in (FULL, FIRST) else parts + part
        if kind in (FULL, LAST):
            yield parts


def _apply(run: OfflineRun, record: Any) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "run":
        about = record.run
        run.id, run.name, run.project = about.run_id, about.display_name, about.project
        run.group, run.job_type, run.tags = about.run_group, about.job_type, list(about.tags)
        run.config.update(_values(about.config.update))
    elif kind == "config":
        run.config.update(_values(record.config.update))
    elif kind == "history":
        run.history.append(_values(record.history.item))
    elif kind == "summary":
        run.summary.update(_values(record.summary.update))
    elif kind == "metric":
        run.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
    elif kind == "artifact":
        contents = record.artifact.manifest.contents
        run.artifacts[record.artifact.name] = sorted(entry.path for entry in contents)
    elif kind == "exit":
        run.exit_code = record.exit.exit_code


def _values(items: Any) -> dict[str, Any]:
    """Values by key; those of a nested key stand in a dict of their own."""
    values: dict[str, Any] = {}
    for item in items:
        *parents, key = item.nested_key or [item.key]
        inner = values
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[key] = json.loads(item.value_json)
    return values
