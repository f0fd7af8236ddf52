"""How fast the kernels are: the bytes that must move, over the time, against what a copy reaches.

Every op is timed forward and with its backward, beside plain torch, `torch.compile` and, where it
is installed, Liger. A time is the median of several, taken in turns, so that a clock that changes
changes all alike.
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from andrea.kernels.activation import activation, gated_activation
from andrea.kernels.adamw import AdamW
from andrea.kernels.check import ACTIVATIONS, EPS, plain_loss, plain_norm
from andrea.kernels.choose import median_times
from andrea.kernels.cross_entropy import LossRule, cross_entropy, fill_losses
from andrea.kernels.norm import NormKind, add_norm

Step = Callable[[], Any]
Op = Callable[..., Any]
COPY_BYTES = 2**30
"""Size of the copy by which bandwidth is measured: far more than any cache holds."""
REPEATS = 20


@dataclass(frozen=True)
class BenchmarkTask:
    """An op at one size, and the ways to compute it."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    """Bytes that must be read and written at least."""
    ways: dict[str, Step]
    """By name: `eager`, `compile`, `cuda`, `liger`."""


@dataclass
class BenchmarkRow:
    """Times of an op by each way."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds by way."""
    copy_gbps: float = 0.0
    """GB/s that a copy reaches on the device."""

    def gbps(self, way: str) -> float:
        """Return GB/s of the bytes that must move."""
        return self.bytes / self.ms[way] / 1e6

    def share_of_copy(self, way: str) -> float:
        """Return the share of what a copy reaches."""
        return self.gbps(way) / self.copy_gbps

    def to_json(self) -> dict[str, Any]:
        """Return the row without `copy_gbps`, which is the same for all."""
        ways = {}
        for way, ms in self.ms.items():
            ways[way] = {"ms": ms, "gbps": self.gbps(way), "share": self.share_of_copy(way)}
        return {
            "op": self.op,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "bytes": self.bytes,
            "ways": ways,
        }


def run_benchmarks(
    device: torch.device, tokens: int = 16384, width: int = 768, vocabulary: int = 50257
) -> Iterator[BenchmarkRow]:
    """Time every op at the sizes of a model: `tokens` rows of `width` columns, 4 · width hidden
    ones, a vocabulary.

    Raises:
        UserError: no kernels run on this device.
    """
    copy_gbps = measure_copy(device)
    for task in benchmark_tasks(device, tokens, width, vocabulary):
        times = time_ways(task.ways, device)
        yield BenchmarkRow(task.op, task.dtype, task.shape, task.bytes, times, copy_gbps)


def time_ways(ways: dict[str, Step], device: torch.device) -> dict[str, float]:
    """Return the median milliseconds of each way by the device's own clock, taken in turns after a
    warm-up.
    """

    def time_step(step: Step) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        step()
        end.record()
        # Waiting after each keeps one way's work from overlapping with the next one's.
        torch.cuda.synchronize(device)
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds

    return median_times(ways, REPEATS, time_step)


def measure_copy(device: torch.device, size: int = COPY_BYTES) -> float:
    """Return the GB/s that a copy reads and writes."""
    # Reads as much as it writes, like most kernels here: a fairer limit than the data sheet's.
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    ms = time_ways({"copy": lambda: target.copy_(source)}, device)["copy"]
    return 2 * size / ms / 1e6


# ---- Tasks ---------------------------------------------------------------------------------------


def benchmark_tasks(
    device: torch.device, tokens: int, width: int, vocabulary: int, parameters: int = 120_000_000
) -> Iterator[BenchmarkTask]:
    """Yield what is timed, one task after the other, so that only one's tensors are held."""
    yield from _loss_tasks(device, tokens, vocabulary)
    yield from _norm_tasks(device, tokens, width, "ln")
    yield from _norm_tasks(device, tokens, width, "rms")
    yield from _activation_tasks(device, tokens, 4 * width)
    yield _optimizer_task(device, parameters)


class _OpBenchmark(NamedTuple):
    """An op, its inputs, and the bytes that it must move."""

    name: str
    inputs: list[Tensor]
    ways: dict[str, Op]
    forward_bytes: int
    total_bytes: int
    """Of forward and backward."""

    def tasks(self) -> Iterator[BenchmarkTask]:
        """Yield the forward pass alone, and with its backward."""
        shape = tuple(self.inputs[0].shape)
        dtype = str(self.inputs[0].dtype).removeprefix("torch.")
        forward = {way: self._forward_step(op) for way, op in self.ways.items()}
        yield BenchmarkTask(f"{self.name} forward", dtype, shape, self.forward_bytes, forward)
        both = {way: self._both_step(op) for way, op in self.ways.items()}
        name = f"{self.name} forward and backward"
        yield BenchmarkTask(name, dtype, shape, self.total_bytes, both)

    def _forward_step(self, op: Op) -> Step:
        def step() -> None:
            with torch.no_grad():
                op(*self.inputs)

        return step

    def _both_step(self, op: Op) -> Step:
        learned = [x for x in self.inputs if x.requires_grad]
        with torch.no_grad():
            outputs = op(*self.inputs)
        if isinstance(outputs, Tensor):
            upstream: Any = torch.ones_like(outputs)
        else:
            upstream = tuple(torch.ones_like(output) for output in outputs)

        def step() -> None:
            torch.autograd.grad(op(*self.inputs), learned, upstream)

        return step


