"""The stages of an ablation, in order."""

from collections.abc import Callable

from andrea.study.stages.arm_speed import MeasureSpeed
from andrea.study.stages.confirm import Confirm
from andrea.study.stages.controls import Controls
from andrea.study.stages.equal_cost import TrainAtEqualCost
from andrea.study.stages.replicate import Replicate
from andrea.study.stages.stage import Stage


def stages_after_tuning(say: Callable[[str], None]) -> list[Stage]:
    """Return what an ablation trains once its arms have learning rates: the replicates, then what
    is asked beside the question.

    Args:
        say: tells the user what is not trained, and why.
    """
    return [
        Replicate(),
        Controls(),
        MeasureSpeed(say),
        TrainAtEqualCost("flops"),
        TrainAtEqualCost("time"),
        Confirm(say),
    ]
