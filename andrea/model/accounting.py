"""Parameters, FLOPs and memory of a model from its configuration alone: nothing is built, torch is
not loaded.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.registry import variant
from andrea.model.variants import activations_of, shared_of

FLOAT32 = 4
INT64 = 8
BOOL = 1
"""Bytes of an element."""


class ParameterCounts(NamedTuple):
    """Parameters by group. A tied head has none of its own but for its bias."""

    token_embedding: int
    position_embedding: int
    attention: int
    mlp: int
    norms: int
    residual: int
    head: int

    @property
    def total(self) -> int:
        """All parameters; a tied embedding counts once."""
        return sum(self)

    @property
    def non_embedding(self) -> int:
        """Parameters outside the embeddings of tokens and positions and outside the head, tied or
        not.
        """
        return self.attention + self.mlp + self.norms + self.residual


class Flops(NamedTuple):
    """Floating-point operations per token; a multiplication and an addition are two."""

    forward: float
    """Matrix products of the forward pass; each position attends only to itself and the ones before
    it.
    """
    backward: float
    """Two products for each of the forward pass (gradients of input and weight); nothing is
    recomputed.
    """

    @property
    def total(self) -> float:
        """Forward and backward: one training step, per token."""
        return self.forward + self.backward


class MemoryEstimate(NamedTuple):
    """Bytes that a training step holds, by kind."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def require_vocab_size(cfg: ModelConfig) -> int:
    """Return the vocabulary size.

    Raises:
        UserError: it is empty, that is, left to a tokenizer that has not been asked yet.
    """
    if cfg.vocab_size is None:
        raise UserError(
            "model.vocab_size is empty and no tokenizer is at hand to fill it: set "
            "model.vocab_size=N"
        )
    return cfg.vocab_size


def count_parameters(cfg: ModelConfig) -> ParameterCounts:
    """Return the number of parameters by group.

    Raises:
        UserError: vocab_size is empty.
    """
    vocab_size = require_vocab_size(cfg)
    embedding = vocab_size * cfg.d_model
    outer_norms = norms_outside_blocks(cfg) * int(chosen_part(cfg, "norm").count(cfg))
    head = 0 if cfg.tied else embedding
    return ParameterCounts(
        token_embedding=embedding,
        position_embedding=int(chosen_part(cfg, "positions").count(cfg)),
        attention=_count_in_blocks(cfg, "attention"),
        mlp=_count_in_blocks(cfg, "activation"),
        norms=_count_in_blocks(cfg, "norm_placement") + outer_norms,
        residual=2 * _count_in_blocks(cfg, "residual"),  # a block has two sublayers to join
        head=head + vocab_size if cfg.head_bias else head,
    )


def flops_per_token(cfg: ModelConfig) -> Flops:
    """Return the FLOPs of one token, averaged over the positions of a full context.

    Counted are matrix products: the linear maps, attention's scores and values over the positions
    that a token sees on average (`Attention.seen`), and the head once. Lookups cost nothing;
    elementwise work is not counted. Counters that ignore the causal mask (`6N + 12·L·d·T`) give
    more.

    Raises:
        UserError: vocab_size is empty.
    """
    parts = _sum_over_parts(cfg, lambda part, layer: float(part.flops(layer)))
    head = 2.0 * cfg.d_model * require_vocab_size(cfg)
    forward = parts + head
    return Flops(forward, 2 * forward)


def estimate_memory(
    cfg: ModelConfig,
    batch_size: int,
    dtype: Literal["float32", "bfloat16"] = "float32",
    moments: int | None = None,
) -> MemoryEstimate:
    """Return the bytes for training `batch_size` sequences of a full context at once.

    Args:
        moments: numbers that the optimizer keeps (`count_moments`); empty means AdamW's two of
            every parameter.

    Weights, gradients and the optimizer's moments are float32. Activations are what autograd keeps
    for the backward pass without compilation, as torch computes on a CPU, with fused attention:
    exact in float32 without dropout, for several sequences and heads (of a single one torch needs
    fewer copies) and but for DyT without a gain. An estimate under bfloat16 autocast (two bytes an
    element, the loss in float32), with dropout (a byte for every element that may be dropped,
    attention's left out), and on a GPU, where a fused RMSNorm keeps less.

    Raises:
        UserError: vocab_size is empty.
    """
    weights = FLOAT32 * count_parameters(cfg).total
    element_bytes = FLOAT32 if dtype == "float32" else 2
    tokens = batch_size * cfg.context
    activations = tokens * _activation_bytes_per_token(cfg, element_bytes)
    activations += element_bytes * _sum_over_parts(cfg, shared_of)
    return MemoryEstimate(
        weights=weights,
        gradients=weights,
        optimizer=2 * weights if moments is None else FLOAT32 * moments,
        activations=round(activations),
    )


