"""Arms: written one by one, or as the full product of the levels of several factors.

    factors:
      norm_placement:
        pre:  {model.norm_placement: pre, label: pre-norm}
        post: {model.norm_placement: post, label: post-norm}
      warmup:
        warm: {train.warmup: 0.1, label: warmup}
        cold: {train.warmup: 0, label: no warmup}

makes the arms `pre+warm`, `pre+cold`, `post+warm` and `post+cold`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from andrea.config import full_name
from andrea.errors import did_you_mean
from andrea.records.base import Settings
from andrea.schema import Frozen
from andrea.verdict.cells import cells

ARM = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
LEVEL = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
MAX_NAME_LENGTH = 40


def _check_arm_name(name: str) -> str:
    if len(name) > MAX_NAME_LENGTH or not re.match(ARM, name):
        raise ValueError(
            f"an arm's name has up to {MAX_NAME_LENGTH} letters, digits and . _ + -, starting with "
            "a letter or digit; its label may say anything"
        )
    return name


def _check_level_name(name: str) -> str:
    if not re.match(LEVEL, name):
        raise ValueError(
            "a level's name has letters, digits and . _ -, starting with a letter or digit: with a "
            "+ between them the levels make the arms' names; its label may say anything"
        )
    return name


ArmName = Annotated[
    str,
    AfterValidator(_check_arm_name),
    WithJsonSchema({"type": "string", "pattern": ARM, "maxLength": MAX_NAME_LENGTH}),
]
LevelName = Annotated[
    str,
    AfterValidator(_check_level_name),
    WithJsonSchema({"type": "string", "pattern": LEVEL, "maxLength": MAX_NAME_LENGTH}),
]


class Arm(Frozen):
    """One setting of the factor."""

    model_config = ConfigDict(json_schema_extra={"patternProperties": {r"^(model|train)\.": {}}})

    label: str | None = None
    """Name in reports; empty means the arm's name."""
    center: float | None = Field(default=None, gt=0)
    """Learning rate in the middle of this arm's grid, where its good rates lie decades from the
    others'; as many rates, as far apart. Empty means the protocol's.
    """
    set: Settings = Field(default_factory=dict)
    """Dotted settings of `model` and `train` in which the arm differs; written beside the label,
    not under `set`.
    """

    @model_validator(mode="before")
    @classmethod
    def _collect_settings(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or isinstance(value.get("set"), Mapping):
            return value
        arm: Settings = {"set": {}}
        for key, setting in value.items():
            place = arm if key in ("label", "center") else arm["set"]
            place[key] = setting
        return arm

    @model_validator(mode="after")
    def _refuse_other_settings(self) -> Self:
        sections = ("model.", "train.")
        refused = [key for key in self.set if not key.startswith(sections) and key != "seed"]
        of_data = [key for key in refused if key.startswith("data")]
        if of_data:
            raise ValueError(
                f"{', '.join(of_data)}: all arms read the same text; set it in the data section"
            )
        if refused:
            full_names = [*filter(None, map(full_name, refused))]
            hint = f"; {did_you_mean(full_names[0])}" if full_names else ""
            raise ValueError(
                f"{', '.join(refused)}: an arm holds dotted settings, as in model.norm_placement: "
                f"post, and a label{hint}"
            )
        return self

    @property
    def setting_names(self) -> list[str]:
        """The settings that the arm sets, the center of its grid included."""
        return [*self.set, "center"] if self.center is not None else [*self.set]


Levels = Annotated[dict[LevelName, Arm], Field(min_length=2)]
"""The levels of a factor, by name."""


def combine_levels(factors: Mapping[str, Mapping[str, Arm]]) -> dict[str, Arm]:
    """Return every combination of levels as an arm: `level+level` in the order of the factors,
    labels joined with commas.

    Raises:
        ValueError: two levels make an arm whose name is too long.
    """
    arms = {}
    for name, levels in cells({factor: list(levels) for factor, levels in factors.items()}).items():
        parts = [factors[factor][level] for factor, level in levels.items()]
        labels = [part.label or level for part, level in zip(parts, levels.values(), strict=True)]
        label = ", ".join(labels) if any(part.label for part in parts) else None
        center = next((part.center for part in parts if part.center is not None), None)
        settings = {key: value for part in parts for key, value in part.set.items()}
        arms[_check_arm_name(name)] = Arm(label=label, center=center, set=settings)
    return arms
