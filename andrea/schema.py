"""The base of every configuration model: frozen, closed to unknown keys, documented under each field."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A configuration section. Unknown keys are refused; a value cannot be changed after validation."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
