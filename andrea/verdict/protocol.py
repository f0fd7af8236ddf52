"""The protocol: what is fixed before the first run of a study. Torch-free; see docs/method.md."""

from typing import Literal

from pydantic import Field

from andrea.schema import Frozen


class Protocol(Frozen):
    """Tuning design, seeds, and the rule by which an arm is judged."""

    m: float = Field(gt=0)
    """Smallest effect of interest, in nats of final loss: what is smaller does not matter to the question."""
    seeds: int = Field(default=5, ge=2)
    """Paired replicates of every arm."""
    trials: int = Field(default=7, ge=1)
    """Learning rates tried per arm: a grid and two midpoints; below 7 no midpoints (`rate hardly tuned`)."""
    center: float = Field(default=3.16e-3, gt=0)
    """Learning rate in the middle of the common half-decade grid."""
    extensions: int = Field(default=2, ge=0, le=2)
    """Times that every arm's grid may grow by half a decade when an arm's best is at its edge."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Family-wise error rate of better/worse, and of equivalent."""
    metric: Literal["final_loss"] = "final_loss"
    """What is compared: the loss on the evaluated tokens at the end of the schedule."""
