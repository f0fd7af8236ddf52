"""Initial weights: standard-normal draws that arms share, scaled by a rule. Torch-free at import.

The draw behind a parameter is a function of (seed, name, shape) alone: not of the order of
building, the device, the global generators, nor of what else is in the model. So two arms start
from the same numbers wherever they have a parameter in common.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

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
        """Return the standard deviation of a matrix [out, in] or an embedding; queries, keys and
        values are asked for one by one, as `blocks.0.attn.q.weight` and so on.
        """

    @classmethod
    def lr(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        """Return the factor of the learning rate of a parameter."""
        return 1.0

    @classmethod
    def score_scale(cls, cfg: ModelSettings) -> float | None:
        """Return the factor of the attention scores; None: 1/√D."""
        return None

    @classmethod
    def output_scale(cls, cfg: ModelSettings) -> float:
        """Return the factor of what the head reads."""
        return 1.0


class GPT2(Init):
    """N(0, init_std) for every matrix and table; residual projections, whatever the sublayer,
    divided by √(2L).
    """

    @classmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        if not name.endswith(RESIDUAL):
            return cfg.init_std
        # 2L branches add up in the stream: each starts smaller, so that the sum does not grow with
        # the depth (Radford et al. 2019).
        return cfg.init_std / math.sqrt(2 * cfg.n_layer)


class Xavier(Init):
    """√(2 / (in + out)) for every matrix (Glorot & Bengio 2010), its normal form; tables and head
    `init_std`.
    """

    @classmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        if not is_in_block(name):
            return cfg.init_std
        fan_out, fan_in = shape[:2]
        return math.sqrt(2 / (fan_out + fan_in))


class FanIn(Init):
    """1/√in for every matrix (LeCun et al. 1998): products keep the variance of what they read;
    tables and head `init_std`.
    """

    @classmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        if not is_in_block(name):
            return cfg.init_std
        fan_in = shape[1]
        return 1 / math.sqrt(fan_in)


class ZeroOut(Init):
    """As `gpt2`, but matrices that write into the residual stream are 0: every block starts as the
    identity (Zhang et al. 2019, Fixup; µP's advice).
    """

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        """Return why no block would learn, with joins under which its gradient stays 0."""
        if cfg.residual == "rezero":
            return (
                "with residual rezero too, each of the two keeps the other's gradient at 0 and no "
                "block ever learns: choose another init or another residual"
            )
        if cfg.residual == "off":
            return (
                "without a residual every block puts out 0 whatever it reads, and none ever "
                "learns: choose another init, or residual on"
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
        """Return why rates do not transfer where a part grows with the width by itself."""
        if cfg.embedding_scale == "sqrt_d":
            return (
                "embedding_scale sqrt_d grows with the width, and rates found at one width would "
                "not hold at another: give a number"
            )
        return None

    @classmethod
    def relative_width(cls, cfg: ModelSettings) -> float:
        """Return w, the width of the model over that of the base."""
        return cfg.d_model / cfg.mup_base

    @classmethod
    def scale(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        std = GPT2.scale(cfg, name, shape)
        return std / math.sqrt(cls.relative_width(cfg)) if is_in_block(name) else std

    @classmethod
    def lr(cls, cfg: ModelSettings, name: str, shape: tuple[int, ...]) -> float:
        is_hidden_matrix = is_in_block(name) and len(shape) >= 2
        return 1 / cls.relative_width(cfg) if is_hidden_matrix else 1.0

    @classmethod
    def score_scale(cls, cfg: ModelSettings) -> float:
        # Trained queries and keys are correlated: their product grows as D, not as √D.
        return 1 / cfg.d_head

    @classmethod
    def output_scale(cls, cfg: ModelSettings) -> float:
        return 1 / cls.relative_width(cfg)


def is_in_block(name: str) -> bool:
    """Return whether a parameter is inside a block: neither an embedding nor the head."""
    return name.startswith("blocks.")


def score_scale(cfg: ModelSettings) -> float | None:
    """Return the factor of the attention scores: the setting, or the init rule's; None: 1/√D."""
    rule = variant("init", cfg.init)
    if cfg.attn_scale is not None or not issubclass(rule, Init):
        return cfg.attn_scale
    scale: float | None = rule.score_scale(cfg)
    return scale


def output_scale(cfg: ModelSettings) -> float:
    """Return the factor of what the head reads."""
    rule = variant("init", cfg.init)
    return rule.output_scale(cfg) if issubclass(rule, Init) else 1.0


def draw(seed: int, name: str, shape: tuple[int, ...]) -> "Tensor":
    """Return standard-normal float32 numbers of this shape on the CPU, not truncated.

    Drawn by torch, whose version and CPU capability are part of a run's id; threads change nothing.
    """
    import torch

    key = hashlib.sha256(f"{seed}\n{name}\n{'x'.join(map(str, shape))}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little"))
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


