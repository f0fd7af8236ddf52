"""How fast the kernels are: bytes that must move, over time, against what a copy reaches on this
device.

Every op is timed forward and with its backward, beside plain torch, `torch.compile` and Liger where
it is installed. A number is the median of several, taken in turns, so that a clock that changes
changes all alike.
"""

import importlib.util
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from andrea.kernels.activation import activation, gated_activation
from andrea.kernels.adamw import AdamW
from andrea.kernels.check import ACTIVATIONS, plain_loss, plain_norm
from andrea.kernels.cross_entropy import IGNORED, _fill, cross_entropy
from andrea.kernels.norm import add_norm

Step = Callable[[], Any]
COPY_BYTES = 2**30
"""Size of what is copied to measure the bandwidth: far more than any cache."""


@dataclass(frozen=True)
class Task:
    """One op at one size: bytes that must be read and written, and the ways to do it."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    ways: dict[str, Step]


@dataclass
class Result:
    """Milliseconds by way."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    ms: dict[str, float] = field(default_factory=dict)
    copy_gbps: float = 0.0

    def gbps(self, way: str) -> float:
        """GB/s of the bytes that must move."""
        return self.bytes / self.ms[way] / 1e6

    def share(self, way: str) -> float:
        """Of what a copy reaches."""
        return self.gbps(way) / self.copy_gbps

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        ways = {
            way: {"ms": ms, "gbps": self.gbps(way), "share": self.share(way)}
            for way, ms in self.ms.items()
        }
        return {
            "op": self.op,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "bytes": self.bytes,
            "ways": ways,
        }


def milliseconds(
    ways: dict[str, Step], device: torch.device, repeats: int = 20
) -> dict[str, float]:
    """Median time of each way, taken in turns after a warm-up; by the device's own clock."""
    for step in ways.values():
        for _ in range(3):
            step()
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, step in ways.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            step()
            end.record()
            torch.cuda.synchronize(device)
            taken[way].append(begin.elapsed_time(end))
    return {way: statistics.median(times) for way, times in taken.items()}


def copy_gbps(device: torch.device, size: int = COPY_BYTES) -> float:
    """GB/s that a copy reads and writes."""
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    ms = milliseconds({"copy": lambda: target.copy_(source)}, device)["copy"]
    return 2 * size / ms / 1e6


def bench(
    device: torch.device, tokens: int = 16384, width: int = 768, vocabulary: int = 50257
) -> Iterator[Result]:
    """Time every op at the sizes of a model: `tokens` rows of `width` columns, 4·width hidden ones,
    a vocabulary.

    Raises:
        UserError: no kernels run on this device.
    """
    reached = copy_gbps(device)
    for task in tasks(device, tokens, width, vocabulary):
        yield Result(
            task.op, task.dtype, task.shape, task.bytes, milliseconds(task.ways, device), reached
        )


def tasks(
    device: torch.device, tokens: int, width: int, vocabulary: int, parameters: int = 120_000_000
) -> Iterator[Task]:
    """What is timed, one task after the other, so that only one's tensors are held."""
    yield from _losses(device, tokens, vocabulary)
    yield from _norms(device, tokens, width)
    yield from _activations(device, tokens, 4 * width)
    yield _optimizer(device, parameters)


def _drawn(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)


def _ways(
    ours: Callable[..., Any], plain: Callable[..., Any], liger: Callable[..., Any] | None
) -> dict[str, Any]:
    ways = {"eager": plain, "compile": torch.compile(plain), "cuda": ours}
    return ways if liger is None else {**ways, "liger": liger}


