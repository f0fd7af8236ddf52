"""The language model: token and position tables, blocks, an optional norm, a head.

Shapes: B sequences, T positions, C = d_model, V = vocab_size.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea.model.accounting import vocabulary
from andrea.model.config import ModelConfig, variant
from andrea.model.inits import initialise


class GPT(nn.Module):
    """A decoder-only transformer. Parameters have torch's default values until `initialise` sets them."""

    numerics = 1
    """Version of the numbers of what no variant carries: embeddings, head, loss, the draws behind initial weights."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        vocab_size = vocabulary(cfg)
        placement = variant("norm_placement", cfg.norm_placement)
        self.config = cfg
        self.token_embedding = nn.Embedding(vocab_size, cfg.d_model)
        self.position_embedding = nn.Embedding(cfg.context, cfg.d_model)
        self.dropout = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(placement.build(cfg) for _ in range(cfg.n_layer))
        self.final_norm = variant("norm", cfg.norm).build(cfg) if cfg.has_final_norm else nn.Identity()
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        _tie(self)
        self.register_load_state_dict_post_hook(_tie)  # type: ignore[no-untyped-call]

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits [B, T, V], or with targets the loss of every token [B, T] in nats, float32, not reduced.

        Args:
            tokens: int64 [B, T], T at most `context`.
            targets: int64 [B, T], the token that follows each; −100 costs nothing.

        Raises:
            ValueError: more positions than the context has.
        """
        B, T = tokens.shape
        if self.config.context < T:
            raise ValueError(f"{T} tokens do not fit into a context of {self.config.context}")
        x_BTC = self.dropout(self.token_embedding(tokens) + self.position_embedding.weight[:T])
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits_BTV: Tensor = self.head(self.final_norm(x_BTC))
        if targets is None:
            return logits_BTV
        # Half precision is too coarse for the loss; float64 (gradient checks) stays what it is.
        logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), targets.flatten(), reduction="none")
        return loss.view(B, T)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Between kinds of tensors (`to("meta")`, `to_empty`) torch makes a new parameter at every place that has one.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        _tie(self)
        return self


def _tie(model: nn.Module, _incompatible_keys: Any = None) -> None:
    """Let the head be the token table, also after a load that assigns new parameters."""
    if isinstance(model, GPT) and model.config.tied:
        model.head.weight = model.token_embedding.weight


def build_model(cfg: ModelConfig, seed: int = 0) -> GPT:
    """A model with initial weights of this seed; the global random generators are left as they were.

    Raises:
        UserError: vocab_size is empty.
    """
    with torch.random.fork_rng(devices=[]):
        # What a variant draws for itself while it is built is a function of the seed too.
        torch.default_generator.manual_seed(seed)
        model = GPT(cfg)
    initialise(model, cfg, seed)
    return model
