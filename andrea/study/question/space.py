"""The space of a sweep: ranges and choices of dotted settings, checked against the settings' own
types.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from andrea.config import RunConfig
from andrea.records.base import Settings
from andrea.schema import Frozen

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MAX_CHECKED = 64
"""A range with at most so many values is checked value by value; of a longer one only the ends
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
        if self.step is not None:
            low, high, step = map(_exact, (self.low, self.high, self.step))
            beyond_last = (high - low) % step
            if beyond_last:
                raise ValueError(
                    f"steps of {self.step:g} from {self.low:g} never reach high {self.high:g}; the "
                    f"last is {float(high - beyond_last):g}"
                )
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest value of a range."""
        assert self.low is not None and self.high is not None, "choices have no ends"
        return self.low, self.high

    def find_fault(self, key: str) -> str | None:
        """Return why this cannot be the space of the setting `key`, whatever the values."""
        if self.choices is not None:
            return None
        number = _type_of(key)
        if number not in (int, float):
            return "takes no range; list choices"
        numbers = [value for value in (self.low, self.high, self.step) if value is not None]
        if number is int and not all(float(value).is_integer() for value in numbers):
            return "is a whole number, and so are low, high and step"
        return None

    def values(self, key: str) -> list[Any] | None:
        """Return all values in order; None where they are not countable."""
        if self.choices is not None:
            return list(self.choices)
        number = _type_of(key)
        if self.step is None and (number is float or self.log):
            return None
        low, high = map(_exact, self.ends)
        step = _exact(self.step or 1)
        count = int((high - low) / step) + 1
        return [number(low + step * index) for index in range(count)]

    def values_to_check(self, key: str) -> list[Any]:
        """Return the values that are checked when the file is read: all, or the ends."""
        values = self.values(key)
        if values is not None and (self.choices is not None or len(values) <= MAX_CHECKED):
            return values
        return [_type_of(key)(end) for end in self.ends]

    def distribution(self, key: str) -> "BaseDistribution":
        """Return the Optuna distribution of the setting `key`."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices is not None:
            return CategoricalDistribution(self.choices)
        low, high = self.ends
        if _type_of(key) is int:
            return IntDistribution(int(low), int(high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(low, high, log=self.log, step=self.step)


def combinations_to_check(space: Mapping[str, Dimension], limit: int) -> Iterator[Settings]:
    """Yield all combinations of the checked values where they are at most `limit`, else one
    setting at a time.
    """
    values = {key: dimension.values_to_check(key) for key, dimension in space.items()}
    if math.prod(map(len, values.values())) <= limit:
        for combination in itertools.product(*values.values()):
            yield dict(zip(values, combination, strict=True))
        return
    first = {key: candidates[0] for key, candidates in values.items()}
    for key, candidates in values.items():
        yield from ({**first, key: value} for value in candidates)


def _type_of(key: str) -> Any:
    """Return `int` or `float` for a number that may be None too, else the setting's annotation."""
    section_name, _, name = key.partition(".")
    section = RunConfig.model_fields[section_name].annotation
    if not (isinstance(section, type) and issubclass(section, Frozen)):
        return None
    field = section.model_fields.get(name)
    annotation = field.annotation if field else None
    return next((kind for kind in (int, float) if annotation in (kind, kind | None)), annotation)


def _exact(value: float) -> Fraction:
    """Return the decimal number that was written: 0.3 - 0.1 is then two steps of 0.1."""
    return Fraction(repr(value))
