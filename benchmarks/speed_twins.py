"""How far the speed of an arm is from its own: the same model several times, side by side and one
after the other.

    python benchmarks/speed_twins.py [--twins 8] [--seconds 15]

Side by side is what `andrea ablate --equal time` does (`andrea/training/speed.py`); one after the
other is what two commands would do, with as many steps. The ratio of every twin's step time to the
first one's should be 1. Printed are the ratios of both and how many of the intervals of the first
kind hold 1 (95 % each).
"""

import argparse
import math
import os
import statistics
import tempfile
from pathlib import Path

import torch

from andrea.catalogue import find_file
from andrea.data.prepare import prepare
from andrea.study.question.ablation import Ablation
from andrea.training.identity import resolve
from andrea.training.loop import Trainer
from andrea.training.speed import measure_arms, time_steps


def spread(ratios: list[float]) -> str:
    """All ratios, and the largest deviation from 1."""
    return (
        f"{' '.join(f'{ratio:.3f}' for ratio in ratios)}; off by "
        f"{max(abs(ratio - 1) for ratio in ratios):.1%} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--twins", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15.0, help="of the rounds")
    options = parser.parse_args()
    spec = Ablation.load(find_file("ablations", "norm-placement"))
    asked = spec.arm_config(spec.baseline)
    with tempfile.TemporaryDirectory() as scratch:
        prepared = prepare(asked.data, Path(scratch))
        cfg = resolve(asked, prepared, "cpu")
        speed = measure_arms(
            {f"twin {n}": cfg for n in range(options.twins)}, prepared, print, options.seconds
        )
        rounds = speed.arms["twin 0"].rounds or 0
        torch.set_num_threads(cfg.train.threads)
        alone = []
        for _ in range(options.twins):
            trainer = Trainer(cfg, prepared)
            trainer.warm_up()
            time_steps(trainer, 3)
            steps = speed.steps_per_visit or 1
            alone.append(statistics.median(time_steps(trainer, steps) for _ in range(rounds)))
    intervals = [(ratio.low or 0.0, ratio.high or math.inf) for ratio in speed.ratio.values()]
    containing = sum(low <= 1 <= high for low, high in intervals)
    widths = statistics.median((high - low) / 2 for low, high in intervals)
    print(f"side by side: {spread([ratio.ratio for ratio in speed.ratio.values()])}")
    print(
        f"  {containing} of {len(intervals)} intervals hold 1; half their width is {widths:.1%} in "
        "the median"
    )
    print(f"one after the other: {spread([seconds / alone[0] for seconds in alone[1:]])}")
    print(f"load of the machine: {speed.load} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
