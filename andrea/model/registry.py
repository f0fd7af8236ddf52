"""The variants of every axis by name, the user's own included. Torch-free.

A variant is one class (`andrea.model.variants`) and one line in `VARIANTS`, where it stands as text
so that reading the names imports no class.
"""

import importlib
from typing import Any

from andrea.errors import UserError, nearest

VARIANTS: dict[str, dict[str, str]] = {
    "norm_placement": {
        "pre": "andrea.model.placements:PreNorm",
        "post": "andrea.model.placements:PostNorm",
        "sandwich": "andrea.model.placements:Sandwich",
        "res_post": "andrea.model.placements:ResPostNorm",
        "deepnorm": "andrea.model.placements:DeepNorm",
        "parallel": "andrea.model.placements:Parallel",
        "parallel_two": "andrea.model.placements:ParallelTwo",
        "none": "andrea.model.placements:NoNorm",
    },
    "norm": {
        "layernorm": "andrea.model.norms:LayerNorm",
        "rmsnorm": "andrea.model.norms:RMSNorm",
        "rmsnorm_1p": "andrea.model.norms:RMSNorm1p",
        "dyt": "andrea.model.norms:DyT",
        "identity": "andrea.model.norms:Identity",
    },
    "activation": {
        "gelu_tanh": "andrea.model.mlps:GeluTanh",
        "gelu": "andrea.model.mlps:Gelu",
        "relu": "andrea.model.mlps:Relu",
        "relu2": "andrea.model.mlps:Relu2",
        "silu": "andrea.model.mlps:Silu",
        "swiglu": "andrea.model.mlps:SwiGLU",
        "geglu": "andrea.model.mlps:GEGLU",
        "geglu_tanh": "andrea.model.mlps:GEGLUTanh",
        "reglu": "andrea.model.mlps:ReGLU",
        "bilinear": "andrea.model.mlps:Bilinear",
        "glu": "andrea.model.mlps:GLU",
    },
    "residual": {
        "on": "andrea.model.residuals:On",
        "off": "andrea.model.residuals:Off",
        "rezero": "andrea.model.residuals:ReZero",
        "layerscale": "andrea.model.residuals:LayerScale",
        "scaled": "andrea.model.residuals:Scaled",
    },
    "positions": {
        "learned": "andrea.model.positions:Learned",
        "sinusoidal": "andrea.model.positions:Sinusoidal",
        "rope": "andrea.model.positions:Rope",
        "alibi": "andrea.model.positions:Alibi",
        "none": "andrea.model.positions:NoPositions",
    },
    "attention": {
        "softmax": "andrea.model.attention:Attention",
    },
    "init": {
        "gpt2": "andrea.model.inits:GPT2",
        "xavier": "andrea.model.inits:Xavier",
        "fan_in": "andrea.model.inits:FanIn",
        "zero_out": "andrea.model.inits:ZeroOut",
        "mup": "andrea.model.inits:MuP",
    },
}
"""Axis, name of the variant, `module:Class`."""


def register(axis: str, name: str, target: str) -> None:
    """Add a user's own variant to an axis.

    Args:
        target: `module:Class`.

    Raises:
        ValueError: the axis does not exist, the target is not `module:Class`, or the name on the
            axis stands for another class already.
    """
    if axis not in VARIANTS:
        raise ValueError(f"no axis {axis!r}; there are {', '.join(VARIANTS)}")
    parts = target.split(":")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise ValueError(f"{axis} {name!r}: {target!r} is not of the form module:Class")
    if VARIANTS[axis].get(name, target) != target:
        raise ValueError(f"{axis} already has a variant {name!r}")
    VARIANTS[axis][name] = target


def is_registered(axis: str, name: str) -> bool:
    """Return whether an axis has a variant of this name; imports nothing."""
    return name in VARIANTS[axis]


def variant(axis: str, name: str) -> Any:
    """Return the class behind a name on an axis; importing a shipped one loads no torch.

    Raises:
        UserError: the name is unknown, or its class cannot be imported (a user's own file, most
            likely).
    """
    if not is_registered(axis, name):
        raise UserError(unknown_variant(axis, name))
    target = VARIANTS[axis][name]
    module, _, class_name = target.partition(":")
    # Here and not at the top: the classes read the registry themselves.
    try:
        part = getattr(importlib.import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"model.{axis} {name!r}: cannot load {target}: {error}") from error
    if not isinstance(part, type):
        raise UserError(f"model.{axis} {name!r}: {target} is no class")
    return part


def unknown_variant(axis: str, name: str) -> str:
    """Return the message about a name that an axis does not have, with the nearest one it has."""
    return f"unknown {axis} {name!r}; {nearest(name, VARIANTS[axis])}"
