"""Parameters, FLOPs and memory of a model from its configuration alone: nothing is built, torch is not loaded."""

from typing import Any, Literal, NamedTuple

from andrea.errors import UserError
from andrea.model.attention import Attention
from andrea.model.config import ModelConfig, variant
from andrea.model.variants import activations

FLOAT32 = 4
INT64 = 8


class Flops(NamedTuple):
    """Floating-point operations per token; a multiplication and an addition are two."""

    forward: float
    """Matrix products of the forward pass; each position attends only to itself and the ones before it."""
    backward: float
    """Two products for each of the forward pass (gradients of input and weight); nothing is recomputed."""

    @property
    def total(self) -> float:
        """Forward and backward: one training step, per token."""
        return self.forward + self.backward


def vocabulary(cfg: ModelConfig) -> int:
    """The vocabulary size.

    Raises:
        UserError: it is empty, that is, left to a tokenizer that has not been asked yet.
    """
    if cfg.vocab_size is None:
        raise UserError("model.vocab_size is empty and no tokenizer is at hand to fill it: set model.vocab_size=N")
    return cfg.vocab_size


def parameters(cfg: ModelConfig) -> dict[str, int]:
    """Parameters by group. A tied head has none of its own.

    Raises:
        UserError: vocab_size is empty.
    """
    table = vocabulary(cfg) * cfg.d_model
    norm, placement, mlp = _parts(cfg)
    return {
        "token_embedding": table,
        "position_embedding": cfg.context * cfg.d_model,
        "attention": cfg.n_layer * Attention.count(cfg),
        "mlp": cfg.n_layer * int(mlp.count(cfg)),
        "norms": cfg.n_layer * int(placement.count(cfg)) + (int(norm.count(cfg)) if cfg.has_final_norm else 0),
        "head": 0 if cfg.tied else table,
    }


def total(cfg: ModelConfig) -> int:
    """All parameters; a tied table counts once."""
    return sum(parameters(cfg).values())


def non_embedding(cfg: ModelConfig) -> int:
    """Parameters outside the tables of tokens and positions and outside the head, tied or not."""
    groups = parameters(cfg)
    return groups["attention"] + groups["mlp"] + groups["norms"]


def flops_per_token(cfg: ModelConfig) -> Flops:
    """FLOPs of one token, averaged over the positions of a full context.

    Counted are matrix products: the linear maps, attention's scores and values over the (T + 1) / 2 positions that a
    token sees on average, and the head once. Lookups cost nothing; elementwise work is not counted. Counters that
    ignore the causal mask (`6N + 12·L·d·T`) say more.

    Raises:
        UserError: vocab_size is empty.
    """
    norm, placement, mlp = _parts(cfg)
    block = Attention.flops(cfg) + float(mlp.flops(cfg)) + float(placement.flops(cfg))
    final = float(norm.flops(cfg)) if cfg.has_final_norm else 0.0
    forward = cfg.n_layer * block + final + 2.0 * cfg.d_model * vocabulary(cfg)
    return Flops(forward, 2 * forward)


def memory(cfg: ModelConfig, batch_size: int, dtype: Literal["float32", "bfloat16"] = "float32") -> dict[str, int]:
    """Bytes by kind for training `batch_size` sequences of a full context at once with AdamW.

    Weights, gradients and the optimizer's two moments are float32. Activations are what autograd keeps for the
    backward pass with fused attention and without compilation: exact in float32 without dropout; an estimate under
    bfloat16 autocast (two bytes an element, the loss in float32) and with dropout (a byte
    for every element that may be dropped, attention's left out).

    Raises:
        UserError: vocab_size is empty.
    """
    weights = FLOAT32 * total(cfg)
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": 2 * weights,
        "activations": round(batch_size * cfg.context * _kept_bytes(cfg, FLOAT32 if dtype == "float32" else 2)),
    }


def _kept_bytes(cfg: ModelConfig, width: int) -> float:
    """Bytes per token that wait for the backward pass, `width` bytes an element."""
    norm, placement, mlp = _parts(cfg)
    block = sum(activations(part, cfg) for part in (Attention, mlp, placement))
    final = activations(norm, cfg) if cfg.has_final_norm else 0.0
    elements = cfg.n_layer * block + final + cfg.d_model  # the last one is the head's input
    masks = (1 + 2 * cfg.n_layer) * cfg.d_model if cfg.dropout else 0  # one byte an element
    log_probabilities = FLOAT32 * vocabulary(cfg)
    return width * elements + masks + log_probabilities + 2 * INT64  # token and target


def _parts(cfg: ModelConfig) -> tuple[Any, Any, Any]:
    """The classes of the norm, the placement and the MLP."""
    return (
        variant("norm", cfg.norm),
        variant("norm_placement", cfg.norm_placement),
        variant("activation", cfg.activation),
    )
