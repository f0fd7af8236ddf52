"""Every op against float64 on a device, in every layout and storage type, with sizes that break
careless kernels.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea.kernels.activation import activation, gated_activation
from andrea.kernels.adamw import AdamW
from andrea.kernels.cross_entropy import IGNORED, cross_entropy, head_loss
from andrea.kernels.launch_plans import OPTIMIZER_CHUNK
from andrea.kernels.norm import NormKind, add_norm, norm
from andrea.kernels.source import PLAIN_ACTIVATIONS

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""The most that one rounding costs, relative to the largest number of a tensor; for float32 with
the sums behind it.
"""
ALLOWED = 4
"""Roundings that an op may cost."""
SIZES = ((1, 1), (3, 31), (5, 256), (4, 1023), (2, 1600), (7, 4099))
MANY_ROWS = (70_001, 8)
"""More rows than the second axis of a grid could have."""
QUICK = ((3, 31), (5, 256))
EPS = 1e-5
HEAD_CLASSES = 64


# ---- Ops in plain torch --------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


def plain_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, kind: NormKind, eps: float
) -> Tensor:
    """Return the norm of x [..., C] over its last axis, as torch computes it."""
    if kind == "ln":
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def plain_loss(
    logits: Tensor, targets: Tensor, softcap: float | None = None, z_loss: float = 0.0
) -> Tensor:
    """Return the losses [...] of logits [..., V]. They never contain the z-term, but their gradient
    does.
    """
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    flat = logits.reshape(-1, logits.shape[-1])
    loss: Tensor = F.cross_entropy(
        flat, targets.reshape(-1), ignore_index=IGNORED, reduction="none"
    ).view(targets.shape)
    penalty = z_loss * logits.logsumexp(-1).square() * (targets >= 0)
    return loss + (penalty - penalty.detach())


# ---- Cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpCase:
    """An op and its counterpart in plain torch; both get `matrices` of [N, C], then `vectors` of
    [C].
    """

    op: str
    kernel: Callable[..., Sequence[Tensor]]
    plain: Callable[..., Sequence[Tensor]]
    matrices: int
    vectors: int


def op_cases() -> Iterator[OpCase]:
    """Yield every op that a model can reach."""
    yield from _norm_cases("ln")
    yield from _norm_cases("rms")
    for name, function in ACTIVATIONS.items():
        yield from _activation_cases(name, function)
    yield _loss_case("cross_entropy", None, 0.0)
    yield _loss_case("cross_entropy cap and z", 3.0, 1e-2)
    yield OpCase(
        "head_loss",
        lambda x: [head_loss(x, _head_weight(x), None, _targets(x))],
        lambda x: [plain_loss(x @ _head_weight(x).T, _targets(x))],
        matrices=1,
        vectors=0,
    )


def _norm_cases(kind: NormKind) -> Iterator[OpCase]:
    vectors = 2 if kind == "ln" else 1  # torch's RMSNorm has no bias

    def torch_add(x: Tensor, delta: Tensor, w: Tensor, b: Tensor | None = None) -> list[Tensor]:
        return [x + delta, plain_norm(x + delta, w, b, kind, EPS)]

    yield OpCase(
        f"norm {kind}",
        lambda x, w, b=None: [norm(x, w, b, kind, EPS)],
        lambda x, w, b=None: [plain_norm(x, w, b, kind, EPS)],
        matrices=1,
        vectors=vectors,
    )
    yield OpCase(
        f"add_norm {kind}",
        lambda x, delta, w, b=None: add_norm(x, delta, w, b, kind, EPS),
        torch_add,
        matrices=2,
        vectors=vectors,
    )
    yield OpCase(
        f"add_norm {kind} to a float32 stream",
        lambda x, delta, w, b=None: add_norm(x.float(), delta, w, b, kind, EPS),
        torch_add,
        matrices=2,
        vectors=vectors,
    )


