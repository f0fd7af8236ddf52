"""An ablation: a question about a factor, its arms, and the protocol by which they are judged.

    arms:
      pre:  {model.norm_placement: pre}
      post: {model.norm_placement: post, label: post-norm}

An arm is the dotted settings in which it differs, and optionally a label for reports.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from andrea.config import RunConfig, build, dotted, merge
from andrea.errors import nearest
from andrea.schema import Frozen
from andrea.study.matching import Match
from andrea.study.sections import PART, SEED, Sections, run_faults, unknown
from andrea.study.yamlspec import Where
from andrea.verdict.protocol import Protocol

LR = "the protocol tunes the learning rate of every arm alike; protocol.center moves the grid"
NOT_FOR_ARMS: Mapping[str, str] = {
    "train.lr": LR,
    "train.tokens": "arms are compared at equal tokens; set it for all of them in the train section",
    "model.context": "an arm with another context is judged on other windows; set it for all of them",
}

ARM = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
UNKNOWN = "?"
"""Stands for a text that is missing while the rest of a file is checked."""


def _arm_name(name: str) -> str:
    if len(name) > 40 or not re.match(ARM, name):
        raise ValueError(
            "an arm's name has up to 40 letters, digits and . _ + -, starting with a letter or digit; "
            "its label may say anything"
        )
    return name


ArmName = Annotated[str, AfterValidator(_arm_name), WithJsonSchema({"type": "string", "pattern": ARM, "maxLength": 40})]


class Arm(Frozen):
    """One setting of the factor."""

    model_config = ConfigDict(json_schema_extra={"patternProperties": {r"^(model|train)\.": {}}})

    label: str | None = None
    """Name in reports; empty means the arm's name."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted settings of `model` and `train` in which the arm differs; written beside the label, not under `set`."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or isinstance(value.get("set"), Mapping):
            return value
        flat = {key: setting for key, setting in value.items() if key != "label"}
        return {"label": value.get("label"), "set": flat}

    @model_validator(mode="after")
    def _dotted(self) -> Self:
        wrong = [key for key in self.set if not key.startswith(("model.", "train.")) and key != "seed"]
        of_data = [key for key in wrong if key.startswith("data")]
        if of_data:
            raise ValueError(f"{', '.join(of_data)}: all arms read the same text; set it in the data section")
        if wrong:
            raise ValueError(
                f"{', '.join(wrong)}: an arm holds dotted settings, as in model.norm_placement: post, and a label"
            )
        return self


class Ablation(Sections):
    """A question about a factor."""

    REFUSED: ClassVar[Mapping[str, str]] = {"train.lr": LR, "seed": SEED, "data.eval_part": PART}

    claim: str = ""
    """What is claimed elsewhere, and by whom."""
    why: str = ""
    """The reason that is given for the claim."""
    hypothesis: str = Field(min_length=1)
    """What this ablation expects to see, written down before it is run."""
    factor: str = Field(min_length=1)
    """The setting that the arms differ in: `model.activation`, or its last part."""
    baseline: str
    """The arm that the others are judged against."""
    arms: dict[ArmName, Arm] = Field(min_length=2)
    """The settings that are compared, by name."""
    match: Match = Match()
    """What the arms must have in common, and what is solved for so that they have it."""
    protocol: Protocol
    """Tuning design, seeds, smallest effect of interest."""

    def label(self, arm: str) -> str:
        """What reports call an arm."""
        return self.arms[arm].label or arm

    def arm_settings(self, arm: str) -> dict[str, Any]:
        """The settings of an arm's runs, nested, before validation."""
        return merge(self.settings(), self.arms[arm].set)

    def arm_config(self, arm: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
        """The configuration of an arm's runs; learning rate, seed and evaluated part are the protocol's to set.

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
        for name in self.arms:
            found = list(run_faults(self.arm_settings(name)))
            for loc, message in found:
                yield self._blame(name, loc), loc, message
            if not found:
                config = build(RunConfig, self.arm_settings(name)).model_dump_json()
                if config in seen:
                    yield ("arms", name), (), f"the same configuration as arm {seen[config]}"
                seen.setdefault(config, name)

    def _blame(self, arm: str, loc: Where) -> Where:
        """The value of the arm that a fault at `loc` is laid to; nothing where the arm has no part in it."""
        path = ".".join(map(str, loc))
        for key in self.arms[arm].set:
            if key == path or key.startswith(f"{path}.") or path.startswith(f"{key}."):
                return ("arms", arm, key)
        return ()

    def refused(self) -> Iterator[tuple[Where, str]]:
        """What an arm or a section sets that is not its to set: where in the file, and why."""
        for key, message in self.section_faults():
            yield tuple(key.split(".", 1)), message
        for name, arm in self.arms.items():
            for key in arm.set:
                reason = {**NOT_FOR_ARMS, "seed": SEED}.get(key)
                if reason:
                    yield ("arms", name, key), f"arms.{name}: {key}: {reason}"
        factors = self._differing()
        if self.factor not in (UNKNOWN, *factors, *(key.rpartition(".")[2] for key in factors)):
            near = nearest(self.factor, factors if "." in self.factor else [k.rpartition(".")[2] for k in factors])
            yield ("factor",), f"factor {self.factor!r} is no setting that the arms differ in; {near}"
        if self.baseline not in self.arms:
            yield ("baseline",), f"baseline {self.baseline!r} is not an arm; there are {', '.join(self.arms)}"

    def _differing(self) -> list[str]:
        """Dotted settings that are not the same in all arms."""
        arms = [dotted(self.arm_settings(name)) for name in self.arms]
        keys = dict.fromkeys(key for arm in arms for key in arm)
        return [key for key in keys if len({repr(arm.get(key)) for arm in arms}) > 1]

    @classmethod
    def _stand_ins(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        arms = content.get("arms")
        baseline = next(iter(arms), "") if isinstance(arms, dict) else ""
        return {"question": "?", "hypothesis": "?", "factor": UNKNOWN, "baseline": baseline, "protocol": {"m": 1}}

    def _sections(self) -> tuple[str, ...]:
        return ("model", "data", "train", "protocol", "match")

    def _why_not(self, key: str) -> str | None:
        for name, arm in self.arms.items():
            if key in arm.set:
                return f"arm {name} sets it: it is what this ablation compares; copy the file to compare other values"
        return super()._why_not(key)
