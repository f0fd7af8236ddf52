"""Whether a model fits into this machine, before it is built."""

import os
from pathlib import Path

import torch
from torch import nn

from andrea.errors import UserError
from andrea.model.accounting import FLOAT32, count_parameters
from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT

CGROUP = Path("/sys/fs/cgroup/memory.max")
MODULES = 64 * 1024
"""Bytes that the objects of a block take, whatever its size."""


def require_room(cfg: ModelConfig, where: str = "") -> None:
    """Refuse what cannot be held: weights, tables of positions, and the objects of the blocks.

    Args:
        where: stands before what is wrong.

    Raises:
        UserError: it needs more than the machine has.
    """
    there = installed()
    needed = FLOAT32 * count_parameters(cfg).total + MODULES * cfg.n_layer
    if needed <= there:
        needed += _tables(cfg)
    if needed > there:
        raise UserError(
            f"{where}such a model needs about {size(needed)}, this machine has {size(there)}: make "
            "it smaller "
            "(vocab_size, context, d_model, n_layer)"
        )


def _tables(cfg: ModelConfig) -> int:
    """Bytes of what is kept besides the weights; one block, without numbers, tells what every block
    keeps.
    """
    with torch.device("meta"):
        model = GPT(cfg.model_copy(update={"n_layer": 1}))
    return _kept(model) + (cfg.n_layer - 1) * _kept(model.blocks)


def _kept(module: nn.Module) -> int:
    return sum(buffer.nbytes for buffer in module.buffers())


def installed() -> int:
    """Bytes of memory that processes here may use: the machine's, or what a container leaves of it."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, int(CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit: `max`
        return machine


def size(number: float) -> str:
    """Bytes as people write them."""
    return f"{number / 2**40:,.1f} TiB" if number >= 2**40 else f"{number / 2**30:,.1f} GiB"
