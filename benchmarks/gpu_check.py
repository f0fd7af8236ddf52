"""Every kernel against float64 on the GPU, and what only a driver can show, as JSON.

python benchmarks/gpu_check.py OUT.json [--small]

--small: few sizes and ops of every family, for a run under compute-sanitizer.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from andrea.kernels import check
from andrea.kernels.adamw import AdamW
from andrea.kernels.norm import add_norm, norm

SMALL = (
    "norm ln",
    "add_norm rms",
    "activation gelu_tanh",
    "gated silu",
    "cross_entropy",
    "head_loss",
)
CUDA = torch.device("cuda", 0)


def cold_capture() -> None:
    """Check that a graph captures the first launch of a module, and that its replay reads new
    numbers.
    """
    x = torch.randn(64, 96, device=CUDA, dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = norm(x, None, None, "rms", 1e-5)
    for seed in (1, 2):
        x.copy_(torch.randn(64, 96, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        torch.testing.assert_close(y, norm(x, None, None, "rms", 1e-5))


def captured_optimizer() -> None:
    """Check that three replays of a step are three steps."""
    start = [torch.randn(33, 7, device=CUDA), torch.randn(20_000, device=CUDA)]
    captured, eager = ([nn.Parameter(p.clone()) for p in start] for _ in range(2))
    for held in (captured, eager):
        for p, q in zip(held, start, strict=True):
            p.grad = q.sin()
    optimizers = [AdamW(held, lr=1e-2, clip=1.0) for held in (captured, eager)]
    for optimizer in optimizers:
        optimizer.step()  # lays out its tables
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizers[0].step()
    for _ in range(3):
        graph.replay()
        optimizers[1].step()
    for one, other in zip(captured, eager, strict=True):
        assert torch.equal(one, other)


def side_stream() -> None:
    """Check that a kernel waits for what its own stream does before it."""
    x, stream = torch.zeros(4096, 4096, device=CUDA), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(50):
            x = x + 1
        total, _ = add_norm(x, x, None, None, "rms", 1e-5)
    stream.synchronize()
    assert (total == 100).all()


def second_device() -> str | None:
    """Check tensors on cuda:1 while cuda:0 is current."""
    if torch.cuda.device_count() < 2:
        return "n/a, one device"
    x = torch.randn(5, 48, device="cuda:1")
    torch.testing.assert_close(
        norm(x, None, None, "ln", 1e-5), check.plain_norm(x, None, None, "ln", 1e-5)
    )
    return None


def rows_beyond_2_31_elements() -> None:
    """Check the last rows of a tensor of more than 2³¹ elements."""
    rows, columns = 2**31 // 4096 + 3, 4096
    x = torch.zeros(rows, columns, device=CUDA, dtype=torch.bfloat16)
    x[-2:] = torch.randn(2, columns, device=CUDA).bfloat16()
    y = norm(x, None, None, "ln", 1e-5)
    tail: Tensor = check.plain_norm(x[-2:].double(), None, None, "ln", 1e-5)
    torch.testing.assert_close(y[-2:].double(), tail, atol=2**-6, rtol=2**-7)


DRIVER_CHECKS: tuple[Callable[[], str | None], ...] = (
    cold_capture,
    captured_optimizer,
    side_stream,
    second_device,
    rows_beyond_2_31_elements,
)


def check_driver() -> dict[str, str]:
    """Return for each check `ok`, `n/a` with a reason, or what went wrong."""
    results = {}
    for driver_check in DRIVER_CHECKS:
        name = driver_check.__name__
        try:
            results[name] = driver_check() or "ok"
        except Exception as error:  # one that fails does not keep the others from running
            results[name] = f"{type(error).__name__}: {error}"[:300]
        print(f"{name}: {results[name]}", flush=True)
    return results


def main() -> int:
    out, small = Path(sys.argv[1]), "--small" in sys.argv
    driver, cases = {}, None
    if small:
        cases = [case for case in check.op_cases() if case.op in SMALL]
    else:
        driver = check_driver()
    comparisons = list(check.compare_ops(CUDA, small, cases))
    rows = check.summarize(comparisons)
    record = {
        "comparisons": len(comparisons),
        "allowed": check.ALLOWED,
        "driver": driver,
        "rows": [asdict(row) for row in rows],
    }
    out.write_text(json.dumps(record, indent=1))
    wrong = [(row.op, row.dtype, row.error) for row in rows if row.failed]
    print(f"{len(comparisons)} comparisons, wrong: {wrong or 'none'}")
    driver_failed = any(
        result != "ok" and not result.startswith("n/a") for result in driver.values()
    )
    return 1 if wrong or driver_failed else 0


if __name__ == "__main__":
    sys.exit(main())
