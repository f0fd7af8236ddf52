"""Kernels on a CUDA device: modules that NVRTC compiled, launched on torch's stream."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from andrea.kernels import nvrtc, source
from andrea.kernels.launch_plans import DeviceLimits

LEAST_CAPABILITY = (8, 0)
"""bf16 arithmetic begins there."""
RESERVED_BYTES = 1024
"""Shared memory of a block that plans leave alone: kernels declare a few hundred bytes themselves.
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
        self._shared_bytes = _largest_shared_memory(device.index)
        dynamic_bytes = self._shared_bytes - RESERVED_BYTES
        self.limits = DeviceLimits(dynamic_bytes, int(properties.multi_processor_count))
        self._kernels: dict[str, Any] = {}

    def launch(
        self, kernel: str, grid: int, block: int, shared_bytes: int, arguments: Sequence[Any]
    ) -> None:
        """Run a kernel on the stream that torch uses on this device now, whichever device is
        current.
        """
        from cuda.core import launch

        with torch.cuda.device(self.device):
            if kernel not in self._kernels:
                self.load_modules([source.module_of(kernel)])
            launch(
                torch.cuda.current_stream(self.device),
                _launch_config(grid, block, shared_bytes),
                self._kernels[kernel],
                *map(_driver_value, arguments),
            )

    def load_modules(self, modules: Sequence[str]) -> None:
        """Compile modules, or find them on disk, and load their kernels. The first launch of a
        kernel does so itself.
        """
        with torch.cuda.device(self.device), _relaxed_capture():
            for module in modules:
                code = nvrtc.compile_module(module, self.arch)
                for kernel in source.kernel_names(module):
                    if kernel not in self._kernels:
                        self._kernels[kernel] = self._load_kernel(code, kernel)

    def _load_kernel(self, code: Any, name: str) -> Any:
        """Return a kernel that may use all the shared memory that a block can have."""
        from cuda.bindings import driver

        kernel = code.get_kernel(name)
        index = self.device.index
        declared = kernel.attributes[index].shared_size_bytes
        dynamic = self._shared_bytes - declared
        # Without this a launch may ask for 48 KiB, whatever the device has.
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(attribute, dynamic, kernel.handle, index)
        _require_success(status, f"{name}: the driver refuses {dynamic} bytes of shared memory")
        return kernel


@functools.cache
def _launch_config(grid: int, block: int, shared_bytes: int) -> Any:
    """Return a launch shape for the driver, kept since the same ones recur in every step."""
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)


def _driver_value(argument: Any) -> Any:
    """Return what the driver takes for an argument: a tensor's address, 0 as the null pointer."""
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return 0 if argument is None else argument


def _largest_shared_memory(index: int) -> int:
    """Return the bytes of shared memory that a block can have when its kernel asks for it."""
    from cuda.bindings import driver

    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    status, size = driver.cuDeviceGetAttribute(attribute, index)
    _require_success(status, "the driver does not say how much shared memory a block has")
    return int(size)


def _require_success(status: Any, fault: str) -> None:
    if int(status):
        raise RuntimeError(f"{fault}: {status.name}")


@contextlib.contextmanager
def _relaxed_capture() -> Iterator[None]:
    """Allow modules to be loaded while a CUDA graph is captured.

    Loading may synchronize, which a capture refuses unless its thread is in relaxed mode. It is
    safe here: what is loaded is not part of the graph.
    """
    if not torch.cuda.is_current_stream_capturing():
        yield
        return
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    status, mode_before = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    _require_success(status, "a kernel that is not loaded cannot be captured")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(mode_before)


def missing_requirement(device: torch.device) -> str | None:
    """Return what keeps kernels from running on a CUDA device, in one line; None: nothing."""
    if not torch.cuda.is_available():
        return "the CUDA kernels need a CUDA device, and this torch sees none"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        version = ".".join(map(str, capability))
        return f"the CUDA kernels need compute capability 8.0, {name} has {version}"
    return nvrtc.missing_requirement()
