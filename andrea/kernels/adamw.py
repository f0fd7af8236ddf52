"""AdamW over all parameters in three launches: gradient norm, the numbers of this step, the update.

Clipping is part of the update, so gradients are read twice and never written, and nothing waits for
the device. Stacked replicas (parameters [R, ...]) have their own rates, norms and clipping.

Source: Loshchilov & Hutter, Decoupled Weight Decay Regularization, 2019.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from andrea.kernels.backend import backend_of, run_kernel
from andrea.kernels.launch_plans import (
    plan_adamw_prepare,
    plan_adamw_update,
    plan_gradient_norm,
    split_into_chunks,
)
from andrea.kernels.library import compute_type
from andrea.kernels.source import type_suffix

HYPER_PARAMETERS = ("lr", "weight_decay", "beta1", "beta2", "eps", "clip")
"""Columns of the kernel's table, which has a row for each replica."""
FACTORS = 9
"""Numbers that `adamw_prepare` computes for the update of a replica."""

MOMENTS = ("exp_avg", "exp_avg_sq")
ADDRESSED = ("params", "grads", *MOMENTS)
"""Arguments of the update that are tables of addresses."""

PerReplica = float | Sequence[float]
"""A number for all replicas, or one for each."""


@dataclass
class _Tables:
    """What the kernels read about the parameters of one storage type, T of them in K chunks."""

    storage: str
    parameters: list[Tensor]
    numels: Tensor
    """[T], int64: elements of one replica."""
    scales: Tensor
    """[T, 2]: shares of rate and decay."""
    chunks: Tensor
    """[K, 2], int64: tensor, offset."""
    chunk_offset: int
    """The number of chunks of the types before this one."""
    addresses: tuple[tuple[int, ...], ...] = ()
    address_rows: tuple[Tensor, ...] = ()
    """`addresses` on the device: of parameters, gradients, first and second moments, [T], int64."""


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
        lr: PerReplica = 1e-3,
        betas: tuple[PerReplica, PerReplica] = (0.9, 0.999),
        eps: PerReplica = 1e-8,
        weight_decay: PerReplica = 1e-2,
        *,
        clip: PerReplica = 0.0,
        replicas: int = 1,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.clip, self.replicas = clip, replicas
        for parameter in self._all_parameters():
            one_per_replica = replicas == 1 or parameter.shape[:1] == (replicas,)
            if not parameter.is_contiguous() or not one_per_replica:
                raise ValueError(
                    f"parameters must be contiguous [{replicas}, ...], not {list(parameter.shape)}"
                )
            type_suffix(parameter.dtype)  # refuses what no kernel stores
        first = next(self._all_parameters())
        device, real = first.device, compute_type(first.dtype)
        self._device, self._real = device, real
        self._steps = torch.zeros(replicas, dtype=torch.int64, device=device)
        self._norms = torch.zeros(replicas, dtype=real, device=device)
        self._factors = torch.zeros(replicas, FACTORS, dtype=real, device=device)
        hyper_shape = (replicas, len(HYPER_PARAMETERS))
        # In float64: float32's 1 − 0.999 is wrong in the fifth digit.
        self._hyper = torch.zeros(hyper_shape, dtype=torch.float64, device=device)
        self._uploaded_hyper = b""
        self._tables: list[_Tables] = []
        self._tables_key: tuple[Any, ...] = ()
        self._partial = torch.empty(0, dtype=real, device=device)
        self._captured: list[Tensor] = []
        """What captured steps read, on the host too; it must outlive a later layout."""

    @property
    def norm(self) -> Tensor:
        """Global norm of the gradients before clipping at the last step, on the device: [R], for
        one replica [].
        """
        return self._norms if self.replicas > 1 else self._norms[0]

    def compile_kernels(self) -> None:
        """Compile what a step needs before the first one."""
        dtypes = {self._real, *(parameter.dtype for parameter in self._all_parameters())}
        modules = sorted(f"adamw_{type_suffix(dtype)}" for dtype in dtypes)
        backend_of(self._device).load_modules(modules)

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
        self._update_tables()
        if not self._tables:
            return loss
        self.refresh()
        for tables in self._tables:
            self._update_addresses(tables)
            if self._is_capturing():
                tensors = (tables.numels, tables.scales, tables.chunks, self._partial)
                self._captured += [*tensors, *tables.address_rows]
            self._launch_gradient_norm(tables)
        # One launch between the two: the norm is over the parameters of all storage types.
        run_kernel(
            self._device,
            plan_adamw_prepare(type_suffix(self._real), self.replicas),
            partial=self._partial,
            n_partial=self._partial.shape[1],
            hyper=self._hyper,
            step=self._steps,
            norm=self._norms,
            factors=self._factors,
        )
        for tables in self._tables:
            self._launch_update(tables)
        return loss

    def _launch_gradient_norm(self, tables: _Tables) -> None:
        _, gradients, *_ = tables.address_rows
        run_kernel(
            self._device,
            plan_gradient_norm(tables.storage, len(tables.chunks), self.replicas),
            grads=gradients,
            numels=tables.numels,
            chunks=tables.chunks,
            partial=self._partial,
            partial_stride=self._partial.shape[1],
            partial_offset=tables.chunk_offset,
        )

    def _launch_update(self, tables: _Tables) -> None:
        addresses = dict(zip(ADDRESSED, tables.address_rows, strict=True))
        run_kernel(
            self._device,
            plan_adamw_update(tables.storage, len(tables.chunks), self.replicas),
            **addresses,
            numels=tables.numels,
            scales=tables.scales,
            chunks=tables.chunks,
            factors=self._factors,
        )

    # ---- State -----------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state of this optimizer, or of torch's AdamW."""
        super().load_state_dict(state_dict)
        self._tables_key, self._uploaded_hyper = (), b""
        for index, state in enumerate(self.state.values()):
            if index == 0:
                self._steps.copy_(state["step"].reshape(-1).expand(self.replicas))
            state["step"] = self._step_of_state
        # The base class has cast the moments to the type of their parameter: a bfloat16 parameter's
        # would be rounded. They are taken from the saved state again.
        keys = (key for group in state_dict["param_groups"] for key in group["params"])
        for key, parameter in zip(keys, self._all_parameters(), strict=True):
            saved = state_dict["state"].get(key, {})
            for name in MOMENTS:
                if name in saved:
                    moment = saved[name].to(self._device, self._real)
                    self.state[parameter][name] = moment.contiguous()

    @property
    def _step_of_state(self) -> Tensor:
        """The count that all parameters share; solo it has the shape that torch's optimizer gives
        it.
        """
        return self._steps if self.replicas > 1 else self._steps[0]

    def _all_parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    # ---- Tables ----------------------------------------------------------------------------------

    def _update_tables(self) -> None:
        """Lay out the parameters that have a gradient; again only if these, or their shares of rate
        and decay, have changed.
        """
        _, decay_shares = self._common_decay()
        rows: list[tuple[Tensor, float, float]] = []
        for group, decay_share in zip(self.param_groups, decay_shares, strict=True):
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.numel():
                    rows.append((parameter, group.get("lr_scale", 1.0), decay_share))
        key = tuple((id(parameter), *shares) for parameter, *shares in rows)
        if key == self._tables_key:
            return
        change = "which parameters have gradients, or their shares of rate and decay, changed"
        self._refuse_in_capture(change)
        rows_of_type: dict[str, list[tuple[Tensor, float, float]]] = {}
        for row in rows:
            rows_of_type.setdefault(type_suffix(row[0].dtype), []).append(row)
        self._tables = []
        chunk_offset = 0
        for storage in sorted(rows_of_type):
            tables = self._make_tables(storage, rows_of_type[storage], chunk_offset)
            self._tables.append(tables)
            chunk_offset += len(tables.chunks)
        size = (self.replicas, chunk_offset)
        self._partial = torch.empty(size, dtype=self._real, device=self._device)
        self._tables_key = key

    def _make_tables(
        self, storage: str, rows: list[tuple[Tensor, float, float]], chunk_offset: int
    ) -> _Tables:
        parameters = [parameter for parameter, *_ in rows]
        numels = [parameter.numel() // self.replicas for parameter in parameters]
        return _Tables(
            storage,
            parameters,
            self._upload(numels, torch.int64),
            self._upload([shares for _, *shares in rows], self._real),
            self._upload(split_into_chunks(numels), torch.int64),
            chunk_offset,
        )

    def _update_addresses(self, tables: _Tables) -> None:
        """Copy the addresses of parameters, gradients and moments to the device, if one has
        changed: `zero_grad` frees the gradients of the step before.
        """
        columns: list[tuple[int, ...]] = []
        for parameter in tables.parameters:
            moments = self._moments_of(parameter)
            gradient = self._gradient_of(parameter)
            tensors = (parameter, gradient, *moments)
            columns.append(tuple(tensor.data_ptr() for tensor in tensors))
        # Transposed: the kernels take one array of addresses for each kind of tensor.
        addresses = tuple(zip(*columns, strict=True))
        if addresses != tables.addresses:
            tables.address_rows = self._upload(addresses, torch.int64).unbind()
            # A capture only records the copy: the first replay fills the table, so a later step
            # may not rely on it.
            tables.addresses = () if self._is_capturing() else addresses

    def _moments_of(self, parameter: Tensor) -> list[Tensor]:
        """Return a parameter's moments, zeros before its first step.

        Raises:
            ValueError: the kernel would misread one of them.
        """
        state = self.state[parameter]
        if not state:
            self._refuse_in_capture("a parameter has no state yet")
            state["step"] = self._step_of_state
            for name in MOMENTS:
                state[name] = torch.zeros(parameter.shape, dtype=self._real, device=self._device)
        for name in MOMENTS:
            moment = state[name]
            alike = moment.shape == parameter.shape and moment.device == parameter.device
            if not alike or moment.dtype != self._real or not moment.is_contiguous():
                raise ValueError(
                    f"{name} must be contiguous {list(parameter.shape)} of {self._real} on "
                    f"{parameter.device}, "
                    f"not {list(moment.shape)} of {moment.dtype} on {moment.device}"
                )
        return [state[name] for name in MOMENTS]

    def _gradient_of(self, parameter: Tensor) -> Tensor:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.dtype != parameter.dtype:
            raise ValueError(f"a gradient of {gradient.dtype} for a parameter of {parameter.dtype}")
        if not gradient.is_contiguous():
            # The parameter keeps the copy, which must live until the launch has read it.
            gradient = parameter.grad = gradient.contiguous()
        return gradient

    # ---- Rates -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Copy rates, decays, betas, eps and clip to the device if they changed.

        `step` does so itself, but the replay of a captured step does not: call this before a
        replay. Shares (`lr_scale`, a group's decay over another's) are fixed by the capture.

        Raises:
            ValueError: groups that one table cannot serve.
            RuntimeError: they changed, in a capture: a replay would set them back.
        """
        beta1, beta2, eps = self._common_betas()
        columns = (self._common_rate(), self._checked_decay(), beta1, beta2, eps, self.clip)
        per_replica = [np.broadcast_to(_float64(column), (self.replicas,)) for column in columns]
        table = np.stack(per_replica, axis=1)
        if table.tobytes() != self._uploaded_hyper:
            self._refuse_in_capture("rates, decays, betas, eps or clip changed")
            self._hyper.copy_(self._pin(torch.from_numpy(table)), non_blocking=True)
            self._uploaded_hyper = table.tobytes()

    def _common_rate(self) -> Any:
        rates = [_float64(group["lr"]) / group.get("lr_scale", 1.0) for group in self.param_groups]
        if not all(_nearly_equal(rate, rates[0]) for rate in rates):
            raise ValueError("groups with rates of their own need an lr_scale")
        return rates[0]

    def _common_betas(self) -> list[Any]:
        """Return both betas and eps."""
        groups = [
            [_float64(number) for number in (*group["betas"], group["eps"])]
            for group in self.param_groups
        ]
        if not all(all(map(np.array_equal, groups[0], group)) for group in groups):
            raise ValueError("all groups must have the same betas and eps")
        return groups[0]

    def _checked_decay(self) -> Any:
        decay, shares = self._common_decay()
        for group, share in zip(self.param_groups, shares, strict=True):
            if not _nearly_equal(_float64(group["weight_decay"]), share * decay):
                raise ValueError("weight decays per replica must be proportional between groups")
        return decay

    def _common_decay(self) -> tuple[Any, list[float]]:
        """Return the largest group's decay, and every group's share of it."""
        decays = [_float64(group["weight_decay"]) for group in self.param_groups]
        decay = max(decays, key=np.max)
        largest = float(np.max(decay))
        if largest == 0:
            return decay, [0.0 for _ in decays]
        return decay, [float(np.max(group_decay)) / largest for group_decay in decays]

    # ---- Device ----------------------------------------------------------------------------------

    def _is_capturing(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _refuse_in_capture(self, reason: str) -> None:
        if self._is_capturing():
            raise RuntimeError(f"{reason}: take a step before capturing one")

    def _upload(self, values: Any, dtype: torch.dtype) -> Tensor:
        return self._pin(torch.tensor(values, dtype=dtype)).to(self._device, non_blocking=True)

    def _pin(self, tensor: Tensor) -> Tensor:
        """Return a tensor in pinned memory: the host waits for copies from pageable memory."""
        pinned = tensor.pin_memory() if self._device.type == "cuda" else tensor
        if self._is_capturing():
            self._captured.append(pinned)
        return pinned


def _float64(numbers: PerReplica) -> Any:
    return np.asarray(numbers, np.float64)


def _nearly_equal(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=1e-12, atol=0))
