"""Placements of the normalization in a block. Torch-free at import.

x is the residual stream, f a sublayer; `+` stands for the join that `model.residual` names.
"""

from typing import TYPE_CHECKING

from andrea.model.registry import variant
from andrea.model.settings import ModelSettings
from andrea.model.variants import Shapes, Variant, activations_of, shapes_of, shared_of

if TYPE_CHECKING:
    from torch import nn


class Placement(Variant):
    """Wires the two sublayers into a block; shapes and counts are those of its norms alone."""

    final_norm = True
    """This placement asks for a norm before the head."""
    sites: tuple[str, ...] = ("norm1", "norm2")
    """Names of the norms in a block."""
    block = ""
    """Name of the module in `andrea.model.layers.blocks`."""

    @classmethod
    def build(cls, cfg: ModelSettings) -> "nn.Module":
        from andrea.model.layers import blocks

        module: nn.Module = getattr(blocks, cls.block)(cfg, cls.sites)
        return module

    @classmethod
    def shapes(cls, cfg: ModelSettings) -> Shapes:
        norm = shapes_of(variant("norm", cfg.norm), cfg)
        shapes: Shapes = {}
        for site in cls.sites:
            for name, shape in norm.items():
                shapes[f"{site}.{name}"] = shape
        return shapes

    @classmethod
    def count(cls, cfg: ModelSettings) -> int:
        return len(cls.sites) * int(variant("norm", cfg.norm).count(cfg))

    @classmethod
    def flops(cls, cfg: ModelSettings) -> float:
        return len(cls.sites) * float(variant("norm", cfg.norm).flops(cfg))

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        return len(cls.sites) * activations_of(variant("norm", cfg.norm), cfg)

    @classmethod
    def shared(cls, cfg: ModelSettings) -> float:
        return len(cls.sites) * shared_of(variant("norm", cfg.norm), cfg)

    @classmethod
    def gain(cls, cfg: ModelSettings, name: str) -> float:
        """Return the factor of the initial weights of a parameter, on top of the init rule's."""
        return 1.0


class PreNorm(Placement):
    """x + f(norm(x)) and a norm before the head (GPT-2; Xiong et al. 2020)."""

    block = "PreNormBlock"


class PostNorm(Placement):
    """norm(x + f(x)) and no norm before the head (Vaswani et al. 2017; OpenAI-GPT)."""

    final_norm = False
    block = "PostNormBlock"


class Sandwich(Placement):
    """x + norm(f(norm(x))): before and after the sublayer (Ding et al. 2021; Gemma 2; Peri-LN, Kim
    et al. 2025).
    """

    sites = ("norm1", "after1", "norm2", "after2")
    block = "SandwichBlock"


class ResPostNorm(Placement):
    """x + norm(f(x)): after the sublayer, inside the branch (Liu et al. 2022, Swin v2; OLMo 2)."""

    block = "ResPostNormBlock"


class DeepNorm(Placement):
    """norm(α·x + f(x)), α = (2L)^¼; MLP, values and attention's output start β = (8L)^−¼ smaller
    (Wang et al. 2022).

    The paper's constants are derived for `init: xavier`; with another rule β stands beside that
    rule's own scales.
    """

    final_norm = False
    block = "DeepNormBlock"

    @classmethod
    def refuse(cls, cfg: ModelSettings) -> str | None:
        if cfg.residual != "on":
            return (
                f"it scales the residual itself, which residual {cfg.residual} contradicts: "
                "choose residual on"
            )
        return None

    @classmethod
    def gain(cls, cfg: ModelSettings, name: str) -> float:
        # Queries and keys keep their scale: they only weigh the values (figure 2 of the paper).
        shrunk = (
            ".mlp.up.weight",
            ".mlp.gate.weight",
            ".mlp.down.weight",
            ".attn.v.weight",
            ".attn.proj.weight",
        )
        if not name.endswith(shrunk):
            return 1.0
        return float((8 * cfg.n_layer) ** -0.25)


class Parallel(Placement):
    """x + attention(norm(x)) + mlp(norm(x)), one norm for both (GPT-J; PaLM)."""

    sites: tuple[str, ...] = ("norm1",)
    block = "ParallelBlock"

    @classmethod
    def activations(cls, cfg: ModelSettings) -> float:
        """Return one tensor less than other placements: attention and MLP (with two norms: these)
        read the same one.
        """
        return super().activations(cfg) - cfg.d_model


class ParallelTwo(Parallel):
    """x + attention(norm1(x)) + mlp(norm2(x)) (GPT-NeoX)."""

    sites = ("norm1", "norm2")


class NoNorm(Placement):
    """x + f(x) and no norm anywhere in the block, nor before the head."""

    final_norm = False
    sites = ()
    block = "NoNormBlock"
