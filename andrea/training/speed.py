"""How fast the arms of a study train on this machine: all of them warm, side by side, round by
round.

Two runs one after the other differ in speed by what else the machine did meanwhile. Here every arm
is built as a training builds it, takes its first steps (and is compiled) before any clock runs, and
then has a visit in every round: some steps, in an order that changes from round to round so that
each arm is as often first, second and last. What a round does to all arms alike cancels in the
ratio to the baseline within that round.

Reported are medians over rounds with distribution-free 95 % intervals (order statistics, by the
binomial distribution: `scipy.stats.quantile_test`), which assume nothing of the noise but that
rounds are alike. The steps are those of `andrea.training.run`, batches, clipping and optimizer
included; evaluation, diagnostics, logs and checkpoints are not. It is a measurement of this machine
on that day, not a property of the arms.
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
from andrea.store.files import write_json
from andrea.training import schedule
from andrea.training.identity import this_platform
from andrea.training.loop import Trainer, untouched

LEVEL = 0.95
VISIT_S = 0.1
"""A visit lasts about so long, or one step: shorter ones would measure the scheduler of the system.
"""
ROUNDS = (9, 41)
"""Fewest and most, but for the rest of a rotation: under six have no 95 % interval, above 40 it is
hardly narrower.
"""
LR = 1e-4
"""Peak rate while measuring. No time depends on it, and no arm diverges, whose NaNs a GPU
multiplies faster.
"""

Say = Callable[[str], None]


@dataclass
class Lane:
    """One arm, ready to train, and what its visits took."""

    trainer: Trainer
    compile_s: float | None
    """What compiling took before the clock; None where nothing is compiled."""
    memory: int | None
    """Most bytes on the device that this arm needed beside the others; None on a CPU, where one
    process holds all.
    """
    step_s: float
    """Of the last warm-up step, a rough guess."""
    times: list[float] = field(default_factory=list)
    """Seconds per step, by round."""


def measure(
    configs: Mapping[str, RunConfig], prepared: Prepared, say: Say, budget_s: float
) -> dict[str, Any]:
    """The speed of every arm, as speed.json has it (docs/performance.md).

    Args:
        configs: resolved, the baseline first; all on the same device.
        budget_s: seconds after which no further round begins, but at least `ROUNDS[0]` of them are
            made.
    """
    load, baseline = os.getloadavg()[0], next(iter(configs))
    train = configs[baseline].train
    with ExitStack() as stack:
        stack.enter_context(untouched(torch.device(train.device)))
        # All arms are compiled in this process, where a run has one of its own: their number must
        # not end compiling.
        limits = {
            "recompile_limit": 8 * len(configs),
            "accumulated_recompile_limit": 256 * len(configs),
        }
        stack.enter_context(torch._dynamo.config.patch(limits))
        lanes = {arm: _warm(cfg, prepared) for arm, cfg in configs.items()}
        steps = max(1, math.ceil(VISIT_S / min(lane.step_s for lane in lanes.values())))
        say(
            f"{len(lanes)} arms are warm; rounds of {steps} steps of each arm, for about "
            f"{budget_s:g} s"
        )
        _visit_all(lanes, steps, budget_s)
    times = {arm: lane.times for arm, lane in lanes.items()}
    found = summary(times, {arm: schedule.batch_tokens(cfg) for arm, cfg in configs.items()})
    for arm, lane in lanes.items():
        found["arms"][arm] |= {"compile_s": lane.compile_s, "peak_memory_bytes": lane.memory}
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": this_platform(train.device)["device"],
        "threads": train.threads,
        "torch": torch.__version__,
        "load": round(load, 2),
        "baseline": baseline,
        "level": LEVEL,
        "steps_per_visit": steps,
        **found,
    }


def orders(arms: Sequence[str], rounds: int, seed: int = 0) -> list[list[str]]:
    """The order of every round: rotations of a shuffled order, shuffled anew when each arm has been
    at each place.
    """
    draw, order, found = random.Random(seed), list(arms), []
    for number in range(rounds):
        turn = number % len(order)
        if not turn:
            draw.shuffle(order)
        found.append(order[turn:] + order[:turn])
    return found


def summary(times: Mapping[str, Sequence[float]], tokens: Mapping[str, int]) -> dict[str, Any]:
    """Step time, tokens per second and ratio to the baseline, with intervals.

    Args:
        times: seconds per step by arm, the baseline first, one value per round.
        tokens: of one step.
    """
    arms, ratio = {}, {}
    base = next(iter(times.values()))
    for arm, seconds in times.items():
        step, low, high = median(seconds)
        arms[arm] = {
            "step_s": step,
            "low": low,
            "high": high,
            "rounds": len(seconds),
            "tokens_per_s": tokens[arm] / step,
            "tokens_per_s_low": tokens[arm] / high if high else None,
            "tokens_per_s_high": tokens[arm] / low if low else None,
        }
        if seconds is not base:
            middle, low, high = median(
                [mine / its for mine, its in zip(seconds, base, strict=True)]
            )
            ratio[arm] = {"ratio": middle, "low": low, "high": high}
    return {"arms": arms, "ratio": ratio}


def median(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The median and its interval at `LEVEL`; under six values there is none."""
    from scipy.stats import quantile_test

    interval: Any = quantile_test(list(values), p=0.5).confidence_interval(LEVEL)
    low, high = (None if math.isnan(end) else float(end) for end in (interval.low, interval.high))
    return statistics.median(values), low, high


