"""What a study has found so far, as the judge wants it: its choices, its runs, and the results that
they have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from andrea.records.events import Run
from andrea.study.plan.frozen import FrozenStudy
from andrea.verdict.replicates import ArmData, Replicate


@dataclass(frozen=True)
class Record:
    """Runs without a result are missing: what that means is the judge's business."""

    study: FrozenStudy
    choices: Mapping[str, Mapping[str, Any]]
    """choices.json."""
    runs: Sequence[Run]
    """Lines of runs.jsonl."""
    results: Mapping[str, Mapping[str, Any]]
    """By run_id."""

    def of(self, arm: str, phase: str, why: str | None = None) -> list[Run]:
        """The lines of an arm in a phase."""
        return [
            r
            for r in self.runs
            if r["arm"] == arm and r["phase"] == phase and why in (None, r["why"])
        ]

    def beside(self, phase: str, why: str) -> list[Run]:
        """The lines of all arms of one thing that is trained beside the study."""
        return [run for run in self.runs if (run["phase"], run["why"]) == (phase, why)]

    def found(self, arm: str, phase: str, why: str | None = None) -> dict[int, Mapping[str, Any]]:
        """Results of an arm in a phase, by seed."""
        runs = self.of(arm, phase, why)
        return {
            run["seed"]: self.results[run["run_id"]]
            for run in runs
            if run["run_id"] in self.results
        }

    def replicates(
        self, arm: str, phase: str = "replicate", why: str | None = None
    ) -> dict[int, Replicate]:
        """The same as the judge sees them."""
        return {seed: replicate(result) for seed, result in self.found(arm, phase, why).items()}

    def data(self, arm: str, phase: str = "replicate", why: str | None = None) -> ArmData:
        """An arm with its tuning, and with its runs of one phase in the place of its replicates."""
        choice = self.choices[arm]
        relied_on = self.of(arm, "tune") + self.of(arm, phase, why)
        results = [
            self.results[run["run_id"]] for run in relied_on if run["run_id"] in self.results
        ]
        return ArmData(
            name=arm,
            runs=self.replicates(arm, phase, why),
            edge=choice["edge"],
            regret=choice["regret"],
            hardly_tuned=choice["hardly_tuned"],
            untrainable=choice["untrainable"],
            exploratory=any(_older(result, self.study.resolved["frozen_at"]) for result in results),
        )

    @property
    def baseline(self) -> str:
        """Name of the arm that the others are judged against."""
        return str(self.study.baseline)

    @property
    def others(self) -> list[str]:
        """All declared arms but the baseline."""
        return [arm for arm in self.study.arms if arm != self.study.baseline]


def replicate(result: Mapping[str, Any]) -> Replicate:
    """A result as the judge sees it."""
    return Replicate(result["loss"], result["outcome"], result["stalled"], result["eval_digest"])


def _older(result: Mapping[str, Any], frozen_at: str) -> bool:
    """Whether the run was there before the protocol was: the question may have been chosen for its
    answer.
    """
    return datetime.fromisoformat(result["finished_at"]) < datetime.fromisoformat(frozen_at)
