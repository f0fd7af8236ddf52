"""A sweep: which hyper-parameters of one configuration to search, how, and how often.

space:
  train.lr: {low: 1e-4, high: 1e-1, log: true}
  train.weight_decay: {choices: [0, 0.01, 0.1]}
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from andrea.config import RunConfig, build, dotted, merge
from andrea.schema import Frozen
from andrea.study.question.sections import PART, Sections, run_faults
from andrea.study.question.space import Dimension, corners
from andrea.study.question.yamlspec import Where

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

COMBINATIONS = 256
"""Combinations of values that are checked together when a file is read."""
NOT_FOR_SPACE: Mapping[str, str] = {
    "seed": "tuning seeds are fixed; `seeds` says how many",
    "train.tokens": "trials are compared at equal tokens",
    "model.context": "trials with another context are judged on other windows",
}


class TPE(Frozen):
    """Arguments of Optuna's TPE sampler that can be chosen; what becomes of all others stands in
    protocol.yaml.
    """

    n_startup_trials: int = Field(default=10, ge=1)
    """Random trials before the sampler models anything."""
    n_ei_candidates: int = Field(default=24, ge=1)
    """Candidates among which the most promising is taken."""
    multivariate: bool = True
    """Whether parameters are modelled together."""
    group: bool = False
    """Whether conditional parameters are grouped; there are none here."""
    constant_liar: bool = True
    """Whether trials of the same generation avoid each other."""


class Sweep(Sections):
    """A search over hyper-parameters of one configuration."""

    REFUSED: ClassVar[Mapping[str, str]] = {"seed": NOT_FOR_SPACE["seed"], "data.eval_part": PART}

    space: dict[str, Dimension] = Field(min_length=1)
    """Dotted settings of `model` and `train`, each with its range or choices."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """Who proposes: TPE, uniform draws, or every combination once in order."""
    tpe: TPE = TPE()
    """Arguments of the TPE sampler."""
    trials: int = Field(default=20, ge=1)
    """Trials in all; for a grid, its number of cells."""
    generation: int = Field(default=4, ge=1)
    """Trials proposed together; the next ones wait for all of them, so that slots never change a
    proposal.
    """
    seeds: int = Field(default=1, ge=1)
    """Tuning seeds per trial; its value is their mean."""
    seed: int = Field(default=1, ge=0)
    """Seed of the sampler."""
    objective: Literal["final_loss"] = "final_loss"
    """What is minimised: the loss on the tune part at the end of the schedule."""

    def config(
        self, params: Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """The configuration of a trial (without params: of the base).

        Raises:
            UserError: all faults of the settings.
        """
        spec = self.override(overrides) if overrides else self
        return build(RunConfig, merge(spec.settings(), params or {}), where="sweep")

    def cells(self) -> list[dict[str, Any]] | None:
        """Every combination in order, the last setting changing fastest; None where a range has no
        end of values.
        """
        values = [dimension.values(key) for key, dimension in self.space.items()]
        if any(several is None for several in values):
            return None
        return [
            dict(zip(self.space, cell, strict=True))
            for cell in itertools.product(*(v or [] for v in values))
        ]

    @property
    def tpe_arguments(self) -> dict[str, Any] | None:
        """What is handed to `optuna.samplers.TPESampler`; None: it is not the sampler."""
        return self.tpe.model_dump() if self.sampler == "tpe" else None

    def distributions(self) -> dict[str, "BaseDistribution"]:
        """Optuna's distributions by dotted setting. Imports optuna."""
        return {key: dimension.distribution(key) for key, dimension in self.space.items()}

    def refused(self) -> Iterator[tuple[Where, str]]:
        """What does not go together: where in the file, and why."""
        for key, message in self.section_faults():
            yield tuple(key.split(".", 1)), message
        unfit = list(self._space_faults())
        yield from unfit or self.grid_faults()
        fixed = dotted({"model": self.model, "train": self.train})
        for key in self.space:
            if key in fixed:
                yield tuple(key.split(".", 1)), f"{key}: the sweep searches it; set it in one place"
        if self.sampler != "tpe" and "tpe" in self.model_fields_set:
            yield ("tpe",), f"tpe: has no effect with sampler {self.sampler}; drop one of the two"

    def _space_faults(self) -> Iterator[tuple[Where, str]]:
        for key, dimension in self.space.items():
            why = self._not_searchable(key) or dimension.fault(key)
            if why:
                yield ("space", key), f"space.{key}: {why}"

    def grid_faults(self) -> Iterator[tuple[Where, str]]:
        """What a grid lacks: an end of its values, or the number of its cells."""
        if self.sampler != "grid":
            return
        cells = self.cells()
        if cells is None:
            endless = [
                key for key, dimension in self.space.items() if dimension.values(key) is None
            ]
            for key in endless:
                yield ("space", key), f"space.{key}: a grid needs choices or a step"
        elif self.trials != len(cells):
            yield (
                ("trials",),
                f"trials {self.trials}: this grid has {len(cells)} cells; write trials: "
                f"{len(cells)}",
            )

    def config_faults(self) -> Iterator[tuple[Where, Where, str]]:
        """Faults of the configurations that the space can lead to: value in the file, setting, what
        about it.
        """
        if any(self._space_faults()):
            return
        first: dict[str, Any] | None = None
        for params in corners(self.space, COMBINATIONS):
            first = params if first is None else first
            for loc, message in run_faults(merge(self.settings(), params)):
                yield self._blame(params, first, loc), loc, message

    def _blame(self, params: Mapping[str, Any], first: Mapping[str, Any], loc: Where) -> Where:
        """The value that a fault at `loc` is laid to: one of that setting or section, rather one
        that differs.
        """
        path = ".".join(map(str, loc))
        own = [
            key
            for key in params
            if key == path or key.startswith(f"{path}.") or path.startswith(f"{key}.")
        ]
        if not own:
            return ()
        key = next((key for key in reversed(own) if params[key] != first[key]), own[-1])
        choices = self.space[key].choices
        if choices is not None:
            return ("space", key, "choices", choices.index(params[key]))
        return ("space", key, "high" if params[key] == self.space[key].high else "low")

    def _not_searchable(self, key: str) -> str | None:
        if key in NOT_FOR_SPACE:
            return NOT_FOR_SPACE[key]
        if key.startswith("data."):
            return "all trials read the same text"
        return (
            None
            if key.startswith(("model.", "train."))
            else "is no setting of model or train, as in train.lr"
        )

    def _why_not(self, key: str) -> str | None:
        return (
            "the sweep searches it; copy the file to fix it"
            if key in self.space
            else super()._why_not(key)
        )
