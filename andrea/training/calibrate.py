"""The duration of a run on this machine, estimated from a few of its steps."""

import time
from collections.abc import Callable

import torch

from andrea.config import RunConfig
from andrea.data.batches import evaluation_set
from andrea.data.prepared import Prepared
from andrea.training import diagnostics, schedule
from andrea.training.evaluate import evaluate
from andrea.training.loop import Trainer, preserve_torch_state

STEPS = 5
"""Steps that are timed."""


def calibrate(cfg: RunConfig, prepared: Prepared) -> float:
    """Estimate the seconds of a run: training steps, evaluations, diagnostics and compilation.

    Args:
        cfg: resolved. A second or two of it are trained here and discarded.
    """
    with preserve_torch_state(torch.device(cfg.train.device)):
        torch.set_num_threads(cfg.train.threads)
        start = time.perf_counter()
        trainer = Trainer(cfg, prepared)
        data = evaluation_set(prepared, cfg.data, cfg.model.context)
        trainer.warm_up()
        build_s = time.perf_counter() - start
        model, autocast = trainer.model, trainer.autocast
        probe = diagnostics.probe_batch(prepared, cfg.model.context, trainer.device)
        steps = min(STEPS, trainer.steps)
        step_s = sum(_time_call(trainer, trainer.advance) for _ in range(steps)) / steps
        curve_s = _time_call(trainer, lambda: evaluate(model, data, autocast(), curve=True))
        layers_s = _time_call(
            trainer, lambda: diagnostics.layer_statistics(model, *probe, autocast())
        )
    # The first and the last evaluation are on all windows, those between on the curve's.
    curve_evals = len(schedule.evenly_spaced(cfg.train.evals, trainer.steps)) - 1
    evaluated_windows = 2 * len(data.x) + curve_evals * len(data.curve)
    evals_s = evaluated_windows * curve_s / len(data.curve)
    diagnostics_count = 0
    if cfg.train.diagnostics:
        diagnostics_count = 1 + len(schedule.evenly_spaced(cfg.train.diagnostics, trainer.steps))
    return build_s + trainer.steps * step_s + evals_s + diagnostics_count * layers_s


def _time_call(trainer: Trainer, call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    trainer.synchronize()
    return time.perf_counter() - start
