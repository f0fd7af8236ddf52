"""The kernels in a built model: each replaces a whole fused region; the rest stays plain torch.

`install_kernels` gives the modules that it knows another class, which differs in `forward` alone:
parameters, their names, state dicts, copies, `functional_call` and `vmap` stay as they were. A
user's own variant is another class and is left alone. The model's room knows nothing of this.

Shapes: B sequences, T positions, C = d_model, M = mlp_dim.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea.kernels.activation import activation, gated_activation
from andrea.kernels.cross_entropy import head_loss
from andrea.kernels.norm import NormKind, add_norm, norm
from andrea.kernels.source import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from andrea.model.gpt import GPT
from andrea.model.layers.blocks import ParallelBlock, PreNormBlock, SandwichBlock
from andrea.model.layers.mlps import MLP, GatedMLP, SquaredReLU
from andrea.model.layers.residuals import Join

MATRIX_READ_BLOCKS = (PreNormBlock, ParallelBlock, SandwichBlock)
"""Blocks in which matrix products alone read the output of `norm1` and `norm2`."""


def install_kernels(model: nn.Module) -> dict[str, int]:
    """Let a model use the kernels from now on. Doing it again changes nothing.

    Returns:
        The number of regions that a kernel replaces: `loss`, `norm`, `activation`, `add_norm`.
    """
    if type(model) is GPT:
        model.__class__ = KernelGPT
    if not isinstance(model, KernelGPT):
        return {}
    regions = Counter({"loss": 1})
    regions["norm"] += _install_norm(model, "embedding_norm")
    regions["norm"] += _install_norm(model, "final_norm", read_by_matrices=True)
    for block in model.blocks:
        read_by_matrices = type(block) in MATRIX_READ_BLOCKS
        for name in ("norm1", "norm2"):
            regions["norm"] += _install_norm(block, name, read_by_matrices)
        for name in ("after1", "after2"):
            regions["norm"] += _install_norm(block, name)
        regions["activation"] += _install_activation(getattr(block, "mlp", None))
    if model.can_fuse_residual_adds():
        # Every norm but the first adds the branch before it.
        adds = 2 * len(model.blocks) - 1 + isinstance(model.final_norm, KernelNorm)
        regions["add_norm"] = adds
        regions["norm"] -= adds
    return dict(regions)


def matrix_product_type(x: Tensor) -> torch.dtype:
    """Return the type of a matrix product of x: autocast's, else that of x."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


# ---- Norms ---------------------------------------------------------------------------------------


class KernelNorm(nn.Module):
    """What norms by kernel have in common."""

    kind: NormKind
    read_by_matrices: bool
    """Matrix products alone read the output, so it may be stored as they store theirs."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = None
        if self.read_by_matrices:
            dtype = matrix_product_type(x)
        elif torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.promote_types(x.dtype, torch.float32))  # as autocast computes norms
        weight, bias, eps = self.settings(x)
        return norm(x, weight, bias, self.kind, eps, dtype)

    def add_branch(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the stream with a branch added, and its norm."""
        if branch is None:
            return x, self(x)
        weight, bias, eps = self.settings(x)
        return add_norm(x, branch, weight, bias, self.kind, eps)

    def settings(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, float]:
        """Return weight, bias and eps, which by default is the rounding step of x's type."""
        module: Any = self
        eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
        return module.weight, getattr(module, "bias", None), eps


class KernelLayerNorm(KernelNorm, nn.LayerNorm):
    """`nn.LayerNorm` over the width of the stream."""

    kind = "ln"


class KernelRMSNorm(KernelNorm, nn.RMSNorm):
    """`nn.RMSNorm` over the width of the stream."""

    kind = "rms"


KERNEL_NORMS: dict[type[nn.Module], type[KernelNorm]] = {
    nn.LayerNorm: KernelLayerNorm,
    nn.RMSNorm: KernelRMSNorm,
}


def _install_norm(owner: nn.Module, name: str, read_by_matrices: bool = False) -> bool:
    """Give a norm over the stream its kernel; return True if it has one now."""
    module: Any = getattr(owner, name, None)
    if type(module) in KERNEL_NORMS and len(module.normalized_shape) == 1:
        module.__class__ = KERNEL_NORMS[type(module)]
        module.read_by_matrices = read_by_matrices
    return isinstance(module, KernelNorm)


