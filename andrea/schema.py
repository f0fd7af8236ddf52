"""The base of every configuration model: frozen, closed to unknown keys, documented under each
field.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

NUMBERS = (int, float, int | None, float | None)


class Frozen(BaseModel):
    """A configuration section. Unknown keys are refused; a value cannot be changed after
    validation.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic reads true as 1.
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in NUMBERS:
            raise ValueError(f"input should be a number, not {str(value).lower()}")
        return value
