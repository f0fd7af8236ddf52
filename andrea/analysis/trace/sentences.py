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
"""Titles of what else may happen to the stream: a norm stands on it, or a branch replaces it."""

Traced = Mapping[str, Any]
Row = Mapping[str, Any]


def step_name(step: Row) -> str:
    """Return `block 3 MLP`."""
    return f"block {step['block']}" + (
        "" if step["sublayer"] == "block" else f" {NAMES[step['sublayer']]}"
    )


def relative_norm(step: Row) -> float | None:
    """Return the norm of the branch over that of the stream that it started from."""
    return step["added"] / step["source"] if step["source"] else None


def summarize_trace(traced: Traced) -> str:
    """Return a sentence on the parts that do the work, or, of a fresh model, on the distance of its
    blocks from the identity.
    """
    steps, model = traced["steps"], traced["model"]
    if not any(step["change"] for step in steps):
        return "No branch changes the stream: every block is the identity."
    if model["config"]["residual"] == "off":
        return (
            "There is no residual stream: every branch replaces what was there, and at the end the "
            f"cosine with the embedding is {format_cosine(traced['carried'])}."
        )
    return _summarize_fresh(steps) if model["fresh"] else _summarize_trained(steps)


def _summarize_fresh(steps: Sequence[Row]) -> str:
    shares = {step_name(step): relative_norm(step) or 0.0 for step in steps}
    most = max(shares, key=lambda one: shares[one])
    changes = [step["change"] / step["before"] for step in steps if step["before"]]
    summary = f"Every branch adds less than {_next_percent(shares[most])} of the stream"
    if shares[most] >= NEAR:
        sizes = (min(shares.values()), shares[most], median(shares.values()))
        least, largest, middle = map(format_share, sizes)
        summary = (
            f"The blocks do not start as the identity: a branch adds {least} to {largest} of the "
            f"stream, half of them less than {middle}, the most {most}"
        )
    elif max(changes, default=0.0) < NEAR:
        return f"{summary}: the blocks start near the identity."
    if _norms_move_stream(steps):
        share = format_share(_total(steps, "moved_share"))
        summary += f"; the norms on the stream make {share} of its way"
    return f"{summary}."


def _summarize_trained(steps: Sequence[Row]) -> str:
    parts = []
    for kind in dict.fromkeys(step["sublayer"] for step in steps):
        of_kind = [step for step in steps if step["sublayer"] == kind]
        parts.append(f"{SUBJECTS[kind]} {format_share(_total(of_kind, 'share'))}")
    if _norms_move_stream(steps):
        parts.append(f"norms on the stream {format_share(_total(steps, 'moved_share'))}")
    best = sorted(steps, key=lambda step: -(step["share"] or 0.0))[:3]
    most = listing([f"{step_name(step)} ({format_share(step['share'])})" for step in best])
    return (
        f"Of the way from the embedding to the last stream {listing(parts)}; the largest parts are "
        f"{most}."
    )


def _total(steps: Sequence[Row], key: str) -> float:
    return float(sum(step[key] or 0.0 for step in steps))


def _norms_move_stream(steps: Sequence[Row]) -> bool:
    """Return whether anything but branches changes the stream."""
    return any(step["moved"] for step in steps)


def _next_percent(share: float) -> str:
    """Return the next whole per cent above a share."""
    return f"{int(share * 100) + 1}\N{NO-BREAK SPACE}%"


def trace_notes(traced: Traced) -> list[str]:
    """Return remarks on this model without which its numbers mislead."""
    cfg, steps = traced["model"]["config"], traced["steps"]
    remarks = list(traced["notes"])
    if any(step["source"] != step["before"] for step in steps):
        remarks.append(
            "Attention and MLP read the same stream, the block's input; cosines are with it."
        )
    if cfg["residual"] == "off":
        remarks.append(
            "Without residual connections a branch replaces the stream; what it removes is told "
            "beside it."
        )
    elif _norms_move_stream(steps):
        standing = (
            "A weight and a norm stand" if cfg["norm_placement"] == "deepnorm" else "A norm stands"
        )
        remarks.append(
            f"{standing} on the stream itself: how far that moves it is told beside every branch."
        )
    if traced["lens"] and traced["normed"] is None:
        remarks.append("There is no final norm: the logit lens reads the stream as it is.")
    return remarks


def format_cosine(value: Any) -> str:
    """Return a cosine with its sign: `+0.12`."""
    return NOTHING if absent(value) else f"{value:+.2f}".replace("-", "−")


def format_share(value: Any) -> str:
    """Return a share as a percentage with one decimal: `12.3 %`; shares of less than a tenth per
    cent as `< 0.1 %`.
    """
    if absent(value):
        return NOTHING
    per_cent = 100 * float(value)
    if 0 < abs(per_cent) < 0.05:
        return "<\N{NO-BREAK SPACE}0.1\N{NO-BREAK SPACE}%"
    digits = 0 if abs(per_cent) >= 100 else 1
    return f"{per_cent:,.{digits}f}\N{NO-BREAK SPACE}%".replace("-", "−")


def movement_title(traced: Traced) -> str:
    """Return the title of the column of `moved`; empty where nothing but branches changes the
    stream.
    """
    if not _norms_move_stream(traced["steps"]):
        return ""
    return REMOVES if traced["model"]["config"]["residual"] == "off" else MOVES


def position_words(traced: Traced) -> str:
    """Return the place of the token: `12 (0 to 12)`."""
    last = len(traced["tokens"]) - 1
    return f"{traced['position']} (0 to {last})" if last else "0 (the only one)"


def column_legend(traced: Traced, share: str = "of stream") -> str:
    """Return the meaning of the columns; `share` is the title of that of `relative_norm`."""
    meanings = (
        f"reads, adds: norms of what a sublayer gets and gives; {share}: adds over stream; cosine: "
        "of the two"
    )
    if traced["model"]["config"]["residual"] == "off":
        return f"{meanings}."
    norms = ", with what the norms move" if _norms_move_stream(traced["steps"]) else ""
    return (
        f"{meanings}; of the way: part of the way from the first stream to the last; the parts sum "
        "to "
        f"100\N{NO-BREAK SPACE}%{norms}."
    )


def quote_token(token: Row) -> str:
    """Return a token as it can be read: `" the"`, `"\\n"`; `#195`, its number, where its bytes are
    no text by themselves.
    """
    return f"#{token['id']}" if token["text"] is None else f'"{escape_unprintable(token["text"])}"'


def escape_unprintable(text: str) -> str:
    """Return a text on one line, its unprintable signs as escapes."""
    whole = text.replace("\\", "\\\\")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole)


def depth_title(block: int) -> str:
    """Return the title of a row of the logit lens."""
    return f"block {block}" if block else "embedding"
