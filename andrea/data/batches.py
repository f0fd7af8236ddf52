"""What a step trains on and what a run is judged on. numpy only; no state, so nothing to save and
nothing to leak.

Batch k is a pure function of (data seed, k, batch size, context): every arm reads the same text at
the same step, and a resumed run reads on where it stopped. Micro-batches and ranks slice the rows
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
    """The fixed tokens on which a run is judged."""

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
    """Over tokens and positions: two runs with the same digest were judged on the same text."""
    curve: Ints
    """Indices of the windows that are evaluated along the way."""
    bytes: int
    """UTF-8 bytes of all targets: bits per byte = nats per token * targets / ln 2 / bytes."""
    curve_bytes: int
    """UTF-8 bytes of the targets in the curve windows."""
    unigram_loss: float
    """Nats per target under the train part's add-one-smoothed token frequencies: what knowing no
    context gives.
    """


def batch(
    prepared: Prepared, seed: int, k: int, batch_size: int, context: int
) -> tuple[Ints, Ints]:
    """Training batch k: inputs and targets, both int64 [B, T], at random places of the train part."""
    tokens = prepared.tokens("train")
    starts = offsets(len(tokens), seed, k, batch_size, context)
    rows = np.asarray(tokens)[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return rows[:, :-1], rows[:, 1:]


def offsets(length: int, seed: int, k: int, batch_size: int, context: int) -> Ints:
    """Positions of the first input tokens of batch k in a part of `length` tokens, [B]."""
    name = f"andrea batch: seed {seed}, k {k}, shape {batch_size} x {context}"
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16])
    # Raw words: numpy keeps the stream of a bit generator for ever, but not that of
    # `Generator.integers`.
    words = np.random.Philox(key=key).random_raw(batch_size)
    return (words % np.uint64(length - context)).astype(np.int64)


def windows(tokens: int, context: int) -> int:
    """Whole windows in so many tokens, at least one."""
    return max(1, tokens // context)


def evaluation(prepared: Prepared, cfg: DataConfig, context: int) -> EvalSet:
    """The evaluated windows: whole ones, evenly spaced over the part, as many as `cfg.eval_tokens`
    allow (at least one; all that fit where the part is shorter).

    Raises:
        UserError: the part is shorter than one window.
    """
    tokens = np.asarray(prepared.tokens(cfg.eval_part))
    _require_length(prepared, cfg.eval_part, context + 1, f"one window of model.context {context}")
    starts = _spaced_windows(len(tokens), windows(cfg.eval_tokens, context), context)
    positions = starts[:, None] + np.arange(context + 1)
    judged = tokens[positions].astype(np.int64)
    x, y = judged[:, :-1], judged[:, 1:]
    names, firsts = prepared.documents(cfg.eval_part)
    curve = _spaced_indices(len(starts), windows(cfg.curve_tokens, context))
    sizes = prepared.token_bytes()[y].sum(axis=1)
    return EvalSet(
        part=cfg.eval_part,
        x=x,
        y=y,
        starts=starts,
        document=np.searchsorted(firsts, positions[:, 1:], side="right") - 1,
        names=names,
        digest=digest(
            {"tokens": _hash(judged), "positions": _hash(positions), "part": cfg.eval_part}
        ),
        curve=curve,
        bytes=int(sizes.sum()),
        curve_bytes=int(sizes[curve].sum()),
        unigram_loss=_unigram_loss(prepared.unigram(), y),
    )


def require_batches(prepared: Prepared, batch_size: int, context: int) -> None:
    """Make sure that the text fills one batch and that each held-out part fills one window.

    Raises:
        UserError: it does not.
    """
    _require_length(
        prepared,
        "train",
        batch_size * context + 1,
        f"one batch of train.batch_size {batch_size} x model.context {context}",
    )
    for part in ("tune", "verdict"):
        _require_length(prepared, part, context + 1, f"one window of model.context {context}")


def unique_tokens(prepared: Prepared, seed: int, steps: int, batch_size: int, context: int) -> int:
    """How many distinct positions of the train part are targets in a run of `steps` batches."""
    length = int(prepared.meta["tokens"]["train"])
    started = np.zeros(max(0, length - context), dtype=bool)
    for k in range(steps):
        started[offsets(length, seed, k, batch_size, context)] = True
    total, covered = 0, 0
    for low in range(0, len(started), 1 << 22):
        firsts = np.flatnonzero(started[low : low + (1 << 22)]) + low
        if firsts.size:
            # A window adds what the one before it has not covered yet.
            ends = np.concatenate(([covered], firsts[:-1] + context))
            total += int(np.minimum(context, firsts + context - ends).sum())
            covered = int(firsts[-1]) + context
    return total


def epochs(prepared: Prepared, trained_tokens: int) -> float:
    """How many times over the train part was read."""
    return trained_tokens / int(prepared.meta["tokens"]["train"])


def _require_length(prepared: Prepared, part: Part, needed: int, what: str) -> None:
    length = int(prepared.meta["tokens"][part])
    if length < needed:
        raise UserError(
            f"data.source {prepared.meta['source']}: the {part} part has {length} tokens, {what} "
            f"needs {needed}; "
            "use a longer text, a smaller batch or context, or another data.split"
        )


def _spaced_windows(length: int, wanted: int, context: int) -> Ints:
    """First positions of windows of context + 1 tokens over the whole part; neighbours share at
    most one token.
    """
    room = length - 1 - context
    count = min(wanted, (length - 1) // context)
    return (np.arange(count, dtype=np.int64) * room) // max(1, count - 1)


def _spaced_indices(count: int, wanted: int) -> Ints:
    wanted = min(count, wanted)
    return ((2 * np.arange(wanted, dtype=np.int64) + 1) * count) // (2 * wanted)


def _unigram_loss(counts: Ints, y: Ints) -> float:
    frequencies = np.log(counts + 1) - log(int(counts.sum()) + len(counts))
    return float(-frequencies[y].mean())


def _hash(array: Ints) -> str:
    return hashlib.sha256(array.astype("<i8").tobytes()).hexdigest()
