"""The runs that are mirrored together: those of a study, or one run that belongs to none."""

from pathlib import Path
from typing import TypeAlias

from andrea.config import dotted
from andrea.records.base import Settings
from andrea.records.run import RunSpec
from andrea.records.study import AskedStudy, ResolvedStudy, StudyInfo
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder


class SingleRun:
    """A run of `andrea train`, read like a study: its group in W&B is `train`, its files lie in
    `<runs>/train/<id>/wandb`.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self.run_id = run_id
        self.path = store.root / "train" / run_id[:12]
        self._store = store

    def load_info(self) -> StudyInfo:
        """Return the digest that ends the run's id in W&B, and no name."""
        return StudyInfo(digest="train")

    def load_question(self) -> AskedStudy:
        """Return an empty question."""
        return AskedStudy()

    def load_resolved(self) -> ResolvedStudy | None:
        """Return None: nothing was frozen."""
        return None

    def load_runs(self) -> list[RunSpec]:
        """Return the one run, with rate and seed of its configuration."""
        config = load_config(self._store, self.run_id)
        fixed = {"run_id": self.run_id, "arm": "", "phase": "train", "why": "train"}
        values = {**fixed, "lr": config.get("train.lr"), "seed": config.get("seed", 0)}
        spec = RunSpec.from_json(values, f"config.json of run {self.run_id[:12]}")
        return [spec] if spec else []


Subject: TypeAlias = StudyFolder | SingleRun


def load_config(store: RunStore, run_id: str) -> Settings:
    """Return the resolved settings of a run by their dotted names; empty before it has begun."""
    settings = store.load_settings(run_id)
    return dotted(settings.config) if settings else {}


def wandb_folder(subject: Subject) -> Path:
    """Return the folder of wandb's files of this study."""
    return subject.path / "wandb"


def study_key(subject: Subject) -> str:
    """Return what tells a study from others, also from one of the same protocol under another name.

    Older studies have a digest alone.
    """
    info = subject.load_info()
    return info.key or info.digest or subject.path.name.rpartition("-")[2]


def wandb_id(key: str, run_id: str) -> str:
    """Return a run's id in W&B: a run that two studies share appears once in each.

    Args:
        key: the study's (`study_key`).
    """
    return f"{run_id[:12]}-{key[:6]}"
