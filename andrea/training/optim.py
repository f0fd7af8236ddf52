"""The optimizer of a run: which parameters are decayed, at which share of the learning rate each is
trained.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

# The first optimizer made in a process loads this (1.1 s): here, a process that forks workers loads
# it for all of them.
import torch._dynamo
from torch import Tensor, nn

from andrea.kernels.adamw import AdamW as KernelAdamW
from andrea.training.config import TrainConfig
from andrea.training.optimizers import SGDW, Lion, Together

Optimizer = torch.optim.Optimizer | Together
MUON_MOMENTUM = 0.95
"""Of Muon's update, Nesterov's: Keller Jordan's value, which is everybody's."""


def make_optimizer(
    model: nn.Module, cfg: TrainConfig, lr_scales: Mapping[str, float] | None = None
) -> Optimizer:
    """An optimizer over every parameter once: a head tied to the embedding is one parameter.

    Tensors of two and more dimensions are decayed, gains and biases never. The decay is decoupled
    in all optimizers: a step multiplies what is decayed by 1 − lr · weight_decay, whatever its
    factor of `lr_scales`: with µP a matrix would else be decayed the less the wider it is (Yang et
    al. 2022, appendix B.3, and their mup package). A step is never compiled: a compiled one would
    be compiled again for every new learning rate.

    muon: `torch.optim.Muon` on every matrix inside the blocks (queries, keys and values are one of
        them), AdamW on
    tables, head, gains and biases. One rate serves both: Muon's update is scaled to AdamW's usual
    size, 0.2·√(larger side) (Liu et al. 2025, arXiv:2502.16982), where Jordan's own scale would ask
    for a second rate.

    Args:
        lr_scales: factor of the learning rate by name of the parameter; a name that is not there
            has 1.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    scales = lr_scales or {}
    if cfg.optimizer != "muon":
        return _plain(named, cfg, scales)
    orthogonal = [(name, p) for name, p in named if muons(name, tuple(p.shape))]
    inside = {name for name, _ in orthogonal}
    muon = torch.optim.Muon(
        _groups(orthogonal, cfg, scales),
        lr=cfg.lr,
        momentum=MUON_MOMENTUM,
        adjust_lr_fn="match_rms_adamw",
    )
    return Together(
        muon, _adamw([(name, p) for name, p in named if name not in inside], cfg, scales)
    )


def muons(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is one of the matrices that Muon trains."""
    return name.startswith("blocks.") and len(shape) == 2


def _plain(
    named: list[tuple[str, nn.Parameter]], cfg: TrainConfig, scales: Mapping[str, float]
) -> Optimizer:
    groups = _groups(named, cfg, scales)
    if cfg.optimizer == "adamw" and cfg.kernels == "cuda":
        return KernelAdamW(groups, cfg.lr, (cfg.beta1, cfg.beta2), cfg.adam_eps, clip=cfg.clip)
    if cfg.optimizer == "adamw":
        return _adamw(named, cfg, scales)
    if cfg.optimizer == "lion":
        return Lion(groups, lr=cfg.lr, betas=(cfg.beta1, cfg.beta2))
    for group in groups:
        group["decay"] = group.pop("weight_decay")
    return SGDW(groups, lr=cfg.lr, momentum=cfg.beta1, fused=True)


def _adamw(
    named: list[tuple[str, nn.Parameter]], cfg: TrainConfig, scales: Mapping[str, float]
) -> torch.optim.AdamW:
    """AdamW: its step is one fused call."""
    groups = _groups(named, cfg, scales)
    return torch.optim.AdamW(
        groups, lr=cfg.lr, betas=(cfg.beta1, cfg.beta2), eps=cfg.adam_eps, fused=True
    )


def _groups(
    named: list[tuple[str, nn.Parameter]], cfg: TrainConfig, scales: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Parameters that are decayed alike and trained at the same share of the rate, matrices before
    vectors.
    """
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in sorted(named, key=lambda one: one[1].dim() < 2):
        groups.setdefault((parameter.dim() >= 2, scales.get(name, 1.0)), []).append(parameter)
    return [
        {
            "params": params,
            "lr": cfg.lr * scale,
            "lr_scale": scale,
            "weight_decay": cfg.weight_decay / scale if matrix and scale else 0.0,
        }
        for (matrix, scale), params in groups.items()
    ]


def set_lr(optimizer: Optimizer, value: float) -> None:
    """Set the rate of all groups, each at its share."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get(
            "lr_scale", 1.0
        )  # a checkpoint of an older version has no shares


def update(optimizer: Optimizer, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Clip the gradients and take a step; returns their norm before. Clipping is part of the
    kernels' own step.
    """
    if isinstance(optimizer, KernelAdamW):
        optimizer.step()
        return optimizer.norm
    norm = clip(parameters, limit)
    optimizer.step()
    return norm


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients so that their global norm is at most `limit` (0: leave them); returns the
    norm before.

    Nothing here waits for the device: the factor is computed and applied there.
    """
    with_gradient = [p for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(
        [p.grad for p in with_gradient if p.grad is not None], foreach=True
    )
    if limit:
        nn.utils.clip_grads_with_norm_(with_gradient, limit, norm, foreach=True)
    return norm
