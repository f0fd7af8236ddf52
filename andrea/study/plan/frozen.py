"""A study as it was frozen: read from its folder, it names every run and makes jobs of them.

Nothing here decides which runs there are.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

from andrea.catalogue import load_user_variants
from andrea.config import RunConfig, build, merge
from andrea.errors import UserError
from andrea.records.base import Settings
from andrea.records.job import Job, JobRun
from andrea.records.run import Phase, RunSpec
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.question.sweep import Sweep
from andrea.training.schedule import trained_tokens
from andrea.verdict.protocol import Protocol

TUNING_PHASES = ("tune", "trial")
"""Runs of these phases are evaluated on the tune part, so as not to read what verdicts are made
from; all others are evaluated on the verdict part.
"""
REQUIRED = {"fingerprint", "arms", "baseline", "platform"}
"""Fields of resolved.json without which no run can be named."""
OVERRIDES = {"tokens": "train.tokens", "init_seed": "init_seed"}
"""Settings in which a control or an equal-cost run differs from its arm, by field of `RunSpec`."""


class FrozenStudy:
    """The question (protocol.yaml) and what it became (resolved.json), with the ids that follow.

    Raises:
        StudyError: the folder lacks one of the two, or it is damaged.
    """

    def __init__(self, folder: StudyFolder, store: RunStore) -> None:
        self.folder, self.store = folder, store
        resolved = folder.load_resolved()
        if resolved is None:
            raise folder.damaged("resolved.json", "missing")
        if lost := REQUIRED - resolved.model_fields_set:
            raise folder.damaged("resolved.json", f"damaged, without {', '.join(sorted(lost))}")
        self.resolved = resolved
        self.question = folder.load_question()
        kind = folder.load_info().kind
        if kind is None:
            raise folder.damaged("study.json", "damaged, without kind")
        self.kind = kind
        self._jobs: dict[str, Job] = {}
        if self.variants:
            load_user_variants(Path(self.variants))

    @property
    def protocol(self) -> Protocol:
        """The frozen rules of an ablation.

        Raises:
            StudyError: they are damaged.
        """
        if self.question.protocol is None:
            raise self.folder.damaged("protocol.yaml", "no valid protocol in it")
        return self.question.protocol

    @cached_property
    def sweep(self) -> Sweep:
        """Space and sampler of a sweep.

        Raises:
            StudyError: it is damaged.
        """
        values = self.question.to_json()
        fields = {key: values[key] for key in values.keys() & Sweep.model_fields.keys()}
        try:
            return Sweep.model_validate(fields)
        except ValueError as error:
            raise self.folder.damaged("protocol.yaml", "no valid sweep in it") from error

    @property
    def baseline(self) -> str | None:
        """The arm that the others are judged against; a sweep has none."""
        return self.resolved.baseline

    @property
    def arms(self) -> list[str]:
        """All arms in declared order, the baseline first."""
        return self.resolved.arm_names

    @property
    def variants(self) -> str | None:
        """The study's own copy of the user's variants, if there are any: edits made since the
        freeze change nothing.
        """
        name = self.resolved.variants
        return str(self.folder.path / name) if name else None

    @property
    def data_folder(self) -> Path:
        """Folder of the prepared corpus."""
        return self.store.root / "data" / self.resolved.fingerprint

    def require_data(self) -> None:
        """Prepare the corpus again if its cache was deleted.

        Raises:
            UserError: the source has changed since the study was frozen.
        """
        if self.data_folder.is_dir():
            return
        from andrea.data.prepare import prepare

        data = self.config(self.arms[0]).data
        if prepare(data, self.store.root).folder != self.data_folder:
            raise UserError(
                f"data.source {data.source}: the text has changed since study "
                f"{self.folder.path.name} was frozen; bring it back, or start another study"
            )

    def config(self, arm: str, params: Settings | None = None) -> RunConfig:
        """Return the resolved configuration of an arm.

        Args:
            params: dotted settings of a sweep's trial.
        """
        resolved = self.resolved.arms[arm]
        if not params:
            return RunConfig.model_validate(resolved.config)
        # What follows from other settings (micro-batch from batch size, say) follows again; the
        # route that was measured when the study was frozen stays.
        measured = ("device", "dtype", "compile", "kernels")
        route = {f"train.{key}": resolved.config["train"][key] for key in measured}
        config = build(RunConfig, merge(resolved.asked, route, params), where="trial")
        return settle(config, self.data_folder)

    def tokens(self, arm: str) -> int:
        """Return the tokens that a run of an arm trains: whole batches."""
        return trained_tokens(self.config(arm))

    def plan(
        self, arm: str, phase: Phase, why: str, *, lr: float | None, seed: int, **fields: Any
    ) -> RunSpec:
        """Return a planned run with its id.

        Args:
            lr: None keeps the learning rate of the configuration.
            fields: further fields of `RunSpec`.
        """
        config = self.config(arm, fields.get("params"))
        part = "tune" if phase in TUNING_PHASES else "verdict"
        settings: Settings = {"seed": seed, "data.eval_part": part}
        for field, path in OVERRIDES.items():
            if field in fields:
                settings[path] = fields[field]
        if lr is not None:
            settings["train.lr"] = lr
        config = RunConfig.model_validate(merge(config.model_dump(mode="json"), settings))
        run_id = self._register(config, fields.get("repeat", 0))
        numbers = {"trial": fields.pop("trial", None), "generation": fields.pop("generation", None)}
        return RunSpec(
            run_id=run_id,
            arm=arm,
            phase=phase,
            why=why,
            lr=config.train.lr,
            seed=seed,
            **numbers,
            **fields,
        )

    def replan(self, run: RunSpec) -> RunSpec:
        """Return a recorded run as it would be planned today."""
        named = {"run_id", "arm", "phase", "why", "lr", "seed", "without"}
        fields = {key: value for key, value in run.to_json().items() if key not in named}
        return self.plan(run.arm, run.phase, run.why, lr=run.lr, seed=run.seed, **fields)

    def _register(self, config: RunConfig, repeat: int) -> str:
        """Return the id of a configuration, and keep the job that trains it."""
        fingerprint = self.resolved.fingerprint
        identity, run_id = identify(config, fingerprint, self.resolved.platform, repeat)
        if run_id not in self._jobs:
            settings = config.model_dump(mode="json")
            run = JobRun(run_id, settings, identity, log=str(self.store.log(run_id)))
            self._jobs[run_id] = Job(
                (run,), str(self.store.root), str(self.data_folder), self.variants
            )
        return run_id

    def job(self, run: RunSpec) -> Job:
        """Return the job that trains a planned run.

        Raises:
            UserError: this is not the platform that the study was frozen on; runs that exist need
                no job and are fine.
        """
        self.require_platform()
        return self._jobs[run.run_id]

    def settings(self, run_id: str) -> Settings:
        """Return the resolved configuration of a planned run, as plain values."""
        return self._jobs[run_id].run.config

    @property
    def deterministic(self) -> bool:
        """True where the same run gives the same bits twice: on a CPU; a GPU's libraries do not
        promise it.
        """
        return self.config(self.arms[0]).train.device == "cpu"

    def require_platform(self) -> None:
        """Make sure that runs are trained where the study was frozen.

        Raises:
            UserError: this is another platform.
        """
        frozen = self.resolved.platform
        here = platform_of(self.config(self.arms[0]).train.device)
        if here != frozen:
            raise UserError(
                f"study {self.folder.path.name} was frozen on {_name_platform(frozen)}; here is "
                f"{_name_platform(here)}, which gives other bits: resume it there, or start "
                "another with --study NAME"
            )


def identify(
    config: RunConfig, fingerprint: str, platform: dict[str, str], repeat: int = 0
) -> tuple[Settings, str]:
    """Return the identity of a resolved config, and the run id that digests it.

    Args:
        repeat: 0 but in the determinism check.
    """
    from andrea.training.identity import identity, run_id

    identified = identity(config, fingerprint, repeat, platform)
    return identified, run_id(identified)


def settle(config: RunConfig, data_folder: Path) -> RunConfig:
    """Return the config with nothing left to choose."""
    from andrea.data.prepared import open_prepared
    from andrea.training.identity import resolve

    return resolve(config, open_prepared(data_folder))


def platform_of(device: str) -> dict[str, str]:
    """Return what this machine's bits depend on; a device that is not here has an empty
    platform.
    """
    import torch

    from andrea.training.identity import this_platform

    if device == "cuda" and not torch.cuda.is_available():
        return {"device": "no CUDA device"}
    return this_platform(device)


def _name_platform(platform: dict[str, str]) -> str:
    parts = [value if key == "device" else f"{key} {value}" for key, value in platform.items()]
    return ", ".join(parts)
