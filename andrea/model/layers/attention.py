"""Causal self-attention.

Shapes: B sequences, T positions, C = d_model, H heads of queries, K of keys and values, D = width
    of a head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea.model.inits import score_scale
from andrea.model.norms import build_norm, query_key_norm_widths
from andrea.model.registry import variant
from andrea.model.settings import ModelSettings


class SelfAttention(nn.Module):
    """Rows of `qkv` are queries, keys, values, each head by head (as in GPT-2)."""

    def __init__(self, cfg: ModelSettings) -> None:
        super().__init__()
        self.n_head, self.kv_heads, self.d_head = cfg.n_head, cfg.kv_heads, cfg.d_head
        self.dropout, self.window, self.softcap = (
            cfg.dropouts.attention,
            cfg.window,
            cfg.attn_softcap,
        )
        self.scale = score_scale(cfg)
        self.widths = [
            cfg.n_head * cfg.d_head,
            cfg.kv_heads * cfg.d_head,
            cfg.kv_heads * cfg.d_head,
        ]
        self.pieces = {"qkv": dict(zip("qkv", self.widths, strict=True))}
        """Matrices that are several in one, for the init rule: their rows by name."""
        self.qkv = nn.Linear(cfg.d_model, sum(self.widths), bias=cfg.biases.attn)
        self.proj = nn.Linear(self.widths[0], cfg.d_model, bias=cfg.biases.proj)
        self.over_heads = cfg.qk_norm == "full"
        normed = query_key_norm_widths(cfg)
        self.q_norm = build_norm(cfg, normed["q_norm"]) if normed else nn.Identity()
        self.k_norm = build_norm(cfg, normed["k_norm"]) if normed else nn.Identity()
        positions = variant("positions", cfg.positions)
        self.positions = positions.inside(cfg) if hasattr(positions, "inside") else None

    def forward(self, x_BTC: Tensor) -> Tensor:
        B, T, _ = x_BTC.shape
        q, k, v = self.qkv(x_BTC).split(self.widths, dim=2)
        if self.over_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.view(B, T, -1, self.d_head) for part in (q, k, v))
        if not self.over_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        q_BHTD, k_BKTD, v_BKTD = (part.transpose(1, 2) for part in (q, k, v))
        if self.positions is not None:
            q_BHTD, k_BKTD = self.positions.rotate(q_BHTD, k_BKTD)
        y_BHTD = self._attend(q_BHTD, k_BKTD, v_BKTD)
        y_BTC: Tensor = self.proj(y_BHTD.transpose(1, 2).reshape(B, T, -1))
        return y_BTC

    def _attend(self, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        mask = self._mask(q_BHTD)
        shared = self.kv_heads != self.n_head
        if self.softcap is None:
            dropout = self.dropout if self.training else 0.0
            return F.scaled_dot_product_attention(
                q_BHTD,
                k_BKTD,
                v_BKTD,
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=mask is None,
                scale=self.scale,
                enable_gqa=shared,
            )
        if shared:
            k_BKTD, v_BKTD = (
                part.repeat_interleave(self.n_head // self.kv_heads, 1) for part in (k_BKTD, v_BKTD)
            )
        return self._capped(q_BHTD, k_BKTD, v_BKTD, mask)

    def _capped(
        self, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention whose scores pass through c·tanh(s/c); fused attention has no place for it."""
        assert self.softcap is not None
        scale = 1 / math.sqrt(self.d_head) if self.scale is None else self.scale
        scores = at_least_float32(q_BHTD @ k_BHTD.transpose(2, 3)) * scale
        scores = self.softcap * torch.tanh(scores / self.softcap)
        if mask is None:
            mask = causal(scores.shape[-1], None, scores.device)
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        weights = scores.softmax(-1).to(v_BHTD.dtype)
        return F.dropout(weights, self.dropout, self.training) @ v_BHTD

    def _mask(self, q_BHTD: Tensor) -> Tensor | None:
        """What fused attention's own causal mask does not say: a window, a bias of distances; None:
        nothing.
        """
        T = q_BHTD.shape[2]
        bias: Tensor | None = None if self.positions is None else self.positions.bias(T)
        if bias is None and self.window is None:
            return None
        seen = causal(T, self.window, q_BHTD.device)
        return seen if bias is None else bias.masked_fill(~seen, -math.inf).to(q_BHTD.dtype)[None]


def at_least_float32(x: Tensor) -> Tensor:
    """For what half precision is too coarse: soft caps and losses. float64 (gradient checks) stays
    what it is.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def causal(length: int, window: int | None, device: torch.device) -> Tensor:
    """Which positions each position sees, bool [T, T]: itself and those before it, `window` in all."""
    t = torch.arange(length, device=device)
    distance = t[:, None] - t[None, :]
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)
