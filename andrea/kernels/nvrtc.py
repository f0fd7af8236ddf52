"""Kernels compiled at run time by NVRTC through `cuda.core`, and kept on disk.

Needs neither a device nor torch, and on the machine no compiler and no toolkit: the extra `gpu`
brings NVRTC. Compiled modules are kept by text, options, architecture and NVRTC's version, so that
a second process finds them; of processes that start at once, one compiles and the others wait.
"""

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from andrea.errors import UserError
from andrea.kernels import source

INSTALL = "pip install 'andrea[gpu]'"


def compile_module(module: str, arch: str, log: Any = None) -> Any:
    """Return a compiled module, `cuda.core.ObjectCode`.

    Args:
        arch: `sm_90`.
        log: a text file for the compiler's remarks; with it the disk's copy is neither read nor
            written, since a copy has no remarks.

    Raises:
        UserError: NVRTC is missing or does not know the architecture.
    """
    if (lacking := missing_requirement()) is not None:
        raise UserError(lacking)
    from cuda.core import Program

    options = program_options(arch, verbose=log is not None)
    program = Program(source.module_text(module), "c++", options)
    try:
        if log is not None:
            return program.compile("cubin", logs=log)
        with _compile_lock(f"{module}-{arch}"):
            return program.compile("cubin", cache=_disk_cache())
    except Exception as error:
        if "invalid value for --gpu-architecture" in str(error):
            version = ".".join(map(str, nvrtc_version()))
            raise UserError(f"NVRTC {version} does not know {arch}; {INSTALL} -U") from error
        raise
    finally:
        program.close()


def program_options(arch: str, verbose: bool = False) -> Any:
    """Return `cuda.core.ProgramOptions`, the same for all modules."""
    from cuda.core import ProgramOptions

    (standard,) = (option.removeprefix("-std=") for option in source.COMPILER_OPTIONS)
    remarks = ["-v"] if verbose else None
    return ProgramOptions(name="andrea", arch=arch, std=standard, ptxas_options=remarks)


# ---- On disk -------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the folder of compiled kernels and measured choices: `ANDREA_CACHE`, else the user's
    cache; made if need be. Where it cannot be written to, it is a folder of this process.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "andrea"
    if setting := os.environ.get("ANDREA_CACHE"):
        folder = Path(setting)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return _process_folder()


@cache
def _process_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="andrea-cache-"))


def _disk_cache() -> Any:
    """Return the compiled modules on disk. The key that `cuda.core` makes is of the text, the
    options with the architecture, and NVRTC's version; an entry appears by rename.
    """
    from cuda.core.utils import FileStreamProgramCache

    return FileStreamProgramCache(cache_folder() / "cubin")


@contextlib.contextmanager
def _compile_lock(name: str) -> Iterator[None]:
    """Let one process at a time compile a module, so that the others find it done. Where nothing
    can be locked, each compiles.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another user's lock, or a file system without locks
            folder = cache_folder() / "locks"
            folder.mkdir(exist_ok=True)
            fcntl.flock(stack.enter_context((folder / name).open("a")), fcntl.LOCK_EX)
        yield


# ---- Finding NVRTC -------------------------------------------------------------------------------


@cache
def missing_requirement() -> str | None:
    """Return what keeps kernels from being compiled, in one line; None if nothing does."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        return f"the CUDA kernels need cuda-core: {INSTALL}"
    try:
        nvrtc_version()
    except Exception:  # cuda.bindings raises what cuda.pathfinder raises
        try:
            _preload_nvrtc()
            nvrtc_version()
        except Exception as error:
            return f"the CUDA kernels need NVRTC ({str(error).splitlines()[0][:120]}): {INSTALL}"
    return None


def nvrtc_version() -> tuple[int, int]:
    """Return the compiler's version.

    Raises:
        RuntimeError: it is not there, or does not start.
    """
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    if int(status):
        raise RuntimeError(f"nvrtcVersion: {status}")
    return int(major), int(minor)


def _preload_nvrtc() -> None:
    """Load NVRTC from any folder that Python imports from: `cuda.pathfinder` searches site-packages
    alone, not the folder of `pip install --target`.
    """
    for entry in sys.path:
        libraries = Path(entry or ".").glob("nvidia/cu1[2-9]/lib/libnvrtc.so.1[2-9]")
        for library in sorted(libraries, reverse=True):  # the newest
            # NVRTC opens its builtins by name: they must be in the process before.
            for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            return
