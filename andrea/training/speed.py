"""The training speed of a study's arms on this machine: all of them warm, side by side, round by
round.

The speeds of two runs one after the other differ by the other load of the machine. Here every arm
is built as a training builds it, takes its first steps (and is compiled) before any clock runs, and
then has a visit in every round: some steps, in an order that changes from round to round so that
each arm is equally often first, second and last. Whatever slows a whole round cancels in the ratio
to the baseline within that round.

Reported are medians over rounds with distribution-free 95 % intervals (order statistics, by the
binomial distribution: `scipy.stats.quantile_test`), which assume of the noise only that it is the
same in all rounds. The steps are those of `andrea.training.run`, with batches, clipping and
optimizer; evaluation, diagnostics, logs and checkpoints are left out. It is a measurement of this
machine on that day, not a property of the arms.
"""

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.pgo

from andrea.config import RunConfig
from andrea.data.prepared import Prepared, open_prepared
from andrea.records.study import ArmSpeed, SpeedRatio, StudySpeed
from andrea.store.files import write_json
from andrea.training import schedule
from andrea.training.identity import this_platform
from andrea.training.loop import Trainer, preserve_torch_state

LEVEL = 0.95
"""Of the intervals."""
VISIT_S = 0.1
"""Seconds that a visit lasts, or one step: shorter visits would measure the system's scheduler."""
ROUNDS = (9, 41)
"""Fewest and most rounds, up to the rest of a rotation: under six have no 95 % interval, above 40
it is hardly narrower.
"""
LR = 1e-4
"""Peak rate while measuring. No time depends on it, and no arm diverges: NaNs would be faster to
multiply on a GPU.
"""

Say = Callable[[str], None]


@dataclass
class ArmBenchmark:
    """One arm, ready to train, and the times of its visits."""

    trainer: Trainer
    compile_s: float | None
    """Seconds of compilation before the clock; None where nothing is compiled."""
    memory: int | None
    """Most bytes on the device that this arm needed beside the others; None on a CPU, where one
    process holds all arms.
    """
    step_s: float
    """Seconds of the last warm-up step, a rough estimate."""
    times: list[float] = field(default_factory=list)
    """Seconds per step, by round."""


def measure_arms(
    configs: Mapping[str, RunConfig], prepared: Prepared, say: Say, budget_s: float
) -> StudySpeed:
    """Measure the speed of every arm (speed.json, docs/performance.md).

    Args:
        configs: resolved, the baseline first; all on the same device.
        budget_s: seconds after which no further round begins, once there are `ROUNDS[0]` rounds.
    """
    load, baseline = os.getloadavg()[0], next(iter(configs))
    train = configs[baseline].train
    with ExitStack() as stack:
        stack.enter_context(preserve_torch_state(torch.device(train.device)))
        # A run compiles in a process of its own, but here all arms share one: torch's limits per
        # process must not end compilation.
        limits = {
            "recompile_limit": 8 * len(configs),
            "accumulated_recompile_limit": 256 * len(configs),
        }
        stack.enter_context(torch._dynamo.config.patch(limits))
        benchmarks = {arm: _warm_up(cfg, prepared) for arm, cfg in configs.items()}
        fastest_s = min(benchmark.step_s for benchmark in benchmarks.values())
        steps = max(1, math.ceil(VISIT_S / fastest_s))
        say(
            f"{len(configs)} arms are warm; rounds of {steps} steps of each arm, for about "
            f"{budget_s:g} s"
        )
        _run_rounds(benchmarks, steps, budget_s)
    baseline_times = benchmarks[baseline].times
    arms, ratio = {}, {}
    for arm, benchmark in benchmarks.items():
        arms[arm] = arm_speed(benchmark.times, schedule.batch_tokens(configs[arm])).model_copy(
            update={"compile_s": benchmark.compile_s, "peak_memory_bytes": benchmark.memory}
        )
        if arm != baseline:
            ratio[arm] = speed_ratio(benchmark.times, baseline_times)
    return StudySpeed(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        device=this_platform(train.device)["device"],
        threads=train.threads,
        torch=torch.__version__,
        load=round(load, 2),
        baseline=baseline,
        level=LEVEL,
        steps_per_visit=steps,
        arms=arms,
        ratio=ratio,
    )


def visit_orders(arms: Sequence[str], rounds: int, seed: int = 0) -> list[list[str]]:
    """The order of the arms in every round: rotations of a shuffled order, shuffled anew when each
    arm has been at each place.
    """
    generator, order, orders = random.Random(seed), list(arms), []
    for number in range(rounds):
        turn = number % len(order)
        if turn == 0:
            generator.shuffle(order)
        orders.append(order[turn:] + order[:turn])
    return orders


