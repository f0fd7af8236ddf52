"""How far the speed of an arm is from its own: the same model several times, side by side and one
after the other.

    python benchmarks/speed_twins.py [--twins 8] [--seconds 15]

Side by side is what `andrea ablate --equal time` does (`andrea/training/speed.py`); one after the
other is what two commands would do, with as many steps. The ratio of every twin's step time to the
first one's should be 1. Printed are the ratios of both and how many of the intervals of the first
kind hold 1 (95 % each).
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import torch

from andrea.catalogue import find
from andrea.data.prepare import prepare
from andrea.study.question.ablation import Ablation
from andrea.training.identity import resolve
from andrea.training.loop import Trainer
from andrea.training.speed import measure, visit


def spread(ratios: list[float]) -> str:
    """All ratios, and the largest deviation from 1."""
    return f"{' '.join(f'{ratio:.3f}' for ratio in ratios)}; off by {max(abs(ratio - 1) for ratio in ratios):.1%} at most"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--twins", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15.0, help="of the rounds")
    options = parser.parse_args()
    spec = Ablation.load(find("ablations", "norm-placement"))
    asked = spec.arm_config(spec.baseline)
    with tempfile.TemporaryDirectory() as scratch:
        prepared = prepare(asked.data, Path(scratch))
        cfg = resolve(asked, prepared, "cpu")
        found = measure(
            {f"twin {n}": cfg for n in range(options.twins)}, prepared, print, options.seconds
        )
        rounds = found["arms"]["twin 0"]["rounds"]
        torch.set_num_threads(cfg.train.threads)
        alone = []
        for _ in range(options.twins):
            trainer = Trainer(cfg, prepared)
            trainer.warm_up()
            visit(trainer, 3)
            alone.append(
                statistics.median(visit(trainer, found["steps_per_visit"]) for _ in range(rounds))
            )
    told = found["ratio"].values()
    held = sum(one["low"] <= 1 <= one["high"] for one in told)
    widths = statistics.median((one["high"] - one["low"]) / 2 for one in told)
    print(f"side by side: {spread([one['ratio'] for one in told])}")
    print(
        f"  {held} of {len(told)} intervals hold 1; half their width is {widths:.1%} in the median"
    )
    print(f"one after the other: {spread([seconds / alone[0] for seconds in alone[1:]])}")
    print(f"load of the machine: {found['load']} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
