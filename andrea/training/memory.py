"""The check that a run fits into this machine's memory, by arithmetic, before anything is built."""

import torch

from andrea.config import RunConfig
from andrea.errors import UserError
from andrea.model.accounting import count_moments, estimate_memory
from andrea.model.config import ModelConfig
from andrea.model.memory_limit import format_bytes, installed_memory
from andrea.training.config import TrainConfig

STAND_IN = 256
"""Vocabulary as long as the tokenizer's is not known."""


def device_of(cfg: RunConfig, host_device: str = "auto") -> str:
    """`cpu` or `cuda`: the settings' device, else the command's, else the machine's."""
    for device in (cfg.train.device, host_device):
        if device != "auto":
            return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def require_memory(cfg: RunConfig, prefix: str = "") -> None:
    """Refuse a run whose weights, gradients, optimizer and activations of one forward pass do not
    fit into memory.

    Args:
        prefix: names this run at the beginning of the message.

    Raises:
        UserError: it needs more than the machine (on a GPU: the device) has.
    """
    train = cfg.train
    on_gpu = device_of(cfg) == "cuda" and torch.cuda.is_available()
    dtype = train.dtype
    if dtype == "auto":
        dtype = "bfloat16" if on_gpu else "float32"
    model = cfg.model.model_copy(update={"vocab_size": cfg.model.vocab_size or STAND_IN})
    rows = min(train.micro_batch or train.batch_size, train.batch_size)
    needed = estimate_memory(model, rows, dtype, optimizer_moments(model, train))
    holder, available = "machine", installed_memory()
    if on_gpu:
        holder, available = "GPU", torch.cuda.get_device_properties(0).total_memory
    if needed.total > available:
        fits_with_fewer_rows = needed.total - needed.activations < available and rows > 1
        remedy = "lower train.micro_batch" if fits_with_fewer_rows else "make the model smaller"
        raise UserError(
            f"{prefix}training this model needs about {format_bytes(needed.total)}, this {holder} "
            f"has {format_bytes(available)}: {remedy}"
        )


def optimizer_moments(model: ModelConfig, train: TrainConfig) -> int:
    """Numbers that the optimizer keeps between steps."""
    return count_moments(model, train.optimizer, train.beta1 > 0)
