"""The base of every record of the store: how damage is tolerated, and how a record is written.

A record is read with `from_json`. A field whose value is of the wrong kind is treated as absent: it
has its default, and one warning names the file and the field. Nothing else in andrea has to expect
damaged values.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    field_validator,
)

from andrea.errors import warn
from andrea.schema import NUMBERS

Settings: TypeAlias = dict[str, Any]
"""A configuration as plain JSON values, as a file holds it."""


class Record(BaseModel):
    """One JSON object of the store. Fields stand in the order of the file.

    Fields that a file lacks are not written back, and fields that this version does not know are
    kept: a record that is read and written again is the same file.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=True)

    tolerant: ClassVar[bool] = True
    """Whether a damaged field costs that field alone; else it costs the whole record."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _tolerate_damage(
        cls, value: object, validate: Callable[[object], Any], info: ValidationInfo
    ) -> Any:
        damaged = damaged_fields(info)
        field = cls.model_fields[str(info.field_name)]
        try:
            # pydantic would read true and "1" as numbers.
            if isinstance(value, bool | str) and field.annotation in NUMBERS:
                raise ValueError("not a number")
            return validate(value)
        except ValueError:
            if damaged is None or field.is_required() or not cls.tolerant:
                raise
            damaged.append(str(info.field_name))
            return field.get_default(call_default_factory=True)

    @classmethod
    def from_json(cls, values: object, where: object) -> Self | None:
        """Return the record in `values`, or None where it lacks what it cannot be without.

        Args:
            values: what a JSON file or line held; None where there was none.
            where: the file, for the warning about fields of the wrong kind.
        """
        if values is None:
            return None
        damaged: list[str] = []
        try:
            record = cls.model_validate(values, context={"damaged": damaged})
        except ValidationError as error:
            missing = [".".join(map(str, fault["loc"])) for fault in error.errors()]
            warn(f"{where}: damaged in {', '.join(missing) or 'its form'}; treated as missing")
            return None
        if damaged:
            warn(f"{where}: damaged in {', '.join(damaged)}; treated as absent")
        return record

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with the fields that were set and no others."""
        return self.model_dump(mode="json", exclude_unset=True)


def damaged_fields(info: ValidationInfo) -> list[str] | None:
    """Return the list that collects damaged fields; None outside `Record.from_json`, where a wrong
    value is a programming error.
    """
    context = info.context
    return context["damaged"] if isinstance(context, dict) else None


def _skip_damaged(
    value: object, validate: Callable[[object], Any], info: ValidationInfo
) -> list[Any]:
    """Validate a list element by element, without those that are damaged."""
    damaged = damaged_fields(info)
    if damaged is None or not isinstance(value, list):
        return list(validate(value))
    elements: list[Any] = []
    for element in value:
        try:
            elements += validate([element])
        except ValidationError:
            damaged.append(str(info.field_name))
    return elements


def _skip_damaged_values(
    value: object, validate: Callable[[object], Any], info: ValidationInfo
) -> dict[Any, Any]:
    """Validate a mapping value by value, without those that are damaged."""
    damaged = damaged_fields(info)
    if damaged is None or not isinstance(value, Mapping):
        return dict(validate(value))
    values: dict[Any, Any] = {}
    for key, element in value.items():
        try:
            values |= validate({key: element})
        except ValidationError:
            damaged.append(f"{info.field_name}.{key}")
    return values


T = TypeVar("T")
Several = Annotated[list[T], WrapValidator(_skip_damaged)]
"""A list in which a damaged element costs that element alone."""
ByName = Annotated[dict[str, T], WrapValidator(_skip_damaged_values)]
"""A mapping by name (of an arm, say) in which a damaged value costs that value alone."""
