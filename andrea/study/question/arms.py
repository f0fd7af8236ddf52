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
from andrea.schema import Frozen
from andrea.verdict.cells import cells

ARM = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
LEVEL = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
LONGEST = 40


def _arm_name(name: str) -> str:
    if len(name) > LONGEST or not re.match(ARM, name):
        raise ValueError(
            f"an arm's name has up to {LONGEST} letters, digits and . _ + -, starting with a "
            "letter or digit; "
            "its label may say anything"
        )
    return name


def _level_name(name: str) -> str:
    if not re.match(LEVEL, name):
        raise ValueError(
            "a level's name has letters, digits and . _ -, starting with a letter or digit: with a "
            "+ between them the "
            "levels make the arms' names; its label may say anything"
        )
    return name


ArmName = Annotated[
    str,
    AfterValidator(_arm_name),
    WithJsonSchema({"type": "string", "pattern": ARM, "maxLength": LONGEST}),
]
LevelName = Annotated[
    str,
    AfterValidator(_level_name),
    WithJsonSchema({"type": "string", "pattern": LEVEL, "maxLength": LONGEST}),
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
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted settings of `model` and `train` in which the arm differs; written beside the label,
    not under `set`.
    """

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or isinstance(value.get("set"), Mapping):
            return value
        beside = {key: value[key] for key in ("label", "center") if key in value}
        return {
            **beside,
            "set": {key: setting for key, setting in value.items() if key not in beside},
        }

    @model_validator(mode="after")
    def _dotted(self) -> Self:
        wrong = [
            key for key in self.set if not key.startswith(("model.", "train.")) and key != "seed"
        ]
        of_data = [key for key in wrong if key.startswith("data")]
        if of_data:
            raise ValueError(
                f"{', '.join(of_data)}: all arms read the same text; set it in the data section"
            )
        if wrong:
            meant = [full for key in wrong if (full := full_name(key))]
            raise ValueError(
                f"{', '.join(wrong)}: an arm holds dotted settings, as in model.norm_placement: "
                "post, and a label" + (f"; {did_you_mean(meant[0])}" if meant else "")
            )
        return self

    @property
    def keys(self) -> list[str]:
        """What it sets, its grid's center among it."""
        return [*self.set, *(["center"] if self.center is not None else [])]


Levels = Annotated[dict[LevelName, Arm], Field(min_length=2)]
"""The levels of a factor, by name."""


def product(factors: Mapping[str, Mapping[str, Arm]]) -> dict[str, Arm]:
    """Every combination of levels as an arm: `level+level` in the order of the factors, labels
    joined with commas.

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
        arms[_arm_name(name)] = Arm(label=label, center=center, set=settings)
    return arms