def _timed(
    op: str,
    shape: tuple[int, ...],
    inputs: list[Tensor],
    ways: dict[str, Any],
    forward: int,
    both: int,
) -> Iterator[Task]:
    """The forward pass alone, and with the backward; what those move at least."""
    dtype = str(inputs[0].dtype).removeprefix("torch.")

    def alone(way: Callable[..., Any]) -> Step:
        def step() -> None:
            with torch.no_grad():
                way(*inputs)

        return step

    def together(way: Callable[..., Any]) -> Step:
        with torch.no_grad():
            outputs = way(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        above = tuple(torch.ones_like(y) for y in outputs)

        def step() -> None:
            found = way(*inputs)
            torch.autograd.grad(
                found, [x for x in inputs if x.requires_grad], above if len(above) > 1 else above[0]
            )

        return step

    yield Task(
        f"{op} forward", dtype, shape, forward, {name: alone(way) for name, way in ways.items()}
    )
    yield Task(
        f"{op} forward and backward",
        dtype,
        shape,
        both,
        {name: together(way) for name, way in ways.items()},
    )


def _losses(device: torch.device, tokens: int, vocabulary: int) -> Iterator[Task]:
    logits = _drawn(device, tokens, vocabulary)
    targets = torch.randint(vocabulary, (tokens,), device=device)
    liger = _liger("liger_cross_entropy")
    ways = _ways(
        lambda z, t: cross_entropy(z, t),
        lambda z, t: plain_loss(z.float(), t),
        liger
        and (lambda z, t: liger(z.clone(), t, reduction="none")),  # it writes into what it gets
    )
    size = logits.numel() * 2
    # Logits read once, gradient written once: all that must move, and all that moves in place.
    alone, both = _timed(
        "cross_entropy", tuple(logits.shape), [logits, targets], ways, size, 2 * size
    )
    yield alone
    own, loss = logits.detach(), torch.empty(tokens, device=device)

    def in_place() -> None:
        """As training does by `head_loss`; logits become gradients, which takes no other time."""
        _fill(own, own, targets, None, loss, IGNORED, 0.0, 0.0)

    both.ways["cuda in place"] = in_place
    yield both


def _norms(device: torch.device, tokens: int, width: int) -> Iterator[Task]:
    for kind in ("ln", "rms"):
        stream, branch = (
            _drawn(device, tokens, width, dtype=torch.float32),
            _drawn(device, tokens, width),
        )
        weights = [
            _drawn(device, width, dtype=torch.float32) for _ in range(2 if kind == "ln" else 1)
        ]

        def ours(
            x: Tensor, d: Tensor, w: Tensor, b: Tensor | None = None, kind: str = kind
        ) -> tuple[Tensor, Tensor]:
            return add_norm(x, d, w, b, kind, 1e-5)

        def plain(
            x: Tensor, d: Tensor, w: Tensor, b: Tensor | None = None, kind: str = kind
        ) -> tuple[Tensor, Tensor]:
            total = x + d
            return total, plain_norm(total, w, b, kind, 1e-5).to(d.dtype)

        n = stream.numel()
        forward, backward = n * (4 + 2 + 4 + 2), n * (2 + 4 + 4 + 4 + 2)
        inputs = [stream, branch, *weights]
        yield from _timed(
            f"add_norm {kind}",
            tuple(stream.shape),
            inputs,
            _ways(ours, plain, None),
            forward,
            forward + backward,
        )


def _activations(device: torch.device, tokens: int, hidden: int) -> Iterator[Task]:
    bias, f = _drawn(device, hidden, dtype=torch.float32), ACTIVATIONS["gelu_tanh"]
    a = _drawn(device, tokens, hidden)
    ways = _ways(
        lambda a, b: activation(a, b, "gelu_tanh"), lambda a, b: f(a + b.to(a.dtype)), None
    )
    n = a.numel()
    yield from _timed("activation gelu_tanh", tuple(a.shape), [a, bias], ways, 4 * n, 10 * n)
    silu, liger, u = ACTIVATIONS["silu"], _liger("liger_swiglu"), _drawn(device, tokens, hidden)
    ways = _ways(
        lambda g, u: gated_activation(g, u, None, None, "silu"), lambda g, u: silu(g) * u, liger
    )
    yield from _timed("gated silu", tuple(a.shape), [a, u], ways, 6 * n, 16 * n)


def _optimizer(device: torch.device, parameters: int) -> Task:
    """A step with clipping over tensors like a transformer's."""
    shapes = [(768, 3072)] * (parameters // (768 * 3072)) + [(768,)] * 50

    def step_of(ours: bool) -> Step:
        held = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
        for p in held:
            p.grad = torch.randn_like(p)
        if ours:
            return AdamW(held, lr=1e-4, clip=1.0).step
        optimizer = torch.optim.AdamW(held, lr=1e-4, fused=True)

        def step() -> None:
            nn.utils.clip_grad_norm_(held, 1.0, foreach=True)
            optimizer.step()

        return step

    count = sum(torch.Size(shape).numel() for shape in shapes)
    return Task(
        "adamw with clipping",
        "float32",
        (count,),
        32 * count,
        {"eager": step_of(False), "cuda": step_of(True)},
    )


def _liger(name: str) -> Callable[..., Any] | None:
    """A function of Liger's, where it is installed."""
    if importlib.util.find_spec("liger_kernel") is None:
        return None
    from liger_kernel.transformers import functional

    found: Callable[..., Any] = getattr(functional, name)
    return found
