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
        self.dropout = cfg.dropouts.attention
        self.window = cfg.window
        self.softcap = cfg.attn_softcap
        self.scale = score_scale(cfg)
        queries, keys = cfg.n_head * cfg.d_head, cfg.kv_heads * cfg.d_head
        self.widths = [queries, keys, keys]
        self.pieces = {"qkv": dict(zip("qkv", self.widths, strict=True))}
        """Matrices that are several in one, for the init rule: their rows by name."""
        self.qkv = nn.Linear(cfg.d_model, sum(self.widths), bias=cfg.biases.attn)
        self.proj = nn.Linear(queries, cfg.d_model, bias=cfg.biases.proj)
        self.over_heads = cfg.qk_norm == "full"
        widths = query_key_norm_widths(cfg)
        self.q_norm = build_norm(cfg, widths["q_norm"]) if widths else nn.Identity()
        self.k_norm = build_norm(cfg, widths["k_norm"]) if widths else nn.Identity()
        positions = variant("positions", cfg.positions)
        # A user's own class may have no more than what is added to the embeddings.
        self.positions = positions.inside(cfg) if hasattr(positions, "inside") else None

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Return the branch [B, T, C] of a stream [B, T, C], before dropout."""
        B, T, _ = x_BTC.shape
        q, k, v = self.qkv(x_BTC).split(self.widths, dim=2)
        # OLMo 2 normalizes all heads at once, before they are apart; Qwen 3 each by itself, after.
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
        """Return the weighted values [B, H, T, D]."""
        mask = self._mask(q_BHTD)
        shares_keys = self.kv_heads != self.n_head
        if self.softcap is None:
            return F.scaled_dot_product_attention(
                q_BHTD,
                k_BKTD,
                v_BKTD,
                attn_mask=mask,
                dropout_p=self.dropout if self.training else 0.0,
                is_causal=mask is None,
                scale=self.scale,
                enable_gqa=shares_keys,
            )
        if shares_keys:
            queries_per_key = self.n_head // self.kv_heads
            k_BKTD = k_BKTD.repeat_interleave(queries_per_key, 1)
            v_BKTD = v_BKTD.repeat_interleave(queries_per_key, 1)
        return self._attend_capped(q_BHTD, k_BKTD, v_BKTD, mask)

    def _attend_capped(
        self, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention whose scores pass through c·tanh(s/c), which bounds them to (−c, c) with a
        gradient everywhere (Gemma 2); fused attention has no place for it.
        """
        assert self.softcap is not None
        scale = 1 / math.sqrt(self.d_head) if self.scale is None else self.scale
        # bfloat16 has 8 bits: near the cap, where tanh is flat, scores would become equal.
        scores = at_least_float32(q_BHTD @ k_BHTD.transpose(2, 3)) * scale
        scores = self.softcap * torch.tanh(scores / self.softcap)
        if mask is None:
            mask = causal_mask(scores.shape[-1], None, scores.device)
        # The mask comes after the cap, which would make −∞ a finite −c.
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        weights = scores.softmax(-1).to(v_BHTD.dtype)
        return F.dropout(weights, self.dropout, self.training) @ v_BHTD

    def _mask(self, q_BHTD: Tensor) -> Tensor | None:
        """Return a mask that says more than causality (a window, a bias of distances): bool [T, T]
        or numbers [1, H, T, T] to add to the scores; None: fused attention's own will do.
        """
        T = q_BHTD.shape[2]
        bias: Tensor | None = None if self.positions is None else self.positions.bias(T)
        if bias is None and self.window is None:
            return None
        visible = causal_mask(T, self.window, q_BHTD.device)
        if bias is None:
            return visible
        return bias.masked_fill(~visible, -math.inf).to(q_BHTD.dtype)[None]


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32, for soft caps and losses, where half precision is too coarse; float64
    (gradient checks) stays as it is.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def causal_mask(length: int, window: int | None, device: torch.device) -> Tensor:
    """Return which positions each position sees, bool [T, T]: itself and those before it, `window`
    in all.
    """
    t = torch.arange(length, device=device)
    distance = t[:, None] - t[None, :]
    visible = distance >= 0
    return visible if window is None else visible & (distance < window)
