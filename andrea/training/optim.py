"""AdamW: one fused pass, decay on matrices only."""

from collections.abc import Iterable

import torch

# The first optimizer made in a process loads this (1.1 s): here, a process that forks workers loads it for all of them.
import torch._dynamo
from torch import Tensor, nn

from andrea.training.config import TrainConfig


def make_optimizer(model: nn.Module, cfg: TrainConfig) -> torch.optim.AdamW:
    """AdamW over every parameter once: a head tied to the embedding is one parameter.

    Tensors of two and more dimensions are decayed, gains and biases never. Its step is one fused call and is never
    compiled: a compiled one would be compiled again for every new learning rate.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": cfg.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=cfg.lr,
        betas=(cfg.beta1, cfg.beta2),
        eps=cfg.adam_eps,
        fused=True,
    )


def set_lr(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = value


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients so that their global norm is at most `limit` (0: leave them); returns the norm before.

    Nothing here waits for the device: the factor is computed and applied there.
    """
    with_gradient = [p for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in with_gradient if p.grad is not None], foreach=True)
    if limit:
        nn.utils.clip_grads_with_norm_(with_gradient, limit, norm, foreach=True)
    return norm
