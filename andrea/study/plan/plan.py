"""What a command asks for, and what it comes to before anything is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from andrea.config import RunConfig, merge
from andrea.model.size_matching import Quantity
from andrea.records.extras import Extras
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.plan import estimate, frozen
from andrea.study.question.ablation import Ablation
from andrea.study.question.matching import Match, Solved, differences
from andrea.study.question.sweep import Sweep
from andrea.study.stages.arm_speed import BUDGET_S, FILE
from andrea.study.stages.sequence import stages_after_tuning
from andrea.study.stages.stage import Forecast
from andrea.study.stages.stage import Question as StageQuestion
from andrea.verdict.rates import rate_grid
from andrea.verdict.seeds import tuning_seed


@dataclass(frozen=True)
class Request:
    """What a command asks for: a question, and what the command line lays over it. None means: as
    the file says.
    """

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
    beside: Extras = field(default_factory=Extras)
    """What is asked of an ablation beside its question."""


@dataclass(frozen=True)
class ArmPlan:
    """One arm, or the one config of a sweep."""

    label: str
    asked: RunConfig
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
    solved: Solved | None
    """The setting that was solved for, if one was: `config` has it, `asked` does not."""


@dataclass(frozen=True)
class Plan:
    """A validated study that is not written yet."""

    name: str
    digest: str
    """Of the protocol as asked and the data."""
    kind: str
    spec: Ablation | Sweep
    """The question with the command line laid over it."""
    arms: dict[str, ArmPlan]
    """The baseline first."""
    baseline: str | None
    prepared: Any
    """`andrea.data.prepared.Prepared`."""
    variants: Path | None
    """Script of the user's own variants."""
    store: RunStore | None
    asked: Extras = field(default_factory=Extras)
    """What is asked beside the question, by this command or an earlier one."""

    @property
    def question(self) -> str:
        """What is asked."""
        return self.spec.question

    @property
    def protocol(self) -> Any:
        """The rules of an ablation (`Protocol`); of a sweep the sweep itself."""
        return self.spec.protocol if isinstance(self.spec, Ablation) else self.spec

    @property
    def match(self) -> Match | None:
        """What the arms of an ablation have in common."""
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
    def tokens(self) -> int:
        """Tokens that a run trains: whole batches."""
        config = self._first.config
        batch = config.train.batch_size * config.model.context
        return config.train.tokens // batch * batch

    @property
    def runs_per_arm(self) -> int:
        """Runs of an arm if no grid has to be extended."""
        if isinstance(self.spec, Ablation):
            return self.spec.protocol.trials + self.spec.protocol.seeds
        return self.spec.trials * self.spec.seeds

    @property
    def run_count(self) -> int:
        """Runs of the study if no grid has to be extended, and those beside it that are sure to be
        trained.
        """
        return len(self.arms) * self.runs_per_arm + sum(len(extra.certain) for extra in self.extras)

    @cached_property
    def extras(self) -> list[Forecast]:
        """What is trained beside the study's own runs, in order.

        Raises:
            UserError: controls of a baseline that trains a single batch.
        """
        if not isinstance(self.spec, Ablation) or not self.asked:
            return []
        configs = {name: arm.config for name, arm in self.arms.items()}
        question = StageQuestion(configs, str(self.baseline), self.spec.protocol, self.asked)
        _replicates, *beside = stages_after_tuning(say=lambda line: None)
        return [forecast for stage in beside for forecast in stage.forecast(question)]

    @property
    def total_tokens(self) -> int:
        """Tokens of all runs that `run_count` counts."""
        own = len(self.arms) * self.runs_per_arm * self.tokens
        return own + sum(extra.tokens for extra in self.extras)

    @property
    def differences(self) -> dict[str, dict[str, int]]:
        """Parameters by which arms differ from the baseline, by group."""
        if self.baseline is None:
            return {}
        return differences({name: arm.parameters for name, arm in self.arms.items()}, self.baseline)

    def estimate_s(self, slots: int) -> float:
        """About how many seconds the runs take that the store does not have, `slots` at once; 0
        when nothing is left.

        The first call trains the baseline for a few steps on this device, if something is left.
        """
        if self.store:
            folder = StudyFolder(self.store.root / "studies" / self.folder_name)
            if folder.complete and (self.kind == "sweep" or folder.answers(self.asked)):
                return 0.0
        done = self._done
        if isinstance(self.spec, Ablation):
            trials, seeds = self.spec.protocol.trials, self.spec.protocol.seeds
            plan = estimate.stretches(
                list(self.arms), trials, seeds, done, self.extras, self.tokens
            )
        else:
            left = {name: self.runs_per_arm - done.get(name, 0) for name in self.arms}
            plan = [estimate.Stretch(left)]
        measuring = self._measuring_s
        if not any(n for stretch in plan for n in stretch.runs.values()):
            return measuring
        return estimate.seconds(plan, self.seconds_per_run, slots) + measuring

    @property
    def _measuring_s(self) -> float:
        """Seconds for the speed of the arms, where it is needed and not known."""
        wanted = self.asked.controls or "time" in self.asked.equal
        known = self.store and (self.store.root / "studies" / self.folder_name / FILE).exists()
        return BUDGET_S if wanted and not known else 0.0

    @cached_property
    def seconds_per_run(self) -> dict[str, float]:
        """Seconds of a run by arm, measured on this device."""
        configs = {name: arm.config for name, arm in self.arms.items()}
        flops = {name: arm.flops_per_token for name, arm in self.arms.items()}
        return estimate.per_run(configs, flops, next(iter(self.arms)), self.prepared)

    @property
    def _first(self) -> ArmPlan:
        return next(iter(self.arms.values()))

    @property
    def _done(self) -> dict[str, int]:
        """Runs by arm that the store has: of this study if it exists, else of the first grid."""
        if self.store is None:
            return {}
        known = StudyFolder(self.store.root / "studies" / self.folder_name).load_runs()
        ids = {(run.arm, run.run_id) for run in known} or self._grid_ids()
        counts = dict.fromkeys(self.arms, 0)
        for arm, run_id in ids:
            counts[arm] += self.store.load_result(run_id) is not None
        return counts

    def _grid_ids(self) -> set[tuple[str, str]]:
        if not isinstance(self.spec, Ablation):
            return set()
        ids = set()
        platform = frozen.platform_of(self._first.config.train.device)
        for name, arm in self.arms.items():
            for lr in rate_grid(
                self.spec.protocol.trials, self.spec.centers.get(name, self.spec.protocol.center)
            ):
                own = {"train.lr": lr, "seed": tuning_seed(0), "data.eval_part": "tune"}
                config = RunConfig.model_validate(merge(arm.config.model_dump(mode="json"), own))
                ids.add((name, frozen.identify(config, self.prepared.fingerprint, platform)[1]))
        return ids
