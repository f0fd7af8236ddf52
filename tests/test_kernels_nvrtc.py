"""Compiling for real, without a GPU: the disk cache, its key, processes that start at once, packed
arguments.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENT_S

from andrea.errors import UserError
from andrea.kernels import nvrtc, source

pytestmark = pytest.mark.skipif(
    nvrtc.missing_requirement() is not None, reason=str(nvrtc.missing_requirement())
)

START = """
import sys
from pathlib import Path
from cuda.core.utils import FileStreamProgramCache
from andrea.kernels import nvrtc

class Counting(FileStreamProgramCache):
    def __setitem__(self, key, value):
        with Path(sys.argv[1]).open("a") as file:
            file.write("compiled\\n")
        super().__setitem__(key, value)

nvrtc._disk_cache = lambda: Counting(nvrtc.cache_folder() / "cubin")
for module in ("ce_bf16", "reduce_f32"):
    assert bytes(nvrtc.compile_module(module, "sm_90").code)[:4] == b"\\x7fELF"
assert "torch" not in sys.modules
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path / "cache"))


def start(count: int, log: Path) -> list[int]:
    command = [sys.executable, "-c", START, str(log)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [subprocess.Popen(command, env=environment) for _ in range(count)]
    return [process.wait(timeout=PATIENT_S) for process in processes]


@pytest.mark.slow
def test_four_processes_at_once_compile_once_and_a_second_start_compiles_nothing(
    tmp_path: Path,
) -> None:
    log = tmp_path / "compiled"
    assert start(4, log) == [0] * 4
    assert log.read_text().splitlines() == ["compiled"] * 2
    assert start(1, log) == [0]
    assert log.read_text().splitlines() == ["compiled"] * 2


def test_the_key_is_the_text_the_options_the_architecture_and_nvrtcs_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cuda.core.utils import _program_cache, make_program_cache_key

    def key(
        text: str = source.module_text("reduce_f32"), arch: str = "sm_90", verbose: bool = False
    ) -> bytes:
        return bytes(
            make_program_cache_key(
                code=text,
                code_type="c++",
                options=nvrtc.program_options(arch, verbose=verbose),
                target_type="cubin",
            )
        )

    keys = {
        key(),
        key(source.module_text("reduce_f32") + " "),
        key(arch="sm_80"),
        key(verbose=True),
    }
    assert len(keys) == 4 and key() in keys
    keys_module = sys.modules[_program_cache.__name__ + "._keys"]
    monkeypatch.setattr(keys_module, "_nvrtc_version", lambda: (99, 9))
    assert key() not in keys


def test_a_damaged_lock_or_a_cache_that_cannot_be_written_to_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path / "file"))
    assert nvrtc.compile_module("reduce_f32", "sm_90").code_type == "cubin"


def test_where_nothing_can_be_locked_everyone_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(nvrtc.fcntl, "flock", refuse)
    assert nvrtc.compile_module("reduce_f32", "sm_90").code_type == "cubin"
    monkeypatch.undo()
    (nvrtc.cache_folder() / "locks").mkdir(exist_ok=True)
    with (
        nvrtc._compile_lock("kept"),
        pytest.raises(OSError, match="of the body"),
        nvrtc._compile_lock("other"),
    ):
        raise OSError("of the body")


def test_an_architecture_that_nvrtc_does_not_know_is_the_users_to_mend() -> None:
    with pytest.raises(UserError, match=r"NVRTC \d+\.\d+ does not know sm_999"):
        nvrtc.compile_module("reduce_f32", "sm_999")


def test_arguments_are_packed_with_their_types() -> None:
    from cuda.core._kernel_arg_handler import ParamHolder

    values = [2**40 + 3, 0, np.int64(-5), np.int32(7), np.float32(1.5)]
    holder = ParamHolder(values)
    pointers = ctypes.cast(holder.ptr, ctypes.POINTER(ctypes.c_void_p * len(values))).contents
    types = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32, ctypes.c_float]
    read = [
        ctypes.cast(p, ctypes.POINTER(t)).contents.value
        for p, t in zip(pointers, types, strict=True)
    ]
    assert read == [2**40 + 3, 0, -5, 7, 1.5]
