"""Initial weights: standard-normal draws that arms share, scaled by a rule. Torch-free at import.

The draw behind a parameter is a function of (seed, name, shape) alone: not of the order of building, the device, the
global generators, nor of what else is in the model. So two arms start from the same numbers wherever they have a
parameter in common.
"""

import hashlib
import math
from typing import TYPE_CHECKING

from andrea.model.config import ModelConfig, variant

if TYPE_CHECKING:
    from torch import Tensor, nn


class GPT2:
    """N(0, init_std) for every matrix and table; residual projections, whatever the sublayer, divided by √(2L)."""

    numerics = 1
    """Version of the numbers it gives."""
    residual = (".attn.proj.weight", ".mlp.down.weight")
    """Ends of the names of matrices that write into the residual stream: two per block."""

    @classmethod
    def scale(cls, cfg: ModelConfig, name: str, shape: tuple[int, ...]) -> float:
        """Standard deviation of a matrix or table."""
        return cfg.init_std / math.sqrt(2 * cfg.n_layer) if name.endswith(cls.residual) else cfg.init_std


def draw(seed: int, name: str, shape: tuple[int, ...]) -> "Tensor":
    """Standard-normal float32 numbers on the CPU, not truncated.

    Drawn by torch, whose version and CPU capability are part of a run's id; threads change nothing.
    """
    import torch

    key = hashlib.sha256(f"{seed}\n{name}\n{'x'.join(map(str, shape))}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little"))
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def initialise(model: "nn.Module", cfg: ModelConfig, seed: int) -> None:
    """Set the weights in place: matrices drawn and scaled by the rule `cfg.init`, biases 0, gains 1.

    Vectors that are called neither `weight` nor `bias` (a variant's own constants) stay as they were built.
    """
    import torch

    rule = variant("init", cfg.init)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shape = tuple(parameter.shape)
            if parameter.dim() >= 2:
                parameter.copy_(draw(seed, name, shape).mul_(rule.scale(cfg, name, shape)))
            elif name.endswith(".bias"):
                parameter.zero_()
            elif name.endswith(".weight"):
                parameter.fill_(1.0)
