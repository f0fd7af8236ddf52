"""Who runs a kernel: one backend for each type of device, the same launch for all of them.

The ops know nothing of CUDA: they name a kernel, a launch shape and arguments. `CudaBackend` gives them to the driver; the
tests' backend gives them to the same text compiled for the CPU.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from andrea.errors import UserError

Argument = Tensor | None | np.int64 | np.int32 | np.float32
"""A tensor stands for the address of its first element, None for a null pointer; a number has its C type."""


class Backend(Protocol):
    """Runs kernels by name."""

    def launch(self, name: str, grid: int, block: int, shared: int, args: Sequence[Argument]) -> None:
        """Run a kernel on the device, and on the current stream, of the tensors among its arguments.

        Args:
            name: as `andrea.kernels.source` spells it.
            grid: blocks, in x alone.
            block: threads of a block.
            shared: bytes of dynamic shared memory.
            args: in the kernel's order.
        """


_installed: dict[str, Backend] = {}


def install(device_type: str, backend: Backend | None) -> Backend | None:
    """Let a backend serve a type of device from now on (None: nobody); returns who did before."""
    before = _installed.pop(device_type, None)
    if backend is not None:
        _installed[device_type] = backend
    return before


def serving(device: torch.device) -> Backend:
    """The backend of a device; for CUDA it is made when first asked for.

    Raises:
        UserError: nobody runs kernels there; the message says what is missing.
    """
    found = _installed.get(device.type)
    if found is None and device.type == "cuda":
        from andrea.kernels.cuda import CudaBackend

        found = CudaBackend()
        install("cuda", found)
    if found is None:
        raise UserError(f"the CUDA kernels do not run on device {device.type}; set train.kernels=torch")
    return found


def missing(device: torch.device) -> str | None:
    """What keeps kernels from running on a device, in one line; None: nothing."""
    if device.type in _installed:
        return None
    if device.type != "cuda":
        return f"the CUDA kernels do not run on device {device.type}"
    from andrea.kernels.cuda import missing as missing_for_cuda

    return missing_for_cuda()


def launch(name: str, grid: int, block: int, shared: int, args: Sequence[Argument]) -> None:
    """Run a kernel where the first tensor among its arguments lives; an empty grid runs nothing.

    Raises:
        UserError: nobody runs kernels there.
    """
    if grid == 0:
        return
    serving(next(arg.device for arg in args if isinstance(arg, Tensor))).launch(name, grid, block, shared, args)
