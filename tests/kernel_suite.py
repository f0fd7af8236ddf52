"""The numeric suite of the device code: every kernel against float64, in every order of its
threads.

Outputs start as NaN and lie between margins of NaN: what is not written shows, and so does what is
written beside them. The kernels must give the same bits in all orders, and leave what they read as
it was. Tests run the checks of `kernel_suite_more.checks` plainly, under sanitizers, and on text
with planted bugs, each of which one must notice.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from shim_backend import ORDERS, HostBackend
from torch import Tensor
from torch.nn import functional as F

from andrea.kernels import launch_plans
from andrea.kernels.launch_plans import DeviceLimits, LaunchPlan

TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
BITS = {"f32": 24, "bf16": 8, "f16": 11}
HOPPER = DeviceLimits(232448, 4)
SMALL = DeviceLimits(shared_bytes=256, multiprocessors=2)
"""So little shared memory that no row fits."""
MARGIN = [8]
"""Elements before and after every tensor; 0 under the address sanitizer, which watches the ends
itself.
"""

Values = dict[str, Any]


def generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) % 2**31)


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, *shape), dtype=torch.float64) * scale


def placed(numbers: Tensor, kind: str, pad: int = 0, offset: int = 0) -> Tensor:
    """Numbers in storage: rows `pad` elements apart, the first `offset` elements off a 16-byte
    boundary.
    """
    rows, columns = numbers.shape
    size = TORCH[kind].itemsize
    margin = -(-MARGIN[0] * size // 16) * 16 // size
    stride = columns + pad
    length = margin + offset + max(0, rows - 1) * stride + columns + margin
    base = torch.full((length,), math.nan, dtype=TORCH[kind])
    view = base.as_strided((rows, columns), (stride, 1), margin + offset)
    view.copy_(numbers)
    return view


def empty(rows: int, columns: int, kind: str, pad: int = 0, offset: int = 0) -> Tensor:
    return placed(torch.full((rows, columns), math.nan), kind, pad, offset)


def row_of(numbers: Tensor, kind: str = "f32") -> Tensor:
    """A vector."""
    return placed(numbers[None], kind)[0]


def _bits(tensor: Tensor) -> Tensor:
    """All of a tensor's storage, bit by bit, margins too."""
    whole = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
    return whole.view(torch.uint8)


