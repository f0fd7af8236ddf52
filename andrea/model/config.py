"""The configuration of a model. Torch-free, so that `andrea list` stays quick."""

from typing import Self

from pydantic import model_validator

from andrea.model.checks import find_faults
from andrea.model.settings import ModelSettings


class ModelConfig(ModelSettings):
    """A decoder-only transformer. Settings that nothing would read are refused
    (`andrea.model.checks`).
    """

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        faults = list(find_faults(self))
        if faults:
            raise ValueError("; ".join(faults))
        return self
