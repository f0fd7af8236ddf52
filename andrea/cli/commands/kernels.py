"""`andrea kernels`: are the CUDA kernels right here, how fast, and what did the compiler make of
them?
"""

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from andrea.cli.options import Debug, Json, examples, option
from andrea.cli.show.output import print_json, size, table
from andrea.errors import UserError

if TYPE_CHECKING:
    import torch

app = typer.Typer(
    help="The hand-written CUDA kernels: check, time and show them.", rich_markup_mode=None
)

CHECK = examples("andrea kernels check", "andrea kernels check --device cuda:1 --json")
BENCH = examples("andrea kernels bench", "andrea kernels bench --rows 32768 --width 1600 --json")
SHOW = examples(
    "andrea kernels show", "andrea kernels show --arch sm_100 --json     (needs no GPU)"
)

Device = Annotated[str, option("--device D", "cuda, or one of several: cuda:1.")]


@app.command("check", epilog=CHECK)
def check(
    device: Device = "cuda",
    quick: Annotated[bool, option("--quick", "Two sizes instead of seven.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare every op with float64 on a device, forward and backward, in every type and layout."""

    where = kernels_on(device)
    from andrea.kernels.check import ALLOWED, compare_ops, summarize

    rows = summarize(list(compare_ops(where, quick)))
    if as_json:
        print_json([asdict(row) | {"error": finite(row.error)} for row in rows])
    else:
        lines = []
        for row in rows:
            state = "WRONG" if row.failed else "ok"
            right = f"{row.checks - row.failed} of {row.checks}"
            where_worst = f"{row.layout} {row.shape[0]} × {row.shape[1]}"
            lines.append([state, row.op, row.dtype, right, f"{row.error:.2f}", where_worst])
        typer.echo(table(lines, ("", "op", "type", "right", "worst", "where it was"), right=(4,)))
        checks = sum(row.checks for row in rows)
        typer.echo(
            f"\n{checks:,} comparisons; worst: in roundings of the type, {ALLOWED} are allowed"
        )
    if any(row.failed for row in rows):
        raise typer.Exit(1)


@app.command("bench", epilog=BENCH)
def bench(
    device: Device = "cuda",
    rows: Annotated[int, option("--rows N", "Tokens of a micro-batch.", min=1)] = 16384,
    width: Annotated[int, option("--width N", "d_model; MLPs are 4 times that.", min=1)] = 768,
    vocabulary: Annotated[int, option("--vocabulary N", "Classes of the loss.", min=1)] = 50257,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Time every op against plain torch, torch.compile and, where it is installed, Liger.

    GB/s are the bytes that must move at least, over the time; the share is of what a copy reaches
    on this device.
    """
    where = kernels_on(device)
    from andrea.kernels.bench import run_benchmarks

    results = list(run_benchmarks(where, rows, width, vocabulary))
    if as_json:
        print_json([result.to_json() | {"copy_gbps": result.copy_gbps} for result in results])
        return
    lines = []
    for result in results:
        for way, ms in result.ms.items():
            speed, share = f"{result.gbps(way):,.0f}", f"{result.share_of_copy(way):.0%}"
            speedup = f"× {result.ms['eager'] / ms:.2f}"
            lines.append([result.op, result.dtype, way, f"{ms:.3f}", speed, share, speedup])
    header = ("op", "type", "by", "ms", "GB/s", "of a copy", "against eager")
    typer.echo(table(lines, header, right=(3, 4, 5, 6)))
    typer.echo(f"\na copy moves {results[0].copy_gbps:,.0f} GB/s here")


@app.command("show", epilog=SHOW)
def show(
    archs: Annotated[
        list[str] | None,
        option("--arch SM", "Architecture; may be repeated. By default this device's, or sm_90."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Registers, shared memory, spills and size of the code of every kernel; needs no GPU."""
    from andrea.kernels.show import CompiledKernel, inspect_kernels

    found = [kernel for arch in archs or [this_arch()] for kernel in inspect_kernels(arch)]
    if as_json:
        print_json([asdict(kernel) | {"within_budget": kernel.within_budget} for kernel in found])
        return

    def line(kernel: CompiledKernel) -> list[object]:
        registers = f"{kernel.registers} of {kernel.budget}"
        numbers = [registers, size(kernel.shared), str(kernel.spills), size(kernel.sass)]
        return ["ok" if kernel.within_budget else "OVER", kernel.name, kernel.arch, *numbers]

    header = ("", "kernel", "arch", "registers", "shared", "spills", "code")
    typer.echo(table([line(kernel) for kernel in found], header, right=(3, 4, 5, 6)))


def kernels_on(name: str) -> "torch.device":
    """A device that kernels run on.

    Raises:
        UserError: there is none of this name, or what kernels need is missing.
    """
    import torch

    from andrea.kernels import backend

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device {name!r}: write cuda or cuda:1") from error
    lacking = backend.missing_requirement(device)
    devices = torch.cuda.device_count()
    if lacking is None and device.type == "cuda" and (device.index or 0) >= devices:
        lacking = f"this machine has {devices} CUDA devices"
    if lacking is not None:
        raise UserError(f"--device {name}: {lacking}")
    return device


def this_arch() -> str:
    """Of the first device, or that of an H100 and H200."""
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            return "sm_{}{}".format(*torch.cuda.get_device_capability())
    return "sm_90"


def finite(number: float) -> float | None:
    """JSON has no NaN."""
    return number if number - number == 0 else None
