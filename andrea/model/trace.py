"""One token on its way through a model: what every sublayer read, what it added, and what the
stream became.

Hooks look on while the model's own blocks run, dropout off; norms and cosines are taken in float64.

trace(model, tokens, position=5).steps[0].added
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from andrea.model.gpt import GPT
from andrea.model.layers.blocks import ParallelBlock
from andrea.model.layers.residuals import Join

ROUNDING = 1e-5
"""A part of the stream's change below this share of the stream is what float32 rounds, and counts
as nothing.
"""


@dataclass(frozen=True)
class Start:
    """The embedded token; lengths of vectors."""

    token: float
    """Of the token's row in the table, scaled as the model scales it."""
    position: float | None
    """Of what is added for its position; None where positions enter elsewhere, or nowhere."""
    after: float
    """The stream that the first block reads; an embedding norm has been at it."""


@dataclass(frozen=True)
class Step:
    """What one sublayer did to the stream: `after = before + added + moved`, as vectors."""

    block: int
    """From 1."""
    sublayer: str
    """`attn`, `mlp`, or `block` where a user's own block does not say what is between its
    sublayers.
    """
    before: float
    """Norm of the stream."""
    source: float
    """Norm of the stream that the sublayer started from: `before`; for an MLP beside attention the
    block's input.
    """
    read: float | None
    """Norm of what the sublayer itself read: `source`, or that stream normalized."""
    added: float
    """Norm of the branch as the stream got it, after any norm and gain in the branch."""
    cosine: float | None
    """Of the branch with the stream it started from; None where one of them is zero."""
    moved: float
    """Norm of whatever else happened to the stream: a norm that stands on it, a weight on it, or
    its removal.
    """
    change: float
    """Norm of after − before."""
    after: float
    """Norm of the stream."""
    share: float | None
    """The branch's part of the way from the first stream to the last, measured along that way; None
    without a way.
    """
    moved_share: float | None
    """The rest's part of it. All parts of all steps add up to 1."""


@dataclass(frozen=True)
class Guess:
    """A token and its probability."""

    token: int
    probability: float


@dataclass(frozen=True)
class Depth:
    """What the head makes of the stream at one depth (nostalgebraist 2020, the logit lens)."""

    block: int
    """Blocks passed; 0 is the embedding."""
    guesses: tuple[Guess, ...]
    """The likeliest tokens, best first."""
    rank: int | None
    """Of the token that really follows, from 1; None where the text ends."""
    probability: float | None
    """Of that token."""


@dataclass(frozen=True)
class Trace:
    """One token's way."""

    position: int
    token: int
    target: int | None
    """The token that follows in the text."""
    start: Start
    steps: tuple[Step, ...]
    stream: float
    """Norm of the last block's output."""
    normed: float | None
    """Norm of what the head reads after the final norm; None without one."""
    carried: float | None
    """Cosine of the last stream with the first."""
    lens: tuple[Depth, ...]
    """From the embedding to the last block, whose row is the model's own prediction."""


def trace(model: GPT, tokens: Tensor, position: int, top: int = 3) -> Trace:
    """Follow one token.

    Args:
        tokens: int64 [T], T at most the model's context.
        position: of the token, 0 to T − 1.
        top: guesses per depth.
    """
    follower = int(tokens[position + 1]) if position + 1 < len(tokens) else None
    with _at_rest(model), torch.no_grad():
        start, x_BTC = _start(model, tokens, position)
        streams, moments = [x_BTC], []
        for index, block in enumerate(model.blocks):
            passed, x_BTC = _through(block, x_BTC, position)
            moments += [(index + 1, moment) for moment in passed]
            streams.append(x_BTC)
        ends = [x_BTC[0, position].double() for x_BTC in streams]
        way = ends[-1] - ends[0]
        lens = [
            _depth(model, i, x_BTC[:, position : position + 1], follower, top)
            for i, x_BTC in enumerate(streams)
        ]
        normed = (
            None
            if not model.config.has_final_norm
            else _norm(model.final_norm(x_BTC)[0, position].double())
        )
    return Trace(
        position=position,
        token=int(tokens[position]),
        target=follower,
        start=start,
        steps=tuple(_step(block, moment, way) for block, moment in moments),
        stream=_norm(ends[-1]),
        normed=normed,
        carried=_cosine(ends[0], ends[-1]),
        lens=tuple(lens),
    )


