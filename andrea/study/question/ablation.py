"""An ablation: a question about a factor, its arms, and the protocol by which they are judged.

    arms:
      pre:  {model.norm_placement: pre}
      post: {model.norm_placement: post, label: post-norm}

An arm is the dotted settings in which it differs, and optionally a label for reports. A factorial
design names the levels of its `factors` instead (`andrea.study.question.arms`), and its arms
follow.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from andrea.config import RunConfig, build, dotted, list_faults, merge
from andrea.errors import UserError, nearest
from andrea.records.base import Settings
from andrea.study.question.arms import MAX_NAME_LENGTH, Arm, ArmName, Levels, combine_levels
from andrea.study.question.matching import Match
from andrea.study.question.sections import (
    PART,
    SEED,
    ConfigFault,
    Fault,
    Sections,
    find_run_faults,
    is_related,
)
from andrea.study.question.yamlspec import Where
from andrea.verdict.cells import cell_name, cells
from andrea.verdict.protocol import Protocol

LR = "the protocol tunes the learning rate of every arm alike; protocol.center moves the grid"
NOT_FOR_ARMS: Mapping[str, str] = {
    "train.lr": LR,
    "train.tokens": "arms are compared at equal tokens; set it for all of them in the train "
    "section",
    "model.context": "an arm with another context is judged on other windows; set it for all of "
    "them",
    "seed": SEED,
}

BETWEEN = " × "
"""Between the factors of a factorial design where they stand for one factor."""
Claimed = Annotated[
    list[Literal["better", "worse", "equivalent", "unstable"]],
    BeforeValidator(lambda words: [words] if isinstance(words, str) else words),
    Field(min_length=1),
]
PLACEHOLDER = "?"
"""In place of a text that is missing while the rest of a file is checked."""
MISSING = "required and missing (or factors, for a factorial design)"


class Ablation(Sections):
    """A question about a factor, or about several and how they act on each other."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["factor", "arms"]}, {"required": ["factors"]}]}
    )
    REFUSED: ClassVar[Mapping[str, str]] = {"train.lr": LR, "seed": SEED, "data.eval_part": PART}
    NAME_PARTS: ClassVar[Mapping[str | int, int]] = {"factors": 3}
    SECTIONS: ClassVar[tuple[str, ...]] = (*Sections.SECTIONS, "match", "protocol")

    claim: str = ""
    """What is claimed elsewhere, and by whom."""
    claimed: dict[str, Claimed] = Field(default_factory=dict)
    """The claim in verdicts: by arm the words that support it, one or several, as in `{post:
    [worse, unstable]}`; any other word that decides something contradicts it. Of a factorial design
    also by interaction, `level × level`: worse where together they cost more than the sum of both.
    The report `claims` reads it; the digest leaves it out.
    """
    why: str = ""
    """The reason that is given for the claim."""
    hypothesis: str = Field(min_length=1)
    """What this ablation expects to see, written down before it is run."""
    factors: Annotated[dict[str, Levels], Field(min_length=2)] | None = None
    """Of a factorial design, instead of `factor` and `arms`: by what they change, named as `factor`
    is, the levels.
    """
    factor: str = ""
    """What the arms differ in: the setting, `model.activation` or its last part; where they differ
    in several, any name without a dot, as `block`, of up to 40 characters.
    """
    baseline: str
    """The arm that the others are judged against; of a factorial design `level+level`."""
    arms: dict[ArmName, Arm] = Field(default_factory=dict, min_length=2)
    """The settings that are compared, by name."""
    match: Match = Match()
    """What the arms must have in common, and what is solved for so that they have it."""
    protocol: Protocol
    """Tuning design, seeds, smallest effect of interest."""

    @field_validator("factor")
    @classmethod
    def _name_factor(cls, value: str, info: ValidationInfo) -> str:
        if "factors" not in info.data:  # they have a fault of their own
            return value or PLACEHOLDER
        factors = info.data["factors"]
        if factors is None:
            if not value:
                raise ValueError(MISSING)
            return value
        joined = BETWEEN.join(factors)
        if value not in ("", PLACEHOLDER, joined):
            raise ValueError("the factors say it already; leave it out")
        return joined

    @field_validator("arms", mode="wrap")
    @classmethod
    def _add_arms_of_factors(
        cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> dict[str, Arm]:
        factors = info.data.get("factors")
        if factors is None and not value:
            if "factors" not in info.data:
                return {}
            raise ValueError(MISSING)
        arms: dict[str, Arm] = handler(value) if value else {}
        if factors is None:
            return arms
        combined = combine_levels(factors)
        if arms and arms != combined:
            raise ValueError("the factors make them already; leave one of the two out")
        return combined

    def label(self, arm: str) -> str:
        """Return the name of an arm in reports."""
        return self.arms[arm].label or arm

    def arm_settings(self, arm: str) -> Settings:
        """Return the settings of an arm's runs, nested, before validation."""
        return merge(self.settings(), self.arms[arm].set)

    def arm_config(self, arm: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
        """Return the configuration of an arm's runs, but for learning rate, seed and evaluated
        part, which the protocol sets.

        Raises:
            UserError: no such arm, or all faults of the settings.
        """
        if arm not in self.arms:
            raise UserError(f"no arm {arm!r}; {nearest(arm, self.arms)}")
        spec = self.override(overrides) if overrides else self
        return build(RunConfig, spec.arm_settings(arm), where=f"arm {arm}")

    def config_faults(self) -> Iterator[ConfigFault]:
        """Yield faults of the arms' configurations."""
        arm_of_config: dict[str, str] = {}
        overlaps = any(self._overlaps())
        for name in self.arms:
            faults = list(find_run_faults(self.arm_settings(name)))
            for setting, message in faults:
                yield ConfigFault(self._blame(name, setting), setting, message)
            if faults or overlaps:
                continue
            config = build(RunConfig, self.arm_settings(name)).model_dump_json()
            if config in arm_of_config:
                yield self._same_configuration(name, arm_of_config[config])
            arm_of_config.setdefault(config, name)

    def _blame(self, arm: str, setting: Where) -> Where:
        """Return the value of the arm that causes a fault of `setting`; empty where none does."""
        for place, part in self._parts(arm):
            for key in part.set:
                if is_related(key, setting):
                    return (*place, key)
        return ()

    def _same_configuration(self, arm: str, other: str) -> ConfigFault:
        """Return the fault of two arms with the same configuration; of a factorial design the
        fault of the first level that differs.
        """
        if self.levels is None:
            return ConfigFault(("arms", arm), (), f"the same configuration as arm {other}")
        levels, other_levels = cells(self.levels)[arm], cells(self.levels)[other]
        factor = next(factor for factor in levels if levels[factor] != other_levels[factor])
        message = f"the same configuration as level {other_levels[factor]}"
        return ConfigFault(("factors", factor, levels[factor]), (), message)

    @property
    def levels(self) -> dict[str, list[str]] | None:
        """Levels by factor of a factorial design; None of any other."""
        if self.factors is None:
            return None
        return {factor: list(levels) for factor, levels in self.factors.items()}

    @property
    def centers(self) -> dict[str, float]:
        """Learning rate in the middle of the grid of every arm that has its own."""
        return {name: arm.center for name, arm in self.arms.items() if arm.center is not None}

    def _parts(self, arm: str | None = None) -> Iterator[tuple[Where, Arm]]:
        """Yield the parts of one arm, or of all, as they are written, each with its place in the
        file.
        """
        if self.factors is None:
            names = self.arms if arm is None else [arm]
            yield from ((("arms", name), self.arms[name]) for name in names)
            return
        own_levels = cells(self.levels or {}).get(arm or "", {})
        for factor, levels in self.factors.items():
            for level, part in levels.items():
                if own_levels.get(factor, level) == level:
                    yield ("factors", factor, level), part

    def find_conflicts(self) -> Iterator[Fault]:
        """Yield settings that an arm or a section may not set, or that do not go together."""
        yield from self.refused_settings()
        for place, part in self._parts():
            yield from self._part_conflicts(place, part)
        if self.factors is None:
            differing = self._differing(self.arms.values())
            yield from _check_factor(("factor",), "the arms", self.factor, differing)
        else:
            for factor, levels in self.factors.items():
                differing = self._differing(levels.values())
                yield from _check_factor(("factors", factor), "its levels", factor, differing)
            yield from self._overlaps()
        if self.baseline not in self.arms:
            arms = ", ".join(self.arms)
            message = f"baseline {self.baseline!r} is not an arm; there are {arms}"
            yield Fault(("baseline",), message)
        judged = self._judged_names()
        for name in self.claimed:
            if name not in judged:
                message = f"claimed: {name!r} is not judged here; {nearest(name, judged)}"
                yield Fault(("claimed", name), message)

    def _part_conflicts(self, place: Where, part: Arm) -> Iterator[Fault]:
        name = ".".join(map(str, place))
        for key in part.set:
            if key in NOT_FOR_ARMS:
                yield Fault((*place, key), f"{name}: {key}: {NOT_FOR_ARMS[key]}")
        reason = self._center_fault(part.center)
        if reason:
            yield Fault((*place, "center"), f"{name}: center: {reason}")

    def _judged_names(self) -> list[str]:
        """Return the names that get a verdict: the arms without the baseline, and interactions of
        levels.
        """
        names = [name for name in self.arms if name != self.baseline]
        levels_by_factor = self.levels or {}
        baseline = cells(levels_by_factor).get(self.baseline, {})
        for factors in itertools.combinations(levels_by_factor, 2):
            others = (
                [level for level in levels_by_factor[factor] if level != baseline.get(factor)]
                for factor in factors
            )
            names += [BETWEEN.join(pair) for pair in itertools.product(*others)]
        return names

    def _overlaps(self) -> Iterator[Fault]:
        """Yield settings that levels of two factors set: the product would have only one of
        them.
        """
        owners: dict[str, str] = {}
        for place, part in self._parts():
            factor = str(place[1])
            for key in part.setting_names:
                owner = owners.setdefault(key, factor)
                if owner != factor:
                    name = ".".join(map(str, place))
                    reason = f"factor {owner} sets it too; a setting belongs to one factor"
                    yield Fault((*place, key), f"{name}: {key}: {reason}")

    def _center_fault(self, center: float | None) -> str | None:
        """Return why the grid of an arm cannot stand round its own center."""
        if center is None:
            return None
        try:
            Protocol.model_validate({**self.protocol.model_dump(), "center": center})
        except ValidationError as error:
            return list_faults(Protocol, error)[0]
        return None

    def _differing(self, arms: Iterable[Arm]) -> list[str]:
        """Return the dotted settings that are not the same in all of these."""
        settings = [dotted(merge(self.settings(), arm.set)) for arm in arms]
        keys = dict.fromkeys(itertools.chain.from_iterable(settings))
        return [key for key in keys if len({repr(values.get(key)) for values in settings}) > 1]

    @classmethod
    def _placeholders(cls, content: Mapping[str, Any]) -> Settings:
        arms, factors = content.get("arms"), content.get("factors")
        baseline = next(iter(arms), "") if isinstance(arms, dict) else ""
        if isinstance(factors, dict):
            levels = [levels for levels in factors.values() if isinstance(levels, dict)]
            baseline = cell_name([next(iter(names), "") for names in levels])
        return {
            "question": PLACEHOLDER,
            "hypothesis": PLACEHOLDER,
            "factor": PLACEHOLDER,
            "baseline": baseline,
            "protocol": {"m": 1},
        }

    def refusal(self, key: str) -> str | None:
        """Return why the command line may not set `key`."""
        for place, part in self._parts():
            if key in part.set:
                owner = f"arm {place[1]}" if self.factors is None else f"factor {place[1]}"
                return (
                    f"{owner} sets it: it is what this ablation compares; copy the file to compare "
                    "other values"
                )
        return super().refusal(key)


def _check_factor(place: Where, owner: str, factor: str, differing: list[str]) -> Iterator[Fault]:
    """Yield the fault of a factor whose name is neither a setting in which its arms or levels
    differ, nor a label for several of them.
    """
    last_parts = [key.rpartition(".")[2] for key in differing]
    is_label = "." not in factor and 0 < len(factor.strip()) <= MAX_NAME_LENGTH
    if factor in (PLACEHOLDER, *differing, *last_parts) or (is_label and len(differing) > 1):
        return
    hint = nearest(factor, differing if "." in factor else last_parts)
    yield Fault(place, f"factor {factor!r} is no setting that {owner} differ in; {hint}")
