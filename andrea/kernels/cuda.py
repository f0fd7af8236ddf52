"""Kernels on a CUDA device: NVRTC compiles them at run time through `cuda.core`, once for each text and architecture.

No compiler and no toolkit is needed on the machine; the extra `gpu` brings NVRTC. What is compiled is kept on disk, so
that a second process finds it; processes that start at once wait for the first one's.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from andrea.errors import UserError
from andrea.kernels import source

INSTALL = "pip install 'andrea[gpu]'"
LEAST_CAPABILITY = (8, 0)
"""bf16 arithmetic begins there."""
RESERVED = 1024
"""Bytes of a block's shared memory that plans leave alone: kernels declare a few hundred themselves."""


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
        """Run a kernel on the stream that torch uses on this device now, whichever device is current."""
        from cuda.core import LaunchConfig, launch

        with torch.cuda.device(self.device):
            if name not in self._kernels:
                self.load([source.module(name)])
            shape = (grid, block, shared)
            if shape not in self._shapes:
                self._shapes[shape] = LaunchConfig(grid=grid, block=block, shmem_size=shared)
            values = [arg.data_ptr() if isinstance(arg, Tensor) else 0 if arg is None else arg for arg in args]
            launch(torch.cuda.current_stream(self.device), self._shapes[shape], self._kernels[name], *values)

    def load(self, modules: Sequence[str]) -> None:
        """Compile, or find, modules and load their kernels; a launch does so itself when it is the first."""
        with torch.cuda.device(self.device), _uncaptured():
            for module in modules:
                code = cubin(module, self.arch)
                for name in source.names(module):
                    if name not in self._kernels:
                        self._kernels[name] = self._ready(code, name)

    def _ready(self, code: Any, name: str) -> Any:
        """A kernel that may use all the shared memory that a block can have."""
        from cuda.bindings import driver

        kernel = code.get_kernel(name)
        own = kernel.attributes[self.device.index].shared_size_bytes
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(attribute, self._shared - own, kernel.handle, self.device.index)
        if int(status):
            raise RuntimeError(f"{name}: the driver refuses {self._shared - own} bytes of shared memory: {status.name}")
        return kernel


def _most_shared(index: int) -> int:
    """Bytes of shared memory that a block can have when its kernel asks for it."""
    from cuda.bindings import driver

    name = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    status, value = driver.cuDeviceGetAttribute(name, index)
    if int(status):
        raise RuntimeError(f"the driver does not say how much shared memory a block has: {status.name}")
    return int(value)


@contextlib.contextmanager
def _uncaptured() -> Iterator[None]:
    """Load modules though a CUDA graph is being captured: a capture refuses what may wait, unless the thread says that
    it knows what it does."""
    if not torch.cuda.is_current_stream_capturing():
        yield
        return
    from cuda.bindings import driver

    status, before = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    if int(status):
        raise RuntimeError(f"a kernel that is not loaded cannot be captured: {status.name}")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def cubin(module: str, arch: str, log: Any = None) -> Any:
    """A compiled module, `cuda.core.ObjectCode`; needs no device.

    Args:
        arch: `sm_90`.
        log: is written the compiler's remarks, which means that the cache is passed over.

    Raises:
        UserError: NVRTC is missing or does not know the architecture.
    """
    if (lacking := compiler_missing()) is not None:
        raise UserError(lacking)
    from cuda.core import Program

    program = Program(source.text(module), "c++", options(arch, verbose=log is not None))
    try:
        if log is not None:
            return program.compile("cubin", logs=log)
        with _alone(f"{module}-{arch}"):
            return program.compile("cubin", cache=_disk())
    except Exception as error:
        if "invalid value for --gpu-architecture" in str(error):
            raise UserError(
                f"NVRTC {'.'.join(map(str, nvrtc_version()))} does not know {arch}; {INSTALL} -U"
            ) from error
        raise
    finally:
        program.close()


def options(arch: str, verbose: bool = False) -> Any:
    """`cuda.core.ProgramOptions` of all modules."""
    from cuda.core import ProgramOptions

    (standard,) = (option.removeprefix("-std=") for option in source.OPTIONS)
    return ProgramOptions(name="andrea", arch=arch, std=standard, ptxas_options=["-v"] if verbose else None)


def cache_folder() -> Path:
    """Where compiled kernels and measured choices are kept: `ANDREA_CACHE`, else the user's cache; made if need be."""
    asked = os.environ.get("ANDREA_CACHE")
    folder = Path(asked) if asked else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "andrea"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return _temporary()  # nobody else finds it, but this process does


@cache
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="andrea-cache-"))


def _disk() -> Any:
    """Keyed by the text, the options with the architecture, and NVRTC's version; entries appear by rename."""
    from cuda.core.utils import FileStreamProgramCache

    return FileStreamProgramCache(cache_folder() / "cubin")


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Only one process compiles a module; the others find it done."""
    path = cache_folder() / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def compiler_missing() -> str | None:
    """What keeps kernels from being compiled, in one line; None: nothing. Needs no device."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        return f"the CUDA kernels need cuda-core: {INSTALL}"
    try:
        nvrtc_version()
    except Exception:  # cuda.bindings raises what cuda.pathfinder raises
        try:
            _preload()
            nvrtc_version()
        except Exception as error:
            return f"the CUDA kernels need NVRTC ({str(error).splitlines()[0][:120]}): {INSTALL}"
    return None


def nvrtc_version() -> tuple[int, int]:
    """Of the compiler.

    Raises:
        RuntimeError: it is not there, or does not start.
    """
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    if int(status):
        raise RuntimeError(f"nvrtcVersion: {status}")
    return int(major), int(minor)


def _preload() -> None:
    """Load NVRTC from wherever Python's packages are: `cuda.pathfinder` knows site-packages alone, not `--target`."""
    for entry in sys.path:
        for library in sorted(Path(entry or ".").glob("nvidia/cu1[2-9]/lib/libnvrtc.so.1[2-9]"), reverse=True):
            for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            return


def missing(device: torch.device) -> str | None:
    """What keeps kernels from running on a CUDA device, in one line; None: nothing."""
    if not torch.cuda.is_available():
        return "the CUDA kernels need a CUDA device, and this torch sees none"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        name, has = torch.cuda.get_device_name(device), ".".join(map(str, capability))
        return f"the CUDA kernels need compute capability 8.0, {name} has {has}"
    return compiler_missing()
