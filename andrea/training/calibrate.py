"""How long a run will take on this machine, from a few of its steps."""

import time
from collections.abc import Callable

import torch

from andrea.config import RunConfig
from andrea.data.batches import evaluation_set
from andrea.data.prepared import Prepared
from andrea.training import diagnostics, schedule
from andrea.training.evaluate import evaluate
from andrea.training.loop import Trainer, untouched

STEPS = 5


def calibrate(cfg: RunConfig, prepared: Prepared) -> float:
    """Seconds that the run will take: its training steps, evaluations, diagnostics and compilation.

    Args:
        cfg: resolved. A second or two of it are trained here and thrown away.
    """
    with untouched(torch.device(cfg.train.device)):
        torch.set_num_threads(cfg.train.threads)
        began = time.perf_counter()
        trainer = Trainer(cfg, prepared)
        data = evaluation_set(prepared, cfg.data, cfg.model.context)
        trainer.warm_up()
        start = time.perf_counter() - began
        steps = min(STEPS, trainer.steps)
        step = sum(_timed(trainer, trainer.advance) for _ in range(steps)) / steps
        window = _timed(
            trainer, lambda: evaluate(trainer.model, data, trainer.autocast(), curve=True)
        ) / len(data.curve)
        probe = diagnostics.probe(prepared, cfg.model.context, trainer.device)
        looked = _timed(
            trainer, lambda: diagnostics.layers(trainer.model, *probe, trainer.autocast())
        )
    curves = len(schedule.points(cfg.train.evals, trainer.steps)) - 1
    looks = (
        len(schedule.points(cfg.train.diagnostics, trainer.steps)) + 1
        if cfg.train.diagnostics
        else 0
    )
    return (
        start
        + trainer.steps * step
        + (2 * len(data.x) + curves * len(data.curve)) * window
        + looks * looked
    )


def _timed(trainer: Trainer, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    trainer.synchronize()
    return time.perf_counter() - began