def arm_speed(times: Sequence[float], tokens: int) -> ArmSpeed:
    """Step time and tokens per second with their intervals.

    Args:
        times: seconds per step, by round.
        tokens: of one step.
    """
    step_s, low, high = median_with_interval(times)
    return ArmSpeed(
        step_s=step_s,
        low=low,
        high=high,
        rounds=len(times),
        tokens_per_s=tokens / step_s,
        tokens_per_s_low=tokens / high if high else None,
        tokens_per_s_high=tokens / low if low else None,
    )


def speed_ratio(times: Sequence[float], baseline_times: Sequence[float]) -> SpeedRatio:
    """Median over rounds of an arm's step time over the baseline's in the same round."""
    ratios = [arm / baseline for arm, baseline in zip(times, baseline_times, strict=True)]
    median, low, high = median_with_interval(ratios)
    return SpeedRatio(ratio=median, low=low, high=high)


def median_with_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The median and the ends of its interval at `LEVEL`; under six values there is no interval."""
    from scipy.stats import quantile_test

    interval: Any = quantile_test(list(values), p=0.5).confidence_interval(LEVEL)
    low, high = (None if math.isnan(end) else float(end) for end in (interval.low, interval.high))
    return statistics.median(values), low, high


def speed_job(
    root: Path, cfg: RunConfig, data_folder: Path, run_id: str, identity: dict[str, Any]
) -> StudySpeed:
    """Measure and write `root`/speed.json; a worker of `andrea.study.stages.arm_speed` calls it.

    Args:
        cfg: the baseline's, resolved.
        identity: `arms`, the resolved configs by name, the baseline first; `budget_s`; `format` of
            the file; `mark`, the beginning of lines for people in the log, into which everything
            goes that this process prints.
    """
    configs = {
        arm: RunConfig.model_validate(settings) for arm, settings in identity["arms"].items()
    }

    def say(line: str) -> None:
        print(identity["mark"] + line, flush=True)

    speed = measure_arms(configs, open_prepared(data_folder), say, identity["budget_s"])
    speed = speed.model_copy(update={"format": identity["format"]})
    write_json(root / "speed.json", speed.to_json())
    return speed


def _warm_up(cfg: RunConfig, prepared: Prepared) -> ArmBenchmark:
    """Build an arm, compile it, and take the first steps, which make the optimizer's state."""
    cfg = cfg.model_copy(update={"train": cfg.train.model_copy(update={"lr": LR})})
    device = torch.device(cfg.train.device)
    on_gpu = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    # Without it torch would take sizes that differ between arms for variable, and compile this arm
    # differently than in a process of its own.
    torch._dynamo.pgo.reset_code_state()
    trainer = Trainer(cfg, prepared)
    torch.set_num_threads(cfg.train.threads)
    compiles = cfg.train.compile == "on" or cfg.train.kernels == "cuda"
    start = time.perf_counter()
    if compiles:
        trainer.warm_up()
    warm_up_s = time.perf_counter() - start
    time_steps(trainer, 2)
    step_s = time_steps(trainer, 1)
    compile_s = max(0.0, warm_up_s - step_s) if compiles else None
    memory = torch.cuda.max_memory_allocated(device) - before if on_gpu else None
    return ArmBenchmark(trainer, compile_s, memory, step_s)


def time_steps(trainer: Trainer, steps: int) -> float:
    """Train `steps` steps; returns their seconds. A schedule that ends begins again."""
    torch.set_num_threads(trainer.cfg.train.threads)
    # A GPU works on after the calls return: the clock starts and stops when it is idle.
    trainer.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        if trainer.step == trainer.steps:
            trainer.step = 0
        trainer.advance()
    trainer.synchronize()
    return time.perf_counter() - start


def _run_rounds(benchmarks: Mapping[str, ArmBenchmark], steps: int, budget_s: float) -> None:
    """Visit all arms in whole rotations, about as many rounds as `ROUNDS` allows, until the time is
    up. The clock alone ends them, never a result.
    """
    start, arms = time.perf_counter(), list(benchmarks)
    most = math.ceil(ROUNDS[1] / len(arms)) * len(arms)
    # Untimed: brings the weights back into the caches, where a visit is more than one long step.
    untimed_steps = 1 if steps > 1 else 0
    for number, order in enumerate(visit_orders(arms, most)):
        rotation_done = number % len(arms) == 0
        time_is_up = time.perf_counter() - start >= budget_s
        if rotation_done and number >= ROUNDS[0] and time_is_up:
            return
        for arm in order:
            benchmark = benchmarks[arm]
            time_steps(benchmark.trainer, untimed_steps)
            benchmark.times.append(time_steps(benchmark.trainer, steps) / steps)
