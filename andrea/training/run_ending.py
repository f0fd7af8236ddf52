"""The ending of a run, completed or diverged, from its numbers alone. Torch-free."""

import math
from dataclasses import dataclass
from typing import Literal

STALL_SHARE = 0.99
"""A completed run is stalled if its final loss is at least this share of the unigram loss: it has
learned hardly more than the frequencies of tokens.
"""


@dataclass(frozen=True)
class RunEnding:
    """The outcome of a run and its reason."""

    outcome: Literal["completed", "diverged"]
    stalled: bool = False
    """Completed, but nothing was learned."""
    reason: str | None = None
    """In words; None where the run plainly completed."""


def finite_or_none(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite: JSON knows neither."""
    return value if value is not None and math.isfinite(value) else None


def ending_of(
    *,
    initial_loss: float,
    train_loss: float,
    final_loss: float,
    unigram_loss: float,
    broken_at: int | None,
) -> RunEnding:
    """Tell a completed run from a diverged one.

    Args:
        initial_loss: on the evaluated tokens, before the first step.
        train_loss: mean over the last tenth of the steps, so that a spike from which the run
            recovers does not count.
        final_loss: on the evaluated tokens, after the last step.
        unigram_loss: of the train part's token frequencies, on the evaluated tokens.
        broken_at: steps done when a loss or a gradient was found not to be finite.
    """
    if broken_at is not None:
        reason = f"the loss or a gradient was not finite at step {broken_at}"
        return RunEnding("diverged", reason=reason)
    if not math.isfinite(final_loss):
        return RunEnding("diverged", reason="the final loss is not finite")
    # Not `>`: a training loss that is NaN diverged too.
    if not train_loss <= initial_loss:
        return RunEnding(
            "diverged",
            reason=f"mean training loss of the last tenth {train_loss:.4f}, above the initial loss "
            f"{initial_loss:.4f}",
        )
    if final_loss >= STALL_SHARE * unigram_loss:
        return RunEnding(
            "completed",
            stalled=True,
            reason=f"stalled: final loss {final_loss:.4f}, not {100 * (1 - STALL_SHARE):g} % below "
            f"what the token frequencies alone give, {unigram_loss:.4f}",
        )
    return RunEnding("completed")
