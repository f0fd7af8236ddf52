"""The base of every configuration model: frozen, closed to unknown keys, documented under each
field.
"""

import re
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

NUMBERS = (int, float, int | None, float | None)


def _unwrap_descriptions(schema: dict[str, Any]) -> None:
    """Put every paragraph of a JSON schema's descriptions on one line: docstrings are wrapped."""
    if isinstance(text := schema.get("description"), str):
        schema["description"] = re.sub(r"(?<!\n)\n(?!\n)", " ", text)
    for below in (*schema.get("properties", {}).values(), *schema.get("anyOf", [])):
        _unwrap_descriptions(below)


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

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        _unwrap_descriptions(handler.resolve_ref_schema(schema))
        return schema