def count_moments(cfg: ModelConfig, optimizer: str = "adamw", momentum: bool = True) -> int:
    """Return how many numbers an optimizer (of `TrainConfig.optimizer`) keeps between steps.

    Args:
        momentum: of SGD, whether it has any.

    Raises:
        UserError: vocab_size is empty.
    """
    n_parameters = count_parameters(cfg).total
    if optimizer == "muon":
        # One moment of each matrix in the blocks; AdamW's two of everything else.
        return 2 * n_parameters - _count_block_matrices(cfg)
    per_parameter = {"adamw": 2, "lion": 1, "sgd": int(momentum)}
    return per_parameter[optimizer] * n_parameters


def _count_block_matrices(cfg: ModelConfig) -> int:
    """Elements of the matrices inside the blocks: attention and MLP without biases and QK-norms."""
    vectors = {"attn_bias": False, "proj_bias": False, "mlp_bias": False, "qk_norm": "none"}
    bare = count_parameters(cfg.model_copy(update=vectors))
    return bare.attention + bare.mlp


def _activation_bytes_per_token(cfg: ModelConfig, element_bytes: int) -> float:
    """Bytes that wait for the backward pass."""
    head_input = cfg.d_model
    elements = _sum_over_parts(cfg, activations_of) + head_input
    n_dropouts = bool(cfg.dropouts.embedding) + 2 * cfg.n_layer * bool(cfg.dropouts.residual)
    dropout_masks = BOOL * n_dropouts * cfg.d_model
    return float(element_bytes * elements + dropout_masks + _loss_bytes_per_token(cfg))


def _loss_bytes_per_token(cfg: ModelConfig) -> int:
    """Bytes that the loss keeps. Logits are float32 from the head on, whatever the precision."""
    logits = FLOAT32 * require_vocab_size(cfg)
    tokens_and_targets = 2 * INT64
    loss = logits + tokens_and_targets  # cross-entropy keeps the logarithms of probabilities
    if cfg.logit_softcap is not None:
        loss += logits
    if cfg.z_loss:
        loss += logits + FLOAT32 + BOOL  # besides the logits, their log-sum and what is a target
    return loss


def norms_outside_blocks(cfg: ModelConfig) -> int:
    """Return how many norms stand before the first block and after the last."""
    return cfg.has_final_norm + cfg.embedding_norm


def chosen_part(cfg: ModelConfig, axis: str) -> Any:
    """Return the class of the variant that is chosen on an axis."""
    return variant(axis, getattr(cfg, axis))


def block_kinds(cfg: ModelConfig) -> list[tuple[ModelConfig, int]]:
    """Return the configurations of blocks that differ (`ModelConfig.at_layer`), each with the
    number of such blocks.
    """
    if cfg.full_every is None:
        return [(cfg, cfg.n_layer)]
    n_full = cfg.n_layer // cfg.full_every
    windowed, full = cfg.at_layer(0), cfg.at_layer(cfg.full_every - 1)
    return [(windowed, cfg.n_layer - n_full), (full, n_full)]


def _count_in_blocks(cfg: ModelConfig, axis: str) -> int:
    """Parameters of one part of a block, over all blocks."""
    counts = (n * int(chosen_part(layer, axis).count(layer)) for layer, n in block_kinds(cfg))
    return sum(counts)


def _sum_over_parts(cfg: ModelConfig, of_part: Callable[[Any, ModelConfig], float]) -> float:
    """Sum a number over all parts of all blocks and the norms outside of them."""
    total = 0.0
    for layer, n_blocks in block_kinds(cfg):
        in_block = 0.0
        for axis in ("attention", "activation", "norm_placement"):
            in_block += of_part(chosen_part(layer, axis), layer)
        in_block += 2 * of_part(chosen_part(layer, "residual"), layer)
        total += n_blocks * in_block
    return total + norms_outside_blocks(cfg) * of_part(chosen_part(cfg, "norm"), cfg)
