"""The memory of this machine, against which a model is held before it is built."""

import os
from pathlib import Path

import torch
from torch import nn

from andrea.errors import UserError
from andrea.model.accounting import FLOAT32, count_parameters
from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT

CGROUP = Path("/sys/fs/cgroup/memory.max")
BLOCK_OVERHEAD = 64 * 1024
"""Bytes that the objects of a block take, whatever its size."""


def require_room(cfg: ModelConfig) -> None:
    """Refuse a model that cannot be held: its weights, its buffers, and the objects of its blocks.

    Raises:
        UserError: it needs more than the machine has.
    """
    available = installed_memory()
    needed = FLOAT32 * count_parameters(cfg).total + BLOCK_OVERHEAD * cfg.n_layer
    if needed <= available:
        needed += _buffer_bytes(cfg)
    if needed > available:
        raise UserError(
            f"such a model needs about {format_bytes(needed)}, this machine has "
            f"{format_bytes(available)}: make it smaller (vocab_size, context, d_model, n_layer)"
        )


def _buffer_bytes(cfg: ModelConfig) -> int:
    """Bytes of the buffers (tables of positions). All blocks have the same ones, so one block is
    built, on the meta device.
    """
    with torch.device("meta"):
        model = GPT(cfg.model_copy(update={"n_layer": 1}))
    return _own_buffer_bytes(model) + (cfg.n_layer - 1) * _own_buffer_bytes(model.blocks)


def _own_buffer_bytes(module: nn.Module) -> int:
    return sum(buffer.nbytes for buffer in module.buffers())


def installed_memory() -> int:
    """Return the bytes of memory that processes here may use: the machine's, or what a container
    leaves of it.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, int(CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit: `max`
        return machine


def format_bytes(number: float) -> str:
    """Return a number of bytes as text, in GiB or TiB."""
    if number >= 2**40:
        return f"{number / 2**40:,.1f} TiB"
    return f"{number / 2**30:,.1f} GiB"
