"""The training step: forward, backward over micro-batches, clipping, optimizer, and sums that stay
on the device.

Step k is a function of the state after step k - 1, the configuration and k alone: batch, learning
rate and dropout's random stream are all drawn from (seeds, k). That is why a resumed run continues
exactly.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from andrea.config import RunConfig
from andrea.data.batches import batch
from andrea.data.prepared import Prepared
from andrea.kernels.adamw import AdamW as KernelAdamW
from andrea.kernels.apply import use
from andrea.model.gpt import build_model
from andrea.model.inits import lr_scales
from andrea.training import schedule
from andrea.training.optim import make_optimizer, set_lr, update


class Trainer:
    """Model, optimizer and step counter of one run, and sums over its steps.

    Args:
        cfg: resolved; no field is `auto`.
        prepared: the data.
    """

    def __init__(self, cfg: RunConfig, prepared: Prepared) -> None:
        self.cfg, self.prepared = cfg, prepared
        self.steps = schedule.steps(cfg)
        self.step = 0
        self.device = torch.device(cfg.train.device)
        # Drawn on the CPU whatever the device, so that initial weights are the same everywhere.
        self.model = build_model(cfg.model, cfg.seeds.init)
        self.model.to(self.device).train()
        if cfg.train.kernels == "cuda":
            use(self.model)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.model, cfg.train, lr_scales(self.model, cfg.model))
        # Shares its parameters with the plain model, which checkpoints, evaluation and diagnostics
        # use.
        self.forward: Any = torch.compile(self.model) if cfg.train.compile == "on" else self.model
        self._loss_sum, self._norm_sum, self._tail_sum, self._norm = (
            torch.zeros((), dtype=torch.float64, device=self.device) for _ in range(4)
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""
        if self.cfg.train.dtype == "bfloat16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def advance(self) -> None:
        """Train one step. Nothing here waits for the device."""
        cfg = self.cfg
        seed_step(cfg.seeds.dropout, self.step, self.device)
        set_lr(self.optimizer, schedule.lr(self.step, self.steps, cfg.train))
        loss = self.backward(*self._batch())
        norm = update(self.optimizer, self.parameters, cfg.train.clip)
        self.optimizer.zero_grad(set_to_none=True)
        self._loss_sum += loss
        self._norm_sum += norm
        self._norm.copy_(norm)
        if self.step >= self.steps - schedule.tail(self.steps):
            self._tail_sum += loss
        self.step += 1

    def backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradient of the mean loss over [B, T] targets, one micro-batch at a time; returns
        that loss.
        """
        size = self.cfg.train.micro_batch or len(x)
        total = torch.zeros((), device=self.device)
        for start in range(0, len(x), size):
            inputs = x[start : start + size].to(self.device, non_blocking=True)
            targets = y[start : start + size].to(self.device, non_blocking=True)
            with self.autocast():
                loss = self.forward(inputs, targets).sum() / y.numel()
            loss.backward()
            total += loss.detach()
        return total

    def warm_up(self) -> None:
        """Compile before any clock runs, on a step whose gradients are thrown away."""
        self.backward(*self._batch())
        if isinstance(self.optimizer, KernelAdamW):
            self.optimizer.load()
        self.optimizer.zero_grad(set_to_none=True)
        self.synchronize()

    def _batch(self) -> tuple[Tensor, Tensor]:
        """The batch of this step on the host, ready to be copied to the device without a wait."""
        cfg = self.cfg
        x, y = batch(
            self.prepared, cfg.seeds.data, self.step, cfg.train.batch_size, cfg.model.context
        )
        return self._ready(x), self._ready(y)

    def _ready(self, array: npt.NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array)
        # From pageable memory a copy to the GPU is waited for, whatever `non_blocking` says.
        return tensor.pin_memory() if self.device.type == "cuda" else tensor

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def sums(self) -> list[float]:
        """Summed loss and norm since `restart`, summed loss of the last tenth, latest norm: one
        wait for all.
        """
        return torch.stack([self._loss_sum, self._norm_sum, self._tail_sum, self._norm]).tolist()

    def restart(self) -> None:
        """Begin a new interval of summed loss and norm."""
        self._loss_sum.zero_()
        self._norm_sum.zero_()

    def broken(self) -> bool:
        """Whether a loss or a gradient since `restart` was not finite, where asking costs no wait
        for the device.
        """
        if self.device.type != "cpu":
            return False
        return not (math.isfinite(self._loss_sum.item()) and math.isfinite(self._norm_sum.item()))

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on, for a checkpoint."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sums": self.sums(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for held, value in zip(
            (self._loss_sum, self._norm_sum, self._tail_sum, self._norm), state["sums"], strict=True
        ):
            held.fill_(value)
        self.step = int(state["step"])


def seed_step(seed: int, step: int, device: torch.device) -> None:
    """Seed the device's random stream (dropout draws from it) by (seed, step)."""
    mixed = int.from_bytes(
        hashlib.blake2b(f"dropout {seed} {step}".encode(), digest_size=7).digest(), "big"
    )
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed)


@contextmanager
def untouched(device: torch.device) -> Iterator[None]:
    """Leave torch's random streams, default dtype and thread count as they were found."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
