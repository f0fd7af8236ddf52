"""Backends: what runs a kernel on a device. Every op launches through the one of its device.

The ops know nothing of CUDA: they name a kernel, a launch shape and arguments. `CudaBackend` gives
them to the driver; a test's backend gives them to the same text compiled for the CPU.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from andrea.errors import UserError
from andrea.kernels.launch_plans import DeviceLimits, LaunchPlan, pack_arguments


class Backend(Protocol):
    """Runs kernels of one device by name."""

    @property
    def limits(self) -> DeviceLimits:
        """The properties of the device that launch plans depend on."""

    def launch(
        self, kernel: str, grid: int, block: int, shared_bytes: int, arguments: Sequence[Any]
    ) -> None:
        """Run a kernel, on the device's current stream.

        Args:
            grid: blocks, in x alone.
            block: threads of a block.
            shared_bytes: dynamic shared memory of a block.
            arguments: as `pack_arguments` orders and types them: a tensor is the address of its
                first element, None a null pointer.
        """

    def load_modules(self, modules: Sequence[str]) -> None:
        """Prepare modules for their first launch, where that takes time."""


_backends: dict[str, Backend] = {}


def install_backend(device: str, backend: Backend | None) -> Backend | None:
    """Let a backend serve a device (`cuda:1`) or all devices of a type (`cpu`) from now on; None
    leaves them without one.

    Returns:
        The backend that served them before.
    """
    before = _backends.pop(device, None)
    if backend is not None:
        _backends[device] = backend
    return before


def backend_of(device: torch.device) -> Backend:
    """Return the backend of a device; that of a CUDA device is made when it is first needed.

    Raises:
        UserError: kernels do not run there; the message says what is missing.
    """
    backend = _backends.get(str(device)) or _backends.get(device.type)
    if backend is not None:
        return backend
    if (lacking := missing_requirement(device)) is not None:
        raise UserError(f"{lacking}; set train.kernels=torch")
    from andrea.kernels.cuda import CudaBackend

    index = device.index
    if index is None:
        index = torch.cuda.current_device()
    device = torch.device("cuda", index)
    return _backends.setdefault(str(device), CudaBackend(device))


def missing_requirement(device: torch.device) -> str | None:
    """Return what keeps kernels from running on a device, in one line; None if nothing does."""
    if str(device) in _backends or device.type in _backends:
        return None
    if device.type != "cuda":
        return f"the CUDA kernels do not run on device {device.type}"
    from andrea.kernels import cuda

    return cuda.missing_requirement(device)


def device_limits(device: torch.device) -> DeviceLimits:
    """Return the properties of a device that launch plans depend on."""
    return backend_of(device).limits


def run_kernel(device: torch.device, plan: LaunchPlan, **values: Any) -> None:
    """Run a planned kernel on a device.

    Args:
        values: by name, the kernel's arguments that the plan does not hold; a pointer that is left
            out is null.

    Raises:
        UserError: kernels do not run there.
        ValueError: the arguments are not the kernel's.
    """
    if plan.grid == 0:  # nothing to compute, and the driver refuses an empty grid
        return
    arguments = pack_arguments(plan, values)
    backend_of(device).launch(plan.kernel, plan.grid, plan.block, plan.shared_bytes, arguments)
