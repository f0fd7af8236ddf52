"""The kernels under the address and undefined-behaviour sanitizers, and proof that these look."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_bugs import MISALIGNED
from shim_backend import needs_shim

pytestmark = [needs_shim, pytest.mark.slow]


def sanitized(*arguments: str) -> subprocess.CompletedProcess[str]:
    libraries = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(here.parent), str(here), os.environ.get("PYTHONPATH", "")]
        ),
    }
    command = [sys.executable, str(here / "kernel_sanitized.py"), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


def test_no_access_is_out_of_bounds_or_misaligned() -> None:
    done = sanitized()
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 60


@pytest.mark.parametrize("bug", range(len(MISALIGNED)), ids=lambda bug: MISALIGNED[bug].what)
def test_a_misaligned_vector_stops_the_process(bug: int) -> None:
    done = sanitized(str(bug))
    assert done.returncode != 0 and "misaligned address" in done.stderr, done.stderr[-3000:]


def test_a_read_beyond_the_end_stops_the_process() -> None:
    done = sanitized(str(len(MISALIGNED)))
    assert done.returncode != 0 and "AddressSanitizer" in done.stderr, done.stderr[-3000:]
