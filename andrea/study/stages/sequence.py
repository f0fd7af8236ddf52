"""The stages of an ablation, in order."""

from collections.abc import Callable

from andrea.study.stages.arm_speed import MeasureSpeed
from andrea.study.stages.confirm import Confirm
from andrea.study.stages.controls import Controls
from andrea.study.stages.equal_cost import TrainAtEqualCost
from andrea.study.stages.replicate import Replicate
from andrea.study.stages.stage import Stage
from andrea.study.stages.tune import Tune


def ablation_stages(say: Callable[[str], None]) -> list[Stage]:
    """Return the stages of an ablation: tuning, the replicates, then what is asked beside the
    question.

    Args:
        say: tells the user what is not trained, and why.
    """
    return [
        Tune(),
        Replicate(),
        Controls(),
        MeasureSpeed(say),
        TrainAtEqualCost("flops"),
        TrainAtEqualCost("time"),
        Confirm(say),
    ]
