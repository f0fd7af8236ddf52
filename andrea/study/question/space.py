"""What a sweep searches: ranges and choices of dotted settings, checked against the settings' own
types.
"""

import itertools
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from andrea.config import RunConfig
from andrea.schema import Frozen

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

ENUMERATED = 64
"""Values of one whole-number or stepped range that are all checked; of longer ranges only the ends
are.
"""


class Dimension(Frozen):
    """The values of one setting: a range from `low` to `high`, both included, or `choices`."""

    low: float | None = None
    """Lowest value of a range."""
    high: float | None = None
    """Highest value of a range; with a step, one that the steps reach."""
    log: bool = False
    """Whether the range is searched on a logarithmic scale."""
    step: float | None = Field(default=None, gt=0)
    """Distance between values of a range; empty means every number (every whole number, for
    whole-number settings).
    """
    choices: list[Any] | None = Field(default=None, min_length=1)
    """The values, where they are not a range."""

    @model_validator(mode="after")
    def _range_or_choices(self) -> Self:
        bounds = (self.low, self.high)
        if self.choices is not None:
            if bounds != (None, None) or self.log or self.step is not None:
                raise ValueError("choices stand alone, without low, high, log or step")
            if len({repr(choice) for choice in self.choices}) < len(self.choices):
                raise ValueError("choices: one of them is given twice")
            return self
        if self.low is None or self.high is None:
            raise ValueError("needs low and high, or choices")
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range starts above 0, not at {self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("a logarithmic range has no step")
        if self.step is not None and (_exact(self.high) - _exact(self.low)) % _exact(self.step):
            last = float(
                _exact(self.high) - (_exact(self.high) - _exact(self.low)) % _exact(self.step)
            )
            raise ValueError(
                f"steps of {self.step:g} from {self.low:g} never reach high {self.high:g}; the "
                f"last is {last:g}"
            )
        return self

    def whole(self, key: str) -> bool:
        """Whether the setting is a whole number."""
        return _type_of(key) is int

    def fault(self, key: str) -> str | None:
        """What is wrong with this as the space of the setting `key`, besides the values
        themselves.
        """
        if self.choices is not None:
            return None
        kind = _type_of(key)
        if kind not in (int, float):
            return "takes no range; list choices"
        given = [value for value in (self.low, self.high, self.step) if value is not None]
        if kind is int and any(not float(value).is_integer() for value in given):
            return "is a whole number, and so are low, high and step"
        return None

    def values(self, key: str) -> list[Any] | None:
        """All values in order, or None where there is no end of them."""
        if self.choices is not None:
            return list(self.choices)
        assert self.low is not None and self.high is not None, "a range has both ends"
        whole = self.whole(key)
        if self.step is None and (not whole or self.log):
            return None
        step = _exact(self.step) if self.step is not None else Fraction(1)
        count = int((_exact(self.high) - _exact(self.low)) / step) + 1
        exact = (_exact(self.low) + step * i for i in range(count))
        return [int(value) if whole else float(value) for value in exact]

    def checked(self, key: str) -> list[Any]:
        """The values that are checked when the file is read: all, or the ends."""
        values = self.values(key)
        if values is not None and (self.choices is not None or len(values) <= ENUMERATED):
            return values
        return [
            int(end) if self.whole(key) else end for end in (self.low, self.high) if end is not None
        ]

    def distribution(self, key: str) -> "BaseDistribution":
        """The Optuna distribution of the setting `key`."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices is not None:
            return CategoricalDistribution(self.choices)
        assert self.low is not None and self.high is not None, "a range has both ends"
        if self.whole(key):
            return IntDistribution(
                int(self.low), int(self.high), log=self.log, step=int(self.step or 1)
            )
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)


def corners(space: Mapping[str, Dimension], limit: int) -> Iterator[dict[str, Any]]:
    """Combinations to check: all of the checked values where they are at most `limit`, else one
    setting at a time.
    """
    values = {key: dimension.checked(key) for key, dimension in space.items()}
    count = 1
    for several in values.values():
        count *= len(several)
    if count <= limit:
        yield from (
            dict(zip(values, combination, strict=True))
            for combination in itertools.product(*values.values())
        )
        return
    first = {key: several[0] for key, several in values.items()}
    for key, several in values.items():
        yield from ({**first, key: value} for value in several)


def _type_of(key: str) -> Any:
    section, _, name = key.partition(".")
    room = RunConfig.model_fields[section].annotation
    field = (
        room.model_fields.get(name) if isinstance(room, type) and issubclass(room, Frozen) else None
    )
    annotation = field.annotation if field is not None else None
    return next((kind for kind in (int, float) if annotation in (kind, kind | None)), annotation)


def _exact(value: float) -> Fraction:
    """The decimal number that was written: 0.3 - 0.1 is then two steps of 0.1."""
    return Fraction(repr(value))
