"""A request of the command line, and the validated plan that is made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from andrea.config import RunConfig, merge
from andrea.data.prepared import Prepared
from andrea.model.size_matching import Quantity
from andrea.records.extras import Extras
from andrea.records.study import SolvedSetting
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.plan import estimate, frozen
from andrea.study.question.ablation import Ablation
from andrea.study.question.matching import Match, parameter_differences
from andrea.study.question.sweep import Sweep
from andrea.study.stages.arm_speed import MEASURING_S, SPEED_FILE
from andrea.study.stages.sequence import ablation_stages
from andrea.study.stages.stage import Forecast, Training
from andrea.study.stages.stage import Question as StageQuestion
from andrea.training.schedule import trained_tokens
from andrea.verdict.protocol import Protocol
from andrea.verdict.rates import rate_grid
from andrea.verdict.seeds import tuning_seed


@dataclass(frozen=True)
class Request:
    """A question, and the settings of the command line that override it; None: as in the file."""

    spec: Ablation | Sweep
    preset: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Dotted settings."""
    tokens: int | None = None
    trials: int | None = None
    seeds: int | None = None
    name: str | None = None
    """Name of the study instead of the file's."""
    device: str = "auto"
    extras: Extras = field(default_factory=Extras)
    """Controls, a confirmation and equal-cost runs of an ablation."""


@dataclass(frozen=True)
class ArmPlan:
    """One arm, or the one config of a sweep."""

    label: str
    unresolved: RunConfig
    """With `auto` where nobody chose."""
    config: RunConfig
    """With nothing left to choose, but for learning rate, seed and evaluated part, which every run
    sets.
    """
    parameters: dict[str, int]
    """By group."""
    flops_per_token: float
    """Forward and backward."""
    deviation: Mapping[Quantity, float]
    """Of `params` and `flops` from the baseline's, as a share of it; of a sweep none."""
    solved: SolvedSetting | None
    """The setting that was solved for to match the baseline: only `config` has it."""


