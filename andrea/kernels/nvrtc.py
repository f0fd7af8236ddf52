"""Kernels compiled at run time by NVRTC through `cuda.core`, and kept on disk. Needs neither a
device nor torch.

No compiler and no toolkit is needed on the machine; the extra `gpu` brings NVRTC. What is compiled
is kept by text, options, architecture and NVRTC's version, so that a second process finds it;
processes that start at once wait for the first one's.
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


def cubin(module: str, arch: str, log: Any = None) -> Any:
    """A compiled module, `cuda.core.ObjectCode`; needs no device.

    Args:
        arch: `sm_90`.
        log: is written the compiler's remarks, which means that the cache is passed over.

    Raises:
        UserError: NVRTC is missing or does not know the architecture.
    """
    if (lacking := missing()) is not None:
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
                f"NVRTC {'.'.join(map(str, version()))} does not know {arch}; {INSTALL} -U"
            ) from error
        raise
    finally:
        program.close()


def options(arch: str, verbose: bool = False) -> Any:
    """`cuda.core.ProgramOptions` of all modules."""
    from cuda.core import ProgramOptions

    (standard,) = (option.removeprefix("-std=") for option in source.OPTIONS)
    return ProgramOptions(
        name="andrea", arch=arch, std=standard, ptxas_options=["-v"] if verbose else None
    )


def cache_folder() -> Path:
    """Where compiled kernels and measured choices are kept: `ANDREA_CACHE`, else the user's cache;
    made if need be.
    """
    asked = os.environ.get("ANDREA_CACHE")
    folder = (
        Path(asked)
        if asked
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "andrea"
    )
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return _temporary()  # nobody else finds it, but this process does


@cache
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="andrea-cache-"))


def _disk() -> Any:
    """Keyed by the text, the options with the architecture, and NVRTC's version; entries appear by
    rename.
    """
    from cuda.core.utils import FileStreamProgramCache

    return FileStreamProgramCache(cache_folder() / "cubin")


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Only one process compiles a module; the others find it done. Where nothing can be locked,
    each compiles.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # another user's lock, or a file system without locks
            folder = cache_folder() / "locks"
            folder.mkdir(exist_ok=True)
            fcntl.flock(held.enter_context((folder / name).open("a")), fcntl.LOCK_EX)
        yield


@cache
def missing() -> str | None:
    """What keeps kernels from being compiled, in one line; None: nothing. Needs no device."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        return f"the CUDA kernels need cuda-core: {INSTALL}"
    try:
        version()
    except Exception:  # cuda.bindings raises what cuda.pathfinder raises
        try:
            _preload()
            version()
        except Exception as error:
            return f"the CUDA kernels need NVRTC ({str(error).splitlines()[0][:120]}): {INSTALL}"
    return None


def version() -> tuple[int, int]:
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
    """Load NVRTC from wherever Python's packages are: `cuda.pathfinder` knows site-packages alone,
    not `--target`.
    """
    for entry in sys.path:
        for library in sorted(
            Path(entry or ".").glob("nvidia/cu1[2-9]/lib/libnvrtc.so.1[2-9]"), reverse=True
        ):
            for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            return
