"""What compilers made of the kernels: registers, shared memory, spills, size of the code. Needs no
GPU.
"""

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from andrea.kernels import nvrtc, source

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel."""

    name: str
    module: str
    arch: str
    registers: int
    budget: int
    """The most that `source.REGISTERS` lets it have."""
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
        """Whether it spills nothing and has registers to spare."""
        return self.spills == 0 and self.registers <= self.budget


def compiled(arch: str, modules: tuple[str, ...] | None = None) -> Iterator[Kernel]:
    """Compile modules (all) for an architecture (`sm_90`) and say what came of each kernel.

    Raises:
        UserError: NVRTC is missing or does not know the architecture.
    """
    for module in modules or source.modules():
        log = io.StringIO()
        code = bytes(nvrtc.cubin(module, arch, log).code)
        sizes = dict(_sections(code))
        remarks = _remarks(log.getvalue())
        for name in source.names(module):
            registers, shared, stack, spills = remarks[name]
            budget = source.REGISTERS[source.family_of(name)]
            yield Kernel(
                name, module, arch, registers, budget, shared, stack, spills, sizes[f".text.{name}"]
            )


def _remarks(log: str) -> dict[str, tuple[int, int, int, int]]:
    """By kernel: registers, shared memory, stack, spills, as ptxas says them line by line."""
    found: dict[str, tuple[int, int, int, int]] = {}
    name, stack, spills = "", 0, 0
    for line in log.splitlines():
        if match := ENTRY.search(line):
            name = match[1]
        elif match := SPILLS.search(line):
            stack, spills = int(match[1]), int(match[2]) + int(match[3])
        elif (match := REGISTERS.search(line)) and name:
            shared = SHARED.search(line)
            found[name] = (int(match[1]), int(shared[1]) if shared else 0, stack, spills)
    return found


def _sections(elf: bytes) -> Iterator[tuple[str, int]]:
    """Names and sizes of the sections of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + index * entry) for index in range(count)]
    strings = headers[names][4]
    for name, _, _, _, _, size in headers:
        start = strings + name
        yield elf[start : elf.index(b"\0", start)].decode(), size
