"""A study as it was frozen: read from its folder, it names every run and hands out jobs. Nothing
here decides.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from andrea.config import RunConfig, build, merge
from andrea.errors import UserError
from andrea.execution.executors import Job, load_variants
from andrea.records.events import Run
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.question.arms import Arm
from andrea.study.question.sweep import Sweep
from andrea.verdict.protocol import Protocol

Asked = TypeVar("Asked", bound=BaseModel)

EVALUATED = {"tune": "tune", "trial": "tune"}
"""Where the runs of these phases are evaluated, so as not to read what verdicts are made from; all
others read that.
"""
APART: Mapping[str, str] = {"tokens": "train.tokens", "init_seed": "init_seed"}
"""Settings by which a control or a budget's run differs from its arm, by their names in runs.jsonl.
"""


class FrozenStudy:
    """What was asked (protocol.yaml) and what it became (resolved.json), with the ids that follow
    from both.

    Raises:
        StudyError: the folder lacks one of the two.
    """

    def __init__(self, folder: StudyFolder, store: RunStore) -> None:
        self.folder, self.store = folder, store
        resolved = folder.read("resolved.json")
        if resolved is None:
            raise folder.damaged("resolved.json", "missing")
        self.asked = folder.protocol()
        needed = {
            "study.json": {"kind"},
            "resolved.json": {"fingerprint", "arms", "baseline", "platform"},
        }
        for name, told in (("study.json", folder.about), ("resolved.json", resolved)):
            if lost := needed[name] - told.keys():
                raise folder.damaged(name, f"damaged, without {', '.join(sorted(lost))}")
        self.resolved: dict[str, Any] = resolved
        self._jobs: dict[str, Job] = {}
        if self.variants:
            load_variants(Path(self.variants))

    @property
    def kind(self) -> str:
        """`ablation` or `sweep`."""
        return str(self.folder.about["kind"])

    @cached_property
    def protocol(self) -> Protocol:
        """The frozen rules of an ablation."""
        return self._asked(Protocol, "protocol", self.asked.get("protocol"))

    @cached_property
    def centers(self) -> dict[str, float]:
        """Learning rate in the middle of the grid of every arm that was given its own."""
        arms = {
            name: self._asked(Arm, "arm", told)
            for name, told in (self.asked.get("arms") or {}).items()
        }
        return {name: arm.center for name, arm in arms.items() if arm.center is not None}

    @cached_property
    def levels(self) -> dict[str, list[str]] | None:
        """Levels by factor of a factorial design; None of any other."""
        factors = self.asked.get("factors")
        return {factor: list(levels) for factor, levels in factors.items()} if factors else None

    @cached_property
    def sweep(self) -> Sweep:
        """What a sweep searches, and how."""
        return self._asked(
            Sweep, "sweep", {key: self.asked[key] for key in self.asked.keys() & Sweep.model_fields}
        )

    def _asked(self, kind: type[Asked], what: str, told: Any) -> Asked:
        try:
            return kind.model_validate(told)
        except ValueError as error:
            raise self.folder.damaged("protocol.yaml", f"no valid {what} in it") from error

    @property
    def baseline(self) -> str | None:
        """The arm that the others are judged against; a sweep has none."""
        baseline: str | None = self.resolved["baseline"]
        return baseline

    @property
    def arms(self) -> list[str]:
        """All arms in declared order, the baseline first."""
        return sorted(self.resolved["arms"], key=lambda arm: arm != self.baseline)

    @property
    def variants(self) -> str | None:
        """The study's own copy of the user's variants, if there are any: what is edited meanwhile
        changes nothing.
        """
        name = self.resolved.get("variants")
        return str(self.folder.path / name) if name else None

    @property
    def data_folder(self) -> Path:
        """Where the prepared corpus lies."""
        return self.store.root / "data" / str(self.resolved["fingerprint"])

    def require_data(self) -> None:
        """Prepare the corpus again if its cache was deleted.

        Raises:
            UserError: the source has changed since the study was frozen.
        """
        if self.data_folder.is_dir():
            return
        from andrea.data.prepare import prepare

        data = self._config(self.arms[0]).data
        if prepare(data, self.store.root).folder != self.data_folder:
            raise UserError(
                f"data.source {data.source}: the text has changed since study "
                f"{self.folder.path.name} was frozen; "
                "bring it back, or start another study"
            )

    def run(self, row: dict[str, Any], seed: int) -> Run:
        """A line of runs.jsonl from what a plan says of it: the seed and the run's id are added."""
        config, fingerprint = self._settled(row, seed), str(self.resolved["fingerprint"])
        identity, run_id = identify(
            config, fingerprint, self.resolved["platform"], row.get("repeat", 0)
        )
        if run_id not in self._jobs:
            self._jobs[run_id] = Job(
                run_id=run_id,
                root=str(self.store.root),
                config=config.model_dump(mode="json"),
                data_folder=str(self.data_folder),
                identity=identity,
                log=str(self.store.log(run_id)),
                variants=self.variants,
            )
        head = {"run_id": run_id, "arm": row["arm"], "phase": row["phase"], "why": row["why"]}
        tail = {
            "lr": config.train.lr,
            "seed": seed,
            "trial": row["trial"],
            "generation": row["generation"],
        }
        more: Run = {
            key: row[key] for key in ("params", "duplicate_of", "repeat", *APART) if key in row
        }
        return {**head, **tail, **more}

    def job(self, run: Run) -> Job:
        """The job of a run that `run` has named.

        Raises:
            UserError: this is not the platform that the study was frozen on; runs that exist need
                no job and are fine.
        """
        self.require_platform()
        return self._jobs[run["run_id"]]

    def config(self, run_id: str) -> dict[str, Any]:
        """The resolved config of a run that `run` has named."""
        return self._jobs[run_id].config

    @property
    def deterministic(self) -> bool:
        """Whether the route gives the same bits twice: on a CPU it does, a GPU's libraries do not
        promise it.
        """
        return self._config(self.arms[0]).train.device == "cpu"

    def require_platform(self) -> None:
        """Make sure that runs are trained where the study was frozen.

        Raises:
            UserError: this is another platform.
        """
        frozen = self.resolved["platform"]
        here = platform_of(self._config(self.arms[0]).train.device)
        if here != frozen:
            raise UserError(
                f"study {self.folder.path.name} was frozen on {_said(frozen)}; here is "
                f"{_said(here)}, which gives "
                "other bits: resume it there, or start another with --study NAME"
            )

    def _settled(self, row: dict[str, Any], seed: int) -> RunConfig:
        config = self._config(row["arm"], row.get("params"))
        own: dict[str, Any] = {
            "seed": seed,
            "data.eval_part": EVALUATED.get(row["phase"], "verdict"),
        }
        own |= {path: row[key] for key, path in APART.items() if key in row}
        if row.get("lr") is not None:
            own["train.lr"] = row["lr"]
        return RunConfig.model_validate(merge(config.model_dump(mode="json"), own))

    def _config(self, arm: str, params: dict[str, Any] | None = None) -> RunConfig:
        told = self.resolved["arms"][arm]
        if not params:
            return RunConfig.model_validate(told["config"])
        # What follows from other settings (micro-batch from batch size, say) follows again; the
        # rest stays frozen.
        fixed = {
            f"train.{key}": told["config"]["train"][key]
            for key in ("device", "dtype", "compile", "kernels")
        }
        asked = build(RunConfig, merge(told["asked"], fixed, params), where="trial")
        return settle(asked, self.data_folder)


def identify(
    config: RunConfig, fingerprint: str, platform: dict[str, str], repeat: int = 0
) -> tuple[dict[str, Any], str]:
    """The identity of a resolved config and the run id that digests it; `repeat` is 0 but in a
    control.
    """
    from andrea.training.identity import identity, run_id

    found = identity(config, fingerprint, repeat, platform)
    return found, run_id(found)


def settle(config: RunConfig, data_folder: Path) -> RunConfig:
    """The config with nothing left to choose."""
    from andrea.data.prepared import open_prepared
    from andrea.training.identity import resolve

    return resolve(config, open_prepared(data_folder))


def platform_of(device: str) -> dict[str, str]:
    """What this machine's bits depend on; a device that is not here has an empty platform."""
    import torch

    from andrea.training.identity import this_platform

    if device == "cuda" and not torch.cuda.is_available():
        return {"device": "no CUDA device"}
    return this_platform(device)


def _said(platform: dict[str, str]) -> str:
    return ", ".join(
        f"{key} {value}" if key != "device" else value for key, value in platform.items()
    )
