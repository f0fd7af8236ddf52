"""The interface of a stage: one thing that a study trains, and what follows from it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from andrea.config import RunConfig
from andrea.records.base import Settings
from andrea.records.extras import Extras
from andrea.records.run import RunSpec
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.session import Generation
from andrea.study.stages.evidence import Evidence
from andrea.verdict.protocol import Protocol as Rules

Rates = Mapping[str, float]
"""Learning rates by arm that no further result can change."""


class Training(NamedTuple):
    """A run as far as it is known before the study begins."""

    arm: str
    tokens: int


@dataclass(frozen=True)
class Forecast:
    """The runs that a stage is going to train."""

    name: str
    certain: list[Training]
    """Runs that are trained if the study gets so far."""
    possible: list[Training] = field(default_factory=list)
    """Runs that are trained under `condition`."""
    condition: str = ""
    is_own: bool = False
    """Part of every study, rather than asked beside the question."""

    @property
    def tokens(self) -> int:
        """Tokens of the certain runs."""
        return sum(run.tokens for run in self.certain)

    def to_json(self) -> Settings:
        """Return plain JSON values, as a dry run prints them."""
        return {
            "what": self.name,
            "runs": len(self.certain),
            "tokens": self.tokens,
            "perhaps": len(self.possible),
            "when": self.condition,
        }


class Question(NamedTuple):
    """A study that is not frozen yet, as far as stages need it."""

    configs: Mapping[str, RunConfig]
    """By arm, the baseline first."""
    baseline: str
    rules: Rules
    extras: Extras


class Stage(Protocol):
    """One thing that a study trains. Its runs follow from the protocol and finished results
    alone.

    A stage whose runs say something of their own has a method `conclude`, which returns its record:
    the learning rates, the outcomes of the controls, the confirmation. `judge_study` composes them.
    """

    def forecast(self, question: Question) -> list[Forecast]:
        """Return what this stage will train, before the study begins; nothing if not asked for."""

    def next_runs(self, evidence: Evidence) -> Generation | None:
        """Return the next runs to train; None when the stage has nothing more to train."""

    def early_runs(self, study: FrozenStudy, rates: Rates, generation: int) -> Iterator[RunSpec]:
        """Yield runs that `next_runs` will plan whatever else comes out.

        Args:
            rates: of the arms whose learning rate is settled.
            generation: number of the generation that follows tuning.
        """