@dataclass(frozen=True)
class Plan:
    """A validated study that is not written yet."""

    name: str
    digest: str
    """Of the protocol as asked and the data."""
    kind: Literal["ablation", "sweep"]
    spec: Ablation | Sweep
    """The question with the settings of the command line."""
    arms: dict[str, ArmPlan]
    """The baseline first."""
    baseline: str | None
    prepared: Prepared
    variants: Path | None
    """Script of the user's own variants."""
    store: RunStore | None
    extras: Extras = field(default_factory=Extras)
    """Controls and the like that this command or an earlier one asks for."""

    @property
    def question(self) -> str:
        """The question in a sentence."""
        return self.spec.question

    @property
    def protocol(self) -> Protocol | None:
        """The rules of an ablation; a sweep has none."""
        return self.spec.protocol if isinstance(self.spec, Ablation) else None

    @property
    def match(self) -> Match | None:
        """The common size or cost of the arms of an ablation."""
        return self.spec.match if isinstance(self.spec, Ablation) else None

    @property
    def centers(self) -> dict[str, float]:
        """Learning rate in the middle of the grid of every arm that has its own."""
        return self.spec.centers if isinstance(self.spec, Ablation) else {}

    @property
    def folder_name(self) -> str:
        """Name of the study's folder."""
        return f"{self.name}-{self.digest[:10]}"

    @property
    def folder(self) -> StudyFolder | None:
        """The study's folder, which may not exist yet; None without a store."""
        return StudyFolder(self.store.root / "studies" / self.folder_name) if self.store else None

    @property
    def tokens(self) -> int:
        """Tokens that a run trains: whole batches."""
        return trained_tokens(self._first.config)

    @cached_property
    def forecasts(self) -> list[Forecast]:
        """Forecasts of all stages in order, if no grid has to be extended.

        Raises:
            UserError: controls of a baseline that trains a single batch.
        """
        if isinstance(self.spec, Sweep):
            trials = [Training(self._first_name, self.tokens)] * self.spec.trials * self.spec.seeds
            return [Forecast("trials", trials, is_own=True)]
        configs = {name: arm.config for name, arm in self.arms.items()}
        question = StageQuestion(configs, str(self.baseline), self.spec.protocol, self.extras)
        stages = ablation_stages(say=lambda line: None)
        return [forecast for stage in stages for forecast in stage.forecast(question)]

    @property
    def extra_forecasts(self) -> list[Forecast]:
        """Forecasts of what is trained beside the study's own runs."""
        return [forecast for forecast in self.forecasts if not forecast.is_own]

    @property
    def run_count(self) -> int:
        """Runs that are sure to be trained, if no grid has to be extended."""
        return sum(len(forecast.certain) for forecast in self.forecasts)

    @property
    def total_tokens(self) -> int:
        """Tokens of all runs that `run_count` counts."""
        return sum(forecast.tokens for forecast in self.forecasts)

    @property
    def differences(self) -> dict[str, dict[str, int]]:
        """Parameters by which arms differ from the baseline, by group."""
        if self.baseline is None:
            return {}
        baseline = self.arms[self.baseline].parameters
        return {
            name: parameter_differences(arm.parameters, baseline)
            for name, arm in self.arms.items()
            if name != self.baseline
        }

    def estimate_s(self, slots: int) -> float:
        """About how many seconds the runs take that the store does not have, `slots` at once; 0
        when nothing is left.

        The first call trains the baseline for a few steps on this device, if something is left.
        """
        folder = self.folder
        if folder and folder.complete and (self.kind == "sweep" or folder.answers(self.extras)):
            return 0.0
        remaining = estimate.stretches(list(self.arms), self.forecasts, self._count_done())
        measuring = self._measuring_s()
        if not any(n for stretch in remaining for n in stretch.runs.values()):
            return measuring
        return estimate.seconds(remaining, self.seconds_per_run, slots) + measuring

    def _measuring_s(self) -> float:
        """Return the seconds for the speed of the arms, 0 where it is not needed or known."""
        is_needed = self.extras.controls or "time" in self.extras.equal
        is_known = self.folder is not None and (self.folder.path / SPEED_FILE).exists()
        return MEASURING_S if is_needed and not is_known else 0.0

    @cached_property
    def seconds_per_run(self) -> dict[str, float]:
        """Seconds of a run by arm, measured on this device."""
        configs = {name: arm.config for name, arm in self.arms.items()}
        flops = {name: arm.flops_per_token for name, arm in self.arms.items()}
        return estimate.per_run(configs, flops, self._first_name, self.prepared)

    @property
    def _first_name(self) -> str:
        return next(iter(self.arms))

    @property
    def _first(self) -> ArmPlan:
        return self.arms[self._first_name]

    def _count_done(self) -> dict[str, int]:
        """Return the number of runs by arm that the store has: of this study if it exists, else of
        the first grid.
        """
        if self.store is None or self.folder is None:
            return {}
        planned = self.folder.load_runs()
        ids = {(run.arm, run.run_id) for run in planned} or self._grid_ids()
        counts = dict.fromkeys(self.arms, 0)
        for arm, run_id in ids:
            counts[arm] += self.store.load_result(run_id) is not None
        return counts

    def _grid_ids(self) -> set[tuple[str, str]]:
        """Return arm and id of every run of the first grids."""
        if not isinstance(self.spec, Ablation):
            return set()
        ids = set()
        platform = frozen.platform_of(self._first.config.train.device)
        protocol = self.spec.protocol
        for name, arm in self.arms.items():
            settings = arm.config.model_dump(mode="json")
            for lr in rate_grid(protocol.trials, self.centers.get(name, protocol.center)):
                own = {"train.lr": lr, "seed": tuning_seed(0), "data.eval_part": "tune"}
                config = RunConfig.model_validate(merge(settings, own))
                ids.add((name, frozen.identify(config, self.prepared.fingerprint, platform)[1]))
        return ids