def _activation_cases(name: str, function: Callable[[Tensor], Tensor]) -> Iterator[OpCase]:
    if name in PLAIN_ACTIVATIONS:
        yield OpCase(
            f"activation {name}",
            lambda a, b: [activation(a, b, name)],
            lambda a, b: [function(a + b)],
            matrices=1,
            vectors=1,
        )
    yield OpCase(
        f"gated {name}",
        lambda g, u, b, c: [gated_activation(g, u, b, c, name)],
        lambda g, u, b, c: [function(g + b) * (u + c)],
        matrices=2,
        vectors=2,
    )


def _loss_case(name: str, softcap: float | None, z_loss: float) -> OpCase:
    return OpCase(
        name,
        lambda z: [cross_entropy(z, _targets(z), softcap=softcap, z_loss=z_loss)],
        lambda z: [plain_loss(z, _targets(z), softcap, z_loss)],
        matrices=1,
        vectors=0,
    )


def _targets(x: Tensor) -> Tensor:
    """Return a class for each row; every fifth is ignored."""
    rows = torch.arange(x.shape[0], device=x.device)
    classes = rows * 7 % min(x.shape[1], HEAD_CLASSES)
    return torch.where(rows % 5 == 4, IGNORED, classes)


def _head_weight(x: Tensor) -> Tensor:
    """Return the weight [V, C] of a head, the same numbers in every type."""
    columns = x.shape[1]
    generator = torch.Generator().manual_seed(columns)
    weight: Tensor = torch.randn(HEAD_CLASSES, columns, generator=generator) / columns**0.5
    return weight.to(torch.bfloat16).to(x.dtype).to(x.device)  # every type holds a bfloat16


def make_layouts(x: Tensor) -> dict[str, Tensor]:
    """Return the numbers of x [N, C] in different layouts (the expanded one has the first row's
    alone).
    """
    rows, columns = x.shape
    padded = x.new_zeros(rows, columns + 3)
    padded[:, 1 : columns + 1] = x
    shifted = x.new_zeros(rows * columns + 1)
    shifted[1:] = x.reshape(-1)
    return {
        "contiguous": x.clone(),
        "strided": padded[:, 1 : columns + 1],
        "transposed": x.t().contiguous().t(),
        "misaligned": shifted[1:].view(rows, columns),
        "expanded": x[:1].expand(rows, columns),
    }


# ---- Comparisons ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """An op at one size, type and layout against float64."""

    op: str
    dtype: str
    layout: str
    shape: tuple[int, int]
    error: float
    """The largest of outputs and gradients, in roundings of the storage type."""

    @property
    def ok(self) -> bool:
        """True if the error is one of rounding; a NaN is not."""
        return self.error <= ALLOWED


@dataclass(frozen=True)
class OpSummary:
    """All comparisons of an op in one type, with the fields of `andrea kernels check --json`."""

    op: str
    dtype: str
    checks: int
    failed: int
    error: float
    """The worst; `layout` and `shape` say where it was."""
    layout: str
    shape: tuple[int, int]


def compare_ops(
    device: torch.device, quick: bool = False, cases: Iterable[OpCase] | None = None
) -> Iterator[Comparison]:
    """Yield a comparison for each op, type, size and layout, and the optimizer's for each type.

    Args:
        quick: two sizes instead of all.
        cases: by default all.

    Raises:
        UserError: no kernels run on this device.
    """
    shapes = QUICK if quick else (*SIZES, MANY_ROWS)
    for case in cases or op_cases():
        for dtype in ROUNDING:
            for shape in shapes:
                yield from _compare_layouts(case, device, dtype, shape)
    for dtype in ROUNDING:
        yield _compare_optimizer(device, dtype)


