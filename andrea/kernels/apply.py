"""Let a built model use the kernels wherever one replaces a whole fused region; the rest stays
plain torch.

`use` gives the modules it knows another class, which differs in `forward` alone: parameters, their
names, state dicts, copies, `functional_call` and `vmap` stay as they were. A user's own variant is
another class and is left alone. The model's room knows nothing of this.

Shapes: B sequences, T positions, C = d_model, M = mlp_dim, V = vocab_size.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea.kernels import source
from andrea.kernels.activation import activation, gated_activation
from andrea.kernels.cross_entropy import head_loss
from andrea.kernels.norm import add_norm, norm
from andrea.model.gpt import GPT
from andrea.model.layers.blocks import ParallelBlock, PreNormBlock, SandwichBlock
from andrea.model.layers.mlps import MLP, GatedMLP, SquaredReLU
from andrea.model.layers.residuals import Join


def use(model: nn.Module) -> dict[str, int]:
    """Let a model use the kernels from now on. Doing it again changes nothing.

    Returns:
        How many regions of each kind a kernel replaces: `loss`, `norm`, `activation`, `add_norm`.
    """
    found: Counter[str] = Counter()
    if type(model) is GPT:
        model.__class__ = KernelGPT
    if not isinstance(model, KernelGPT):
        return {}
    found["loss"] = 1
    found["norm"] += _take(model, "embedding_norm") + _take(
        model, "final_norm", read_by_matrices=True
    )
    for block in model.blocks:
        inside = type(block) in (PreNormBlock, ParallelBlock, SandwichBlock)
        found["norm"] += sum(
            _take(block, name, read_by_matrices=inside) for name in ("norm1", "norm2")
        )
        found["norm"] += sum(_take(block, name) for name in ("after1", "after2"))
        found["activation"] += _take_mlp(getattr(block, "mlp", None))
    if model.joins_fused():
        found["add_norm"] = 2 * len(model.blocks) - 1 + isinstance(model.final_norm, Norm)
        found["norm"] -= found["add_norm"]
    return dict(found)


def branch_type(x: Tensor) -> torch.dtype:
    """What a matrix product of x is stored as: autocast's type, else that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Norm(nn.Module):
    """What norms by kernel have in common."""

    kind: str
    read_by_matrices: bool
    """Its output is read by matrix products alone, so it may be stored as they store theirs."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type) and not self.read_by_matrices:
            x = x.to(torch.promote_types(x.dtype, torch.float32))  # as autocast computes norms
        return norm(x, *self.parts(x), dtype=branch_type(x) if self.read_by_matrices else None)

    def joined(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """The stream with a branch added, and its norm."""
        if branch is None:
            return x, self(x)
        return add_norm(x, branch, *self.parts(x))

    def parts(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, str, float]:
        """Weight, bias, kind and eps."""
        own: Any = self
        eps = torch.finfo(x.dtype).eps if own.eps is None else own.eps
        return own.weight, getattr(own, "bias", None), self.kind, eps


class KernelLayerNorm(Norm, nn.LayerNorm):
    """`nn.LayerNorm` over the width of the stream."""

    kind = "ln"


class KernelRMSNorm(Norm, nn.RMSNorm):
    """`nn.RMSNorm` over the width of the stream."""

    kind = "rms"


NORMS: dict[type[nn.Module], type[Norm]] = {
    nn.LayerNorm: KernelLayerNorm,
    nn.RMSNorm: KernelRMSNorm,
}


class KernelMLP(MLP):
    """The first matrix without its bias, which the activation adds."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        a_BTM = F.linear(x_BTC, self.up.weight)
        y_BTC: Tensor = self.down(activation(a_BTM, self.up.bias, _function(self.activation)))
        return y_BTC