class ScaledRows(NamedTuple):
    """Rows of a matrix that start with one standard deviation."""

    rows: int
    std: float


def initial_scales(
    model: "nn.Module", cfg: ModelSettings
) -> Iterator[tuple[str, list[ScaledRows]]]:
    """Yield the standard deviations of every matrix and embedding by name, from its first row to
    its last.
    """
    rule = variant("init", cfg.init)
    placement = variant("norm_placement", cfg.norm_placement)
    gain = getattr(placement, "gain", lambda cfg, name: 1.0)
    pieces = _pieces_of_matrices(model)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        n_rows, *rest = parameter.shape
        scales = []
        for piece, rows in pieces.get(name, {name: n_rows}).items():
            std = rule.scale(cfg, piece, (rows, *rest)) * gain(cfg, piece)
            scales.append(ScaledRows(rows, std))
        yield name, scales


def _pieces_of_matrices(model: "nn.Module") -> dict[str, dict[str, int]]:
    """Matrices that are several in one (queries, keys and values): the rows of each by its name."""
    pieces: dict[str, dict[str, int]] = {}
    for path, module in model.named_modules():
        for matrix, rows_by_name in getattr(module, "pieces", {}).items():
            pieces[f"{path}.{matrix}.weight"] = {
                f"{path}.{piece}.weight": rows for piece, rows in rows_by_name.items()
            }
    return pieces


def lr_scales(model: "nn.Module", cfg: ModelSettings) -> dict[str, float]:
    """Return the factor of the learning rate of every parameter, by name."""
    rule = variant("init", cfg.init)
    names_and_shapes = ((name, tuple(p.shape)) for name, p in model.named_parameters())
    if not issubclass(rule, Init):
        return {name: 1.0 for name, _ in names_and_shapes}
    return {name: rule.lr(cfg, name, shape) for name, shape in names_and_shapes}


def initialise(model: "nn.Module", cfg: ModelSettings, seed: int) -> None:
    """Set the weights in place: matrices drawn and scaled by the rule `cfg.init`, biases 0, norm
    weights 1.

    Vectors that are called neither `weight` nor `bias` (a variant's own constants) stay as they
    were built.
    """
    import torch

    scales = dict(initial_scales(model, cfg))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in scales:
                parameter.copy_(_scaled_draw(seed, name, tuple(parameter.shape), scales[name]))
            elif name.endswith(".bias"):
                parameter.zero_()
            elif name.endswith(".weight"):
                parameter.fill_(1.0)


def _scaled_draw(
    seed: int, name: str, shape: tuple[int, ...], scales: list[ScaledRows]
) -> "Tensor":
    drawn = draw(seed, name, shape)
    start = 0
    for rows, std in scales:
        piece = drawn[start : start + rows]
        # 0 times a draw may be −0, and other bits are another model.
        piece.mul_(std) if std else piece.zero_()
        start += rows
    return drawn
