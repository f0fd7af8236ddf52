"""The training of one run: optimizer, schedule, budget, precision. Torch-free."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from andrea.schema import Frozen

OPTIMIZER_READS: Mapping[str, frozenset[str]] = {
    "adamw": frozenset({"beta1", "beta2", "adam_eps"}),
    "sgd": frozenset({"beta1"}),
    "lion": frozenset({"beta1", "beta2"}),
    "muon": frozenset({"beta1", "beta2", "adam_eps"}),
}
"""Settings that each optimizer reads. The others are not part of a run's id."""
SCHEDULES_WITHOUT_FLOOR = ("constant", "inverse_sqrt")
"""Schedules that do not read `final_lr`."""


class TrainConfig(Frozen):
    """Optimizer, schedule, budget and route of one run."""

    tokens: int = Field(default=204_800, gt=0)
    """Training budget in tokens; whole batches, so the last part of a batch is not trained."""
    batch_size: int = Field(default=8, gt=0)
    """Sequences per optimizer step."""
    micro_batch: int | None = Field(default=None, gt=0)
    """Sequences per forward pass; less than `batch_size` accumulates gradients. Empty means
    `batch_size`.
    """
    optimizer: Literal["adamw", "sgd", "lion", "muon"] = "adamw"
    """AdamW; SGD with momentum; Lion; or Muon on the matrices inside the blocks and AdamW on the
    rest.
    """
    lr: float = Field(default=3e-3, gt=0)
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "constant", "wsd", "inverse_sqrt"] = "cosine"
    """Shape after the warmup. The last step runs at the floor, except that `constant` and
    `inverse_sqrt` (peak · √(warmup steps / steps done)) have none. `wsd`: at the peak, then linear
    over the last `decay` of the steps.
    """
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps over which the rate rises linearly; the first step is already above zero.
    """
    decay: float = Field(default=0.2, gt=0, le=1)
    """Share of the steps over which `wsd` falls."""
    final_lr: float = Field(default=0.1, ge=0, le=1)
    """Floor of the schedule as a share of the peak."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay of matrices (dim ≥ 2), whatever the optimizer: a step multiplies them by 1 −
    rate · weight_decay. Norm weights and biases are never decayed.
    """
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """First moment of AdamW and Lion; SGD's momentum."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Second moment of AdamW; Lion's momentum."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    clip: float = Field(default=1.0, ge=0)
    """Largest global gradient norm; 0 clips nothing."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the forward and backward pass: float32 on a CPU, bfloat16 autocast on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; `auto` is off on a CPU and on on a GPU."""
    kernels: Literal["auto", "torch", "cuda"] = "auto"
    """Implementation of the memory-bound parts: plain torch, the CUDA kernels, or (`auto`) on a GPU
    whichever a measurement finds faster and on a CPU `torch`.
    """
    threads: int = Field(default=1, gt=0, le=1024)
    """CPU threads of a run: part of its identity, since 1 and 2 threads give other bits."""
    evals: int = Field(default=10, gt=0)
    """Evaluations along the run after the one at initialisation, evenly spaced, the last at the
    end.
    """
    logs: int = Field(default=100, gt=0)
    """Points of the training-loss curve (fewer when there are fewer steps)."""
    diagnostics: int = Field(default=5, ge=0)
    """Times that per-layer gradient norms and activation sizes are recorded after the one at
    initialisation.
    """

    @model_validator(mode="after")
    def _warmup_before_decay(self) -> Self:
        if self.schedule == "wsd" and self.warmup + self.decay > 1 + 1e-9:
            raise ValueError(
                f"warmup {self.warmup:g} and decay {self.decay:g} of a wsd schedule are more than "
                "the whole run; lower one of them"
            )
        return self
