"""How a run ended, from its numbers alone. Torch-free."""

import math
from dataclasses import dataclass

STALL_SHARE = 0.99
"""A final loss of at least this share of the unigram loss: hardly more was learned than how
frequent tokens are.
"""


@dataclass(frozen=True)
class Outcome:
    """`completed` or `diverged`, the flag of a completed run that learned nothing, and the reason
    in words.
    """

    outcome: str
    stalled: bool = False
    reason: str | None = None


def finite(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite: JSON knows neither."""
    return value if value is not None and math.isfinite(value) else None


def outcome(
    initial_loss: float,
    train_loss: float,
    final_loss: float,
    unigram_loss: float,
    broken_at: int | None,
) -> Outcome:
    """Tell a completed run from a diverged one.

    Args:
        initial_loss: on the evaluated tokens, before the first step.
        train_loss: mean over the last tenth of the steps. A spike that recovers does not show in
            it.
        final_loss: on the evaluated tokens, after the last step.
        unigram_loss: of the training tokens' unigram distribution on the evaluated tokens.
        broken_at: steps done when a loss or a gradient was found not to be finite.
    """
    if broken_at is not None:
        return Outcome(
            "diverged", reason=f"the loss or a gradient was not finite at step {broken_at}"
        )
    if not math.isfinite(final_loss):
        return Outcome("diverged", reason="the final loss is not finite")
    if not train_loss <= initial_loss:
        return Outcome(
            "diverged",
            reason=f"mean training loss of the last tenth {train_loss:.4f}, above the initial loss "
            f"{initial_loss:.4f}",
        )
    if final_loss >= STALL_SHARE * unigram_loss:
        return Outcome(
            "completed",
            stalled=True,
            reason=f"stalled: final loss {final_loss:.4f}, not {100 * (1 - STALL_SHARE):g} % below "
            "what the token "
            f"frequencies alone give, {unigram_loss:.4f}",
        )
    return Outcome("completed")
