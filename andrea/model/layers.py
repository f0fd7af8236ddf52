"""The modules that the variants build: plain, so that `torch.func.functional_call` and `vmap` carry them.

Shapes: B sequences, T positions, C = d_model, H heads, D = C / H, M = mlp_dim.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from andrea.model.attention import Attention
from andrea.model.config import ModelConfig, variant


class SelfAttention(nn.Module):
    """Causal multi-head self-attention; rows of `qkv` are queries, keys, values, each head by head (as in GPT-2)."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.n_head = cfg.n_head
        self.dropout = cfg.dropout
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model, bias=cfg.bias)
        self.proj = nn.Linear(cfg.d_model, cfg.d_model, bias=cfg.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        B, T, C = x_BTC.shape
        q_BHTD, k_BHTD, v_BHTD = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in self.qkv(x_BTC).split(C, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, dropout_p=dropout, is_causal=True)
        y_BTC: Tensor = self.proj(y_BHTD.transpose(1, 2).reshape(B, T, C))
        return y_BTC


class MLP(nn.Module):
    """`down(f(up(x)))`."""

    def __init__(self, cfg: ModelConfig, activation: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(cfg.d_model, cfg.mlp_dim, bias=cfg.bias)
        self.activation = activation
        self.down = nn.Linear(cfg.mlp_dim, cfg.d_model, bias=cfg.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        y_BTC: Tensor = self.down(self.activation(self.up(x_BTC)))
        return y_BTC


class GatedMLP(MLP):
    """`down(f(gate(x)) * up(x))`."""

    def __init__(self, cfg: ModelConfig, activation: nn.Module) -> None:
        super().__init__(cfg, activation)
        self.gate = nn.Linear(cfg.d_model, cfg.mlp_dim, bias=cfg.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        h_BTM = self.activation(self.gate(x_BTC)) * self.up(x_BTC)
        y_BTC: Tensor = self.down(h_BTM)
        return y_BTC


class Block(nn.Module):
    """Two sublayers and two norms; a placement wires them."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        norm = variant("norm", cfg.norm)
        self.norm1 = norm.build(cfg)
        self.attn = Attention.build(cfg)
        self.norm2 = norm.build(cfg)
        self.mlp = variant("activation", cfg.activation).build(cfg)
        self.dropout = nn.Dropout(cfg.dropout)


class PreNormBlock(Block):
    """The residual stream itself is never normalized."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.dropout(self.attn(self.norm1(x_BTC)))
        y_BTC: Tensor = x_BTC + self.dropout(self.mlp(self.norm2(x_BTC)))
        return y_BTC


class PostNormBlock(Block):
    """The residual stream is normalized after each sublayer."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = self.norm1(x_BTC + self.dropout(self.attn(x_BTC)))
        y_BTC: Tensor = self.norm2(x_BTC + self.dropout(self.mlp(x_BTC)))
        return y_BTC
