"""Every op against float64 on a device, in every layout and storage type, with sizes that break
careless kernels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea.kernels import source
from andrea.kernels.activation import activation, gated_activation
from andrea.kernels.adamw import AdamW
from andrea.kernels.cross_entropy import IGNORED, cross_entropy, head_loss
from andrea.kernels.norm import add_norm, norm

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""What one rounding costs at most, relative to the largest number of a tensor; float32 with the
sums behind it.
"""
ALLOWED = 4
"""Roundings that an op may cost."""
SIZES = ((1, 1), (3, 31), (5, 256), (4, 1023), (2, 1600), (7, 4099))
MANY_ROWS = (70_001, 8)
"""More than a grid's second axis has."""
QUICK = ((3, 31), (5, 256))

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
"""What each function is in plain torch."""


def plain_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, kind: str, eps: float
) -> Tensor:
    """Of each row, as torch computes it."""
    if kind == "ln":
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def plain_loss(
    logits: Tensor, targets: Tensor, softcap: float | None = None, z_loss: float = 0.0
) -> Tensor:
    """The model's rule: the loss never contains the z-term, its gradient does."""
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    flat = logits.reshape(-1, logits.shape[-1])
    loss: Tensor = F.cross_entropy(
        flat, targets.reshape(-1), ignore_index=IGNORED, reduction="none"
    ).view(targets.shape)
    penalty = z_loss * logits.logsumexp(-1).square() * (targets >= 0)
    return loss + (penalty - penalty.detach())


@dataclass(frozen=True)
class Row:
    """One comparison."""

    op: str
    dtype: str
    layout: str
    shape: tuple[int, int]
    error: float
    """The largest, in roundings of the storage type."""

    @property
    def ok(self) -> bool:
        """Whether it is a rounding error."""
        return self.error <= ALLOWED  # a NaN is not


@dataclass(frozen=True)
class Case:
    """An op, its plain counterpart and the tensors they get: `rows` [N, C] matrices, then `weights`
    [C] vectors.
    """

    op: str
    ours: Callable[..., Sequence[Tensor]]
    plain: Callable[..., Sequence[Tensor]]
    rows: int
    weights: int


def cases() -> Iterator[Case]:
    """Every op that a model can reach."""
    for kind in ("ln", "rms"):
        bias = int(kind == "ln")
        yield Case(
            f"norm {kind}",
            lambda x, w, b=None, kind=kind: [norm(x, w, b, kind, 1e-5)],
            lambda x, w, b=None, kind=kind: [plain_norm(x, w, b, kind, 1e-5)],
            1,
            1 + bias,
        )
        yield Case(
            f"add_norm {kind}",
            lambda x, d, w, b=None, kind=kind: add_norm(x, d, w, b, kind, 1e-5),
            lambda x, d, w, b=None, kind=kind: [x + d, plain_norm(x + d, w, b, kind, 1e-5)],
            2,
            1 + bias,
        )
        yield Case(
            f"add_norm {kind} to a float32 stream",
            lambda x, d, w, b=None, kind=kind: add_norm(x.float(), d, w, b, kind, 1e-5),
            lambda x, d, w, b=None, kind=kind: [x + d, plain_norm(x + d, w, b, kind, 1e-5)],
            2,
            1 + bias,
        )
    for name, f in ACTIVATIONS.items():
        if name in source.PLAIN:
            yield Case(
                f"activation {name}",
                lambda a, b, n=name: [activation(a, b, n)],
                lambda a, b, f=f: [f(a + b)],
                1,
                1,
            )
        yield Case(
            f"gated {name}",
            lambda g, u, b, c, n=name: [gated_activation(g, u, b, c, n)],
            lambda g, u, b, c, f=f: [f(g + b) * (u + c)],
            2,
            2,
        )
    for label, options in (("", {}), (" cap and z", {"softcap": 3.0, "z_loss": 1e-2})):
        yield Case(
            f"cross_entropy{label}",
            lambda z, o=options: [cross_entropy(z, _targets(z), **o)],
            lambda z, o=options: [plain_loss(z, _targets(z), **o)],
            1,
            0,
        )
    yield Case(
        "head_loss",
        lambda x: [head_loss(x, _head(x), None, _targets(x))],
        lambda x: [plain_loss(x @ _head(x).T, _targets(x))],
        1,
        0,
    )


def _targets(x: Tensor) -> Tensor:
    """A class for each row; every fifth is ignored."""
    found = torch.arange(x.shape[0], device=x.device) * 7 % min(x.shape[1], 64)
    return torch.where(torch.arange(x.shape[0], device=x.device) % 5 == 4, IGNORED, found)


