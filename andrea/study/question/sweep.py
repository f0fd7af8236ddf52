"""A sweep: the hyper-parameters of one configuration that are searched, how, and how often.

space:
  train.lr: {low: 1e-4, high: 1e-1, log: true}
  train.weight_decay: {choices: [0, 0.01, 0.1]}
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from andrea.config import RunConfig, build, dotted, merge
from andrea.records.base import Settings
from andrea.schema import Frozen
from andrea.study.question.sections import (
    PART,
    ConfigFault,
    Fault,
    Sections,
    find_run_faults,
    is_related,
)
from andrea.study.question.space import Dimension, combinations_to_check
from andrea.study.question.yamlspec import Where

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MAX_COMBINATIONS = 256
"""So many combinations of values are checked when a file is read; of more only some are."""
NOT_FOR_SPACE: Mapping[str, str] = {
    "seed": "tuning seeds are fixed; `seeds` says how many",
    "train.tokens": "trials are compared at equal tokens",
    "model.context": "trials with another context are judged on other windows",
}


class TPE(Frozen):
    """Arguments of Optuna's TPE sampler that can be chosen; protocol.yaml records all others."""

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
        """Return the configuration of a trial (without params: of the base).

        Raises:
            UserError: all faults of the settings.
        """
        spec = self.override(overrides) if overrides else self
        return build(RunConfig, merge(spec.settings(), params or {}), where="sweep")

    def cells(self) -> list[Settings] | None:
        """Return every combination in order, the last setting changing fastest; None where the
        values of a range are not countable.
        """
        values = []
        for key, dimension in self.space.items():
            candidates = dimension.values(key)
            if candidates is None:
                return None
            values.append(candidates)
        return [dict(zip(self.space, cell, strict=True)) for cell in itertools.product(*values)]

    @property
    def tpe_arguments(self) -> Settings | None:
        """Arguments of `optuna.samplers.TPESampler`; None where it is not the sampler."""
        return self.tpe.model_dump() if self.sampler == "tpe" else None

    def distributions(self) -> dict[str, "BaseDistribution"]:
        """Return Optuna's distributions by dotted setting. Imports optuna."""
        return {key: dimension.distribution(key) for key, dimension in self.space.items()}

    def find_conflicts(self) -> Iterator[Fault]:
        """Yield settings that do not go together."""
        yield from self.refused_settings()
        yield from list(self._space_faults()) or self.grid_faults()
        fixed = dotted({"model": self.model, "train": self.train})
        for key in self.space:
            if key in fixed:
                place = tuple(key.split(".", 1))
                yield Fault(place, f"{key}: the sweep searches it; set it in one place")
        if self.sampler != "tpe" and "tpe" in self.model_fields_set:
            message = f"tpe: has no effect with sampler {self.sampler}; drop one of the two"
            yield Fault(("tpe",), message)

    def _space_faults(self) -> Iterator[Fault]:
        for key, dimension in self.space.items():
            reason = _not_searchable(key) or dimension.find_fault(key)
            if reason:
                yield Fault(("space", key), f"space.{key}: {reason}")

    def grid_faults(self) -> Iterator[Fault]:
        """Yield settings that take no grid, or the number of trials that is not that of the
        cells.
        """
        if self.sampler != "grid":
            return
        cells = self.cells()
        if cells is None:
            for key, dimension in self.space.items():
                if dimension.values(key) is None:
                    yield Fault(("space", key), f"space.{key}: a grid needs choices or a step")
        elif self.trials != len(cells):
            count = len(cells)
            message = f"trials {self.trials}: this grid has {count} cells; write trials: {count}"
            yield Fault(("trials",), message)

    def config_faults(self) -> Iterator[ConfigFault]:
        """Yield faults of the configurations that the space can lead to."""
        if any(self._space_faults()):
            return
        first: Settings | None = None
        for params in combinations_to_check(self.space, MAX_COMBINATIONS):
            first = first or params
            for setting, message in find_run_faults(merge(self.settings(), params)):
                yield ConfigFault(self._blame(params, first, setting), setting, message)

    def _blame(self, params: Mapping[str, Any], first: Mapping[str, Any], setting: Where) -> Where:
        """Return the value in the file that causes a fault of `setting`: one of that setting or
        section, preferably one that differs from the first combination.
        """
        candidates = [key for key in params if is_related(key, setting)]
        if not candidates:
            return ()
        differing = [key for key in candidates if params[key] != first[key]]
        key = (differing or candidates)[-1]
        choices = self.space[key].choices
        if choices is not None:
            return ("space", key, "choices", choices.index(params[key]))
        return ("space", key, "high" if params[key] == self.space[key].high else "low")

    def refusal(self, key: str) -> str | None:
        """Return why the command line may not set `key`."""
        if key in self.space:
            return "the sweep searches it; copy the file to fix it"
        return super().refusal(key)


def _not_searchable(key: str) -> str | None:
    if key in NOT_FOR_SPACE:
        return NOT_FOR_SPACE[key]
    if key.startswith("data."):
        return "all trials read the same text"
    if key.startswith(("model.", "train.")):
        return None
    return "is no setting of model or train, as in train.lr"
