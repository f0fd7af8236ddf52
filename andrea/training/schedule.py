"""The steps of a run: their number, the learning rate of each, and the steps at which something is
recorded. Pure and torch-free.
"""

import math

from andrea.config import RunConfig
from andrea.errors import UserError
from andrea.training.config import TrainConfig


def batch_tokens(cfg: RunConfig) -> int:
    """Tokens of one optimizer step, B·T."""
    return cfg.train.batch_size * cfg.model.context


def steps(cfg: RunConfig) -> int:
    """Optimizer steps of a run: the whole batches in its budget.

    Raises:
        UserError: the budget is smaller than one batch.
    """
    whole = cfg.train.tokens // batch_tokens(cfg)
    if not whole:
        raise UserError(
            f"train.tokens {cfg.train.tokens}: less than one batch of {batch_tokens(cfg)} tokens "
            f"(train.batch_size {cfg.train.batch_size} × model.context {cfg.model.context}); "
            "raise train.tokens or lower train.batch_size"
        )
    return whole


def warmup_steps(steps: int, cfg: TrainConfig) -> int:
    """Steps over which the rate rises; the last step is never one of them."""
    return min(round(cfg.warmup * steps), steps - 1)


def decay_steps(steps: int, cfg: TrainConfig) -> int:
    """Steps over which the rate falls to the floor: all after the peak; of `wsd` the last ones.

    The last warmup step is the peak already; without a warmup the first step is.
    """
    after_peak = steps - 1 - max(warmup_steps(steps, cfg) - 1, 0)
    if cfg.schedule != "wsd":
        return after_peak
    return max(1, min(round(cfg.decay * steps), after_peak))


def lr(step: int, steps: int, cfg: TrainConfig) -> float:
    """Learning rate of a step, 0 ≤ step < steps.

    A linear warmup whose first step is already above zero, then the schedule's shape. Where that
    has a floor, the last step runs exactly at it. A run of one step runs at the peak.
    """
    warmup = warmup_steps(steps, cfg)
    if step < warmup:
        return cfg.lr * ((step + 1) / warmup)
    if cfg.schedule == "constant" or steps == 1:
        return cfg.lr
    if cfg.schedule == "inverse_sqrt":
        return cfg.lr * math.sqrt(max(warmup, 1) / (step + 1))
    falling = decay_steps(steps, cfg)
    start = steps - 1 - falling
    if step < start:
        return cfg.lr
    progress = (step - start) / falling
    remaining = 1 - progress
    if cfg.schedule == "cosine":
        remaining = 0.5 * (1 + math.cos(math.pi * progress))
    floor = cfg.lr * cfg.final_lr
    return floor + (cfg.lr - floor) * remaining


def evenly_spaced(count: int, steps: int) -> frozenset[int]:
    """Up to `count` evenly spaced numbers of steps done, the last of them `steps`; never 0."""
    return frozenset(math.ceil(i * steps / count) for i in range(1, count + 1))


def tail_steps(steps: int) -> int:
    """Steps of the last tenth of a run, at least one: a result's `train_loss` is their mean."""
    return max(1, steps // 10)


def trained_tokens(cfg: RunConfig) -> int:
    """Return the tokens that a run trains: whole batches."""
    return steps(cfg) * batch_tokens(cfg)