def _margins_untouched(tensor: Tensor) -> bool:
    mine = torch.zeros(tensor.untyped_storage().nbytes() // tensor.itemsize, dtype=torch.bool)
    mine.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
    whole = tensor.as_strided(mine.shape, (1,), 0)
    return bool(whole[~mine].isnan().all())


def run(
    host: HostBackend, plan: LaunchPlan, make: Callable[[], Values], outputs: set[str]
) -> Values:
    """Run a plan in every order on fresh values; returns those of the first."""
    first: Values = {}
    for order in ORDERS:
        before, values = make(), make()
        host.run(plan, values, order=order)
        for name, value in values.items():
            if not isinstance(value, Tensor):
                continue
            if name in outputs:
                assert not value.is_floating_point() or _margins_untouched(value), (
                    f"{name}: written beside it"
                )
            else:
                assert torch.equal(_bits(value), _bits(before[name])), (
                    f"{name}: an input was changed"
                )
            if first and name in outputs:
                assert torch.equal(_bits(value), _bits(first[name])), (
                    f"{name}: order {order} gives other bits"
                )
        first = first or values
    return first


def close(name: str, got: Tensor, wanted: Tensor, kind: str = "f32", scale: float = 1.0) -> None:
    """Within half a step of the storage and the rounding of float32 sums of the size `scale`."""
    got, wanted = got.double(), wanted.double()
    half_step = torch.pow(2.0, torch.frexp(wanted).exponent.double() - BITS[kind] - 1)
    if kind == "f16":
        half_step = half_step.clamp(min=2**-25)
    bound = half_step + 3e-6 * wanted.abs() + 2e-6 * scale
    wrong = ~((got - wanted).abs() <= bound) & ~(got == wanted) & ~(got.isnan() & wanted.isnan())
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        raise AssertionError(
            f"{name}: {int(wrong.sum())} of {wrong.numel()} wrong, at {at} {got[tuple(at)]}, not "
            f"{wanted[tuple(at)]}"
        )


# ---- Cross-entropy -------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrossEntropy:
    kind: str
    rows: int
    columns: int
    pad: int = 0
    offset: int = 0
    softcap: float = 0.0
    z_loss: float = 0.0
    place: str = "in place"
    """Or `apart`, with another alignment, or `loss` alone."""
    upstream: str = "rows"
    """Or `one`, or `none`."""
    replicas: int = 1
    shared_targets: bool = False
    limits: DeviceLimits = HOPPER
    special: str = ""
    grid: int = 0

    def __call__(self, host: HostBackend) -> None:
        rows, V, kind = self.rows, self.columns, self.kind
        x = drawn(rows, V, seed=1, scale=3).to(TORCH[kind]).double()
        per_replica = rows // self.replicas
        targets = torch.randint(
            V, (per_replica if self.shared_targets else rows,), generator=generator(2, rows, V)
        )
        if rows > 2:
            targets[1] = -100
        if self.special == "offset":
            x = (x + 3e4).to(TORCH[kind]).double()
        if self.special == "masked":
            x[:, torch.arange(V) % 29 != 3] = -math.inf
            targets = torch.where(targets >= 0, targets // 58 * 29 + 3, targets)
        if self.special == "edges":
            targets[: rows // 2], targets[rows // 2 :] = 0, V - 1
        upstream = {
            "rows": drawn(rows, seed=3).abs() + 0.1,
            "one": torch.tensor([0.25]),
            "none": None,
        }[self.upstream]
        upstream = None if upstream is None else upstream.float().double()

        def make() -> Values:
            logits = placed(x, kind, self.pad, self.offset)
            grad = {
                "in place": logits,
                "apart": empty(rows, V, kind, self.pad + 1, self.offset + 1),
                "loss": None,
            }[self.place]
            return {
                "logits": logits,
                "logits_stride": logits.stride(0),
                "grad": grad,
                "grad_stride": 0 if grad is None else grad.stride(0),
                "targets": targets.clone(),
                "target_stride": 1,
                "target_replica_stride": 0 if self.shared_targets else per_replica,
                "upstream": None if upstream is None else row_of(upstream),
                "upstream_stride": int(self.upstream == "rows"),
                "loss": row_of(torch.full((rows,), math.nan)),
                "lse": row_of(torch.full((rows,), math.nan)),
                "rows": rows,
                "columns": V,
                "rows_per_replica": per_replica,
                "ignore_index": -100,
                "softcap": self.softcap,
                "z_loss": self.z_loss,
            }

        plan = launch_plans.plan_cross_entropy(kind, rows, V, self.limits)
        plan = plan._replace(grid=self.grid or plan.grid)
        got = run(
            host,
            plan,
            make,
            {"grad", "loss", "lse"} | ({"logits"} if self.place == "in place" else set()),
        )

        given = x.clone().requires_grad_()
        z = self.softcap * torch.tanh(given / self.softcap) if self.softcap else given
        wanted = targets.repeat(self.replicas) if self.shared_targets else targets
        loss, lse = F.cross_entropy(z, wanted, reduction="none"), z.logsumexp(-1)
        kept = wanted >= 0
        total = loss + self.z_loss * lse.square() * kept
        (torch.ones(()) if upstream is None else upstream).expand(rows).double().mul(
            total
        ).sum().backward()
        close("loss", got["loss"], loss.detach(), scale=4)
        close("lse", got["lse"], torch.where(kept, lse, 0.0).detach(), scale=4)
        if got["grad"] is not None:
            assert given.grad is not None
            close("grad", got["grad"], given.grad, kind, scale=(1 + abs(self.z_loss) * 20) / 2)


@dataclass(frozen=True)
class CrossEntropyStrange:
    """Rows without any finite logit, and targets that do not exist: NaN, never another row's
    memory.
    """

    kind: str

    def __call__(self, host: HostBackend) -> None:
        x = drawn(4, 40, seed=4)
        x[0] = -math.inf

        def make() -> Values:
            logits = placed(x, self.kind)
            vector = row_of(torch.full((4,), math.nan))
            return {
                "logits": logits, "logits_stride": 40, "grad": logits, "grad_stride": 40,
                "targets": torch.tensor([3, 40, -1, 5]), "target_stride": 1,
                "target_replica_stride": 4,
                "upstream_stride": 0, "loss": vector, "rows": 4, "columns": 40,
                "rows_per_replica": 4,
                "ignore_index": -100, "softcap": 0, "z_loss": 0,
            }  # fmt: skip

        got = run(
            host,
            launch_plans.plan_cross_entropy(self.kind, 4, 40),
            make,
            {"logits", "grad", "loss"},
        )
        assert got["loss"].isnan().tolist() == [True, True, True, False]
        assert got["grad"].isnan().all(-1).tolist() == [True, True, True, False]


@dataclass(frozen=True)
class Scale:
    kind: str
    rows: int
    columns: int
    pad: int = 0
    offset: int = 0
    apart: int = -1
    """Offset of another destination; −1: in place."""

    def __call__(self, host: HostBackend) -> None:
        g = drawn(self.rows, self.columns, seed=5).to(TORCH[self.kind]).double()
        # Products by 1.5 have one place more than bf16 keeps: ties, whose rounding must be to even.
        upstream = drawn(self.rows, seed=6).bfloat16().float().abs() + 0.5
        wanted = torch.where(torch.arange(self.rows) % 3 == 0, upstream, upstream * 1.5)

        def make() -> Values:
            src = placed(g, self.kind, self.pad, self.offset)
            dst = (
                src
                if self.apart < 0
                else empty(self.rows, self.columns, self.kind, self.pad, self.apart)
            )
            return {
                "src": src, "src_stride": src.stride(0), "dst": dst, "dst_stride": dst.stride(0),
                "dloss": row_of(wanted),
                "dloss_stride": 1, "upstream": row_of(upstream), "upstream_stride": 1,
                "rows": self.rows,
                "columns": self.columns,
            }  # fmt: skip

        plan = launch_plans.plan_cross_entropy_scale(self.kind, self.rows, self.columns)
        got = run(host, plan, make, {"dst"} | ({"src"} if self.apart < 0 else set()))
        exact = (g.float() * (wanted / upstream)[:, None]).to(TORCH[self.kind])
        assert torch.equal(got["dst"], exact), "rounded otherwise than torch does"


# ---- Norms ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Norm:
    kind: str
    stream: str
    branch: str
    rows: int
    """Of one replica."""
    columns: int
    replicas: int = 1
    delta: bool = True
    weight: bool = True
    bias: bool = True
    dsum: bool = True
    ddelta: bool = True
    shared_weight: bool = False
    pad: int = 0
    offset: int = 0
    mean: float = 0.0
    scale: float = 1.0
    eps: float = 1e-5
    limits: DeviceLimits = HOPPER
    grid: int = 0

    def __call__(self, host: HostBackend) -> None:
        saved = self.forward(host)
        self.backward(host, *saved)

    @property
    def shape(self) -> launch_plans.NormShape:
        return launch_plans.NormShape(
            self.kind, self.stream, self.branch, self.rows, self.replicas, self.columns
        )

    @property
    def _weights(self) -> tuple[Tensor, Tensor]:
        of = 1 if self.shared_weight else self.replicas
        return (drawn(of, self.columns, seed=11) * 0.5 + 1).float(), drawn(
            of, self.columns, seed=12
        ).float()

    def reference(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """y, mean, rstd, weight and bias by replica, all float64."""
        mean = s.mean(-1) if self.kind == "ln" else torch.zeros(len(s), dtype=torch.float64)
        rstd = ((s - mean[:, None]).square().mean(-1) + self.eps).rsqrt()
        w, b = (
            t.double().expand(self.replicas, -1).clone().requires_grad_() for t in self._weights
        )
        y = ((s - mean[:, None]) * rstd[:, None]).view(self.replicas, self.rows, -1)
        y = y * w[:, None] if self.weight else y
        y = y + b[:, None] if self.bias else y
        return y.flatten(0, 1), mean, rstd, w, b

    def forward(self, host: HostBackend) -> tuple[Tensor, Tensor, Tensor]:
        N, C = self.rows * self.replicas, self.columns
        x = (drawn(N, C, seed=7, scale=self.scale) + self.mean).to(TORCH[self.stream])
        delta = drawn(N, C, seed=8, scale=self.scale).to(TORCH[self.branch])
        w, b = self._weights
        stride = 0 if self.shared_weight else C

        def make() -> Values:
            px, pd = (
                placed(x, self.stream, self.pad, self.offset),
                placed(delta, self.branch, self.pad, self.offset),
            )
            return {
                "x": px, "x_stride": px.stride(0), "delta": pd if self.delta else None,
                "delta_stride": pd.stride(0),
                "weight": placed(w, "f32") if self.weight else None,
                "weight_replica_stride": stride,
                "bias": placed(b, "f32") if self.bias else None, "bias_replica_stride": stride,
                "sum": empty(N, C, self.stream) if self.delta else None,
                "y": empty(N, C, self.branch),
                "mean": row_of(torch.full((N,), math.nan)) if self.kind == "ln" else None,
                "rstd": row_of(torch.full((N,), math.nan)), "rows": N, "columns": C,
                "rows_per_replica": self.rows,
                "eps": self.eps,
            }  # fmt: skip

        plan = launch_plans.plan_norm_forward(self.shape, self.limits)
        plan = plan._replace(grid=self.grid or plan.grid)
        got = run(host, plan, make, {"sum", "y", "mean", "rstd"})
        s = x.double()
        if self.delta:
            close("sum", got["sum"], x.double() + delta.double(), self.stream, self.scale)
            s = got["sum"].double()
        y, mean, rstd, _, _ = self.reference(s)
        # What the mean loses to rounding, measured in standard deviations.
        lost = 4 + abs(self.mean) / self.scale / 8
        close("y", got["y"], y.detach(), self.branch, lost)
        close("rstd", got["rstd"], rstd, scale=float(rstd.max()))
        if self.kind == "ln":
            close("mean", got["mean"], mean, scale=abs(self.mean) + self.scale)
        return s, mean, rstd

    def backward(self, host: HostBackend, s: Tensor, mean: Tensor, rstd: Tensor) -> None:
        N, C = len(s), self.columns
        dy, dsum = (
            drawn(N, C, seed=9).to(TORCH[self.branch]),
            drawn(N, C, seed=10).to(TORCH[self.stream]),
        )
        plan = launch_plans.plan_norm_backward(self.shape, self.limits)
        slots = 1 + self.bias

        def make() -> Values:
            pdy, pds = (
                placed(dy, self.branch, self.pad, self.offset),
                placed(dsum, self.stream, self.pad, self.offset),
            )
            ps = placed(s, self.stream, self.pad, self.offset)
            partial = empty(slots * self.replicas * plan.arguments["parts"], C, "f32")
            return {
                "dy": pdy, "dy_stride": pdy.stride(0), "dsum": pds if self.dsum else None,
                "dsum_stride": pds.stride(0),
                "sum": ps, "sum_stride": ps.stride(0),
                "mean": row_of(mean) if self.kind == "ln" else None,
                "rstd": row_of(rstd), "weight": placed(self._weights[0],
                "f32") if self.weight else None,
                "weight_replica_stride": 0 if self.shared_weight else C,
                "dx": empty(N, C, self.stream),
                "ddelta": empty(N, C, self.branch) if self.ddelta else None,
                "partial": partial if self.weight else None,
                "rows_per_replica": self.rows, "replicas": self.replicas, "columns": C,
                "with_bias": int(self.bias),
            }  # fmt: skip

        got = run(host, plan, make, {"dx", "ddelta", "partial"})
        given = s.clone().requires_grad_()
        y, _, _, w, b = self.reference(given)
        y.backward(dy.double())
        assert given.grad is not None
        dx = given.grad + (dsum.double() if self.dsum else 0)
        lost = (4 + abs(self.mean) / self.scale / 8) * max(1.0, float(rstd.max()))
        close("dx", got["dx"], dx, self.stream, lost)
        if self.ddelta:
            close("ddelta", got["ddelta"], dx, self.branch, lost)
        if self.weight:
            sums = reduced(host, got["partial"], slots * self.replicas, plan.arguments["parts"], C)
            close(
                "dw",
                sums[: self.replicas],
                w.grad if w.grad is not None else torch.zeros_like(w),
                scale=lost * self.rows,
            )
            if self.bias:
                assert b.grad is not None
                close("db", sums[self.replicas :], b.grad, scale=math.sqrt(self.rows) * 2)


def reduced(host: HostBackend, partial: Tensor, segments: int, parts: int, columns: int) -> Tensor:
    """Stage 2, itself compared with float64."""

    def make() -> Values:
        return {
            "partial": placed(partial, "f32"), "out": empty(segments, columns, "f32"),
            "segments": segments,
            "parts": parts,
            "columns": columns,
        }  # fmt: skip

    got: Tensor = run(
        host, launch_plans.plan_reduce_parts("f32", segments, parts, columns), make, {"out"}
    )["out"]
    wanted = partial.double().view(segments, parts, columns).sum(1)
    close("reduce_parts", got, wanted, scale=float(partial.abs().max()) * max(1, parts) / 4)
    return got


def variants(case: Any, **changes: list[Any]) -> Iterator[Any]:
    """The case with one field changed at a time."""
    for name, values in changes.items():
        for value in values:
            yield replace(case, **{name: value})
