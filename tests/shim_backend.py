"""The kernels on the CPU: the text that a GPU gets, compiled by g++ over `shim/cuda_host_shim.h`.

Compiled once for each text and compiler, into a folder of the user's cache. Needs Linux on x86-64
and g++ 12 or newer.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea.kernels import launch_plans, source

SHIM = Path(__file__).parent / "shim" / "cuda_host_shim.h"
ORDERS = (0, 1, 2, 3)
"""Lock-step, reversed run-ahead, two random ones."""
SANITIZE = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g1",
)
HOPPER = launch_plans.DeviceLimits(232448, 4)
Edit = Callable[[str], str]


def unavailable() -> str | None:
    """Why kernels do not run on this CPU; None: they do."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        machine = f"{sys.platform} on {platform.machine()}"
        return f"the CUDA shim is written for Linux on x86-64, this is {machine}"
    return (
        None
        if shutil.which("g++")
        else "the CUDA shim needs g++ 12 or newer (Debian: apt-get install g++)"
    )


needs_shim = pytest.mark.skipif(unavailable() is not None, reason=unavailable() or "")


class KernelError(Exception):
    """A kernel did what no kernel may: the shim's message."""


def unit_of(module: str) -> tuple[str, ...]:
    """The modules that are compiled together with one, since a compiler takes longer to start than
    to translate one.
    """
    family, *words = module.split("_")
    real = "f64" if words[-1] == "f64" else "f32"
    if family == "act":
        wanted = f"act_{'_'.join(words[:-1])}_"
        return tuple(
            m
            for m in source.module_names(real)
            if m.startswith(wanted) and m.count("_") == module.count("_")
        )
    if family == "norm":  # the largest text
        return (module,)
    return tuple(m for m in source.module_names(real) if m.startswith(f"{family}_"))


