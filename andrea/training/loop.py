"""The training step: forward, backward over micro-batches, clipping, optimizer, and running sums
that stay on the device.

Step k is a function of the state after step k - 1, the configuration and k alone: batch, learning
rate and dropout's random stream all follow from (seeds, k). That is why a resumed run continues
exactly.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from andrea.config import RunConfig
from andrea.data.batches import training_batch
from andrea.data.prepared import Prepared
from andrea.kernels.adamw import AdamW as KernelAdamW
from andrea.kernels.apply import install_kernels
from andrea.model.gpt import build_model
from andrea.model.inits import lr_scales
from andrea.training import schedule
from andrea.training.checkpoint import State
from andrea.training.optim import clip_and_step, make_optimizer, set_lr


class RunningSums(NamedTuple):
    """Sums over the steps, read from the device."""

    loss: float
    """Since the last reset."""
    grad_norm: float
    """Since the last reset."""
    tail_loss: float
    """Over the last tenth of the run."""
    latest_grad_norm: float
    """Of the latest step alone."""


class Trainer:
    """Model, optimizer and step counter of one run, and running sums over its steps.

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
            install_kernels(self.model)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.model, cfg.train, lr_scales(self.model, cfg.model))
        self.forward: Any = self.model
        if cfg.train.compile == "on":
            # Shares its parameters with the plain model, which checkpoints, evaluation and
            # diagnostics use.
            self.forward = torch.compile(self.model)
        # The four are views of one tensor, so that reading them takes one wait for the device.
        self._sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        views = self._sums.unbind()
        self._loss_sum, self._norm_sum, self._tail_loss_sum, self._latest_norm = views

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of the forward passes' precision."""
        if self.cfg.train.dtype == "bfloat16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def advance(self) -> None:
        """Train one step. Nothing here waits for the device."""
        cfg = self.cfg
        # Seeded at every step, so that a resumed run drops the same units.
        seed_step(cfg.seeds.dropout, self.step, self.device)
        set_lr(self.optimizer, schedule.lr(self.step, self.steps, cfg.train))
        loss = self.accumulate_gradients(*self._next_batch())
        norm = clip_and_step(self.optimizer, self.parameters, cfg.train.clip)
        self.optimizer.zero_grad(set_to_none=True)
        self._loss_sum += loss
        self._norm_sum += norm
        self._latest_norm.copy_(norm)
        if self.step >= self.steps - schedule.tail_steps(self.steps):
            self._tail_loss_sum += loss
        self.step += 1

    def accumulate_gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradient of the mean loss over [B, T] targets, one micro-batch at a time; returns
        that loss.
        """
        micro_batch = self.cfg.train.micro_batch or len(x)
        total = torch.zeros((), device=self.device)
        for start in range(0, len(x), micro_batch):
            rows = slice(start, start + micro_batch)
            inputs = x[rows].to(self.device, non_blocking=True)
            targets = y[rows].to(self.device, non_blocking=True)
            with self.autocast():
                # Over all targets of the batch: micro-batches of unequal size weigh by their rows.
                loss = self.forward(inputs, targets).sum() / y.numel()
            loss.backward()
            total += loss.detach()
        return total

    def warm_up(self) -> None:
        """Compile before any clock runs, on a step whose gradients are discarded."""
        self.accumulate_gradients(*self._next_batch())
        if isinstance(self.optimizer, KernelAdamW):
            self.optimizer.compile_kernels()
        self.optimizer.zero_grad(set_to_none=True)
        self.synchronize()

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        """The batch of this step on the host, ready to be copied to the device without a wait."""
        cfg = self.cfg
        shape = (cfg.train.batch_size, cfg.model.context)
        x, y = training_batch(self.prepared, cfg.seeds.data, self.step, *shape)
        return self._host_tensor(x), self._host_tensor(y)

    def _host_tensor(self, array: npt.NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array)
        # A copy from pageable memory to the GPU blocks, whatever `non_blocking` says.
        return tensor.pin_memory() if self.device.type == "cuda" else tensor

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def read_sums(self) -> RunningSums:
        """Read the running sums, with one wait for the device."""
        return RunningSums(*self._sums.tolist())

    def reset_sums(self) -> None:
        """Begin a new interval of summed loss and norm."""
        self._loss_sum.zero_()
        self._norm_sum.zero_()

    def has_nonfinite(self) -> bool:
        """True where a loss or a gradient since the last reset was not finite. On a GPU, where the
        answer would cost a wait, always False.
        """
        if self.device.type != "cpu":
            return False
        return not (math.isfinite(self._loss_sum.item()) and math.isfinite(self._norm_sum.item()))

    def state_dict(self) -> State:
        """Everything that later steps depend on, for a checkpoint."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sums": list(self.read_sums()),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from `state`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._sums.copy_(torch.tensor(state["sums"], dtype=torch.float64))
        self.step = int(state["step"])


def seed_step(seed: int, step: int, device: torch.device) -> None:
    """Seed the device's random stream, from which dropout draws, by (seed, step)."""
    digest = hashlib.blake2b(f"dropout {seed} {step}".encode(), digest_size=7).digest()
    mixed = int.from_bytes(digest, "big")
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed)


@contextmanager
def preserve_torch_state(device: torch.device) -> Iterator[None]:
    """Restore torch's random streams, default dtype and thread count afterwards."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
