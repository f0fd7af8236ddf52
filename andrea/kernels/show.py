"""Compiled kernels as the compiler describes them: registers, shared memory, spills, size of the
code. Needs no GPU.
"""

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from andrea.kernels import nvrtc, source

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel compiled for an architecture, with the fields of `andrea kernels show --json`."""

    name: str
    module: str
    arch: str
    registers: int
    budget: int
    """The most that `source.REGISTER_BUDGETS` lets it have."""
    shared: int
    """Bytes of shared memory that it declares; what a launch adds is not in it."""
    stack: int
    """Bytes of local memory; 0 unless arrays or spills go there."""
    spills: int
    """Bytes that are stored and loaded for want of registers."""
    sass: int
    """Bytes of machine code."""

    @property
    def within_budget(self) -> bool:
        """True if it spills nothing and has no more registers than its budget."""
        return self.spills == 0 and self.registers <= self.budget


class _Remarks(NamedTuple):
    """What ptxas says about a kernel; the fields are those of `CompiledKernel`."""

    registers: int
    shared: int
    stack: int
    spills: int


def inspect_kernels(arch: str, modules: tuple[str, ...] | None = None) -> Iterator[CompiledKernel]:
    """Compile modules (all of them by default) for an architecture (`sm_90`), and yield their
    kernels.

    Raises:
        UserError: NVRTC is missing or does not know the architecture.
    """
    for module in modules or source.module_names():
        log = io.StringIO()
        code = bytes(nvrtc.compile_module(module, arch, log).code)
        section_sizes = dict(_elf_sections(code))
        remarks = _parse_remarks(log.getvalue())
        for name in source.kernel_names(module):
            yield CompiledKernel(
                name=name,
                module=module,
                arch=arch,
                budget=source.REGISTER_BUDGETS[source.kernel_family(name)],
                sass=section_sizes[f".text.{name}"],
                **remarks[name]._asdict(),
            )


def _parse_remarks(log: str) -> dict[str, _Remarks]:
    """Read ptxas' log, in which a kernel's name, its spills and its registers follow each other on
    lines of their own.
    """
    remarks: dict[str, _Remarks] = {}
    name, stack, spills = "", 0, 0
    for line in log.splitlines():
        if match := ENTRY.search(line):
            name = match[1]
        elif match := SPILLS.search(line):
            stack, spills = int(match[1]), int(match[2]) + int(match[3])
        elif (match := REGISTERS.search(line)) and name:
            smem = SHARED.search(line)  # left out where there is none
            shared = int(smem[1]) if smem else 0
            remarks[name] = _Remarks(int(match[1]), shared, stack, spills)
    return remarks


def _elf_sections(elf: bytes) -> Iterator[tuple[str, int]]:
    """Yield names and sizes of the sections of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [
        struct.unpack_from("<IIQQQQ", elf, table + index * entry_size) for index in range(count)
    ]
    names_offset = headers[names_index][4]
    for name_offset, _, _, _, _, size in headers:
        start = names_offset + name_offset
        yield elf[start : elf.index(b"\0", start)].decode(), size