def _head(x: Tensor) -> Tensor:
    """A head of 64 classes, the same numbers in every type."""
    generator = torch.Generator().manual_seed(x.shape[1])
    drawn: Tensor = torch.randn(64, x.shape[1], generator=generator) / x.shape[1] ** 0.5
    return drawn.to(torch.bfloat16).to(x.dtype).to(x.device)  # numbers that every type holds


def layouts(x: Tensor) -> dict[str, Tensor]:
    """The same numbers [N, C], laid out differently."""
    n, c = x.shape
    padded, moved = x.new_zeros(n, c + 3), x.new_zeros(n * c + 1)
    padded[:, 1 : c + 1] = x
    moved[1:] = x.reshape(-1)
    return {
        "contiguous": x.clone(),
        "strided": padded[:, 1 : c + 1],
        "transposed": x.t().contiguous().t(),
        "misaligned": moved[1:].view(n, c),
        "expanded": x[:1].expand(n, c),
    }


def check(device: torch.device, quick: bool = False) -> Iterator[Row]:
    """Compare outputs and gradients of every op, one row for each size, type and layout.

    Raises:
        UserError: no kernels run on this device.
    """
    for case in cases():
        for dtype in ROUNDING:
            for shape in QUICK if quick else (*SIZES, MANY_ROWS):
                yield from _compare(case, device, dtype, shape)
    yield from (_optimizer(device, dtype) for dtype in ROUNDING)


def _compare(
    case: Case, device: torch.device, dtype: torch.dtype, shape: tuple[int, int]
) -> Iterator[Row]:
    generator = torch.Generator().manual_seed(sum(shape))
    drawn = [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(case.rows)]
    weights = [torch.randn(shape[1], generator=generator).to(device) for _ in range(case.weights)]
    for layout in layouts(drawn[0]):
        rows = [layouts(x)[layout] for x in drawn]
        given = [x.detach().requires_grad_() for x in (*rows, *weights)]
        exact = [x.detach().double().requires_grad_() for x in given]
        ours, plain = _with_gradients(case.ours, given), _with_gradients(case.plain, exact)
        # Each tensor is judged by the type that it is stored in, the sums over rows by that of what
        # they sum.
        errors = [_error(one, other, dtype) for one, other in zip(ours, plain, strict=True)]
        yield Row(
            case.op, str(dtype).removeprefix("torch."), layout, shape, max(errors, key=_nan_last)
        )


def _with_gradients(op: Callable[..., Sequence[Tensor]], inputs: list[Tensor]) -> list[Tensor]:
    outputs = list(op(*inputs))
    generator = torch.Generator().manual_seed(1)
    # Of either sign in no order: sums over many rows neither cancel nor grow, so that they can be
    # judged like the rest.
    weigh = [torch.randn(y.shape, generator=generator).to(y.device) for y in outputs]
    loss = sum((y * w.to(y.dtype)).sum() for y, w in zip(outputs, weigh, strict=True))
    assert isinstance(loss, Tensor)
    return [*outputs, *torch.autograd.grad(loss, inputs)]


def _error(ours: Tensor, exact: Tensor, dtype: torch.dtype) -> float:
    size = max(1.0, float(exact.detach().abs().max()))
    return float((ours.detach().double() - exact.detach()).abs().max()) / size / ROUNDING[dtype]


def _nan_last(error: float) -> float:
    return float("inf") if error != error else error


def _optimizer(device: torch.device, dtype: torch.dtype) -> Row:
    """Five steps of AdamW with clipping against torch's, in float64."""
    sizes = ((1,), (33, 7), (source.CHUNK + 5,))
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    ours = [nn.Parameter(p.to(device)) for p in start]
    exact = [nn.Parameter(p.double().to(device)) for p in start]
    mine, theirs = AdamW(ours, lr=1e-2, clip=1.0), torch.optim.AdamW(exact, lr=1e-2)
    for _ in range(5):
        for p, q in zip(ours, exact, strict=True):
            p.grad = torch.randn(p.shape, generator=generator).to(device, dtype)
            q.grad = p.grad.double()
        nn.utils.clip_grad_norm_(exact, 1.0)
        mine.step()
        theirs.step()
    errors = [_error(p, q, dtype) for p, q in zip(ours, exact, strict=True)]
    name = str(dtype).removeprefix("torch.")
    return Row(
        "adamw", name, "contiguous", (len(sizes), source.CHUNK + 5), max(errors, key=_nan_last)
    )


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """By op and type: comparisons, the worst error and where it was."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.op, row.dtype), []).append(row)
    return [
        {
            "op": op,
            "dtype": dtype,
            "checks": len(group),
            "failed": sum(not row.ok for row in group),
            "error": (worst := max(group, key=lambda row: _nan_last(row.error))).error,
            "layout": worst.layout,
            "shape": list(worst.shape),
        }
        for (op, dtype), group in groups.items()
    ]