@dataclass(frozen=True)
class _Moment:
    """A sublayer's vectors at the traced position, float64 [C]."""

    sublayer: str
    before: Tensor
    source: Tensor
    read: Tensor | None
    added: Tensor
    after: Tensor


def _start(model: GPT, tokens: Tensor, position: int) -> tuple[Start, Tensor]:
    """The embedding's numbers, and the stream that the first block reads."""
    x_BTC = model.embed(tokens[None])
    row = model.token_embedding(tokens[position]).double() * model.config.token_scale
    table = (
        None
        if model.position_embedding is None
        else model.position_embedding(len(tokens))[position].double()
    )
    place = None if table is None else _norm(table)
    return Start(_norm(row), place, _norm(x_BTC[0, position].double())), x_BTC


def _through(block: Any, x_BTC: Tensor, position: int) -> tuple[list[_Moment], Tensor]:
    """What a block's sublayers did, and the stream after it."""

    def at(x_BTC: Tensor) -> Tensor:
        return x_BTC[0, position].double()

    with _watching(block) as seen:
        # A user's own block may have no more than a forward.
        middle_BTC, y_BTC = (
            block.stages(x_BTC) if hasattr(block, "stages") else (None, block(x_BTC))
        )
    x, y = at(x_BTC), at(y_BTC)
    if middle_BTC is None:
        return [_Moment("block", x, x, None, y - x, y)], y_BTC
    middle = at(middle_BTC)
    source = x if isinstance(block, ParallelBlock) else middle
    read = {name: at(seen[name]) if name in seen else None for name in ("attn", "mlp")}
    # A branch that did not pass a join was added as it is.
    first = at(seen["join1"]) if "join1" in seen else middle - x
    second = at(seen["join2"]) if "join2" in seen else y - middle
    moments = [
        _Moment("attn", x, x, read["attn"], first, middle),
        _Moment("mlp", middle, source, read["mlp"], second, y),
    ]
    return moments, y_BTC


@contextmanager
def _watching(block: Any) -> Iterator[dict[str, Tensor]]:
    """While inside, keep what the sublayers read and what the joins gave the stream of their
    branch.
    """
    seen: dict[str, Tensor] = {}

    def reads(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[name] = inputs[0]

        return look

    def joins(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            stream, branch = inputs
            seen[name] = module.scale(branch) if isinstance(module, Join) else output - stream

        return look

    parts = {
        name: getattr(block, name)
        for name in ("attn", "mlp", "join1", "join2")
        if hasattr(block, name)
    }
    handles = [
        part.register_forward_hook(joins(name))
        if name.startswith("join")
        else part.register_forward_pre_hook(reads(name))
        for name, part in parts.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _step(block: int, moment: _Moment, way: Tensor) -> Step:
    """The numbers of a moment; `way` is the whole model's last stream minus its first."""
    change = moment.after - moment.before
    rest = change - moment.added
    nothing = _norm(rest) <= ROUNDING * (_norm(moment.before) + _norm(moment.added))
    whole = float(way @ way)
    return Step(
        block=block,
        sublayer=moment.sublayer,
        before=_norm(moment.before),
        source=_norm(moment.source),
        read=None if moment.read is None else _norm(moment.read),
        added=_norm(moment.added),
        cosine=_cosine(moment.source, moment.added),
        moved=0.0 if nothing else _norm(rest),
        change=_norm(change),
        after=_norm(moment.after),
        share=float(moment.added @ way) / whole if whole else None,
        moved_share=float(rest @ way) / whole if whole else None,
    )


def _depth(model: GPT, block: int, x_BTC: Tensor, target: int | None, top: int) -> Depth:
    """What the head makes of one position's stream."""
    logits = model.unembed(x_BTC)[0, 0].double()
    probabilities = logits.softmax(-1)
    best = probabilities.topk(min(top, len(probabilities)))
    guesses = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return Depth(
        block=block,
        guesses=tuple(Guess(token, probability) for token, probability in guesses),
        rank=None if target is None else 1 + int((logits > logits[target]).sum()),
        probability=None if target is None else float(probabilities[target]),
    )


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """While inside, dropout is off."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _cosine(x: Tensor, y: Tensor) -> float | None:
    """None where one of them is zero."""
    lengths = _norm(x) * _norm(y)
    return float(x @ y) / lengths if lengths > 0 and math.isfinite(lengths) else None
