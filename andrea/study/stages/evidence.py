"""The evidence of a study so far, in the forms that its stages and the judge need."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from andrea.records.extras import Extras
from andrea.records.run import RunResult, RunSpec
from andrea.records.study import Choice, StudySpeed
from andrea.study.plan.frozen import FrozenStudy
from andrea.verdict.replicates import ArmData, Replicate
from andrea.verdict.seeds import replication_seeds


@dataclass(frozen=True)
class Evidence:
    """Planned runs and their results. A run without a result is missing: what that means is the
    judge's business.
    """

    study: FrozenStudy
    runs: Sequence[RunSpec]
    """The runs planned so far."""
    results: Mapping[str, RunResult]
    """By run_id."""
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """The learning rate of every arm; empty before tuning has ended."""
    generation: int = 0
    """Number of the generation after those of tuning."""
    untuned: Collection[str] = ()
    """Arms of which a tuning run failed at every try: the others go on without them."""

    @cached_property
    def extras(self) -> Extras:
        """Controls, a confirmation and equal budgets, as far as asked for."""
        return self.study.folder.load_extras()

    @cached_property
    def speed(self) -> StudySpeed | None:
        """Speed of the arms on this machine, where it was measured."""
        return self.study.folder.load_speed()

    @property
    def baseline(self) -> str:
        """Name of the arm that the others are judged against."""
        return str(self.study.baseline)

    @property
    def others(self) -> list[str]:
        """All declared arms but the baseline."""
        return [arm for arm in self.study.arms if arm != self.study.baseline]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the replicates."""
        return replication_seeds(self.study.protocol.seeds)

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates by arm for which tuning found one."""
        return {arm: choice.lr for arm, choice in self.choices.items() if choice.lr}

    def has_rate(self, arm: str) -> bool:
        """Return whether tuning found a learning rate for the arm."""
        return arm in self.rates

    def finished(self, phase: str, why: str | None = None, arm: str | None = None) -> list[RunSpec]:
        """Return the planned runs of a phase that have a result."""
        return [run for run in self.planned(phase, why, arm) if run.run_id in self.results]

    def planned(self, phase: str, why: str | None = None, arm: str | None = None) -> list[RunSpec]:
        """Return the planned runs of a phase, of all arms unless one is named."""
        return [
            run
            for run in self.runs
            if run.phase == phase and why in (None, run.why) and arm in (None, run.arm)
        ]

    def results_by_seed(self, arm: str, phase: str, why: str | None = None) -> dict[int, RunResult]:
        """Return the results of an arm in a phase."""
        return {run.seed: self.results[run.run_id] for run in self.finished(phase, why, arm)}

    def replicates(
        self, arm: str, phase: str = "replicate", why: str | None = None
    ) -> dict[int, Replicate]:
        """Return the results of an arm in a phase, as the judge sees them."""
        results = self.results_by_seed(arm, phase, why)
        return {seed: replicate(result) for seed, result in results.items()}

    def arm_data(self, arm: str, phase: str = "replicate", why: str | None = None) -> ArmData:
        """Return an arm with its tuning, and with its runs of one phase in the place of its
        replicates.
        """
        choice = self.choices[arm]
        relied_on = self.finished("tune", arm=arm) + self.finished(phase, why, arm)
        results = [self.results[run.run_id] for run in relied_on]
        frozen_at = self.study.resolved.frozen_at
        return ArmData(
            name=arm,
            runs=self.replicates(arm, phase, why),
            edge=choice.edge,
            regret=choice.regret,
            hardly_tuned=choice.hardly_tuned,
            untrainable=choice.untrainable,
            exploratory=any(_is_older(result, frozen_at) for result in results),
        )


def replicate(result: RunResult) -> Replicate:
    """Return a result as the judge sees it."""
    return Replicate(result.loss, result.outcome, result.stalled, result.eval_digest)


def _is_older(result: RunResult, frozen_at: str) -> bool:
    """Return whether the run existed before the protocol did: then the question may have been
    chosen for its answer.
    """
    finished_at = result.finished_at or frozen_at
    return datetime.fromisoformat(finished_at) < datetime.fromisoformat(frozen_at)
