"""The protocol: all that is fixed before the first run of a study. See docs/method.md."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from andrea.schema import Frozen

RATES = (1e-9, 1e3)
"""Lowest and highest learning rate that tuning may come to."""


class Protocol(Frozen):
    """Tuning design, seeds, and the rule by which an arm is judged."""

    m: float = Field(gt=0)
    """Smallest effect of interest, in nats of final loss: what is smaller does not matter to the
    question.
    """
    seeds: int = Field(default=5, ge=2)
    """Paired replicates of every arm."""
    trials: int = Field(default=7, ge=1, le=64)
    """Learning rates tried per arm: a grid and two midpoints; below 7 no midpoints (`rate hardly
    tuned`).
    """
    center: float = Field(default=3.16e-3, ge=1e-8, le=1e2)
    """Learning rate in the middle of the common half-decade grid."""
    extensions: int = Field(default=2, ge=0, le=2)
    """Times that every arm's grid may grow by half a decade when an arm's best is at its edge."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Family-wise error rate of better/worse, and of equivalent."""
    metric: Literal["final_loss"] = "final_loss"
    """What is compared: the loss on the evaluated tokens at the end of the schedule."""

    @property
    def margin(self) -> float:
        """Smallest effect of interest, nats."""
        return self.m

    @model_validator(mode="after")
    def _grid_of_rates(self) -> Self:
        half_decades = max(self.trials, 8) // 2 - 1 + self.extensions
        middle = math.log10(self.center)
        low, high = 10 ** (middle - half_decades / 2), 10 ** (middle + half_decades / 2)
        if low < 0.99 * RATES[0] or high > 1.01 * RATES[1]:
            raise ValueError(
                f"trials {self.trials} round center {self.center:g} could come to learning rates "
                f"from {low:.2g} to {high:.2g}, beyond {RATES[0]:g} to {RATES[1]:g}; ask for fewer "
                "trials or another center"
            )
        return self
