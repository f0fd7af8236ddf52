"""Who runs a kernel: one backend for each device, the same launch for all of them.

The ops know nothing of CUDA: they name a kernel, a launch shape and arguments. `CudaBackend` gives
    them to the driver;
the tests' backend gives them to the same text compiled for the CPU.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from andrea.errors import UserError
from andrea.kernels import source


class Backend(Protocol):
    """Runs kernels of one device by name."""

    @property
    def limits(self) -> source.Limits:
        """What launch shapes depend on."""

    def launch(self, name: str, grid: int, block: int, shared: int, args: Sequence[Any]) -> None:
        """Run a kernel, on the device's current stream.

        Args:
            name: as `andrea.kernels.source` spells it.
            grid: blocks, in x alone.
            block: threads of a block.
            shared: bytes of dynamic shared memory.
            args: as `source.pack` orders and types them: a tensor is the address of its first
                element, None a null pointer.
        """


_installed: dict[str, Backend] = {}


def install(device: str, backend: Backend | None) -> Backend | None:
    """Let a backend serve a device (`cuda:1`) or all devices of a type (`cpu`) from now on, None:
    nobody.

    Returns:
        Who did before.
    """
    before = _installed.pop(device, None)
    if backend is not None:
        _installed[device] = backend
    return before


def serving(device: torch.device) -> Backend:
    """The backend of a device; for a CUDA device it is made when first asked for.

    Raises:
        UserError: nobody runs kernels there; the message says what is missing.
    """
    found = _installed.get(str(device)) or _installed.get(device.type)
    if found is not None:
        return found
    if (lacking := missing(device)) is not None:
        raise UserError(f"{lacking}; set train.kernels=torch")
    from andrea.kernels.cuda import CudaBackend

    device = torch.device(
        "cuda", torch.cuda.current_device() if device.index is None else device.index
    )
    return _installed.setdefault(str(device), CudaBackend(device))


def missing(device: torch.device) -> str | None:
    """What keeps kernels from running on a device, in one line; None: nothing."""
    if str(device) in _installed or device.type in _installed:
        return None
    if device.type != "cuda":
        return f"the CUDA kernels do not run on device {device.type}"
    from andrea.kernels import cuda

    return cuda.missing(device)


def limits(device: torch.device) -> source.Limits:
    """What launch shapes depend on, of a device."""
    return serving(device).limits


def load(device: torch.device, modules: Sequence[str]) -> None:
    """Compile and load modules before they are needed, where that takes time."""
    loader = getattr(serving(device), "load", None)
    if loader is not None:
        loader(modules)


def run(device: torch.device, plan: source.Launch, **values: Any) -> None:
    """Run a planned kernel on a device; an empty grid runs nothing.

    Args:
        values: the kernel's arguments that the plan does not hold, by name; a pointer that is left
            out is null.

    Raises:
        UserError: nobody runs kernels there.
        ValueError: the arguments are not the kernel's.
    """
    if plan.grid:
        serving(device).launch(
            plan.name, plan.grid, plan.block, plan.shared, source.pack(plan, values)
        )
