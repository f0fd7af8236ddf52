"""For tests of the kernels' ops: while a test runs, CPU tensors reach the kernels through the shim.

Use: `from kernels_kit import kernels_on_cpu, pytestmark` (the fixture is autouse).
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from shim_backend import HostBackend, needs_shim
from torch import Tensor

from andrea.kernels import backend

HOST = HostBackend()
pytestmark = needs_shim


@pytest.fixture(autouse=True)
def kernels_on_cpu() -> Iterator[HostBackend]:
    """A backend for CPU tensors."""
    before = backend.install_backend("cpu", HOST)
    yield HOST
    backend.install_backend("cpu", before)


def drawn(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> Tensor:
    """Standard normal numbers, the same at every call, with a gradient."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype).requires_grad_()


def classes(*shape: int, of: int, seed: int = 0) -> Tensor:
    """Targets; the first is to be ignored."""
    found = torch.randint(of, shape, generator=torch.Generator().manual_seed(seed))
    if found.numel():
        found.view(-1)[0] = -100
    return found


def doubled(*tensors: Any) -> list[Any]:
    """The same numbers in float64, each a leaf of its own."""
    return [t.detach().double().requires_grad_() if isinstance(t, Tensor) else t for t in tensors]


def gradients(output: Tensor, inputs: list[Any], seed: int = 5) -> list[Tensor]:
    """Of a random weighing of the output."""
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed))
    return list(
        torch.autograd.grad(
            (output * weights.to(output.dtype)).sum(), [t for t in inputs if t is not None]
        )
    )


def close(ours: Any, exact: Any, dtype: torch.dtype = torch.float32, factor: float = 1.0) -> None:
    """Equal up to what rounding to `dtype` costs, relative to the largest number of a tensor."""
    ours, exact = (list(t) if isinstance(t, list | tuple) else [t] for t in (ours, exact))
    for one, other in zip(ours, exact, strict=True):
        size = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        tolerance = (
            factor
            * size
            * {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
        )
        torch.testing.assert_close(one.double(), other.double(), atol=tolerance, rtol=0)
