"""How one run is trained. Torch-free."""

from typing import Literal

from pydantic import Field

from andrea.schema import Frozen


class TrainConfig(Frozen):
    """Optimizer, schedule, budget and route of one run."""

    tokens: int = Field(default=204_800, gt=0)
    """Training budget in tokens; whole batches, so the last part of a batch is not trained."""
    batch_size: int = Field(default=8, gt=0)
    """Sequences per optimizer step."""
    micro_batch: int | None = Field(default=None, gt=0)
    """Sequences per forward pass; less than `batch_size` accumulates gradients. Empty means `batch_size`."""
    lr: float = Field(default=3e-3, gt=0)
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape after the warmup; the last step runs at the floor."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps over which the rate rises linearly; the first step is already above zero."""
    final_lr: float = Field(default=0.1, ge=0, le=1)
    """Floor of the schedule as a share of the peak."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay of matrices (dim ≥ 2); gains and biases are never decayed."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's second moment."""
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
    kernels: Literal["auto", "torch"] = "auto"
    """Who computes the memory-bound parts; plain torch until the CUDA kernels land."""
    threads: int = Field(default=1, gt=0, le=1024)
    """CPU threads of a run: part of its identity, since 1 and 2 threads give other bits."""
    evals: int = Field(default=10, gt=0)
    """Evaluations along the run after the one at initialisation, evenly spaced, the last at the end."""
    logs: int = Field(default=100, gt=0)
    """Points of the training-loss curve (fewer when there are fewer steps)."""
    diagnostics: int = Field(default=5, ge=0)
    """Times that per-layer gradient norms and activation sizes are recorded after the one at initialisation."""