def cache_folder() -> Path:
    """Where compiled libraries are kept, the user's own."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "andrea" / "shim"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="andrea-shim-"))


@cache
def _compiler() -> str:
    return subprocess.run(
        ["g++", "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]


def compile_text(text: str, options: Sequence[str] = ()) -> Path:
    """A shared library of kernels, from the cache where it is there already."""
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-w", "-fvisibility=hidden", *options]
    shim = SHIM.read_text(encoding="utf-8")
    digest = _digest(text, shim, *command)
    folder = cache_folder()
    library = folder / f"{digest}.so"
    with _alone(folder / f"{digest}.lock"):  # several processes of tests may want one library
        if not library.exists():
            header = _precompiled(shim, command)
            command += ["-x", "c++", "-shared", "-include", str(header), "-"]
            _write_by(command, library, text)
    return library


def _precompiled(shim: str, command: Sequence[str]) -> Path:
    """The shim beside its precompiled form, which g++ takes instead: half of the time that it needs
    for a text goes into the standard library's headers.
    """
    folder = cache_folder() / _digest(shim, *command)
    folder.mkdir(exist_ok=True)
    header = folder / SHIM.name
    precompiled = header.with_suffix(".h.gch")
    with _alone(folder / "lock"):
        if not precompiled.exists():
            header.write_text(shim, encoding="utf-8")
            _write_by([*command, "-x", "c++-header", str(header)], precompiled)
    return header


def _write_by(command: Sequence[str], path: Path, text: str = "") -> None:
    """Have g++ write a file, which appears whole or not at all; the text is its standard input.

    Raises:
        KernelError: it refuses the text.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        done = subprocess.run(
            [*command, "-o", str(made)],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise KernelError(f"g++ refuses the kernels:\n{done.stderr[:4000]}")
        made.replace(path)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join([_compiler(), *parts]).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of this name; it is dropped with the process."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def text_of(modules: Iterable[str]) -> str:
    """One translation unit of several modules."""
    from importlib.resources import files

    common = (files("andrea.kernels") / "rt.cuh").read_text(encoding="utf-8")
    return common + "".join(source.module_body(module) for module in modules)


def opened(path: Path) -> Any:
    """A library of kernels."""
    library = ctypes.CDLL(str(path))
    library.shim_message.restype = ctypes.c_char_p
    return library


def call(
    library: Any,
    name: str,
    grid: int,
    block: int,
    shared: int,
    args: Sequence[Any],
    order: int = 0,
    blocks: Sequence[int] | None = None,
) -> None:
    """Run a kernel of a library.

    Raises:
        KernelError: a shape that no GPU has, or an error that the shim found.
    """
    held = [_c_value(arg) for arg in args]
    pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
    chosen = None if blocks is None else (ctypes.c_long * len(blocks))(*blocks)
    shape = (ctypes.c_uint(n) for n in (grid, 1, 1, block, 1, 1, shared))
    count = ctypes.c_long(0 if blocks is None else len(blocks))
    status = library.shim_launch(
        name.encode(), *shape, pointers, ctypes.c_int(order), chosen, count
    )
    if status == 3:
        raise KernelError(library.shim_message().decode())
    if status:
        raise KernelError(
            f"{name}: grid {grid}, block {block}, {shared} bytes of shared memory: status {status}"
        )


class HostBackend:
    """Runs kernels by name on the CPU; a `Backend` as `andrea.kernels.backend` describes it.

    Args:
        order: of the threads, see the shim; a launch may name another.
        limits: what plans of launches assume.
        sanitize: with the address and undefined-behaviour sanitizers; the process must have libasan
            preloaded.
        edit: by module, applied to its text before it is compiled, alone: a planted bug.
    """

    def __init__(
        self,
        order: int = 0,
        limits: launch_plans.DeviceLimits = HOPPER,
        *,
        sanitize: bool = False,
        edit: Mapping[str, Edit] | None = None,
    ) -> None:
        self.order, self.limits = order, limits
        self._sanitize, self._edit = sanitize, dict(edit or {})
        self._libraries: dict[tuple[str, ...], Any] = {}
        self._unit: dict[str, tuple[str, ...]] = {}

    def library(self, module: str) -> Any:
        """The loaded library that has a module."""
        edit = self._edit.get(module)
        unit = self._unit.setdefault(module, (module,) if edit else unit_of(module))
        if unit not in self._libraries:
            options = [
                *(SANITIZE if self._sanitize else ()),
                *(["-DACC=double"] if module.endswith("_f64") else []),
            ]
            text = text_of(unit)
            # A planted bug is run once: compiling it well takes longer than running it.
            path = (
                compile_text(edit(text), [*options, "-O0"]) if edit else compile_text(text, options)
            )
            self._libraries[unit] = opened(path)
        return self._libraries[unit]

    def launch(
        self,
        name: str,
        grid: int,
        block: int,
        shared: int,
        args: Sequence[Any],
        *,
        order: int | None = None,
        blocks: Sequence[int] | None = None,
    ) -> None:
        """Run a kernel to its end.

        Args:
            blocks: only these blocks of the grid.

        Raises:
            KernelError: a shape that no GPU has, or an error that the shim found.
        """
        if grid == 0:
            return
        call(
            self.library(source.module_of(name)),
            name,
            grid,
            block,
            shared,
            args,
            self.order if order is None else order,
            blocks,
        )

    def load_modules(self, modules: Sequence[str]) -> None:
        """Nothing: a launch compiles what it needs, a whole unit at once."""

    def run(self, plan: launch_plans.LaunchPlan, values: dict[str, Any], **keywords: Any) -> None:
        """`launch` of a plan with named arguments."""
        arguments = launch_plans.pack_arguments(plan, values)
        self.launch(plan.kernel, plan.grid, plan.block, plan.shared_bytes, arguments, **keywords)


_C_TYPES = {
    np.int32: ctypes.c_int32,
    np.int64: ctypes.c_int64,
    np.float32: ctypes.c_float,
    np.float64: ctypes.c_double,
}


def _c_value(arg: Any) -> Any:
    if arg is None or isinstance(arg, int):
        return ctypes.c_void_p(arg or 0)
    if isinstance(arg, np.generic):
        return _C_TYPES[type(arg)](arg.item())
    return ctypes.c_void_p(arg.data_ptr())
