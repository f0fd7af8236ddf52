"""Training batches and the evaluated windows. numpy only, and without state.

Batch k is a pure function of (data seed, k, batch size, context): every arm reads the same text at
the same step, and a resumed run continues where it stopped. Micro-batches and ranks slice the rows
of that batch. Shapes: B sequences, T tokens of context, W evaluation windows, N tokens of a part.
"""

import hashlib
from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from andrea.data.config import DataConfig, Part
from andrea.data.prepared import Prepared
from andrea.errors import UserError
from andrea.store.digest import digest

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EvalSet:
    """The fixed tokens on which a run is evaluated."""

    part: Part
    x: Ints
    """Inputs, [W, T]."""
    y: Ints
    """Targets, [W, T]: no token is a target twice."""
    starts: Ints
    """Position of each window's first input token in the part, [W]."""
    document: Ints
    """Index in `names` of the document that each target belongs to, [W, T]."""
    names: list[str]
    """Documents of the part."""
    digest: str
    """Of tokens and positions: two runs with the same digest were evaluated on the same text."""
    curve: Ints
    """Indices of the windows that are evaluated along the way, for the loss curve."""
    bytes: int
    """UTF-8 bytes of all targets: bits per byte = nats per token * targets / ln 2 / bytes."""
    curve_bytes: int
    """UTF-8 bytes of the targets in the curve windows."""
    unigram_loss: float
    """Nats per target under the train part's add-one-smoothed token frequencies, as of a model that
    ignores the context.
    """


def training_batch(
    prepared: Prepared, seed: int, k: int, batch_size: int, context: int
) -> tuple[Ints, Ints]:
    """Training batch k: inputs and targets, int64 [B, T], at random places of the train part."""
    tokens = prepared.tokens("train")
    starts = batch_offsets(len(tokens), seed, k, batch_size, context)
    rows = np.asarray(tokens)[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return rows[:, :-1], rows[:, 1:]


def batch_offsets(length: int, seed: int, k: int, batch_size: int, context: int) -> Ints:
    """Positions of the first input tokens of batch k in a part of `length` tokens, [B]."""
    name = f"andrea batch: seed {seed}, k {k}, shape {batch_size} x {context}"
    # A hash of every argument: batches of other seeds, steps or shapes have nothing in common.
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16])
    # Raw words: numpy keeps the stream of a bit generator for ever, but not that of
    # `Generator.integers`.
    words = np.random.Philox(key=key).random_raw(batch_size)
    return (words % np.uint64(length - context)).astype(np.int64)


def whole_windows(tokens: int, context: int) -> int:
    """Number of whole windows of `context` in `tokens`, at least one."""
    return max(1, tokens // context)


def evaluation_set(prepared: Prepared, cfg: DataConfig, context: int) -> EvalSet:
    """Return the evaluated windows: whole ones, evenly spaced over the part, as many as
    `cfg.eval_tokens` allow (at least one; all that fit where the part is shorter).

    Raises:
        UserError: the part is shorter than one window.
    """
    tokens = np.asarray(prepared.tokens(cfg.eval_part))
    _require_length(prepared, cfg.eval_part, context + 1, f"one window of model.context {context}")
    starts = _spaced_windows(len(tokens), whole_windows(cfg.eval_tokens, context), context)
    positions = starts[:, None] + np.arange(context + 1)
    rows = tokens[positions].astype(np.int64)
    x, y = rows[:, :-1], rows[:, 1:]
    names, firsts = prepared.documents(cfg.eval_part)
    curve = _spaced_indices(len(starts), whole_windows(cfg.curve_tokens, context))
    hashes = {"tokens": _array_digest(rows), "positions": _array_digest(positions)}
    sizes = prepared.token_bytes()[y].sum(axis=1)
    return EvalSet(
        part=cfg.eval_part,
        x=x,
        y=y,
        starts=starts,
        document=np.searchsorted(firsts, positions[:, 1:], side="right") - 1,
        names=names,
        digest=digest(hashes | {"part": cfg.eval_part}),
        curve=curve,
        bytes=int(sizes.sum()),
        curve_bytes=int(sizes[curve].sum()),
        unigram_loss=_unigram_loss(prepared.unigram_counts(), y),
    )


def require_batches(prepared: Prepared, batch_size: int, context: int) -> None:
    """Check that the text fills one batch and that each held-out part fills one window.

    Raises:
        UserError: it does not.
    """
    purpose = f"one batch of train.batch_size {batch_size} x model.context {context}"
    _require_length(prepared, "train", batch_size * context + 1, purpose)
    for part in ("tune", "verdict"):
        _require_length(prepared, part, context + 1, f"one window of model.context {context}")


def unique_tokens(prepared: Prepared, seed: int, steps: int, batch_size: int, context: int) -> int:
    """Number of distinct positions of the train part that are targets in `steps` batches."""
    length = prepared.meta.tokens["train"]
    # Only starts are marked: a mark per target would take `context` times as many writes.
    started = np.zeros(max(0, length - context), dtype=bool)
    for k in range(steps):
        started[batch_offsets(length, seed, k, batch_size, context)] = True
    total, covered = 0, 0
    block = 1 << 22
    for low in range(0, len(started), block):
        firsts = np.flatnonzero(started[low : low + block]) + low
        if firsts.size:
            # A window adds what the one before it has not covered yet.
            ends = np.concatenate(([covered], firsts[:-1] + context))
            total += int(np.minimum(context, firsts + context - ends).sum())
            covered = int(firsts[-1]) + context
    return total


def epochs_trained(prepared: Prepared, trained_tokens: int) -> float:
    """Trained tokens as a multiple of the train part."""
    return trained_tokens / prepared.meta.tokens["train"]


def _require_length(prepared: Prepared, part: Part, needed: int, purpose: str) -> None:
    length = prepared.meta.tokens[part]
    if length < needed:
        raise UserError(
            f"data.source {prepared.meta.source}: the {part} part has {length} tokens, {purpose} "
            f"needs {needed}; use a longer text, a smaller batch or context, or another data.split"
        )


def _spaced_windows(length: int, at_most: int, context: int) -> Ints:
    """First positions of windows of context + 1 tokens over the whole part; neighbours share at
    most one token.
    """
    last_start = length - 1 - context
    count = min(at_most, (length - 1) // context)
    return (np.arange(count, dtype=np.int64) * last_start) // max(1, count - 1)


def _spaced_indices(count: int, at_most: int) -> Ints:
    chosen = min(count, at_most)
    return ((2 * np.arange(chosen, dtype=np.int64) + 1) * count) // (2 * chosen)


def _unigram_loss(counts: Ints, y: Ints) -> float:
    # Add-one smoothing: a token that the train part lacks would have an infinite loss.
    frequencies = np.log(counts + 1) - log(int(counts.sum()) + len(counts))
    return float(-frequencies[y].mean())


def _array_digest(array: Ints) -> str:
    return hashlib.sha256(array.astype("<i8").tobytes()).hexdigest()
