"""Optimizers that torch lacks: SGD with decoupled decay, Lion, and several optimizers as one."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from andrea.training.checkpoint import State

ParamGroup: TypeAlias = dict[str, Any]
"""torch's parameter group: `params`, and the settings that hold for them."""


class SGDW(torch.optim.SGD):
    """torch's SGD with momentum and decoupled weight decay, `decay` (Loshchilov & Hutter 2019).

    torch's own `weight_decay` is added to the gradient, so that momentum multiplies it once more.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; the decay comes first, as in torch's AdamW."""
        for group in self.param_groups:
            with_gradient = [p for p in group["params"] if p.grad is not None]
            decay_weights(with_gradient, group["lr"] * group["decay"])
        loss: float | None = super().step(closure)
        return loss


class Lion(torch.optim.Optimizer):
    """Steps by the sign of an interpolation between momentum and gradient (Chen et al. 2023,
    arXiv:2302.06675, Program 1).

    Args:
        params: parameters, or groups of them.
        lr: size of every element's step; about a tenth of AdamW's, with ten times its weight decay.
        betas: of the update, and of the momentum, which is the only state.
        weight_decay: decoupled.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            gradients = [p.grad for p in params]
            momenta = [self._momentum_of(p) for p in params]
            update_beta, momentum_beta = group["betas"]
            updates = torch._foreach_lerp(momenta, gradients, 1 - update_beta)
            torch._foreach_sign_(updates)
            decay_weights(params, group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, gradients, 1 - momentum_beta)

    def _momentum_of(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        momentum: Tensor = state["exp_avg"]
        return momentum


class CombinedOptimizer:
    """Several optimizers, each with its own parameters, used as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[ParamGroup]:
        """The parameter groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """Take one step with each part."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> State:
        """The states of the parts, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state`."""
        for part, part_state in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(part_state)


def decay_weights(params: list[Tensor], share: float) -> None:
    """Multiply every parameter by 1 − share: decoupled weight decay."""
    if params and share:
        torch._foreach_mul_(params, 1 - share)
