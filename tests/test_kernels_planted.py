"""The test of the tests: text with a planted bug must fail the suite.

Each bug is compiled and checked in a process of its own, since it may read or write anywhere; two
run at a time.
"""

import faulthandler
import multiprocessing
import os
import resource
from concurrent.futures import ThreadPoolExecutor

import kernel_suite_more
import pytest
from kernel_bugs import BUGS, CE, NORM, Bug
from shim_backend import HostBackend, KernelError, compile_text, needs_shim, text_of

pytestmark = [needs_shim, pytest.mark.slow]

SURVIVED, CAUGHT, BROKEN = 0, 7, 8


def _check(bug: Bug) -> None:
    """Run the module's checks on the text with the bug; the exit status says how it went."""
    faulthandler.disable()  # a bug that crashes is a bug that is noticed
    resource.setrlimit(
        resource.RLIMIT_CPU, (120, 120)
    )  # a bug may loop for ever; a slow machine is no bug
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    module = (
        NORM if bug.module == "reduce_f32" else bug.module
    )  # the norms' gradients go through stage 2
    host = HostBackend(edit={bug.module: bug.plant})
    try:
        host.library(bug.module)
    except KernelError:
        os._exit(BROKEN)
    for name, check in kernel_suite_more.checks(full=bug.module == "ce_f16").items():
        if name.startswith(f"{module}:"):
            try:
                check(host)
            except (AssertionError, KernelError):
                os._exit(CAUGHT)
    os._exit(SURVIVED)


def _plant(bug: Bug) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=_check, args=(bug,))
    process.start()
    process.join()
    return process.exitcode


@pytest.fixture(scope="module")
def fates() -> dict[Bug, int | None]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(BUGS, pool.map(_plant, BUGS), strict=True))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.module}: {bug.what}")
def test_a_planted_bug_is_noticed(bug: Bug, fates: dict[Bug, int | None]) -> None:
    assert fates[bug] != BROKEN, "the text with the bug does not compile"
    assert fates[bug] != SURVIVED, "no check noticed it"


def test_every_bug_has_its_place_in_the_text() -> None:
    for bug in BUGS:
        assert bug.plant(text_of([bug.module])) != text_of([bug.module])


def test_without_a_bug_nothing_is_noticed() -> None:
    host = HostBackend(edit={CE: lambda text: text})
    for name, check in kernel_suite_more.checks(full=False).items():
        if name.startswith(f"{CE}:"):
            check(host)
    assert compile_text(text_of([CE])).exists()
