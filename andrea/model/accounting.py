"""Parameters, FLOPs and memory of a model from its configuration alone: nothing is built, torch is
not loaded.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.registry import variant
from andrea.model.variants import activations, shared

FLOAT32 = 4
INT64 = 8


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


def vocabulary(cfg: ModelConfig) -> int:
    """The vocabulary size.

    Raises:
        UserError: it is empty, that is, left to a tokenizer that has not been asked yet.
    """
    if cfg.vocab_size is None:
        raise UserError(
            "model.vocab_size is empty and no tokenizer is at hand to fill it: set "
            "model.vocab_size=N"
        )
    return cfg.vocab_size


def parameters(cfg: ModelConfig) -> dict[str, int]:
    """Parameters by group. A tied head has none of its own but for its bias.

    Raises:
        UserError: vocab_size is empty.
    """
    table = vocabulary(cfg) * cfg.d_model
    norm = int(_part(cfg, "norm").count(cfg))
    outside = cfg.has_final_norm + cfg.embedding_norm
    return {
        "token_embedding": table,
        "position_embedding": int(_part(cfg, "positions").count(cfg)),
        "attention": _over_layers(cfg, lambda layer: int(_part(layer, "attention").count(layer))),
        "mlp": _over_layers(cfg, lambda layer: int(_part(layer, "activation").count(layer))),
        "norms": _over_layers(cfg, lambda layer: int(_part(layer, "norm_placement").count(layer)))
        + outside * norm,
        "residual": _over_layers(cfg, lambda layer: 2 * int(_part(layer, "residual").count(layer))),
        "head": (0 if cfg.tied else table) + (vocabulary(cfg) if cfg.head_bias else 0),
    }


def total(cfg: ModelConfig) -> int:
    """All parameters; a tied table counts once."""
    return sum(parameters(cfg).values())


def non_embedding(cfg: ModelConfig) -> int:
    """Parameters outside the tables of tokens and positions and outside the head, tied or not."""
    groups = parameters(cfg)
    return sum(groups[name] for name in ("attention", "mlp", "norms", "residual"))


def flops_per_token(cfg: ModelConfig) -> Flops:
    """FLOPs of one token, averaged over the positions of a full context.

    Counted are matrix products: the linear maps, attention's scores and values over the positions
        that a token sees on
    average (`Attention.seen`), and the head once. Lookups cost nothing; elementwise work is not
    counted. Counters that ignore the causal mask (`6N + 12·L·d·T`) say more.

    Raises:
        UserError: vocab_size is empty.
    """
    blocks = _over_layers(
        cfg, lambda layer: sum(float(part.flops(layer)) * times for part, times in in_block(layer))
    )
    outside = (cfg.has_final_norm + cfg.embedding_norm) * float(_part(cfg, "norm").flops(cfg))
    forward = blocks + outside + 2.0 * cfg.d_model * vocabulary(cfg)
    return Flops(forward, 2 * forward)


def memory(
    cfg: ModelConfig,
    batch_size: int,
    dtype: Literal["float32", "bfloat16"] = "float32",
    moments: int | None = None,
) -> dict[str, int]:
    """Bytes by kind for training `batch_size` sequences of a full context at once.

    Args:
        moments: numbers that the optimizer keeps; empty means AdamW's two of every parameter.

    Weights, gradients and the optimizer's moments are float32. Activations are what autograd keeps
    for the backward pass without compilation, as torch computes on a CPU, with fused attention:
    exact in float32 without dropout, for several sequences and heads (of a single one torch needs
    fewer copies) and but for DyT without a gain. An estimate under bfloat16 autocast (two bytes an
    element, the loss in float32), with dropout (a byte for every element that may be dropped,
    attention's left out), and on a GPU, where a fused RMSNorm keeps less.

    Raises:
        UserError: vocab_size is empty.
    """
    weights = FLOAT32 * total(cfg)
    width = FLOAT32 if dtype == "float32" else 2
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": 2 * weights if moments is None else FLOAT32 * moments,
        "activations": round(
            batch_size * cfg.context * _kept_bytes(cfg, width) + width * _kept_once(cfg)
        ),
    }


def moments(cfg: ModelConfig, optimizer: str = "adamw", momentum: bool = True) -> int:
    """Numbers that an optimizer (of `TrainConfig.optimizer`) keeps between steps.

    Args:
        momentum: of SGD, whether it has any.

    Raises:
        UserError: vocab_size is empty.
    """
    every = total(cfg)
    if optimizer == "muon":
        return 2 * every - _block_matrices(cfg)
    return {"adamw": 2, "lion": 1, "sgd": int(momentum)}[optimizer] * every


def _block_matrices(cfg: ModelConfig) -> int:
    """Elements of the matrices inside the blocks: attention and MLP without biases and QK-norms."""
    bare = dict.fromkeys(("attn_bias", "proj_bias", "mlp_bias"), False)
    groups = parameters(cfg.model_copy(update={**bare, "qk_norm": "none"}))
    return groups["attention"] + groups["mlp"]


def _kept_bytes(cfg: ModelConfig, width: int) -> float:
    """Bytes per token that wait for the backward pass, `width` bytes an element."""
    blocks = _over_layers(
        cfg, lambda layer: sum(activations(part, layer) * times for part, times in in_block(layer))
    )
    outside = (cfg.has_final_norm + cfg.embedding_norm) * activations(_part(cfg, "norm"), cfg)
    elements = blocks + outside + cfg.d_model  # the last one is the head's input
    dropped = bool(cfg.dropouts.embedding) + 2 * cfg.n_layer * bool(
        cfg.dropouts.residual
    )  # masks, one byte an element
    loss = FLOAT32 * vocabulary(cfg) + 2 * INT64  # logarithms of probabilities, token and target
    if cfg.logit_softcap is not None:
        loss += FLOAT32 * vocabulary(cfg)
    if cfg.z_loss:
        loss += (
            FLOAT32 * (vocabulary(cfg) + 1) + 1
        )  # the logits, their log-sum, whether there is a target
    return float(width * elements + dropped * cfg.d_model + loss)


def _kept_once(cfg: ModelConfig) -> float:
    """Elements that wait for the backward pass once, however many sequences there are."""
    blocks = _over_layers(
        cfg, lambda layer: sum(shared(part, layer) * times for part, times in in_block(layer))
    )
    return float(
        blocks + (cfg.has_final_norm + cfg.embedding_norm) * shared(_part(cfg, "norm"), cfg)
    )


def in_block(layer: ModelConfig) -> list[tuple[Any, int]]:
    """The classes of a block's parts, and how often each stands in it."""
    once = ("attention", "activation", "norm_placement")
    return [*((_part(layer, axis), 1) for axis in once), (_part(layer, "residual"), 2)]


def kinds(cfg: ModelConfig) -> list[tuple[ModelConfig, int]]:
    """Configurations of blocks that differ (`ModelConfig.at_layer`), and how many blocks have each."""
    if cfg.full_every is None:
        return [(cfg, cfg.n_layer)]
    full = cfg.n_layer // cfg.full_every
    return [(cfg.at_layer(0), cfg.n_layer - full), (cfg.at_layer(cfg.full_every - 1), full)]


def _over_layers(cfg: ModelConfig, of_one: Callable[[ModelConfig], Any]) -> Any:
    """A number summed over the blocks."""
    return sum(count * of_one(layer) for layer, count in kinds(cfg))


def _part(cfg: ModelConfig, axis: str) -> Any:
    """The class of the variant that is chosen on an axis."""
    return variant(axis, getattr(cfg, axis))
