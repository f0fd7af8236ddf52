"""AdamW over all parameters in three launches: gradient norm, the numbers of this step, the update.

Clipping is part of the update, so gradients are read twice and never written; nothing waits for the
device. Stacked replicas (parameters [R, ...]) have their own rates, norms and clipping.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from andrea.kernels import source
from andrea.kernels.backend import load, run
from andrea.kernels.library import real_of

HYPER = ("lr", "weight_decay", "beta1", "beta2", "eps", "clip")
"""Columns of the kernel's table, a row for each replica."""

MOMENTS = ("exp_avg", "exp_avg_sq")

Numbers = float | Sequence[float]
"""One for all replicas, or one for each."""


@dataclass
class _Tensors:
    """The parameters of one type that have a gradient."""

    kind: str
    parameters: list[Tensor]
    numels: Tensor
    scales: Tensor
    chunks: Tensor
    offset: int
    """Of their chunks among all chunks."""
    addresses: tuple[tuple[int, ...], ...] = ()
    table: Tensor | None = None


class AdamW(torch.optim.Optimizer):
    """As `torch.optim.AdamW(fused=True)` after `clip_grad_norm_`.

    Args:
        params: contiguous parameters or groups of them. A group's `lr` is its `lr_scale` (1 by
            default) times the common rate; its `weight_decay` is its own. Both are numbers, or R
            numbers for R replicas.
        betas, eps: of all groups; each is a number, or R numbers.
        clip: largest global norm of the gradients of each replica, a number or R numbers; 0 clips
            nothing.
        replicas: R; every parameter's first axis, if there are more than one.

    Raises:
        ValueError: a parameter does not fit, or (at a step) a group asks for betas of its own, or
            for rates or decays that are not a multiple of another group's.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Numbers = 1e-3,
        betas: tuple[Numbers, Numbers] = (0.9, 0.999),
        eps: Numbers = 1e-8,
        weight_decay: Numbers = 1e-2,
        *,
        clip: Numbers = 0.0,
        replicas: int = 1,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self.clip, self.replicas = clip, replicas
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if not parameter.is_contiguous() or (
                replicas > 1 and parameter.shape[:1] != (replicas,)
            ):
                raise ValueError(
                    f"parameters must be contiguous [{replicas}, ...], not {list(parameter.shape)}"
                )
            source.suffix(str(parameter.dtype))
        device = self.param_groups[0]["params"][0].device
        real = real_of(self.param_groups[0]["params"][0].dtype)
        self._device, self._real = device, real
        self._steps = torch.zeros(replicas, dtype=torch.int64, device=device)
        self._norms = torch.zeros(replicas, dtype=real, device=device)
        self._factors = torch.zeros(replicas, 9, dtype=real, device=device)
        self._hyper = torch.zeros(replicas, len(HYPER), dtype=torch.float64, device=device)
        self._hyper_there: bytes = b""
        self._layout: list[_Tensors] = []
        self._laid_out_for: tuple[Any, ...] = ()
        self._partial = torch.empty(0, dtype=real, device=device)
        self._captured: list[Any] = []
        """What captured steps read, on the host too; it must outlive a later layout."""

    @property
    def norm(self) -> Tensor:
        """Global norm of the gradients before clipping at the last step, on the device: [R], for
        one replica [].
        """
        return self._norms if self.replicas > 1 else self._norms[0]

    def load(self) -> None:
        """Compile what a step needs before the first one."""
        kinds = {
            source.suffix(str(p.dtype)) for group in self.param_groups for p in group["params"]
        }
        load(
            self._device,
            sorted(f"adamw_{kind}" for kind in {*kinds, source.suffix(str(self._real))}),
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Raises:
            RuntimeError: in a capture, what only a step outside of it can prepare is missing.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._lay_out()
        if not self._layout:
            return loss
        self.refresh()
        n_partial, real = self._partial.shape[1], source.suffix(str(self._real))
        for one in self._layout:
            self._set_table(one)
            if self._capturing():
                self._captured.append(
                    (one.numels, one.scales, one.chunks, one.table, self._partial)
                )
            run(
                self._device,
                source.gradient_norm(one.kind, len(one.chunks), self.replicas),
                grads=self._row(one, 1),
                numels=one.numels,
                chunks=one.chunks,
                partial=self._partial,
                partial_stride=n_partial,
                partial_offset=one.offset,
            )
        run(
            self._device,
            source.adamw_prepare(real, self.replicas),
            partial=self._partial,
            n_partial=n_partial,
            hyper=self._hyper,
            step=self._steps,
            norm=self._norms,
            factors=self._factors,
        )
        for one in self._layout:
            run(
                self._device,
                source.adamw(one.kind, len(one.chunks), self.replicas),
                params=self._row(one, 0),
                grads=self._row(one, 1),
                exp_avg=self._row(one, 2),
                exp_avg_sq=self._row(one, 3),
                numels=one.numels,
                scales=one.scales,
                chunks=one.chunks,
                factors=self._factors,
            )
        return loss

    @staticmethod
    def _row(one: _Tensors, index: int) -> Tensor:
        assert one.table is not None
        return one.table[index]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state of this optimizer, or of torch's AdamW."""
        super().load_state_dict(state_dict)
        self._laid_out_for, self._hyper_there = (), b""
        for index, state in enumerate(self.state.values()):
            if index == 0:
                self._steps.copy_(state["step"].reshape(-1).expand(self.replicas))
            state["step"] = self._step_of_state
        # The base class has cast the moments to the type of their parameter.
        saved = (key for group in state_dict["param_groups"] for key in group["params"])
        for key, parameter in zip(
            saved, (p for group in self.param_groups for p in group["params"]), strict=True
        ):
            for name in MOMENTS:
                if name in state_dict["state"].get(key, {}):
                    moment = state_dict["state"][key][name]
                    self.state[parameter][name] = moment.to(self._device, self._real).contiguous()

    @property
    def _step_of_state(self) -> Tensor:
        """All parameters share one count; solo it has the shape that torch's optimizer gives it."""
        return self._steps if self.replicas > 1 else self._steps[0]

    def _lay_out(self) -> None:
        """Tables of the parameters that have a gradient, made anew when it is others or their
        shares of the rate.
        """
        rows: list[tuple[Tensor, float, float]] = []
        for group, decays in zip(self.param_groups, self._decays()[1], strict=True):
            mine = [p for p in group["params"] if p.grad is not None and p.numel()]
            rows += [(p, group.get("lr_scale", 1.0), decays) for p in mine]
        wanted = tuple((id(p), *rest) for p, *rest in rows)
        if wanted == self._laid_out_for:
            return
        self._not_in_capture(
            "which parameters have gradients, or their shares of rate and decay, changed"
        )
        self._layout, offset = [], 0
        for kind in sorted({source.suffix(str(p.dtype)) for p, *_ in rows}):
            mine = [row for row in rows if source.suffix(str(row[0].dtype)) == kind]
            numels = [p.numel() // self.replicas for p, *_ in mine]
            chunks = source.chunks_of(numels)
            self._layout.append(
                _Tensors(
                    kind,
                    [p for p, *_ in mine],
                    self._upload(numels, torch.int64),
                    self._upload([rest for _, *rest in mine], self._real),
                    self._upload(chunks, torch.int64),
                    offset,
                )
            )
            offset += len(chunks)
        self._partial = torch.empty(self.replicas, offset, dtype=self._real, device=self._device)
        self._laid_out_for = wanted

    def _set_table(self, one: _Tensors) -> None:
        """Addresses of parameters, gradients and moments; copied to the device when one has
        changed.
        """
        held: list[tuple[Tensor, ...]] = []
        for parameter in one.parameters:
            state = self.state[parameter]
            if not state:
                self._not_in_capture("a parameter has no state yet")
                state["step"] = self._step_of_state
                for name in MOMENTS:
                    state[name] = torch.zeros(
                        parameter.shape, dtype=self._real, device=self._device
                    )
            for name in MOMENTS:
                moment = state[name]
                fits = (
                    moment.shape == parameter.shape
                    and moment.dtype == self._real
                    and moment.is_contiguous()
                )
                if not fits or moment.device != parameter.device:
                    raise ValueError(
                        f"{name} must be contiguous {list(parameter.shape)} of {self._real} on "
                        f"{parameter.device}, "
                        f"not {list(moment.shape)} of {moment.dtype} on {moment.device}"
                    )
            assert parameter.grad is not None
            if not parameter.grad.is_contiguous():
                parameter.grad = parameter.grad.contiguous()
            if parameter.grad.dtype != parameter.dtype:
                raise ValueError(
                    f"a gradient of {parameter.grad.dtype} for a parameter of {parameter.dtype}"
                )
            held.append((parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]))
        addresses = tuple(
            tuple(tensor.data_ptr() for tensor in column) for column in zip(*held, strict=True)
        )
        if addresses != one.addresses:
            one.table = self._upload(addresses, torch.int64)
            # Only a replay fills a table of a capture.
            one.addresses = () if self._capturing() else addresses

    def refresh(self) -> None:
        """Copy rates, decays, betas, eps and clip to the device if they changed.

        `step` does so itself, but the replay of a captured step does not: call this before a
        replay. Shares (`lr_scale`, a group's decay over another's) are fixed by the capture.

        Raises:
            ValueError: groups that one table cannot serve.
            RuntimeError: they changed, in a capture: a replay would set them back.
        """
        first = self.param_groups[0]
        common = [np.asarray(value, np.float64) for value in (*first["betas"], first["eps"])]
        for group in self.param_groups:
            if not all(map(np.array_equal, common, (*group["betas"], group["eps"]))):
                raise ValueError("all groups must have the same betas and eps")
        rates = [
            np.asarray(group["lr"], np.float64) / group.get("lr_scale", 1.0)
            for group in self.param_groups
        ]
        if any(not np.allclose(rate, rates[0], rtol=1e-12, atol=0) for rate in rates):
            raise ValueError("groups with rates of their own need an lr_scale")
        decay, shares = self._decays()
        for group, share in zip(self.param_groups, shares, strict=True):
            if not np.allclose(
                np.asarray(group["weight_decay"], np.float64), share * decay, rtol=1e-12, atol=0
            ):
                raise ValueError("weight decays per replica must be proportional between groups")
        values = (rates[0], decay, *common, self.clip)
        table = np.stack(
            [np.broadcast_to(np.asarray(v, np.float64), (self.replicas,)) for v in values], axis=1
        )
        if table.tobytes() != self._hyper_there:
            self._not_in_capture("rates, decays, betas, eps or clip changed")
            self._hyper.copy_(self._pinned(torch.from_numpy(table)), non_blocking=True)
            self._hyper_there = table.tobytes()

    def _decays(self) -> tuple[Any, list[float]]:
        """The largest group's decay, and every group's share of it."""
        decays = [np.asarray(group["weight_decay"], np.float64) for group in self.param_groups]
        decay = max(decays, key=np.max)
        common = float(np.max(decay))
        return decay, [float(np.max(one)) / common if common else 0.0 for one in decays]

    def _capturing(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _not_in_capture(self, why: str) -> None:
        if self._capturing():
            raise RuntimeError(f"{why}: take a step before capturing one")

    def _upload(self, values: Any, dtype: torch.dtype) -> Tensor:
        return self._pinned(torch.tensor(values, dtype=dtype)).to(self._device, non_blocking=True)

    def _pinned(self, tensor: Tensor) -> Tensor:
        """A copy from pageable memory is waited for."""
        pinned = tensor.pin_memory() if self._device.type == "cuda" else tensor
        if self._capturing():
            self._captured.append(pinned)
        return pinned
