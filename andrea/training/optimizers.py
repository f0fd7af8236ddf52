"""Optimizers that torch does not have: SGD with decoupled decay, Lion, and two optimizers in the
place of one.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class SGDW(torch.optim.SGD):
    """torch's SGD with momentum, and `decay` of the weights apart from the gradient (Loshchilov &
    Hutter 2019).

    torch's own `weight_decay` adds to the gradient, where momentum and the learning rate multiply
    it once more.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; the decay comes first, as in torch's AdamW."""
        for group in self.param_groups:
            shrink([p for p in group["params"] if p.grad is not None], group["lr"] * group["decay"])
        loss: float | None = super().step(closure)
        return loss


class Lion(torch.optim.Optimizer):
    """Sign of an interpolation between momentum and gradient (Chen et al. 2023, arXiv:2302.06675,
    Program 1).

    Args:
        params: parameters, or groups of them.
        lr: size of every element's step; about a tenth of AdamW's, with as much more weight decay.
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
        """One step."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            gradients, momenta = [p.grad for p in params], [self._momentum(p) for p in params]
            first, second = group["betas"]
            updates = torch._foreach_lerp(momenta, gradients, 1 - first)
            torch._foreach_sign_(updates)
            shrink(params, group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, gradients, 1 - second)

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        found: Tensor = state["exp_avg"]
        return found


class Together:
    """Several optimizers, each with its own parameters, used as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all of them."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """One step of each."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The state of each, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        for part, told in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(told)


def shrink(params: list[Tensor], share: float) -> None:
    """Take a share off every parameter: decoupled weight decay."""
    if params and share:
        torch._foreach_mul_(params, 1 - share)
