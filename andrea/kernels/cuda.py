"""Kernels on a CUDA device: modules that NVRTC compiled, launched on torch's stream."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from andrea.kernels import nvrtc, source

LEAST_CAPABILITY = (8, 0)
"""bf16 arithmetic begins there."""
RESERVED = 1024
"""Bytes of a block's shared memory that plans leave alone: kernels declare a few hundred
themselves.
"""


class CudaBackend:
    """Runs kernels on one CUDA device.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        properties = torch.cuda.get_device_properties(device)
        self.arch = f"sm_{properties.major}{properties.minor}"
        self._shared = _most_shared(device.index)
        self.limits = source.Limits(self._shared - RESERVED, int(properties.multi_processor_count))
        self._kernels: dict[str, Any] = {}
        self._shapes: dict[tuple[int, int, int], Any] = {}

    def launch(self, name: str, grid: int, block: int, shared: int, args: Sequence[Any]) -> None:
        """Run a kernel on the stream that torch uses on this device now, whichever device is
        current.
        """
        from cuda.core import LaunchConfig, launch

        with torch.cuda.device(self.device):
            if name not in self._kernels:
                self.load([source.module(name)])
            shape = (grid, block, shared)
            if shape not in self._shapes:
                self._shapes[shape] = LaunchConfig(grid=grid, block=block, shmem_size=shared)
            values = [
                arg.data_ptr() if isinstance(arg, Tensor) else 0 if arg is None else arg
                for arg in args
            ]
            launch(
                torch.cuda.current_stream(self.device),
                self._shapes[shape],
                self._kernels[name],
                *values,
            )

    def load(self, modules: Sequence[str]) -> None:
        """Compile, or find, modules and load their kernels; a launch does so itself when it is the
        first.
        """
        with torch.cuda.device(self.device), _uncaptured():
            for module in modules:
                code = nvrtc.cubin(module, self.arch)
                for name in source.names(module):
                    if name not in self._kernels:
                        self._kernels[name] = self._ready(code, name)

    def _ready(self, code: Any, name: str) -> Any:
        """A kernel that may use all the shared memory that a block can have."""
        from cuda.bindings import driver

        kernel = code.get_kernel(name)
        own = kernel.attributes[self.device.index].shared_size_bytes
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(
            attribute, self._shared - own, kernel.handle, self.device.index
        )
        if int(status):
            raise RuntimeError(
                f"{name}: the driver refuses {self._shared - own} bytes of shared memory: "
                f"{status.name}"
            )
        return kernel


def _most_shared(index: int) -> int:
    """Bytes of shared memory that a block can have when its kernel asks for it."""
    from cuda.bindings import driver

    name = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    status, value = driver.cuDeviceGetAttribute(name, index)
    if int(status):
        raise RuntimeError(
            f"the driver does not say how much shared memory a block has: {status.name}"
        )
    return int(value)


@contextlib.contextmanager
def _uncaptured() -> Iterator[None]:
    """Load modules though a CUDA graph is being captured: a capture refuses what may wait, unless
    the thread says that it knows what it does.
    """
    if not torch.cuda.is_current_stream_capturing():
        yield
        return
    from cuda.bindings import driver

    status, before = driver.cuThreadExchangeStreamCaptureMode(
        driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    )
    if int(status):
        raise RuntimeError(f"a kernel that is not loaded cannot be captured: {status.name}")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def missing(device: torch.device) -> str | None:
    """What keeps kernels from running on a CUDA device, in one line; None: nothing."""
    if not torch.cuda.is_available():
        return "the CUDA kernels need a CUDA device, and this torch sees none"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        name, has = torch.cuda.get_device_name(device), ".".join(map(str, capability))
        return f"the CUDA kernels need compute capability 8.0, {name} has {has}"
    return nvrtc.missing()
