"""The language model: embeddings, positions, blocks, norms where the placement has them, a head.

Under autocast the residual stream is float32 in every variant, for embeddings and joins are; only
where a branch replaces it (`residual: off`) it is what the branch put out. Logits are float32 from
the head on.

Shapes: B sequences, T positions, C = d_model, V = vocab_size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea.model.accounting import require_vocab_size
from andrea.model.config import ModelConfig
from andrea.model.inits import initialise, output_scale
from andrea.model.layers.attention import at_least_float32
from andrea.model.registry import variant


class GPT(nn.Module):
    """A decoder-only transformer. Parameters have torch's default values until `initialise` sets
    them.
    """

    numerics = 1
    """Version of the numbers of what no variant carries: embeddings, head, loss, the draws behind
    initial weights.
    """

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        vocab_size = require_vocab_size(cfg)
        placement = variant("norm_placement", cfg.norm_placement)
        norm = variant("norm", cfg.norm)
        self.config = cfg
        self.output_scale = output_scale(cfg)
        self.token_embedding = nn.Embedding(vocab_size, cfg.d_model)
        self.position_embedding = variant("positions", cfg.positions).build(cfg)
        self.embedding_norm = norm.build(cfg) if cfg.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(cfg.dropouts.embedding)
        self.blocks = nn.ModuleList(placement.build(cfg.at_layer(i)) for i in range(cfg.n_layer))
        self.final_norm = norm.build(cfg) if cfg.has_final_norm else nn.Identity()
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=cfg.head_bias)
        _tie_head(self)
        # A load with `assign=True` brings a parameter of its own for each of the two.
        self.register_load_state_dict_post_hook(_tie_head)  # type: ignore[no-untyped-call]

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V], or with targets the loss of every token [B, T] in nats,
        float32, not reduced.

        Args:
            tokens: int64 [B, T], T at most `context`.
            targets: int64 [B, T], the token that follows each; −100 costs nothing.

        Raises:
            ValueError: more positions than the context has.
        """
        x_BTC = self.embed(tokens)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits_BTV = self.unembed(x_BTC)
        return logits_BTV if targets is None else self._loss(logits_BTV, targets)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the input of the first block, [B, T, C], of tokens [B, T].

        Raises:
            ValueError: more positions than the context has.
        """
        cfg, T = self.config, tokens.shape[1]
        if cfg.context < T:
            raise ValueError(f"{T} tokens do not fit into a context of {cfg.context}")
        x_BTC: Tensor = self.token_embedding(tokens)
        # A factor of 1 is left out, so that it costs no kernel.
        if cfg.token_scale != 1:
            x_BTC = x_BTC * cfg.token_scale
        if self.position_embedding is not None:
            x_BTC = x_BTC + self.position_embedding(T)
        y_BTC: Tensor = self.dropout(self.embedding_norm(x_BTC))
        return y_BTC

    def unembed(self, x_BTC: Tensor) -> Tensor:
        """Return the logits [B, T, V] of a residual stream [B, T, C]: as the last block leaves it,
        or any earlier one (a logit lens).
        """
        x_BTC = self.final_norm(x_BTC)
        if self.output_scale != 1:
            x_BTC = x_BTC * self.output_scale
        # The softmax of the loss sums V exponentials: in bfloat16 most of them would be lost.
        logits_BTV = at_least_float32(self.head(x_BTC))
        cap = self.config.logit_softcap
        if cap is None:
            return logits_BTV
        return cap * torch.tanh(logits_BTV / cap)  # in (−cap, cap): Gemma 2

    def _loss(self, logits_BTV: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy [B, T]; the z-loss (Chowdhery et al. 2022) acts on the
        training's gradient alone, so that losses stay comparable.
        """
        flat_loss = F.cross_entropy(logits_BTV.flatten(0, 1), targets.flatten(), reduction="none")
        loss = flat_loss.view(targets.shape)
        if self.config.z_loss and self.training:
            is_target = targets >= 0
            penalty = self.config.z_loss * logits_BTV.logsumexp(-1).square() * is_target
            loss = loss + (penalty - penalty.detach())  # the value is 0, the gradient is not
        return loss

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Between kinds of tensors (`to("meta")`, `to_empty`) torch makes a new parameter at every
        # place that has one.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        _tie_head(self)
        return self


def _tie_head(model: nn.Module, _incompatible_keys: Any = None) -> None:
    """Make the head's matrix the token embedding itself (Press & Wolf 2017)."""
    if isinstance(model, GPT) and model.config.tied:
        model.head.weight = model.token_embedding.weight


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off; the model's mode is restored afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def build_model(cfg: ModelConfig, seed: int = 0) -> GPT:
    """Build a model with initial weights of this seed; the global random generators are left as
    they were.

    Raises:
        UserError: vocab_size is empty.
    """
    with torch.random.fork_rng(devices=[]):
        # What a variant draws for itself while it is built is a function of the seed too.
        torch.default_generator.manual_seed(seed)
        model = GPT(cfg)
    initialise(model, cfg, seed)
    return model
