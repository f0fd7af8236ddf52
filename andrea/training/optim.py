"""The optimizer of a run: the decayed parameters, and each one's share of the rate."""

from collections.abc import Iterable, Mapping

import torch

# The first optimizer made in a process loads this (1.1 s): here, a process that forks workers loads
# it for all of them.
import torch._dynamo
from torch import Tensor, nn

from andrea.kernels.adamw import AdamW as KernelAdamW
from andrea.training.config import TrainConfig
from andrea.training.optimizers import SGDW, CombinedOptimizer, Lion, ParamGroup

Optimizer = torch.optim.Optimizer | CombinedOptimizer
NamedParameters = list[tuple[str, nn.Parameter]]
MUON_MOMENTUM = 0.95
"""Nesterov momentum of Muon's update: Keller Jordan's value, which is generally used."""


def make_optimizer(
    model: nn.Module, cfg: TrainConfig, lr_scales: Mapping[str, float] | None = None
) -> Optimizer:
    """Make an optimizer that has every parameter once: a head tied to the embedding is one
    parameter.

    Tensors of two and more dimensions are decayed, norm weights and biases never. The decay is
    decoupled in all optimizers: a step multiplies a decayed tensor by 1 − lr · weight_decay,
    whatever its factor in `lr_scales`. Otherwise a wider matrix would be decayed less under µP
    (Yang et al. 2022, appendix B.3, and their mup package). A step is never compiled: a compiled
    one would be compiled again for every new learning rate.

    `muon` trains every matrix inside the blocks (queries, keys and values are one of them) with
    `torch.optim.Muon`, and embeddings, head, norm weights and biases with AdamW. One learning rate
    serves both: Muon's update is scaled to AdamW's usual size, 0.2·√(larger side) (Liu et al. 2025,
    arXiv:2502.16982); Jordan's own scale would need a second rate.

    Args:
        lr_scales: factor of the learning rate by name of the parameter; 1 for a name that is
            missing.
    """
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    scales = lr_scales or {}
    if cfg.optimizer != "muon":
        return _make_single(parameters, cfg, scales)
    muon_part: NamedParameters = []
    adamw_part: NamedParameters = []
    for name, parameter in parameters:
        part = muon_part if is_muon_param(name, tuple(parameter.shape)) else adamw_part
        part.append((name, parameter))
    muon = torch.optim.Muon(
        _parameter_groups(muon_part, cfg, scales),
        lr=cfg.lr,
        momentum=MUON_MOMENTUM,
        adjust_lr_fn="match_rms_adamw",
    )
    return CombinedOptimizer(muon, _make_adamw(_parameter_groups(adamw_part, cfg, scales), cfg))


def is_muon_param(name: str, shape: tuple[int, ...]) -> bool:
    """True for the matrices that Muon trains."""
    return name.startswith("blocks.") and len(shape) == 2


def _make_single(
    parameters: NamedParameters, cfg: TrainConfig, scales: Mapping[str, float]
) -> Optimizer:
    groups = _parameter_groups(parameters, cfg, scales)
    if cfg.optimizer == "adamw" and cfg.kernels == "cuda":
        return KernelAdamW(groups, cfg.lr, (cfg.beta1, cfg.beta2), cfg.adam_eps, clip=cfg.clip)
    if cfg.optimizer == "adamw":
        return _make_adamw(groups, cfg)
    if cfg.optimizer == "lion":
        return Lion(groups, lr=cfg.lr, betas=(cfg.beta1, cfg.beta2))
    # SGDW decays by a name of its own; under torch's name its base class would decay once more.
    for group in groups:
        group["decay"] = group.pop("weight_decay")
    return SGDW(groups, lr=cfg.lr, momentum=cfg.beta1, fused=True)


def _make_adamw(groups: list[ParamGroup], cfg: TrainConfig) -> torch.optim.AdamW:
    """AdamW, whose step is one fused call."""
    betas = (cfg.beta1, cfg.beta2)
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=betas, eps=cfg.adam_eps, fused=True)


def _parameter_groups(
    parameters: NamedParameters, cfg: TrainConfig, scales: Mapping[str, float]
) -> list[ParamGroup]:
    """Group the parameters by decay and share of the learning rate, matrices before vectors."""
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in sorted(parameters, key=lambda named: named[1].dim() < 2):
        group = (parameter.dim() >= 2, scales.get(name, 1.0))
        groups.setdefault(group, []).append(parameter)
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
    """Set the learning rate of all groups, each at its share."""
    for group in optimizer.param_groups:
        # A checkpoint of an older version has no shares.
        group["lr"] = value * group.get("lr_scale", 1.0)


def clip_and_step(optimizer: Optimizer, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Clip the gradients and take a step; returns their global norm before clipping."""
    if isinstance(optimizer, KernelAdamW):
        # Its step clips too, in the same kernel.
        optimizer.step()
        return optimizer.norm
    norm = clip_gradients(parameters, limit)
    optimizer.step()
    return norm


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients so that their global norm is at most `limit` (0: leave them); returns the
    norm before.

    Nothing here waits for the device: the factor is computed and applied there.
    """
    with_gradient = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in with_gradient if p.grad is not None]
    # `foreach`: one kernel for all tensors of a device instead of one per tensor.
    norm = nn.utils.get_total_norm(gradients, foreach=True)
    if limit:
        nn.utils.clip_grads_with_norm_(with_gradient, limit, norm, foreach=True)
    return norm
