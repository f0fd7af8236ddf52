"""Initial weights: standard-normal draws that arms share, scaled by a rule. Torch-free at import.

The draw behind a parameter is a function of (seed, name, shape) alone: not of the order of
building, the device, the global generators, nor of what else is in the model. So two arms start
from the same numbers wherever they have a parameter in common.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from andrea.model.registry import variant
from andrea.model.settings import ModelSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

RESIDUAL = (".attn.proj.weight", ".mlp.down.weight")
"""Ends of the names of matrices that write into the residual stream: two per block."""


class Init(ABC):
    """A rule of initial scales. Never instantiated; a user's own may be any class with `scale`."""

    numerics = 1
    """Version of the numbers it gives."""
    reads: tuple[str, ...] = ()
    """Settings that this rule reads and not every other."""

    @classmethod
    @abstractmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        """Standard deviation of a matrix [out, in] or table; queries, keys and values are asked for
        one by one, as `blocks.0.attn.q.weight` and so on.
        """

    @classmethod
    def lr(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        """Factor of the learning rate of a parameter."""
        return 1.0

    @classmethod
    def score_scale(cls, cfg: ModelSettings) -> float | None:
        """Factor of the attention scores; None: 1/√D."""
        return None

    @classmethod
    def output_scale(cls, cfg: ModelSettings) -> float:
        """Factor of what the head reads."""
        return 1.0


class GPT2(Init):
    """N(0, init_std) for every matrix and table; residual projections, whatever the sublayer,
    divided by √(2L).
    """

    @classmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        return (
            cfg.init_std / math.sqrt(2 * cfg.n_layer) if name.endswith(RESIDUAL) else cfg.init_std
        )


class Xavier(Init):
    """√(2 / (in + out)) for every matrix (Glorot & Bengio 2010), its normal form; tables and head
    `init_std`.
    """

    @classmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        return math.sqrt(2 / (shape[0] + shape[1])) if hidden(name) else cfg.init_std


class FanIn(Init):
    """1/√in for every matrix (LeCun et al. 1998): products keep the variance of what they read;
    tables and head `init_std`.
    """

    @classmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        return 1 / math.sqrt(shape[1]) if hidden(name) else cfg.init_std


class ZeroOut(Init):
    """As `gpt2`, but matrices that write into the residual stream are 0: every block starts as the
    identity (Zhang et al. 2019, Fixup; µP's advice).
    """

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        """Where the gradient would be 0 for ever."""
        if cfg.residual == "rezero":
            return (
                "with residual rezero too, each of the two keeps the other's gradient at 0 and no "
                "block ever learns: "
                "choose another init or another residual"
            )
        if cfg.residual == "off":
            return (
                "without a residual every block puts out 0 whatever it reads, and none ever "
                "learns: "
                "choose another init, or residual on"
            )
        return None

    @classmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        return 0.0 if name.endswith(RESIDUAL) else cfg.init_std


class MuP(Init):
    """Maximal update parametrization for Adam (Yang et al. 2022, table 8): with w = d_model /
    mup_base, matrices inside the blocks start at init_std/√w (residual ones also over √(2L)) and
    learn at 1/w of the rate, scores are divided by D and not √D, and what the head reads by w.
    Tables, vectors and the head keep scale and rate.
    """

    reads = ("mup_base",)

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        """What would grow with the width all the same."""
        if cfg.embedding_scale == "sqrt_d":
            return (
                "embedding_scale sqrt_d grows with the width, and rates found at one width would "
                "not hold at another: "
                "give a number"
            )
        return None

    @classmethod
    def width(cls, cfg: ModelSettings) -> float:
        """How many times wider than the base the model is."""
        return cfg.d_model / cfg.mup_base

    @classmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        std = GPT2.scale(cfg, name, shape)
        return std / math.sqrt(cls.width(cfg)) if hidden(name) else std

    @classmethod
    def lr(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        return 1 / cls.width(cfg) if hidden(name) and len(shape) >= 2 else 1.0

    @classmethod
    def score_scale(cls, cfg: ModelSettings) -> float:
        return 1 / cfg.d_head

    @classmethod
    def output_scale(cls, cfg: ModelSettings) -> float:
        return 1 / cls.width(cfg)


def hidden(name: str) -> bool:
    """Whether a parameter is inside a block: neither a table nor the head."""
    return name.startswith("blocks.")


def score_scale(cfg: ModelSettings) -> float | None:
    """Factor of the attention scores: the setting, or the init rule's; None: 1/√D."""
    rule = variant("init", cfg.init)
    return (
        cfg.attn_scale
        if cfg.attn_scale is not None or not issubclass(rule, Init)
        else rule.score_scale(cfg)
    )


def output_scale(cfg: ModelSettings) -> float:
    """Factor of what the head reads."""
    rule = variant("init", cfg.init)
    return rule.output_scale(cfg) if issubclass(rule, Init) else 1.0


def draw(seed: int, name: str, shape: tuple[int, ...]) -> "Tensor":
    """Standard-normal float32 numbers on the CPU, not truncated.

    Drawn by torch, whose version and CPU capability are part of a run's id; threads change nothing.
    """
    import torch

    key = hashlib.sha256(f"{seed}\n{name}\n{'x'.join(map(str, shape))}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little"))
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def scales(model: "nn.Module", cfg: ModelSettings) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Standard deviations of every matrix and table: by name, from row to row how many rows have
    which.
    """
    rule = variant("init", cfg.init)
    gain = getattr(variant("norm_placement", cfg.norm_placement), "gain", lambda cfg, name: 1.0)
    pieces = {
        f"{at}.{matrix}.weight": {f"{at}.{piece}.weight": rows for piece, rows in parts.items()}
        for at, module in model.named_modules()
        for matrix, parts in getattr(module, "pieces", {}).items()
    }
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            rows, *rest = parameter.shape
            parts = pieces.get(name, {name: rows}).items()
            yield (
                name,
                [(n, rule.scale(cfg, piece, (n, *rest)) * gain(cfg, piece)) for piece, n in parts],
            )


def lr_scales(model: "nn.Module", cfg: ModelSettings) -> dict[str, float]:
    """Factor of the learning rate of every parameter, by name."""
    rule = variant("init", cfg.init)
    named = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return {
        name: rule.lr(cfg, name, shape) if issubclass(rule, Init) else 1.0
        for name, shape in named.items()
    }


def initialise(model: "nn.Module", cfg: ModelSettings, seed: int) -> None:
    """Set the weights in place: matrices drawn and scaled by the rule `cfg.init`, biases 0, gains
    1.

    Vectors that are called neither `weight` nor `bias` (a variant's own constants) stay as they
    were built.
    """
    import torch

    deviations = dict(scales(model, cfg))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in deviations:
                drawn, start = draw(seed, name, tuple(parameter.shape)), 0
                for rows, std in deviations[name]:
                    part = drawn[start : start + rows]
                    part.mul_(std) if std else part.zero_()
                    start += rows
                parameter.copy_(drawn)
            elif name.endswith(".bias"):
                parameter.zero_()
            elif name.endswith(".weight"):
                parameter.fill_(1.0)
