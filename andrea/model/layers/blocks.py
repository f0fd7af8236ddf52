"""The blocks: two sublayers, norms where the placement has them, and two joins with the residual
stream.

Every block returns from `stages` the stream after attention and after the MLP; its output is the
last of them. Plain modules, so that `torch.func.functional_call` and `vmap` carry them.

Shapes: B sequences, T positions, C = d_model.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from andrea.model.norms import build_norm
from andrea.model.registry import variant
from andrea.model.settings import ModelSettings


class Block(nn.Module):
    """The parts of a block; a placement wires them."""

    attn: nn.Module
    mlp: nn.Module
    norm1: nn.Module
    norm2: nn.Module
    after1: nn.Module
    after2: nn.Module

    def __init__(self, cfg: ModelSettings, sites: Sequence[str] = ("norm1", "norm2")) -> None:
        super().__init__()
        join = variant("residual", cfg.residual)
        # The order of the parameters is the order in which the gradient's norm is summed: another
        # one gives other bits.
        for name, axis in (("attn", "attention"), ("mlp", "activation")):
            for site in sites:
                if site.endswith("1") == (name == "attn"):
                    self.add_module(site, build_norm(cfg))
            self.add_module(name, variant(axis, getattr(cfg, axis)).build(cfg))
        self.join1, self.join2 = join.build(cfg), join.build(cfg)
        self.dropout = nn.Dropout(cfg.dropouts.residual)

    def stages(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stream after attention and after the MLP, both [B, T, C]."""
        raise NotImplementedError

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.stages(x_BTC)[1]


class PreNormBlock(Block):
    """The residual stream itself is never normalized."""

    def stages(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.join1(x_BTC, self.dropout(self.attn(self.norm1(x_BTC))))
        return middle, self.join2(middle, self.dropout(self.mlp(self.norm2(middle))))


class PostNormBlock(Block):
    """The residual stream is normalized after each sublayer."""

    def stages(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.norm1(self.join1(x_BTC, self.dropout(self.attn(x_BTC))))
        return middle, self.norm2(self.join2(middle, self.dropout(self.mlp(middle))))


class SandwichBlock(Block):
    """The input of a sublayer is normalized, and so is its output."""

    def stages(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.join1(x_BTC, self.dropout(self.after1(self.attn(self.norm1(x_BTC)))))
        return middle, self.join2(middle, self.dropout(self.after2(self.mlp(self.norm2(middle)))))


class ResPostNormBlock(Block):
    """The output of a sublayer is normalized, its input is not."""

    def stages(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.join1(x_BTC, self.dropout(self.norm1(self.attn(x_BTC))))
        return middle, self.join2(middle, self.dropout(self.norm2(self.mlp(middle))))


class DeepNormBlock(Block):
    """Post-norm with the stream weighted by α."""

    def __init__(self, cfg: ModelSettings, sites: Sequence[str] = ("norm1", "norm2")) -> None:
        super().__init__(cfg, sites)
        # Wang et al. 2022, figure 2: the constant of a decoder of L blocks.
        self.alpha = float((2 * cfg.n_layer) ** 0.25)

    def stages(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.norm1(self.join1(self.alpha * x_BTC, self.dropout(self.attn(x_BTC))))
        return middle, self.norm2(self.join2(self.alpha * middle, self.dropout(self.mlp(middle))))


class ParallelBlock(Block):
    """Both sublayers read the same stream; its state between them is what attention alone would
    leave.
    """

    def stages(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.norm1(x_BTC)
        middle = self.join1(x_BTC, self.dropout(self.attn(normed)))
        if hasattr(self, "norm2"):  # GPT-NeoX has a norm of its own for the MLP, GPT-J has not
            normed = self.norm2(x_BTC)
        return middle, middle + self.join2.scale(self.dropout(self.mlp(normed)))


class NoNormBlock(Block):
    """Sublayers and joins alone."""

    def stages(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.join1(x_BTC, self.dropout(self.attn(x_BTC)))
        return middle, self.join2(middle, self.dropout(self.mlp(middle)))