def _draw(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)


def _ways(kernel: Op, plain: Op, liger: Op | None = None) -> dict[str, Op]:
    ways = {"eager": plain, "compile": torch.compile(plain), "cuda": kernel}
    if liger is not None:
        ways["liger"] = liger
    return ways


def _liger_function(name: str) -> Op | None:
    """Return a function of Liger's, where it is installed."""
    if importlib.util.find_spec("liger_kernel") is None:
        return None
    from liger_kernel.transformers import functional

    function: Op = getattr(functional, name)
    return function


def _loss_tasks(device: torch.device, tokens: int, vocabulary: int) -> Iterator[BenchmarkTask]:
    logits = _draw(device, tokens, vocabulary)
    targets = torch.randint(vocabulary, (tokens,), device=device)
    liger_loss = _liger_function("liger_cross_entropy")
    liger = None
    if liger_loss is not None:  # it writes into what it gets
        liger = lambda z, t: liger_loss(z.clone(), t, reduction="none")  # noqa: E731
    ways = _ways(lambda z, t: cross_entropy(z, t), lambda z, t: plain_loss(z.float(), t), liger)
    # Logits read once, gradient written once: all that must move, and all that moves in place.
    size = logits.numel() * logits.itemsize
    forward, both = _OpBenchmark("cross_entropy", [logits, targets], ways, size, 2 * size).tasks()
    yield forward
    buffer, loss = logits.detach(), torch.empty(tokens, device=device)

    def fill_in_place() -> None:
        """As training does by `head_loss`; logits become gradients, which takes no other time."""
        fill_losses(buffer, targets, LossRule(), loss=loss, grad=buffer)

    both.ways["cuda in place"] = fill_in_place
    yield both


def _norm_tasks(
    device: torch.device, tokens: int, width: int, kind: NormKind
) -> Iterator[BenchmarkTask]:
    stream = _draw(device, tokens, width, dtype=torch.float32)
    branch = _draw(device, tokens, width)
    weights = [_draw(device, width, dtype=torch.float32) for _ in range(2 if kind == "ln" else 1)]

    def kernel(x: Tensor, delta: Tensor, w: Tensor, b: Tensor | None = None) -> Any:
        return add_norm(x, delta, w, b, kind, EPS)

    def plain(x: Tensor, delta: Tensor, w: Tensor, b: Tensor | None = None) -> Any:
        total = x + delta
        return total, plain_norm(total, w, b, kind, EPS).to(delta.dtype)

    # x, delta in, sum, y out; then dy, sum, dsum in, dx, ddelta out.
    forward = stream.numel() * (4 + 2 + 4 + 2)
    backward = stream.numel() * (2 + 4 + 4 + 4 + 2)
    inputs = [stream, branch, *weights]
    ways = _ways(kernel, plain)
    yield from _OpBenchmark(f"add_norm {kind}", inputs, ways, forward, forward + backward).tasks()


def _activation_tasks(device: torch.device, tokens: int, hidden: int) -> Iterator[BenchmarkTask]:
    bias = _draw(device, hidden, dtype=torch.float32)
    a = _draw(device, tokens, hidden)
    size = a.numel() * a.itemsize
    gelu, silu = ACTIVATIONS["gelu_tanh"], ACTIVATIONS["silu"]
    ways = _ways(lambda a, b: activation(a, b, "gelu_tanh"), lambda a, b: gelu(a + b.to(a.dtype)))
    # Forward reads a and writes y; backward reads dy and a and writes da.
    yield from _OpBenchmark("activation gelu_tanh", [a, bias], ways, 2 * size, 5 * size).tasks()
    up = _draw(device, tokens, hidden)
    ways = _ways(
        lambda g, u: gated_activation(g, u, None, None, "silu"),
        lambda g, u: silu(g) * u,
        _liger_function("liger_swiglu"),
    )
    yield from _OpBenchmark("gated silu", [a, up], ways, 3 * size, 8 * size).tasks()


def _optimizer_task(device: torch.device, parameters: int) -> BenchmarkTask:
    """Return a step with clipping over tensors like a transformer's."""
    shapes = [(768, 3072)] * (parameters // (768 * 3072)) + [(768,)] * 50
    count = sum(torch.Size(shape).numel() for shape in shapes)

    def make_parameters() -> list[nn.Parameter]:
        tensors = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
        for tensor in tensors:
            tensor.grad = torch.randn_like(tensor)
        return tensors

    def eager_step() -> None:
        nn.utils.clip_grad_norm_(eager_parameters, 1.0, foreach=True)
        eager.step()

    eager_parameters = make_parameters()
    eager = torch.optim.AdamW(eager_parameters, lr=1e-4, fused=True)
    kernel = AdamW(make_parameters(), lr=1e-4, clip=1.0)
    ways: dict[str, Step] = {"eager": eager_step, "cuda": kernel.step}
    # The gradient twice, and parameter and two moments in and out, 4 bytes each.
    return BenchmarkTask("adamw with clipping", "float32", (count,), 32 * count, ways)
