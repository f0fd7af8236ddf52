"""Contrasts: weighted sums of the losses that arms have at one seed.

An arm against the baseline is the contrast {baseline: −1, arm: +1}; an effect of a factorial design
is another one over its cells (`design.py`). All arms are trained on the same batches at one seed,
so a contrast is one paired number per seed, and one judge (`judge.py`) suffices for all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from andrea.verdict.replicates import ArmData, Fates, count_unstable

Word = Literal[
    "better", "worse", "equivalent", "present", "absent", "unstable", "inconclusive", "invalid"
]
Finding = Literal["better", "worse", "equivalent"]
"""Findings of the tests, whatever a contrast calls them."""


@dataclass(frozen=True)
class Contrast(ABC):
    """A weighted sum of arms whose weights add up to 0, and the words for what is found of it."""

    weights: dict[str, float] = field(kw_only=True)
    """By arm, in the order in which the losses are added; other arms play no part."""

    @property
    @abstractmethod
    def family(self) -> str:
        """Name of the family of contrasts over which p values and intervals are adjusted."""

    @abstractmethod
    def explain_instability(
        self, unstable: Mapping[str, ArmData], fates: Mapping[str, Fates]
    ) -> tuple[str, str]:
        """Return cause and reason of *unstable*: arms that did not train or lost runs."""

    @abstractmethod
    def explain_absence(self, absent: Mapping[str, int], planned: int) -> str:
        """Return the sentence on runs that failed or are missing, of `planned` runs per arm."""

    @abstractmethod
    def describe_difference(self, mean: float) -> str:
        """Return the sentence on a contrast that is seen to differ from 0."""

    def describe_equivalence(self, margin: float) -> str:
        """Return the sentence on a contrast that is seen to be smaller than the margin."""
        return f"the difference is smaller than {margin:g} nats either way"

    def word_for(self, finding: Finding) -> Word:
        """Return the word for a finding of the tests."""
        return finding

    @abstractmethod
    def json_entries(
        self, fates: Mapping[str, Fates], family_size: int
    ) -> dict[str, dict[str, Any]]:
        """Return the entries of verdict.json, by the field of `Judgement` whose place they take."""


@dataclass(frozen=True)
class ArmContrast(Contrast):
    """An arm against the baseline."""

    arm: str
    baseline: str

    @classmethod
    def between(cls, arm: str, baseline: str) -> "ArmContrast":
        """Return the contrast arm − baseline."""
        return cls(arm, baseline, weights={baseline: -1.0, arm: 1.0})

    @property
    def family(self) -> str:
        """All declared arms are one family."""
        return "arms"

    def explain_instability(
        self, unstable: Mapping[str, ArmData], fates: Mapping[str, Fates]
    ) -> tuple[str, str]:
        """Return cause and reason; the baseline has trained, or nothing would be compared."""
        [arm] = unstable.values()
        if arm.untrainable:
            return "no rate trains", "every tuning run diverged or stalled"
        counts = fates[self.arm]
        return "", (
            f"{count_unstable(counts)} of {sum(counts.values())} runs diverged or stalled, "
            f"{fates[self.baseline]['good']} baseline runs did not; "
            "the surviving pairs are shown and not tested"
        )

    def explain_absence(self, absent: Mapping[str, int], planned: int) -> str:
        """Return the sentence on both arms."""
        return (
            f"{absent[self.arm]} of the arm's and {absent[self.baseline]} of the baseline's "
            f"{planned} runs failed or are missing"
        )

    def describe_difference(self, mean: float) -> str:
        """Return by how much the loss is lower or higher."""
        return f"the loss is {size_and_direction(mean)} than the baseline's"

    def json_entries(
        self, fates: Mapping[str, Fates], family_size: int
    ) -> dict[str, dict[str, Any]]:
        """Return the entries of an arm's verdict."""
        counts = {"counts": fates[self.arm], "baseline_counts": fates[self.baseline]}
        return {
            "contrast": {"arm": self.arm},
            "family_size": {"arms": family_size},
            "fates": counts,
        }


def size_and_direction(mean: float) -> str:
    """Return a difference of losses as words: `0.0312 nats lower`."""
    return f"{abs(mean):.4f} nats {'lower' if mean < 0 else 'higher'}"