def speed_job(
    root: Path, cfg: RunConfig, data_folder: Path, run_id: str, identity: dict[str, Any]
) -> dict[str, Any]:
    """What a worker calls (`andrea.study.stages.arm_speed`): measure, and write `root`/speed.json.

    Args:
        cfg: the baseline's, resolved.
        identity: `arms`, the resolved configs by name, the baseline first; `budget_s`; `format` of
            the file; `mark`, with which lines for people begin in the log, which catches everything
            that this process prints.
    """
    configs = {arm: RunConfig.model_validate(told) for arm, told in identity["arms"].items()}

    def say(line: str) -> None:
        print(identity["mark"] + line, flush=True)

    found = measure(configs, open_prepared(data_folder), say, identity["budget_s"])
    found = {"format": identity["format"]} | found
    write_json(root / "speed.json", found)
    return found


def _warm(cfg: RunConfig, prepared: Prepared) -> Lane:
    """Build an arm, compile it, take the first steps, in which the optimizer's state is made."""
    cfg = cfg.model_copy(update={"train": cfg.train.model_copy(update={"lr": LR})})
    device = torch.device(cfg.train.device)
    on_gpu = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    # What other arms' shapes were is nothing to this one: it is compiled as in a process of its
    # own.
    torch._dynamo.pgo.reset_code_state()
    trainer = Trainer(cfg, prepared)
    torch.set_num_threads(cfg.train.threads)
    began = time.perf_counter()
    compiles = cfg.train.compile == "on" or cfg.train.kernels == "cuda"
    if compiles:
        trainer.warm_up()
    warm_s = time.perf_counter() - began
    visit(trainer, 2)
    step_s = visit(trainer, 1)
    memory = torch.cuda.max_memory_allocated(device) - before if on_gpu else None
    return Lane(trainer, max(0.0, warm_s - step_s) if compiles else None, memory, step_s)


def visit(trainer: Trainer, steps: int) -> float:
    """Train so many steps, or none; returns the seconds that they took. A schedule that ends begins
    again.
    """
    torch.set_num_threads(trainer.cfg.train.threads)
    trainer.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        if trainer.step == trainer.steps:
            trainer.step = 0
        trainer.advance()
    trainer.synchronize()
    return time.perf_counter() - began


def _unclocked(steps: int) -> int:
    """Steps of a visit before its clock: one that brings weights back into the caches, unless a
    step is long anyway.
    """
    return int(steps > 1)


def _visit_all(lanes: Mapping[str, Lane], steps: int, budget_s: float) -> None:
    """Rounds in whole rotations until the time is up, about as `ROUNDS` says: the clock ends them,
    no result.
    """
    began, arms = time.perf_counter(), list(lanes)
    most = math.ceil(ROUNDS[1] / len(arms)) * len(arms)
    for number, order in enumerate(orders(arms, most)):
        rotated = number % len(arms) == 0
        if rotated and number >= ROUNDS[0] and time.perf_counter() - began >= budget_s:
            return
        for arm in order:
            visit(lanes[arm].trainer, _unclocked(steps))
            lanes[arm].times.append(visit(lanes[arm].trainer, steps) / steps)
