"""The base of every variant: how to build it, how many parameters it has, what it costs.
Torch-free.

A variant is a subclass that says `shapes` and `build`, or any class with `build`, `count` and
`flops`, and one line in `andrea.model.registry.VARIANTS`, or a call of `register` in a user's own
file. That file, `ablations/mine.py` beside `ablations/mine.yaml`, is loaded only for its own
ablation, so that it may import torch at its top:

    from torch import Tensor, nn

    from andrea.model.mlps import Mlp  # has the two matrices already
    from andrea.model.registry import register


    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu().square()


    class SquaredRelu(Mlp):
        @classmethod
        def activation(cls) -> nn.Module:
            return Square()


    register("activation", "squared_relu", f"{__name__}:SquaredRelu")

It is one file: a module beside it is refused. docs/your-own-variant.md goes from such an idea to
its verdict.
"""

import importlib
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from andrea.model.settings import ModelSettings

if TYPE_CHECKING:
    from torch import nn

Shapes = dict[str, tuple[int, ...]]
"""Shapes of parameters by name; matrices are [out, in]."""


def is_users_own(part: type) -> bool:
    """Return whether a part comes from a user's own file."""
    return not part.__module__.startswith("andrea.")


class Variant(ABC):
    """One part of the model, described without torch. Never instantiated."""

    numerics = 1
    """Version of the numbers it computes: raise it when the same weights and tokens give other
    bits.
    """
    reads: tuple[str, ...] = ()
    """Settings of the model that this variant reads and not every other on its axis: elsewhere they
    are refused.
    """
    module = ""
    """Class of the module that `build` makes from the settings, below `andrea.model.layers`:
    `residuals:Join`.
    """

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        """Return why this variant makes no sense in such a model and how to mend it; None if it
        does make sense.
        """
        return None

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        """Return the module; torch is imported inside."""
        module: nn.Module = build_layer(cls.module, cfg)
        return module

    @classmethod
    @abstractmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        """Return the shape of every parameter under its name inside the module."""

    @classmethod
    def count(cls, cfg: ModelSettings) -> int:
        """Return the number of parameters of one such part."""
        return sum(math.prod(shape) for shape in cls.shapes(cfg).values())

    @classmethod
    def flops(cls, cfg: ModelSettings) -> float:
        """Return the forward FLOPs per token of one such part: matrix products only, two per
        weight of a matrix.
        """
        return float(sum(matmul_flops(shape) for shape in cls.shapes(cfg).values()))

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Return the elements per token that autograd keeps for the backward pass: here, the output
        of every matrix.
        """
        matrices = [shape for shape in cls.shapes(cfg).values() if len(shape) == 2]
        return float(sum(fan_out for fan_out, _ in matrices))

    @classmethod
    def shared(cls, cfg: ModelSettings) -> float:
        """Return the elements that autograd keeps once, however many sequences there are; a boolean
        is a quarter of one.
        """
        return 0.0


def build_layer(target: str, cfg: ModelSettings) -> Any:
    """Return a module, `file:Class` below `andrea.model.layers`, made from the settings."""
    file, _, class_name = target.partition(":")
    layers = importlib.import_module(f"andrea.model.layers.{file}")
    return getattr(layers, class_name)(cfg)


def shapes_of(part: Any, cfg: ModelSettings) -> Shapes:
    """Return the shapes of a part; none for a user's class that has only a `count`."""
    return dict(part.shapes(cfg)) if hasattr(part, "shapes") else {}


def activations_of(part: Any, cfg: ModelSettings) -> float:
    """Return the elements per token that a part keeps; a user's class without `activations` is
    taken to keep its input.
    """
    return float(part.activations(cfg)) if hasattr(part, "activations") else float(cfg.d_model)


def shared_of(part: Any, cfg: ModelSettings) -> float:
    """Return the elements that a part keeps once for all sequences; none for a user's class without
    `shared`.
    """
    return float(part.shared(cfg)) if hasattr(part, "shared") else 0.0


def matmul_flops(shape: tuple[int, ...]) -> int:
    """Return the FLOPs per token of a matrix [out, in]; a vector takes part in no product."""
    return 2 * math.prod(shape) if len(shape) == 2 else 0


def linear_shapes(name: str, fan_out: int, fan_in: int, bias: bool) -> Shapes:
    """Return the shapes of a linear map as torch names its parameters."""
    shapes: Shapes = {f"{name}.weight": (fan_out, fan_in)}
    if bias:
        shapes[f"{name}.bias"] = (fan_out,)
    return shapes