# ---- MLPs ----------------------------------------------------------------------------------------


class KernelMLP(MLP):
    """The first matrix without its bias, which the activation adds."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        a_BTM = F.linear(x_BTC, self.up.weight)
        h_BTM = activation(a_BTM, self.up.bias, _activation_name(self.activation))
        y_BTC: Tensor = self.down(h_BTM)
        return y_BTC


class KernelGatedMLP(GatedMLP):
    """Both matrices without their biases, which the activation adds."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        gate_BTM = F.linear(x_BTC, self.gate.weight)
        up_BTM = F.linear(x_BTC, self.up.weight)
        function = _activation_name(self.activation)
        h_BTM = gated_activation(gate_BTM, up_BTM, self.gate.bias, self.up.bias, function)
        y_BTC: Tensor = self.down(h_BTM)
        return y_BTC


def _install_activation(mlp: Any) -> bool:
    """Give an MLP's activation its kernel; return True if it has one now."""
    if type(mlp) is MLP and _activation_name(mlp.activation) in PLAIN_ACTIVATIONS:
        mlp.__class__ = KernelMLP
    elif type(mlp) is GatedMLP and _activation_name(mlp.activation) in GATED_ACTIVATIONS:
        mlp.__class__ = KernelGatedMLP
    return isinstance(mlp, KernelMLP | KernelGatedMLP)


_ACTIVATION_NAMES: dict[type[nn.Module], str] = {
    nn.SiLU: "silu",
    nn.ReLU: "relu",
    SquaredReLU: "relu2",
    nn.Sigmoid: "sigmoid",
    nn.Identity: "identity",
}


def _activation_name(module: nn.Module) -> str:
    """Return the kernels' name of an activation; empty if they do not have it."""
    if type(module) is nn.GELU:
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    return _ACTIVATION_NAMES.get(type(module), "")


# ---- The model -----------------------------------------------------------------------------------


class KernelGPT(GPT):
    """A GPT whose loss keeps no logits, and in which the norms of a plain pre-norm stack add the
    branches to the residual stream.
    """

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        if targets is None or type(self.head) is not nn.Linear:
            return super().forward(tokens, targets)
        x_BTC = self._normed_stream(self.embed(tokens))
        if self.output_scale != 1:
            x_BTC = x_BTC * self.output_scale
        # The op runs outside of autocast: the types are those that its linear layer would have.
        dtype = matrix_product_type(x_BTC)
        bias = None if self.head.bias is None else self.head.bias.to(dtype)
        return head_loss(
            x_BTC.to(dtype),
            self.head.weight.to(dtype),
            bias,
            targets,
            softcap=self.config.logit_softcap,
            z_loss=self.config.z_loss if self.training else 0.0,
        )

    def _normed_stream(self, x_BTC: Tensor) -> Tensor:
        """Return what the head reads, from what the first block reads."""
        blocks: Any = self.blocks
        final_norm: Any = self.final_norm
        y_BTC: Tensor
        if not self.can_fuse_residual_adds():
            for block in blocks:
                x_BTC = block(x_BTC)
            y_BTC = final_norm(x_BTC)
            return y_BTC
        branch: Tensor | None = None
        for block in blocks:
            x_BTC, y_BTC = block.norm1.add_branch(x_BTC, branch)
            branch = block.attn(y_BTC)
            x_BTC, y_BTC = block.norm2.add_branch(x_BTC, branch)
            branch = block.mlp(y_BTC)
        assert branch is not None
        if isinstance(final_norm, KernelNorm):
            return final_norm.add_branch(x_BTC, branch)[1]
        y_BTC = final_norm(x_BTC + branch)
        return y_BTC

    def can_fuse_residual_adds(self) -> bool:
        """Return True if every block is pre-norm and adds its branches as they are, and no hook
        listens to a module that the fused pass does not call.
        """
        if _has_hooks(self.final_norm):
            return False
        return all(_is_plain_pre_norm(block) for block in self.blocks)


def _is_plain_pre_norm(block: Any) -> bool:
    if type(block) is not PreNormBlock or block.dropout.p > 0:
        return False
    norms, joins = (block.norm1, block.norm2), (block.join1, block.join2)
    if not all(isinstance(module, KernelNorm) for module in norms):
        return False
    if not all(type(module) is Join for module in joins):
        return False
    return not any(map(_has_hooks, (block, *norms, *joins, block.dropout)))


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
