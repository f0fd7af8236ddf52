"""One token on its way through a model: the input of every sublayer, what it added, and the stream
after it.

Hooks record while the model's own blocks run, dropout off; norms and cosines are taken in float64.

trace(model, tokens, position=5).steps[0].added
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from andrea.model.gpt import GPT, evaluation_mode
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
    """Of the token's embedding, scaled as the model scales it."""
    position: float | None
    """Of what is added for its position; None where positions enter elsewhere, or nowhere."""
    after: float
    """The stream that the first block reads, after any embedding norm."""


@dataclass(frozen=True)
class Step:
    """Effect of one sublayer on the stream: `after = before + added + moved`, as vectors."""

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
    """The head's prediction from the stream at one depth (nostalgebraist 2020, the logit lens)."""

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
    target = int(tokens[position + 1]) if position + 1 < len(tokens) else None
    with evaluation_mode(model), torch.no_grad():
        start, x_BTC = _embed(model, tokens, position)
        streams = [x_BTC]
        moments: list[tuple[int, _Moment]] = []
        for index, block in enumerate(model.blocks):
            in_block, x_BTC = _run_block(block, x_BTC, position)
            moments += [(index + 1, moment) for moment in in_block]
            streams.append(x_BTC)
        lens = []
        for depth, stream_BTC in enumerate(streams):
            at_position = stream_BTC[:, position : position + 1]
            lens.append(_read_lens(model, depth, at_position, target, top))
        normed = None
        if model.config.has_final_norm:
            normed = _norm(_at(model.final_norm(x_BTC), position))
    first, last = _at(streams[0], position), _at(streams[-1], position)
    return Trace(
        position=position,
        token=int(tokens[position]),
        target=target,
        start=start,
        steps=tuple(_step(block, moment, last - first) for block, moment in moments),
        stream=_norm(last),
        normed=normed,
        carried=_cosine(first, last),
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


def _at(x_BTC: Tensor, position: int) -> Tensor:
    """The vector [C] of one position, in float64: norms and shares of small changes need it."""
    return x_BTC[0, position].double()


def _embed(model: GPT, tokens: Tensor, position: int) -> tuple[Start, Tensor]:
    """The embedding's numbers, and the stream [1, T, C] that the first block reads."""
    x_BTC = model.embed(tokens[None])
    token = model.token_embedding(tokens[position]).double() * model.config.token_scale
    position_norm = None
    if model.position_embedding is not None:
        positions_TC = model.position_embedding(len(tokens))
        position_norm = _norm(positions_TC[position].double())
    return Start(_norm(token), position_norm, _norm(_at(x_BTC, position))), x_BTC


def _run_block(block: Any, x_BTC: Tensor, position: int) -> tuple[list[_Moment], Tensor]:
    """Run a block: the vectors of its sublayers, and the stream after it."""
    with _recording(block) as recorded:
        if hasattr(block, "stages"):
            middle_BTC, y_BTC = block.stages(x_BTC)
        else:  # a user's own block may have no more than a forward
            middle_BTC, y_BTC = None, block(x_BTC)
    vectors = {name: _at(tensor, position) for name, tensor in recorded.items()}
    x, y = _at(x_BTC, position), _at(y_BTC, position)
    if middle_BTC is None:
        return [_Moment("block", before=x, source=x, read=None, added=y - x, after=y)], y_BTC
    middle = _at(middle_BTC, position)
    # A branch that did not pass a join was added as it is.
    from_attn = vectors.get("join1", middle - x)
    from_mlp = vectors.get("join2", y - middle)
    mlp_source = x if isinstance(block, ParallelBlock) else middle
    attn = _Moment("attn", x, x, vectors.get("attn"), from_attn, middle)
    mlp = _Moment("mlp", middle, mlp_source, vectors.get("mlp"), from_mlp, y)
    return [attn, mlp], y_BTC


@contextmanager
def _recording(block: Any) -> Iterator[dict[str, Tensor]]:
    """While inside, record the inputs of the sublayers and what the joins add to the stream."""
    recorded: dict[str, Tensor] = {}

    def record_input(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        recorded[name] = inputs[0]

    def record_branch(
        name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        stream, branch = inputs
        # A join of a user's own says nothing of the branch alone.
        recorded[name] = module.scale(branch) if isinstance(module, Join) else output - stream

    with ExitStack() as hooks:
        for name, part in block.named_children():
            if name in ("attn", "mlp"):
                hooks.enter_context(part.register_forward_pre_hook(partial(record_input, name)))
            elif name in ("join1", "join2"):
                hooks.enter_context(part.register_forward_hook(partial(record_branch, name)))
        yield recorded


def _step(block: int, moment: _Moment, way: Tensor) -> Step:
    """The numbers of a moment; `way` is the whole model's last stream minus its first."""
    change = moment.after - moment.before
    rest = change - moment.added
    rounding = ROUNDING * (_norm(moment.before) + _norm(moment.added))
    moved = _norm(rest)
    way_squared = float(way @ way)
    return Step(
        block=block,
        sublayer=moment.sublayer,
        before=_norm(moment.before),
        source=_norm(moment.source),
        read=None if moment.read is None else _norm(moment.read),
        added=_norm(moment.added),
        cosine=_cosine(moment.source, moment.added),
        moved=0.0 if moved <= rounding else moved,
        change=_norm(change),
        after=_norm(moment.after),
        share=float(moment.added @ way) / way_squared if way_squared else None,
        moved_share=float(rest @ way) / way_squared if way_squared else None,
    )


def _read_lens(model: GPT, block: int, x_BTC: Tensor, target: int | None, top: int) -> Depth:
    """The head's prediction from the stream [1, 1, C] of one position."""
    logits = model.unembed(x_BTC)[0, 0].double()
    probabilities = logits.softmax(-1)
    best = probabilities.topk(min(top, len(probabilities)))
    guesses = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    rank = probability = None
    if target is not None:
        rank = 1 + int((logits > logits[target]).sum())
        probability = float(probabilities[target])
    return Depth(block, tuple(Guess(*guess) for guess in guesses), rank, probability)


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _cosine(x: Tensor, y: Tensor) -> float | None:
    """None where one of them is zero."""
    lengths = _norm(x) * _norm(y)
    return float(x @ y) / lengths if lengths > 0 and math.isfinite(lengths) else None
