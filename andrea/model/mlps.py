"""The MLP sublayer: two matrices and a nonlinearity, or three when it is gated. Torch-free at
import.
"""

from typing import TYPE_CHECKING

from andrea.model.settings import ModelSettings
from andrea.model.variants import Shapes, Variant, linear_shapes

if TYPE_CHECKING:
    from torch import nn


class Mlp(Variant):
    """`down(f(up(x)))`, gated: `down(f(gate(x)) * up(x))`. A variant says f, and whether it is
    gated.
    """

    gated = False
    """A third matrix `gate` carries the nonlinearity."""
    nonlinearity = ""
    """Class of `torch.nn` that is f, where it is one without settings."""
    saved_tensors = 2
    """Tensors of the hidden width that the backward pass needs (input and output of f; a gate
    doubles them).
    """

    @classmethod
    def activation(cls) -> "nn.Module":
        """Return the elementwise function f as a module."""
        from torch import nn

        module: nn.Module = getattr(nn, cls.nonlinearity)()
        return module

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        from andrea.model.layers.mlps import MLP, GatedMLP

        module = GatedMLP if cls.gated else MLP
        return module(cfg, cls.activation())

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        bias = cfg.biases.mlp
        shapes = linear_shapes("up", cfg.mlp_dim, cfg.d_model, bias)
        if cls.gated:
            shapes |= linear_shapes("gate", cfg.mlp_dim, cfg.d_model, bias)
        return shapes | linear_shapes("down", cfg.d_model, cfg.mlp_dim, bias)

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Return the size of its input and of the hidden tensors."""
        return float(cfg.d_model + cls.saved_tensors * cfg.mlp_dim)


class GeluTanh(Mlp):
    """0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))): GPT-2's, called gelu_new elsewhere."""

    @classmethod
    def activation(cls) -> "nn.Module":
        from torch import nn

        return nn.GELU(approximate="tanh")


class Gelu(Mlp):
    """x·Φ(x) (Hendrycks & Gimpel 2016), by the error function."""

    nonlinearity = "GELU"


class Relu(Mlp):
    """max(0, x); its output tells the backward pass all, so one tensor is kept."""

    saved_tensors = 1
    nonlinearity = "ReLU"


class Relu2(Mlp):
    """max(0, x)² (So et al. 2021, Primer)."""

    @classmethod
    def activation(cls) -> "nn.Module":
        from andrea.model.layers.mlps import SquaredReLU

        return SquaredReLU()


class Silu(Mlp):
    """x·σ(x), also called Swish (Ramachandran et al. 2017)."""

    nonlinearity = "SiLU"


class Gated(Mlp):
    """f(gate(x)) * up(x) inside."""

    gated = True
    # Input and output of f, the other factor, and the product that `down` reads.
    saved_tensors = 4


class SwiGLU(Gated):
    """silu(gate(x)) * up(x) (Shazeer 2020); at mlp_ratio 8/3 as many weights as two matrices at
    4.
    """

    nonlinearity = "SiLU"


class GEGLU(Gated):
    """gelu(gate(x)) * up(x) (Shazeer 2020)."""

    nonlinearity = "GELU"


class GEGLUTanh(Gated):
    """GEGLU with the tanh form of GELU (Gemma)."""

    activation = GeluTanh.activation


class ReGLU(Gated):
    """relu(gate(x)) * up(x) (Shazeer 2020)."""

    saved_tensors = 3
    nonlinearity = "ReLU"


class Bilinear(Gated):
    """gate(x) * up(x), no nonlinearity besides the product (Shazeer 2020)."""

    saved_tensors = 3
    nonlinearity = "Identity"


class GLU(Gated):
    """σ(gate(x)) * up(x) (Dauphin et al. 2017)."""

    saved_tensors = 3
    nonlinearity = "Sigmoid"
