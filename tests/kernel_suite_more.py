"""The numeric suite, second half: activations, optimizer, what lies beyond 2³¹ elements, and the
list of all checks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernel_suite as suite
import torch
from kernel_sparse import ACTIVATION_BEYOND, ADAMW_BEYOND, CROSS_ENTROPY_BEYOND, NORM_BEYOND
from kernel_suite import (
    TORCH,
    CrossEntropy,
    CrossEntropyStrange,
    Norm,
    Scale,
    Values,
    close,
    drawn,
    empty,
    placed,
    run,
)
from shim_backend import HostBackend
from torch import Tensor
from torch.nn import functional as F

from andrea.kernels import launch_plans, source
from andrea.kernels.launch_plans import DeviceLimits

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


@dataclass(frozen=True)
class Activation:
    function: str
    gated: bool
    kind: str
    rows: int
    columns: int
    replicas: int = 1
    bias: bool = True
    shared_bias: bool = False
    pad: int = 0
    offset: int = 0
    scale: float = 1.5
    limits: DeviceLimits = suite.HOPPER

    def __call__(self, host: HostBackend) -> None:
        N, M, kind = self.rows * self.replicas, self.columns, self.kind
        names = ["g", "u"] if self.gated else ["a"]
        biases = ["gate_bias", "up_bias"] if self.gated else ["bias"]
        of = 1 if self.shared_bias else self.replicas
        inputs = {
            n: drawn(N, M, seed=20 + i, scale=self.scale).to(TORCH[kind])
            for i, n in enumerate(names)
        }
        if not self.gated and N > 1:
            inputs["a"][0].copy_(torch.linspace(-9, 9, M))
        bias = {n: drawn(of, M, seed=30 + i).float() for i, n in enumerate(biases)}
        dy = drawn(N, M, seed=40).to(TORCH[kind])

        def given() -> Values:
            values: Values = {
                "rows_per_replica": self.rows,
                "replicas": self.replicas,
                "columns": M,
            }
            for name, numbers in inputs.items():
                values[name] = placed(numbers, kind, self.pad, self.offset)
                values[f"{name}_stride"] = M + self.pad
            for name, numbers in bias.items():
                values[name] = placed(numbers, "f32") if self.bias else None
                values[f"{name}_replica_stride"] = 0 if self.shared_bias else M
            return values

        shape = launch_plans.ActivationShape(
            self.function, self.gated, kind, self.rows, self.replicas, M
        )
        forward = launch_plans.plan_activation_forward(shape)
        backward = launch_plans.plan_activation_backward(shape, self.limits)
        got = run(host, forward, lambda: {**given(), "out": empty(N, M, kind)}, {"out"})
        parts, slots = backward.arguments["parts"], len(names)

        def make() -> Values:
            values = {
                **given(),
                "dy": placed(dy, kind, self.pad, self.offset),
                "dy_stride": M + self.pad,
            }
            for name in names:
                values[f"d{name}"] = empty(N, M, kind, self.pad, self.offset)
                values[f"d{name}_stride"] = M + self.pad
            values["partial"] = (
                empty(slots * self.replicas * parts, M, "f32") if self.bias else None
            )
            return values

        back = run(host, backward, make, {"da", "dg", "du", "partial"})

        wide = {
            n: t.double().view(self.replicas, self.rows, M).requires_grad_()
            for n, t in inputs.items()
        }
        added = {
            n: t.double().expand(self.replicas, M).clone().requires_grad_() for n, t in bias.items()
        }
        z = [
            wide[n] + added[b][:, None] if self.bias else wide[n]
            for n, b in zip(names, biases, strict=True)
        ]
        out = FUNCTIONS[self.function](z[0]) * (z[1] if self.gated else 1)
        out.backward(dy.double().view_as(out))
        size = max(4.0, float(out.detach().abs().max()))
        close("out", got["out"], out.detach().flatten(0, 1), kind, size)
        for name in names:
            gradient = wide[name].grad
            assert gradient is not None
            close(f"d{name}", back[f"d{name}"], gradient.flatten(0, 1), kind, size)
        if self.bias:
            sums = suite.reduced(host, back["partial"], slots * self.replicas, parts, M).view(
                slots, self.replicas, M
            )
            for i, name in enumerate(biases):
                gradient = added[name].grad
                assert gradient is not None
                close(f"d{name}", sums[i], gradient, scale=size * max(1, self.rows))


@dataclass(frozen=True)
class AdamW:
    kind: str
    sizes: tuple[int, ...]
    replicas: int = 1
    clip: float = 1.0
    offset: int = 0
    steps: int = 3

    def __call__(self, host: HostBackend) -> None:
        for order in (0, 1, 2):
            host.order, before = order, host.order
            try:
                self._check(host)
            finally:
                host.order = before

    def _check(self, host: HostBackend) -> None:
        R, kind = self.replicas, self.kind
        chunks = launch_plans.split_into_chunks(self.sizes)
        hyper = torch.tensor(
            [[0.01 * (r + 1), 0.1, 0.9 - 0.1 * r, 0.999, 1e-3, self.clip] for r in range(R)],
            dtype=torch.float64,
        )
        scales = torch.tensor([[1.0 / (i + 1), float(i % 2)] for i in range(len(self.sizes))])
        start = [drawn(R, n, seed=50 + i).to(TORCH[kind]) for i, n in enumerate(self.sizes)]

        def stored(numbers: Tensor, of: str) -> Tensor:
            return placed(numbers.reshape(1, -1), of, 0, self.offset)

        p, m, v = (
            [stored(t, k) for t in ts]
            for ts, k in [(start, kind)] + [([torch.zeros_like(t) for t in start], "f32")] * 2
        )
        reference = [[t[r].double().clone().requires_grad_() for t in start] for r in range(R)]
        optimizers = [
            torch.optim.AdamW(
                [
                    {
                        "params": [w],
                        "lr": float(hyper[r, 0] * scales[i, 0]),
                        "weight_decay": float(hyper[r, 1] * scales[i, 1]),
                    }
                    for i, w in enumerate(reference[r])
                ],
                betas=(float(hyper[r, 2]), float(hyper[r, 3])),
                eps=float(hyper[r, 4]),
            )
            for r in range(R)
        ]
        step = torch.zeros(R, dtype=torch.int64)
        for k in range(self.steps):
            g = [
                drawn(R, n, seed=60 + i + 100 * k, scale=2.0 if k else 0.01).to(TORCH[kind])
                for i, n in enumerate(self.sizes)
            ]
            grads = [stored(t, kind) for t in g]
            norm, factors = torch.full((R,), math.nan), torch.full((R, 9), math.nan)
            partial = torch.full((R, len(chunks) + 1), 0.0)
            tables = {
                name: torch.tensor([t.data_ptr() for t in ts])
                for name, ts in (("params", p), ("grads", grads), ("exp_avg", m), ("exp_avg_sq", v))
            }
            common = {
                "grads": tables["grads"],
                "numels": torch.tensor(self.sizes),
                "chunks": torch.tensor(chunks),
            }
            host.run(
                launch_plans.plan_gradient_norm(kind, len(chunks), R),
                {
                    **common,
                    "partial": partial,
                    "partial_stride": len(chunks) + 1,
                    "partial_offset": 1,
                },
            )
            host.run(
                launch_plans.plan_adamw_prepare("f32", R),
                {
                    "partial": partial,
                    "n_partial": len(chunks) + 1,
                    "hyper": hyper,
                    "step": step,
                    "norm": norm,
                    "factors": factors,
                },
            )
            host.run(
                launch_plans.plan_adamw_update(kind, len(chunks), R),
                {
                    **common,
                    **{n: tables[n] for n in ("params", "exp_avg", "exp_avg_sq")},
                    "scales": scales,
                    "factors": factors,
                },
            )
            for r in range(R):
                for w, gradient in zip(reference[r], g, strict=True):
                    w.grad = gradient[r].double()
                total = torch.nn.utils.get_total_norm(
                    [w.grad for w in reference[r] if w.grad is not None]
                )
                close("norm", norm[r], total)
                if self.clip > 0:
                    torch.nn.utils.clip_grads_with_norm_(reference[r], self.clip, total)
                optimizers[r].step()
            for i, n in enumerate(self.sizes):
                assert suite._margins_untouched(p[i]) and suite._margins_untouched(m[i]), (
                    "written beside a parameter"
                )
                wanted = torch.stack([reference[r][i].detach() for r in range(R)])
                close(f"parameter {i} step {k}", p[i].view(R, n), wanted, kind, scale=4)
                for r in range(
                    R
                ):  # from here on with what is stored, so that rounding does not add up
                    reference[r][i].data.copy_(p[i].view(R, n)[r])
        assert step.tolist() == [self.steps] * R


NORM = Norm("ln", "f32", "bf16", rows=5, columns=96)
CE = CrossEntropy("bf16", rows=5, columns=264)


def checks(full: bool = True) -> dict[str, Callable[[HostBackend], None]]:
    """Every check by name; the names begin with the module that it needs. Not full: bf16 and what
    trains by default.
    """
    found: list[Any] = [
        CE,
        *suite.variants(
            CE,
            columns=[1, 5, 8, 31, 33, 1023, 2056, 4099],
            pad=[3, 8],
            offset=[1, 5],
            softcap=[5.0],
            z_loss=[0.05],
            place=["apart", "loss"],
            upstream=["one", "none"],
            limits=[suite.SMALL],
            special=["offset", "masked", "edges"],
            grid=[1],
        ),
        CrossEntropy(
            "bf16", 6, 2500, softcap=4.0, z_loss=0.02, pad=1, limits=suite.SMALL, place="in place"
        ),
        CrossEntropy("bf16", 6, 40, replicas=2, shared_targets=True),
        CrossEntropy("bf16", 6, 40, replicas=2),
        CrossEntropy("bf16", 19, 8, replicas=1, special="edges", offset=3, grid=2),
        CrossEntropyStrange("bf16"),
        Scale("bf16", 4, 700),
        Scale("bf16", 4, 37, pad=1, offset=3),
        Scale("bf16", 4, 37, pad=1, offset=3, apart=2),
        NORM,
        *suite.variants(
            NORM,
            kind=["rms"],
            columns=[1, 31, 33, 1100, 1280],
            delta=[False],
            weight=[False],
            bias=[False],
            dsum=[False],
            ddelta=[False],
            pad=[1, 8],
            offset=[3],
            mean=[300.0],
            eps=[0.5],
            scale=[3e-3],
            limits=[suite.SMALL],
            rows=[1, 70],
            grid=[1],
        ),
        Norm("ln", "f32", "bf16", rows=3, columns=64, replicas=3),
        Norm("rms", "f32", "bf16", rows=4, columns=64, replicas=2, shared_weight=True),
        Norm(
            "rms", "f32", "bf16", rows=3, columns=1040, replicas=2, limits=suite.SMALL, bias=False
        ),
        Activation("gelu_tanh", False, "bf16", 9, 96),
        Activation("gelu_tanh", True, "bf16", 9, 96),
        Activation("gelu_tanh", False, "bf16", 70, 8, replicas=2),
        Activation("gelu_tanh", False, "bf16", 140, 96),
        Activation("gelu_tanh", True, "bf16", 140, 96),
        Activation("gelu_tanh", True, "bf16", 3, 2056, pad=8),
        Activation("gelu_tanh", True, "bf16", 11, 33, replicas=2, offset=1, pad=2),
        Activation("gelu_tanh", False, "bf16", 5, 96, bias=False, pad=3),
        Activation("gelu_tanh", True, "bf16", 6, 40, replicas=2, shared_bias=True),
        Activation("gelu_tanh", False, "bf16", 1, 1),
        AdamW("f32", (7, 64, 16384 + 33, 1), replicas=1),
        AdamW("f32", (5, 130), replicas=2),
        AdamW("f32", (64, 9), replicas=2, clip=0.0, offset=1, steps=2),
        CROSS_ENTROPY_BEYOND,
        NORM_BEYOND,
        ACTIVATION_BEYOND,
        ADAMW_BEYOND,
    ]
    if full:
        found += [
            *(
                CrossEntropy(k, 5, v, offset=o)
                for k in ("f32", "f16")
                for v, o in ((264, 0), (1023, 1), (2056, 0))
            ),
            *(CrossEntropy(k, 4, 300, special="offset") for k in ("f32",)),
            CrossEntropy("f32", 4, 130, special="masked", z_loss=0.1, softcap=0.0),
            CrossEntropy("f32", 2, 50257, softcap=30.0),
            CrossEntropy("f16", 4, 200, softcap=5.0, z_loss=0.05, limits=suite.SMALL),
            CrossEntropyStrange("f32"),
            Scale("f32", 3, 50, apart=0),
            Scale("f16", 3, 50),
            *(
                Norm(n, s, b, 6, c, replicas=2, offset=o)
                for n in ("ln", "rms")
                for s, b in source.NORM_TYPES
                for c, o in ((48, 0), (33, 1), (1600, 0))
            ),
            *(Norm("ln", s, b, 3, 1088, limits=suite.SMALL) for s, b in source.NORM_TYPES),
            Norm("ln", "f32", "f32", 4, 256, mean=3000.0),
            *(
                Activation(f, gated, kind, 7, columns, offset=o)
                for f in source.GATED_ACTIVATIONS
                for gated in (False, True)
                for kind in source.STORAGE_TYPES
                for columns, o in ((96, 0), (31, 1))
            ),
            AdamW("bf16", (40, 100), replicas=2),
            AdamW("f16", (40, 100), replicas=1, offset=1),
        ]
    return {f"{_module(case)}: {case}": case for case in found}


def _module(case: Any) -> str:
    if isinstance(case, Norm):
        return f"norm_{case.stream}_{case.branch}"
    if isinstance(case, Activation):
        return f"act_{case.function}_{case.kind}"
    if isinstance(case, AdamW):
        return f"adamw_{case.kind}"
    if isinstance(case, CrossEntropy | CrossEntropyStrange | Scale):
        return f"ce_{case.kind}"
    return str(case.module)
