"""The files of a run store as they lie on disk, read without andrea's records."""

import json
from pathlib import Path
from typing import Any

import yaml

from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder


def result(store: RunStore, run_id: str) -> Any:
    """result.json of a finished run; None where there is none."""
    return _read(store.folder(run_id) / "result.json")


def failure(store: RunStore, run_id: str) -> Any:
    """failure.json of a run's latest attempt; None where there is none."""
    return _of_run(store, run_id, "failure.json")


def config(store: RunStore, run_id: str) -> Any:
    """config.json of a run; None where there is none."""
    return _of_run(store, run_id, "config.json")


def environment(store: RunStore, run_id: str) -> Any:
    """env.json of a run; None where there is none."""
    return _of_run(store, run_id, "env.json")


def study_json(study: StudyFolder, name: str) -> Any:
    """A JSON file of a study; None where there is none."""
    return _read(study.path / name)


def question(study: StudyFolder) -> Any:
    """protocol.yaml of a study."""
    return yaml.safe_load((study.path / "protocol.yaml").read_text(encoding="utf-8"))


def planned(study: StudyFolder) -> list[Any]:
    """The lines of a study's runs.jsonl."""
    path = study.path / "runs.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _of_run(store: RunStore, run_id: str, name: str) -> Any:
    current = store.current(run_id)
    return _read(current / name) if current else None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
