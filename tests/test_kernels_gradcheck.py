"""The kernels' backward against numerical derivatives of their forward: the text compiled with a
double accumulator.
"""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from shim_backend import HostBackend, needs_shim
from torch import Tensor

from andrea.kernels import launch_plans, source
from andrea.kernels.launch_plans import DeviceLimits

pytestmark = needs_shim
HOST = HostBackend()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).requires_grad_()


def op(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """An autograd function of a pair of kernels."""

    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            out, saved = forward(*(t.detach().contiguous() for t in inputs))
            ctx.save_for_backward(*inputs, *saved)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return backward(*(t.detach().contiguous() for t in (*ctx.saved_tensors, *grads)))

    return Op.apply


@pytest.mark.parametrize("softcap", [0.0, 2.5])
@pytest.mark.parametrize(
    "limits", [DeviceLimits(232448, 2), DeviceLimits(64, 2)], ids=["cached", "read twice"]
)
def test_cross_entropy(softcap: float, limits: DeviceLimits) -> None:
    N, V = 4, 37
    targets = torch.tensor([0, 36, -100, 7])

    def launch(logits: Tensor, upstream: Tensor | None) -> tuple[Tensor, Tensor]:
        grad, loss = torch.empty_like(logits), torch.empty(N, dtype=torch.float64)
        HOST.run(
            launch_plans.plan_cross_entropy("f64", N, V, limits),
            {
                "logits": logits, "logits_stride": V, "grad": grad, "grad_stride": V,
                "targets": targets,
                "target_stride": 1,
                "target_replica_stride": N, "upstream": upstream, "upstream_stride": 1,
                "loss": loss, "rows": N,
                "columns": V,
                "rows_per_replica": N, "ignore_index": -100, "softcap": softcap, "z_loss": 0.0,
            },
        )  # fmt: skip
        return loss, grad

    loss = op(lambda x: (launch(x, None)[0], ()), lambda x, dloss: launch(x, dloss)[1])
    assert torch.autograd.gradcheck(loss, [numbers(N, V)])


@pytest.mark.parametrize("kind", ["ln", "rms"])
@pytest.mark.parametrize("columns", [6, 13, 1030])
def test_add_norm(kind: Literal["ln", "rms"], columns: int) -> None:
    N, C = (5, columns) if columns < 100 else (1, columns)
    shape = launch_plans.NormShape(kind, "f64", "f64", N, 1, C)

    def forward(x: Tensor, delta: Tensor, w: Tensor, b: Tensor) -> Any:
        s, y = torch.empty_like(x), torch.empty_like(x)
        mean, rstd = torch.zeros(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
        plan = launch_plans.plan_norm_forward(shape, DeviceLimits(232448, 2))
        HOST.run(plan, {
            "x": x, "x_stride": C, "delta": delta, "delta_stride": C, "weight": w,
            "weight_replica_stride": 0,
            "bias": b,
            "bias_replica_stride": 0, "sum": s, "y": y, "mean": mean, "rstd": rstd, "rows": N,
            "columns": C,
            "rows_per_replica": N, "eps": 1e-3,
        })  # fmt: skip
        return (s, y), (s, mean, rstd)

    def backward(
        x: Tensor,
        delta: Tensor,
        w: Tensor,
        b: Tensor,
        s: Tensor,
        mean: Tensor,
        rstd: Tensor,
        ds: Tensor,
        dy: Tensor,
    ) -> Any:
        plan = launch_plans.plan_norm_backward(shape, DeviceLimits(232448, 2))
        dx, partial = (
            torch.empty_like(s),
            torch.empty(2, plan.arguments["parts"], C, dtype=torch.float64),
        )
        HOST.run(plan, {
            "dy": dy, "dy_stride": C, "dsum": ds, "dsum_stride": C, "sum": s, "sum_stride": C,
            "mean": mean,
            "rstd": rstd,
            "weight": w, "weight_replica_stride": 0, "dx": dx, "partial": partial,
            "rows_per_replica": N, "replicas": 1,
            "columns": C, "with_bias": 1,
        })  # fmt: skip
        out = added(partial)
        return dx, dx, out[0], out[1]

    check = torch.autograd.gradcheck
    inputs = [numbers(N, C), numbers(N, C, seed=1), numbers(C, seed=2), numbers(C, seed=3)]
    assert check(op(forward, backward), inputs, fast_mode=columns > 100)


def added(partial: Tensor) -> Tensor:
    """Stage 2."""
    segments, parts, columns = partial.shape
    out = torch.empty(segments, columns, dtype=torch.float64)
    HOST.run(
        launch_plans.plan_reduce_parts("f64", segments, parts, columns),
        {"partial": partial, "out": out, "segments": segments, "columns": columns},
    )
    return out


@pytest.mark.parametrize(
    "function",
    [
        f if f in ("gelu_tanh", "silu") else pytest.param(f, marks=pytest.mark.slow)
        for f in source.GATED_ACTIVATIONS
    ],
)
def test_activations(function: str) -> None:
    N, M = 3, 5
    plain_shape = launch_plans.ActivationShape(function, False, "f64", N, 1, M)
    gated_shape = plain_shape._replace(gated=True)
    sizes: dict[str, Any] = {"rows_per_replica": N, "replicas": 1, "columns": M}

    def plain(a: Tensor, b: Tensor) -> Any:
        out = torch.empty_like(a)
        HOST.run(
            launch_plans.plan_activation_forward(plain_shape),
            {**sizes, "a": a, "a_stride": M, "bias": b, "bias_replica_stride": 0, "out": out},
        )
        return out, ()

    def plain_backward(a: Tensor, b: Tensor, dy: Tensor) -> Any:
        launch = launch_plans.plan_activation_backward(plain_shape, DeviceLimits(49152, 2))
        da, partial = (
            torch.empty_like(a),
            torch.empty(1, launch.arguments["parts"], M, dtype=torch.float64),
        )
        HOST.run(
            launch,
            {
                **sizes,
                "dy": dy,
                "dy_stride": M,
                "a": a,
                "a_stride": M,
                "bias": b,
                "bias_replica_stride": 0,
                "da": da,
                "da_stride": M,
                "partial": partial,
            },
        )
        return da, added(partial)[0]

    def gated(g: Tensor, u: Tensor, gate_b: Tensor, up_b: Tensor) -> Any:
        out = torch.empty_like(g)
        HOST.run(
            launch_plans.plan_activation_forward(gated_shape),
            {**sizes, **names(g, u, gate_b, up_b), "out": out},
        )
        return out, ()

    def gated_backward(g: Tensor, u: Tensor, gate_b: Tensor, up_b: Tensor, dy: Tensor) -> Any:
        launch = launch_plans.plan_activation_backward(gated_shape, DeviceLimits(49152, 2))
        dg, du, partial = (
            torch.empty_like(g),
            torch.empty_like(g),
            torch.empty(2, launch.arguments["parts"], M, dtype=torch.float64),
        )
        HOST.run(
            launch,
            {
                **sizes,
                **names(g, u, gate_b, up_b),
                "dy": dy,
                "dy_stride": M,
                "dg": dg,
                "dg_stride": M,
                "du": du,
                "du_stride": M,
                "partial": partial,
            },
        )
        return dg, du, *added(partial)

    def names(g: Tensor, u: Tensor, gate_b: Tensor, up_b: Tensor) -> dict[str, Any]:
        return {
            "g": g, "g_stride": M, "u": u, "u_stride": M, "gate_bias": gate_b,
            "gate_bias_replica_stride": 0,
            "up_bias": up_b,
            "up_bias_replica_stride": 0,
        }  # fmt: skip

    x, b = numbers(N, M), numbers(M, seed=1)
    assert torch.autograd.gradcheck(op(plain, plain_backward), [x, b])
    assert torch.autograd.gradcheck(
        op(gated, gated_backward), [x, numbers(N, M, seed=2), b, numbers(M, seed=3)]
    )
