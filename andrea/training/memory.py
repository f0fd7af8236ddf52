"""Whether a run fits into this machine, by arithmetic alone, before anything is built."""

import torch

from andrea.config import RunConfig
from andrea.errors import UserError
from andrea.model.accounting import count_moments, estimate_memory
from andrea.model.config import ModelConfig
from andrea.model.memory_limit import format_bytes, installed_memory
from andrea.training.config import TrainConfig

STAND_IN = 256
"""Vocabulary while the tokenizer's is not known."""


def device_of(cfg: RunConfig, host_device: str = "auto") -> str:
    """`cpu` or `cuda`: what the settings name, else what the command named, else what there is."""
    device = cfg.train.device if cfg.train.device != "auto" else host_device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return device


def require_memory(cfg: RunConfig, where: str = "") -> None:
    """Refuse what cannot be held: weights, gradients, optimizer and the activations of one forward
    pass.

    Args:
        where: what to call this run in the message.

    Raises:
        UserError: it needs more than the machine (on a GPU: the device) has.
    """
    train, on_gpu = cfg.train, device_of(cfg) == "cuda" and torch.cuda.is_available()
    half = train.dtype == "bfloat16" or (train.dtype == "auto" and on_gpu)
    model = cfg.model.model_copy(update={"vocab_size": cfg.model.vocab_size or STAND_IN})
    rows = min(train.micro_batch or train.batch_size, train.batch_size)
    needed = estimate_memory(model, rows, "bfloat16" if half else "float32", moments(model, train))
    there = torch.cuda.get_device_properties(0).total_memory if on_gpu else installed_memory()
    if needed.total > there:
        rows_matter = needed.total - needed.activations < there and rows > 1
        raise UserError(
            f"{where}training this model needs about {format_bytes(needed.total)}, this "
            f"{'GPU' if on_gpu else 'machine'} has {format_bytes(there)}: "
            + ("lower train.micro_batch" if rows_matter else "make the model smaller")
        )


def moments(model: ModelConfig, train: TrainConfig) -> int:
    """Numbers that the optimizer keeps between steps."""
    return count_moments(model, train.optimizer, train.beta1 > 0)