def _compare_layouts(
    case: OpCase, device: torch.device, dtype: torch.dtype, shape: tuple[int, int]
) -> Iterator[Comparison]:
    generator = torch.Generator().manual_seed(sum(shape))
    matrices = [
        make_layouts(torch.randn(shape, generator=generator).to(device, dtype))
        for _ in range(case.matrices)
    ]
    vectors = [torch.randn(shape[1], generator=generator).to(device) for _ in range(case.vectors)]
    # All matrices of a case in the same layout: mixed ones would multiply the comparisons by five.
    for layout in matrices[0]:
        tensors = [*(layouts[layout] for layouts in matrices), *vectors]
        inputs = [x.detach().requires_grad_() for x in tensors]
        exact_inputs = [x.detach().double().requires_grad_() for x in tensors]
        # The sums over rows are judged by the type of what they sum, like everything else.
        results = _with_gradients(case.kernel, inputs)
        exact = _with_gradients(case.plain, exact_inputs)
        error = _largest_error(results, exact, dtype)
        yield Comparison(case.op, _type_name(dtype), layout, shape, error)


def _with_gradients(op: Callable[..., Sequence[Tensor]], inputs: list[Tensor]) -> list[Tensor]:
    """Return an op's outputs, and the gradients of its inputs for a weighted sum of the outputs."""
    outputs = list(op(*inputs))
    generator = torch.Generator().manual_seed(1)
    loss = outputs[0].new_zeros(())
    for output in outputs:
        # Of either sign in no order: sums over many rows neither cancel nor grow, so that they can
        # be judged like the rest.
        weights = torch.randn(output.shape, generator=generator).to(output.device)
        loss = loss + (output * weights.to(output.dtype)).sum()
    return [*outputs, *torch.autograd.grad(loss, inputs)]


def _compare_optimizer(device: torch.device, dtype: torch.dtype) -> Comparison:
    """Compare five steps of AdamW with clipping with torch's in float64."""
    sizes = ((1,), (33, 7), (OPTIMIZER_CHUNK + 5,))
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    parameters = [nn.Parameter(p.to(device)) for p in start]
    exact = [nn.Parameter(p.double().to(device)) for p in start]
    kernel_optimizer = AdamW(parameters, lr=1e-2, clip=1.0)
    torch_optimizer = torch.optim.AdamW(exact, lr=1e-2)
    for _ in range(5):
        for p, q in zip(parameters, exact, strict=True):
            p.grad = torch.randn(p.shape, generator=generator).to(device, dtype)
            q.grad = p.grad.double()
        nn.utils.clip_grad_norm_(exact, 1.0)
        kernel_optimizer.step()
        torch_optimizer.step()
    error = _largest_error(parameters, exact, dtype)
    shape = (len(sizes), OPTIMIZER_CHUNK + 5)
    return Comparison("adamw", _type_name(dtype), "contiguous", shape, error)


def _largest_error(results: Sequence[Tensor], exact: Sequence[Tensor], dtype: torch.dtype) -> float:
    """Return the largest error in roundings of a type, relative to the largest number of a tensor
    (at least 1).
    """
    errors = []
    for result, reference in zip(results, exact, strict=True):
        size = max(1.0, float(reference.detach().abs().max()))
        difference = (result.detach().double() - reference.detach()).abs().max()
        errors.append(float(difference) / size / ROUNDING[dtype])
    return max(errors, key=_severity)


def _severity(error: float) -> float:
    """Return a number that orders errors: a NaN is worse than any, but compares with none."""
    return math.inf if math.isnan(error) else error


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def summarize(comparisons: Sequence[Comparison]) -> list[OpSummary]:
    """Return a summary for each op and type, in the order of the comparisons."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.op, comparison.dtype), []).append(comparison)
    summaries = []
    for (op, dtype), group in groups.items():
        worst = max(group, key=lambda comparison: _severity(comparison.error))
        failed = sum(not comparison.ok for comparison in group)
        where = (worst.layout, worst.shape)
        summaries.append(OpSummary(op, dtype, len(group), failed, worst.error, *where))
    return summaries
