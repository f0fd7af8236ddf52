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
from andrea.errors import nearest
from andrea.study.question.arms import LONGEST, Arm, ArmName, Levels, product
from andrea.study.question.matching import Match
from andrea.study.question.sections import PART, SEED, Sections, run_faults, unknown
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
}

BETWEEN = " × "
"""Between the factors of a factorial design where they stand for one factor."""
Claimed = Annotated[
    list[Literal["better", "worse", "equivalent", "unstable"]],
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    Field(min_length=1),
]
UNKNOWN = "?"
"""Stands for a text that is missing while the rest of a file is checked."""


class Ablation(Sections):
    """A question about a factor, or about several and how they act on each other."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["factor", "arms"]}, {"required": ["factors"]}]}
    )
    REFUSED: ClassVar[Mapping[str, str]] = {"train.lr": LR, "seed": SEED, "data.eval_part": PART}
    NAMED: ClassVar[Mapping[str | int, int]] = {"factors": 3}

    claim: str = ""
    """What is claimed elsewhere, and by whom."""
    claimed: dict[str, Claimed] = Field(default_factory=dict)
    """The claim in verdicts: by arm the words that support it, one or several, as in `{post:
    [worse, unstable]}`; any other word that decides something contradicts it. Of a factorial design
    also by interaction, `level × level`: worse where together they cost more than the sum of both.
    The report `claims` reads it; it is no part of the digest.
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
    def _named(cls, value: str, info: ValidationInfo) -> str:
        if "factors" not in info.data:  # they have a fault of their own
            return value or UNKNOWN
        factors = info.data["factors"]
        if factors is None and not value:
            raise ValueError("required and missing (or factors, for a factorial design)")
        if factors is None:
            return value
        if value not in ("", UNKNOWN, said := BETWEEN.join(factors)):
            raise ValueError("the factors say it already; leave it out")
        return said

    @field_validator("arms", mode="wrap")
    @classmethod
    def _of_factors(
        cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> dict[str, Arm]:
        factors = info.data.get("factors")
        if factors is None and not value:
            if "factors" not in info.data:
                return {}
            raise ValueError("required and missing (or factors, for a factorial design)")
        written: dict[str, Arm] = handler(value) if value else {}
        if factors is None:
            return written
        arms = product(factors)
        if written not in ({}, arms):
            raise ValueError("the factors make them already; leave one of the two out")
        return arms

    def label(self, arm: str) -> str:
        """What reports call an arm."""
        return self.arms[arm].label or arm

    def arm_settings(self, arm: str) -> dict[str, Any]:
        """The settings of an arm's runs, nested, before validation."""
        return merge(self.settings(), self.arms[arm].set)

    def arm_config(self, arm: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
        """The configuration of an arm's runs; learning rate, seed and evaluated part are the
        protocol's to set.

        Raises:
            UserError: no such arm, or all faults of the settings.
        """
        if arm not in self.arms:
            unknown("arm", arm, self.arms)
        spec = self.override(overrides) if overrides else self
        return build(RunConfig, spec.arm_settings(arm), where=f"arm {arm}")

    def config_faults(self) -> Iterator[tuple[Where, Where, str]]:
        """Faults of the arms' configurations: arm in the file, setting, what about it."""
        seen: dict[str, str] = {}
        overlaps = any(self._twice())
        for name in self.arms:
            found = list(run_faults(self.arm_settings(name)))
            for loc, message in found:
                yield self._blame(name, loc), loc, message
            if not found and not overlaps:
                config = build(RunConfig, self.arm_settings(name)).model_dump_json()
                if config in seen:
                    where, other = self._apart(name, seen[config])
                    yield where, (), f"the same configuration as {other}"
                seen.setdefault(config, name)

    def _blame(self, arm: str, loc: Where) -> Where:
        """The value of the arm that a fault at `loc` is laid to; nothing where the arm has no part
        in it.
        """
        path = ".".join(map(str, loc))
        for place, part in self._parts(arm):
            for key in part.set:
                if key == path or key.startswith(f"{path}.") or path.startswith(f"{key}."):
                    return (*place, key)
        return ()

    def _apart(self, arm: str, other: str) -> tuple[Where, str]:
        """What sets an arm apart from another (of a factorial design, the first level that
        differs), and from what.
        """
        if self.factors is None:
            return ("arms", arm), f"arm {other}"
        levels = cells(self.levels or {})
        factor = next(
            factor for factor, level in levels[arm].items() if level != levels[other][factor]
        )
        return ("factors", factor, levels[arm][factor]), f"level {levels[other][factor]}"

    @property
    def levels(self) -> dict[str, list[str]] | None:
        """Levels by factor of a factorial design; None of any other."""
        return (
            None
            if self.factors is None
            else {factor: list(levels) for factor, levels in self.factors.items()}
        )

    @property
    def centers(self) -> dict[str, float]:
        """Learning rate in the middle of the grid of every arm that has its own."""
        return {name: arm.center for name, arm in self.arms.items() if arm.center is not None}

    def _parts(self, arm: str | None = None) -> Iterator[tuple[Where, Arm]]:
        """What is written of one arm, or of all of them: where in the file, and what."""
        if self.factors is None:
            names = self.arms if arm is None else [arm]
            yield from ((("arms", name), self.arms[name]) for name in names)
            return
        wanted = cells(self.levels or {}).get(arm or "", {})
        for factor, levels in self.factors.items():
            for level, part in levels.items():
                if wanted.get(factor, level) == level:
                    yield ("factors", factor, level), part

    def refused(self) -> Iterator[tuple[Where, str]]:
        """What an arm or a section sets that is not its to set: where in the file, and why."""
        for key, message in self.section_faults():
            yield tuple(key.split(".", 1)), message
        for place, part in self._parts():
            for key in part.set:
                if reason := {**NOT_FOR_ARMS, "seed": SEED}.get(key):
                    yield (*place, key), f"{'.'.join(map(str, place))}: {key}: {reason}"
            if part.center is not None and (reason := self._bad_center(part.center)):
                yield (*place, "center"), f"{'.'.join(map(str, place))}: center: {reason}"
        if self.factors is None:
            yield from _unknown_factor(
                ("factor",), "factor", self.factor, self._differing(self.arms.values())
            )
        else:
            for factor, levels in self.factors.items():
                differing = self._differing(levels.values())
                yield from _unknown_factor(("factors", factor), "levels", factor, differing)
            yield from self._twice()
        if self.baseline not in self.arms:
            yield (
                ("baseline",),
                f"baseline {self.baseline!r} is not an arm; there are {', '.join(self.arms)}",
            )
        judged = self._judged()
        for name in self.claimed:
            if name not in judged:
                yield (
                    ("claimed", name),
                    f"claimed: {name!r} is not judged here; {nearest(name, judged)}",
                )

    def _judged(self) -> list[str]:
        """What gets a verdict: the arms without the baseline, and interactions of levels."""
        found = [name for name in self.arms if name != self.baseline]
        base = cells(self.levels or {}).get(self.baseline, {})
        for one, other in itertools.combinations(self.levels or {}, 2):
            levels = [
                [level for level in (self.levels or {})[factor] if level != base.get(factor)]
                for factor in (one, other)
            ]
            found += [BETWEEN.join(pair) for pair in itertools.product(*levels)]
        return found

    def _twice(self) -> Iterator[tuple[Where, str]]:
        """Settings that levels of two factors set: the product would have only one of them."""
        owners: dict[str, str] = {}
        for place, part in self._parts():
            factor = str(place[1])
            for key in part.keys:
                if owners.setdefault(key, factor) != factor:
                    said = f"factor {owners[key]} sets it too; a setting belongs to one factor"
                    yield (*place, key), f"{'.'.join(map(str, place))}: {key}: {said}"

    def _bad_center(self, center: float) -> str | None:
        """Why the grid of an arm cannot stand round its own center."""
        try:
            Protocol.model_validate({**self.protocol.model_dump(), "center": center})
        except ValidationError as error:
            return list_faults(Protocol, error)[0]
        return None

    def _differing(self, arms: Iterable[Arm]) -> list[str]:
        """Dotted settings that are not the same in all of these."""
        settings = [dotted(merge(self.settings(), arm.set)) for arm in arms]
        keys = dict.fromkeys(key for one in settings for key in one)
        return [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]

    @classmethod
    def _stand_ins(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        arms, factors = content.get("arms"), content.get("factors")
        baseline = next(iter(arms), "") if isinstance(arms, dict) else ""
        if isinstance(factors, dict):
            baseline = cell_name(
                [next(iter(levels), "") for levels in factors.values() if isinstance(levels, dict)]
            )
        return {
            "question": "?",
            "hypothesis": "?",
            "factor": UNKNOWN,
            "baseline": baseline,
            "protocol": {"m": 1},
        }

    def _sections(self) -> tuple[str, ...]:
        return ("model", "data", "train", "protocol", "match")

    def _why_not(self, key: str) -> str | None:
        for place, part in self._parts():
            if key in part.set:
                whose = f"arm {place[1]}" if self.factors is None else f"factor {place[1]}"
                return (
                    f"{whose} sets it: it is what this ablation compares; copy the file to compare "
                    "other values"
                )
        return super()._why_not(key)


def _unknown_factor(
    where: Where, of: str, factor: str, differing: list[str]
) -> Iterator[tuple[Where, str]]:
    """A factor whose name is no setting in which its arms or levels differ, nor a label for several
    of them.
    """
    last = [key.rpartition(".")[2] for key in differing]
    labels_several = len(differing) > 1 and "." not in factor and 0 < len(factor.strip()) <= LONGEST
    if factor not in (UNKNOWN, *differing, *last) and not labels_several:
        near = nearest(factor, differing if "." in factor else last)
        yield (
            where,
            f"factor {factor!r} is no setting that "
            f"{'the arms' if of == 'factor' else 'its levels'} differ in; {near}",
        )
