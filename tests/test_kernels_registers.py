"""NVRTC compiles every module for every architecture without a GPU: no spills, registers within the
budget.
"""

import hashlib
import io
import re

import pytest
from shim_backend import cache_folder

from andrea.kernels import nvrtc, source
from andrea.store.files import write_atomic

pytestmark = pytest.mark.skipif(
    nvrtc.missing_requirement() is not None, reason=str(nvrtc.missing_requirement())
)

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
QUICK = ("ce_bf16", "adamw_f32", "reduce_f32")


def assembler_report(module: str, arch: str) -> str:
    """What the assembler says of a module, from the cache where this compiler has said it of this
    text.
    """
    options = nvrtc.program_options(arch, verbose=True).as_bytes("nvrtc")
    parts = (source.module_text(module), str(options), str(nvrtc.nvrtc_version()))
    key = "\0".join(parts)
    kept = cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.registers"
    if not kept.exists():
        log = io.StringIO()
        nvrtc.compile_module(module, arch, log)
        write_atomic(kept, log.getvalue())
    return kept.read_text(encoding="utf-8")


def resources(module: str, arch: str) -> dict[str, dict[str, int]]:
    """Registers and bytes of spills by kernel, from the assembler's report."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in assembler_report(module, arch).splitlines():
        if started := re.search(r"Compiling entry function '(\w+)'", line):
            name = started[1]
            found[name] = {}
        if spills := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        ):
            found[name]["spilled"] = sum(map(int, spills.groups()))
        if used := re.search(r"Used (\d+) registers", line):
            found[name]["registers"] = int(used[1])
    return found


def check(module: str, arch: str) -> None:
    found = resources(module, arch)
    assert sorted(found) == sorted(source.kernel_names(module))
    for name, used in found.items():
        assert used["spilled"] == 0, f"{name} on {arch}"
        assert used["registers"] <= source.REGISTER_BUDGETS[source.kernel_family(name)], (
            f"{name} on {arch}: {used['registers']}"
        )


@pytest.mark.parametrize("module", QUICK)
def test_a_module_compiles_for_hopper_within_its_registers(module: str) -> None:
    check(module, "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arch"),
    [
        (module, arch)
        for module in source.module_names()
        for arch in ARCHITECTURES
        if (module, arch) not in {(quick, "sm_90") for quick in QUICK}
    ],
)
def test_every_module_compiles_for_every_architecture_within_its_registers(
    module: str, arch: str
) -> None:
    check(module, arch)