class KernelGatedMLP(GatedMLP):
    """Both matrices without their biases, which the activation adds."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        gate_BTM, up_BTM = F.linear(x_BTC, self.gate.weight), F.linear(x_BTC, self.up.weight)
        h_BTM = gated_activation(
            gate_BTM, up_BTM, self.gate.bias, self.up.bias, _function(self.activation)
        )
        y_BTC: Tensor = self.down(h_BTM)
        return y_BTC


MLPS: dict[type[nn.Module], type[MLP]] = {MLP: KernelMLP, GatedMLP: KernelGatedMLP}


class KernelGPT(GPT):
    """Loss without logits that outlive it; in a plain pre-norm stack the residual adds belong to
    the norms.
    """

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        if targets is None or type(self.head) is not nn.Linear:
            return super().forward(tokens, targets)
        x_BTC = self._normed(self.embed(tokens))
        if self.output_scale != 1:
            x_BTC = x_BTC * self.output_scale
        cfg, kind = self.config, branch_type(x_BTC)
        bias = None if self.head.bias is None else self.head.bias.to(kind)
        return head_loss(
            x_BTC.to(kind),
            self.head.weight.to(kind),
            bias,
            targets,
            softcap=cfg.logit_softcap,
            z_loss=cfg.z_loss if self.training else 0.0,
        )

    def _normed(self, x_BTC: Tensor) -> Tensor:
        """What the head reads, of what the first block reads."""
        blocks: Any = self.blocks
        last: Any = self.final_norm
        if not self.joins_fused():
            for block in blocks:
                x_BTC = block(x_BTC)
            return last(x_BTC)  # type: ignore[no-any-return]
        branch: Tensor | None = None
        for block in blocks:
            x_BTC, y_BTC = block.norm1.joined(x_BTC, branch)
            branch = block.attn(y_BTC)
            x_BTC, y_BTC = block.norm2.joined(x_BTC, branch)
            branch = block.mlp(y_BTC)
        assert branch is not None
        if isinstance(last, Norm):
            return last.joined(x_BTC, branch)[1]
        return last(x_BTC + branch)  # type: ignore[no-any-return]

    def joins_fused(self) -> bool:
        """Whether every block is pre-norm, adds its branches as they are, and nobody listens to
        what is passed by.
        """
        return not _heard(self.final_norm) and all(_joins(block) for block in self.blocks)


def _joins(block: Any) -> bool:
    return (
        type(block) is PreNormBlock
        and type(block.join1) is Join
        and type(block.join2) is Join
        and isinstance(block.norm1, Norm)
        and isinstance(block.norm2, Norm)
        and block.dropout.p == 0
        and not any(
            map(_heard, (block, block.norm1, block.norm2, block.join1, block.join2, block.dropout))
        )
    )


def _heard(module: nn.Module) -> bool:
    """Whether a hook waits for a call of this module."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _take(owner: nn.Module, name: str, read_by_matrices: bool = False) -> bool:
    """Give a norm over the stream its kernel; whether it has one now."""
    module: Any = getattr(owner, name, None)
    if type(module) in NORMS and len(module.normalized_shape) == 1:
        module.__class__ = NORMS[type(module)]
        module.read_by_matrices = read_by_matrices
    return isinstance(module, Norm)


def _take_mlp(module: Any) -> bool:
    """Give an MLP's activation its kernel; whether it has one now."""
    if type(module) in MLPS and _function(module.activation) in (
        source.GATED if type(module) is GatedMLP else source.PLAIN
    ):
        module.__class__ = MLPS[type(module)]
    return isinstance(module, KernelMLP | KernelGatedMLP)


_NAMES: dict[type[nn.Module], str] = {
    nn.SiLU: "silu",
    nn.ReLU: "relu",
    SquaredReLU: "relu2",
    nn.Sigmoid: "sigmoid",
    nn.Identity: "identity",
}


def _function(module: nn.Module) -> str:
    """The kernels' name of an activation; empty if they do not have it."""
    if type(module) is nn.GELU:
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    return _NAMES.get(type(module), "")
