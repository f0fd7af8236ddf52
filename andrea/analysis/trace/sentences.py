"""A traced token in words; what they are made from is the plain data that `andrea trace --json`
prints.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from andrea.text.numbers import NOTHING, absent, listing

NEAR = 0.1
"""A branch below this share of the stream leaves it nearly as it was."""
NAMES = {"attn": "attention", "mlp": "MLP", "block": "block"}
SUBJECTS = {"attn": "attention makes", "mlp": "the MLPs", "block": "the blocks make"}
MOVES, REMOVES = "norm moves", "removes"
"""What else may happen to the stream: a norm stands on it, or a branch replaces it."""

Traced = Mapping[str, Any]
Row = Mapping[str, Any]


def name(step: Row) -> str:
    """`block 3 MLP`."""
    return f"block {step['block']}" + (
        "" if step["sublayer"] == "block" else f" {NAMES[step['sublayer']]}"
    )


def relative(step: Row) -> float | None:
    """Norm of the branch over that of the stream that it started from."""
    return step["added"] / step["source"] if step["source"] else None


def sentence(traced: Traced) -> str:
    """Where the work is done, or, of a fresh model, how near to the identity its blocks start."""
    steps, model = traced["steps"], traced["model"]
    if not any(step["change"] for step in steps):
        return "No branch changes the stream: every block is the identity."
    if model["config"]["residual"] == "off":
        return (
            "There is no residual stream: every branch replaces what was there, and at the end the "
            "cosine with the "
            f"embedding is {cosine(traced['carried'])}."
        )
    return _fresh(steps) if model["fresh"] else _trained(steps)


def _fresh(steps: Sequence[Row]) -> str:
    shares = {name(step): relative(step) or 0.0 for step in steps}
    most = max(shares, key=lambda one: shares[one])
    changes = [step["change"] / step["before"] for step in steps if step["before"]]
    told = f"Every branch adds less than {_above(shares[most])} of the stream"
    if shares[most] >= NEAR:
        told = (
            f"The blocks do not start as the identity: a branch adds {part(min(shares.values()))} "
            "to "
            f"{part(shares[most])} of the stream, half of them less than "
            f"{part(median(shares.values()))}, "
            f"the most {most}"
        )
    elif max(changes, default=0.0) < NEAR:
        return f"{told}: the blocks start near the identity."
    moved = (
        f"; the norms on the stream make {part(_sum(steps, 'moved_share'))} of its way"
        if _moved(steps)
        else ""
    )
    return f"{told}{moved}."


def _trained(steps: Sequence[Row]) -> str:
    kinds = dict.fromkeys(step["sublayer"] for step in steps)
    parts = [
        f"{SUBJECTS[kind]} {part(_sum([s for s in steps if s['sublayer'] == kind], 'share'))}"
        for kind in kinds
    ]
    parts += [f"norms on the stream {part(_sum(steps, 'moved_share'))}"] if _moved(steps) else []
    best = sorted(steps, key=lambda step: -(step["share"] or 0.0))[:3]
    most = listing([f"{name(step)} ({part(step['share'])})" for step in best])
    return (
        f"Of the way from the embedding to the last stream {listing(parts)}; the largest parts are "
        f"{most}."
    )


def _sum(steps: Sequence[Row], key: str) -> float:
    return float(sum(step[key] or 0.0 for step in steps))


def _moved(steps: Sequence[Row]) -> bool:
    """Whether anything but branches changes the stream."""
    return any(step["moved"] for step in steps)


def _above(share: float) -> str:
    """The next whole per cent above a share."""
    return f"{int(share * 100) + 1}\N{NO-BREAK SPACE}%"


def notes(traced: Traced) -> list[str]:
    """What a reader of the numbers must know about this model."""
    cfg, steps = traced["model"]["config"], traced["steps"]
    said = list(traced["notes"])
    if any(step["source"] != step["before"] for step in steps):
        said.append(
            "Attention and MLP read the same stream, the block's input; cosines are with it."
        )
    if cfg["residual"] == "off":
        said.append(
            "Without residual connections a branch replaces the stream; what it removes is told "
            "beside it."
        )
    elif _moved(steps):
        standing = (
            "A weight and a norm stand" if cfg["norm_placement"] == "deepnorm" else "A norm stands"
        )
        said.append(
            f"{standing} on the stream itself: how far that moves it is told beside every branch."
        )
    if traced["lens"] and traced["normed"] is None:
        said.append("There is no final norm: the logit lens reads the stream as it is.")
    return said


def cosine(value: Any) -> str:
    """A cosine with its sign: `+0.12`."""
    return NOTHING if absent(value) else f"{value:+.2f}".replace("-", "−")


def part(value: Any) -> str:
    """A share as a percentage with one decimal: `12.3 %`; shares of less than a tenth per cent as
    `< 0.1 %`.
    """
    if absent(value):
        return NOTHING
    per_cent = 100 * float(value)
    if 0 < abs(per_cent) < 0.05:
        return "<\N{NO-BREAK SPACE}0.1\N{NO-BREAK SPACE}%"
    digits = 0 if abs(per_cent) >= 100 else 1
    return f"{per_cent:,.{digits}f}\N{NO-BREAK SPACE}%".replace("-", "−")


def moves(traced: Traced) -> str:
    """What the column of `moved` is called; empty where nothing but branches changes the stream."""
    if not _moved(traced["steps"]):
        return ""
    return REMOVES if traced["model"]["config"]["residual"] == "off" else MOVES


def place(traced: Traced) -> str:
    """Which token it is: `12 (0 to 12)`."""
    last = len(traced["tokens"]) - 1
    return f"{traced['position']} (0 to {last})" if last else "0 (the only one)"


def legend(traced: Traced, share: str = "of stream") -> str:
    """What the columns are; `share` is what that of `relative` is called."""
    said = (
        f"reads, adds: norms of what a sublayer gets and gives; {share}: adds over stream; cosine: "
        "of the two"
    )
    if traced["model"]["config"]["residual"] == "off":
        return f"{said}."
    norms = ", with what the norms move" if _moved(traced["steps"]) else ""
    return (
        f"{said}; of the way: part of the way from the first stream to the last; the parts sum to "
        f"100\N{NO-BREAK SPACE}%{norms}."
    )


def quoted(token: Row) -> str:
    """A token as it can be read: `" the"`, `"\\n"`; `#195`, its number, where its bytes are no text
    by themselves.
    """
    return f"#{token['id']}" if token["text"] is None else f'"{visible(token["text"])}"'


def visible(text: str) -> str:
    """A text on one line: what cannot be seen is written as an escape."""
    whole = text.replace("\\", "\\\\")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole)


def depth(block: int) -> str:
    """A row of the logit lens."""
    return f"block {block}" if block else "embedding"
