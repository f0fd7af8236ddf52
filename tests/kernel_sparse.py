"""More than 2³¹ elements without the memory for them: chosen blocks of a launch over pages that
nobody else touches.

An anonymous mapping that reserves nothing costs only the pages that are written. Blocks of the last
rows and of rows around 2³¹ and 2³² elements run; an offset that wrapped around would read zeros,
other rows, or what is not mapped.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from shim_backend import HostBackend
from torch import Tensor
from torch.nn import functional as F

from andrea.kernels import launch_plans

COLUMNS = 1024
ROWS = 2**22 + 64
"""2³² elements and some more."""
LIMITS = launch_plans.DeviceLimits(232448, 4)


class Sparse:
    """A tensor that exists where it is written."""

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        no_reserve = 0x4000  # MAP_NORESERVE of Linux, which Python 3.11 does not name
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
        self._memory = mmap.mmap(-1, length * dtype.itemsize, flags=flags)
        self.tensor = torch.frombuffer(self._memory, dtype=dtype)

    def rows(self, columns: int = COLUMNS) -> Tensor:
        return self.tensor.view(-1, columns)


@dataclass(frozen=True)
class Beyond:
    module: str
    check: Callable[[HostBackend], None]

    def __call__(self, host: HostBackend) -> None:
        self.check(host)

    def __repr__(self) -> str:
        return "beyond 2^31 elements"


CHOSEN = [0, 2**21 - 8, 2**21, 2**22 - 8, 2**22, ROWS - 8]
"""First rows of the eight that a block has; 2²¹ rows are 2³¹ elements."""


def _filled(sparse: Sparse, seed: int) -> dict[int, Tensor]:
    numbers = {}
    for row in CHOSEN:
        numbers[row] = torch.randn(
            8, COLUMNS, generator=torch.Generator().manual_seed(seed + row)
        ).bfloat16()
        sparse.rows()[row : row + 8] = numbers[row].to(sparse.tensor.dtype)
    return numbers


def _near(got: Tensor, wanted: Tensor, what: str) -> None:
    torch.testing.assert_close(
        got.double(), wanted.double(), rtol=2**-8, atol=1e-5, msg=lambda m: f"{what}: {m}"
    )


def _cross_entropy(host: HostBackend) -> None:
    logits, loss, targets = (
        Sparse(ROWS * COLUMNS, torch.bfloat16),
        Sparse(ROWS, torch.float32),
        Sparse(ROWS, torch.int64),
    )
    numbers = _filled(logits, 1)
    for row in CHOSEN:
        targets.tensor[row : row + 8] = torch.arange(row, row + 8) % COLUMNS
    # Lanes of a warp for each row: 1024 columns would take a block each, and rows far apart are
    # what is tested.
    plan = launch_plans.LaunchPlan("ce_bf16", ROWS // 8, 256, 0, {"lanes": 32, "cached": 0})
    values = {
        "logits": logits.tensor, "logits_stride": COLUMNS, "grad": logits.tensor,
        "grad_stride": COLUMNS,
        "targets": targets.tensor, "target_stride": 1, "target_replica_stride": ROWS,
        "upstream_stride": 0,
        "loss": loss.tensor, "rows": ROWS, "columns": COLUMNS, "rows_per_replica": ROWS,
        "ignore_index": -100,
        "softcap": 0,
        "z_loss": 0,
    }  # fmt: skip
    host.run(plan, values, blocks=[row // 8 for row in CHOSEN])
    for row in CHOSEN:
        x = numbers[row].double().requires_grad_()
        wanted = F.cross_entropy(x, targets.tensor[row : row + 8], reduction="none")
        wanted.sum().backward()
        assert x.grad is not None
        _near(loss.tensor[row : row + 8], wanted.detach(), f"loss of row {row}")
        _near(logits.rows()[row : row + 8], x.grad, f"gradient of row {row}")


def _norm(host: HostBackend) -> None:
    x, y, rstd = (
        Sparse(ROWS * COLUMNS, torch.float32),
        Sparse(ROWS * COLUMNS, torch.bfloat16),
        Sparse(ROWS, torch.float32),
    )
    numbers = _filled(x, 2)
    shape = launch_plans.NormShape("rms", "f32", "bf16", ROWS, 1, COLUMNS)
    plan = launch_plans.plan_norm_forward(shape, LIMITS)
    values: dict[str, Any] = {
        "x": x.tensor, "x_stride": COLUMNS, "delta_stride": 0, "weight_replica_stride": 0,
        "bias_replica_stride": 0,
        "y": y.tensor, "rstd": rstd.tensor, "rows": ROWS, "columns": COLUMNS,
        "rows_per_replica": ROWS, "eps": 1e-5,
    }  # fmt: skip
    host.run(plan, values, blocks=[row // 8 for row in CHOSEN])
    dx = Sparse(ROWS * COLUMNS, torch.float32)
    # A part for every eight rows, so that chosen rows are chosen blocks.
    back = launch_plans.plan_norm_backward(shape, LIMITS)
    back = back._replace(grid=ROWS // 8, arguments={**back.arguments, "parts": ROWS // 8})
    values = {
        "dy": y.tensor, "dy_stride": COLUMNS, "dsum_stride": 0, "sum": x.tensor,
        "sum_stride": COLUMNS,
        "rstd": rstd.tensor,
        "weight_replica_stride": 0, "dx": dx.tensor, "rows_per_replica": ROWS, "replicas": 1,
        "columns": COLUMNS,
        "with_bias": 0,
    }  # fmt: skip
    host.run(back, values, blocks=[row // 8 for row in CHOSEN])
    for row in CHOSEN:
        given = numbers[row].double().requires_grad_()
        wanted = given * (given.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        _near(y.rows()[row : row + 8], wanted.detach(), f"y of row {row}")
        wanted.backward(y.rows()[row : row + 8].double())
        assert given.grad is not None
        torch.testing.assert_close(
            dx.rows()[row : row + 8].double(), given.grad, rtol=1e-4, atol=1e-5
        )


def _activation(host: HostBackend) -> None:
    a, out = Sparse(ROWS * COLUMNS, torch.bfloat16), Sparse(ROWS * COLUMNS, torch.bfloat16)
    numbers = _filled(a, 3)
    shape = launch_plans.ActivationShape("gelu_tanh", False, "bf16", ROWS, 1, COLUMNS)
    plan = launch_plans.plan_activation_forward(shape)
    # Rows are dealt out in turn; a part for every `rows` of a block, so that chosen rows are chosen
    # blocks.
    rows = 256 // plan.arguments["width"]
    parts = ROWS // rows
    plan = plan._replace(
        grid=parts * plan.arguments["tiles"], arguments={**plan.arguments, "parts": parts}
    )
    values = {
        "a": a.tensor, "a_stride": COLUMNS, "bias_replica_stride": 0, "out": out.tensor,
        "rows_per_replica": ROWS,
        "replicas": 1, "columns": COLUMNS,
    }  # fmt: skip
    tiles = plan.arguments["tiles"]
    chosen = [
        (row + k) // rows * tiles + tile
        for row in CHOSEN
        for k in range(0, 8, rows)
        for tile in range(tiles)
    ]
    host.run(plan, values, blocks=chosen)
    for row in CHOSEN:
        _near(
            out.rows()[row : row + 8],
            F.gelu(numbers[row].double(), approximate="tanh"),
            f"row {row}",
        )


def _adamw(host: HostBackend) -> None:
    length = 2**32 + 5 * launch_plans.OPTIMIZER_CHUNK
    p, g, m, v = (Sparse(length, torch.float32) for _ in range(4))
    chosen = [
        0,
        2**31 // launch_plans.OPTIMIZER_CHUNK,
        2**32 // launch_plans.OPTIMIZER_CHUNK,
        length // launch_plans.OPTIMIZER_CHUNK - 1,
    ]
    for chunk in chosen:
        at = slice(chunk * launch_plans.OPTIMIZER_CHUNK, chunk * launch_plans.OPTIMIZER_CHUNK + 8)
        p.tensor[at], g.tensor[at] = 1.0, torch.arange(8) - 3.5 + chunk % 7
    entries = torch.tensor([(0, chunk * launch_plans.OPTIMIZER_CHUNK) for chunk in chosen])
    address = {
        n: torch.tensor([t.tensor.data_ptr()])
        for n, t in (("params", p), ("grads", g), ("exp_avg", m), ("exp_avg_sq", v))
    }
    common = {"grads": address["grads"], "numels": torch.tensor([length]), "chunks": entries}
    partial, norm, factors = torch.zeros(1, 4), torch.zeros(1), torch.zeros(1, 9)
    hyper = torch.tensor([[0.1, 0.0, 0.9, 0.99, 1e-8, 0.0]], dtype=torch.float64)
    host.run(
        launch_plans.plan_gradient_norm("f32", 4, 1),
        {**common, "partial": partial, "partial_stride": 4, "partial_offset": 0},
    )
    host.run(
        launch_plans.plan_adamw_prepare("f32", 1),
        {
            "partial": partial,
            "n_partial": 4,
            "hyper": hyper,
            "step": torch.zeros(1, dtype=torch.int64),
            "norm": norm,
            "factors": factors,
        },
    )
    host.run(
        launch_plans.plan_adamw_update("f32", 4, 1),
        {**common, **address, "scales": torch.ones(1, 2), "factors": factors},
    )
    squares = 0.0
    for chunk in chosen:
        at = slice(chunk * launch_plans.OPTIMIZER_CHUNK, chunk * launch_plans.OPTIMIZER_CHUNK + 8)
        gradient = torch.arange(8) - 3.5 + chunk % 7
        squares += float(gradient.square().sum())
        torch.testing.assert_close(p.tensor[at], 1 - 0.1 * gradient.sign(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(float(norm), squares**0.5, rtol=1e-5, atol=0)


CROSS_ENTROPY_BEYOND = Beyond("ce_bf16", _cross_entropy)
NORM_BEYOND = Beyond("norm_f32_bf16", _norm)
ACTIVATION_BEYOND = Beyond("act_gelu_tanh_bf16", _activation)
ADAMW_BEYOND = Beyond("adamw_f32", _adamw)
