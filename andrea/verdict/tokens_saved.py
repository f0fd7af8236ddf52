"""Tokens saved: an effect in nats converted into tokens of the baseline, by positive controls.

A positive control is the baseline trained on half (or double) the tokens, with a schedule of its
own that ends there. With T the tokens of the study, L(t) the baseline's final loss at a budget t
and d = arm − baseline at T,

    ρ = d / (L(T/2) − L(T))   where the arm is worse,
    ρ = d / (L(T) − L(2T))    where it is better,

is the effect in halvings of the budget: the loss is taken to be linear in log t between two
neighbouring budgets. The baseline has the arm's loss at t = T · 2^−ρ tokens, and what is printed is
the share of them that the arm saves, 1 − T/t = 1 − 2^ρ: 0.2 is "the baseline needs T / (1 − 0.2)
tokens for it", −0.3 "the arm takes 30 % more tokens than the baseline for the same loss".

The interval is the set of budgets at which the paired t test does not tell arm and baseline apart:
that of Fieller (1954) for a ratio of two paired means, exact where all differences are normal.
docs/method.md, *Tokens saved*.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from andrea.verdict import paired


@dataclass(frozen=True)
class TokensSaved:
    """An effect in tokens; where it cannot be converted, `saved` is None and `reason` says why."""

    saved: float | None
    """Share of the baseline's tokens that the arm saves, 1 − 2^ρ, from −1 to 0.5; negative: it
    costs.
    """
    interval: tuple[float, float] | None
    level: float
    """Level of `interval`: 1 − alpha."""
    n: int
    """Pairs."""
    reason: str = ""
    tokens: int | None = None
    """Tokens at which the baseline has the arm's loss, if the budget of the study was passed."""


class _Halvings(NamedTuple):
    """ρ and its interval."""

    estimate: float
    low: float
    high: float


class _Refused(Exception):
    """An effect that has no answer in tokens; the message is the reason."""


def convert_to_tokens(
    differences: Mapping[int, float],
    half: Mapping[int, float],
    double: Mapping[int, float] | None,
    alpha: float,
    *,
    budget: int | None = None,
) -> TokensSaved:
    """Convert an effect into tokens, or refuse.

    Refused: pairs that are not complete (a control lacks a seed, or a value is not finite), fewer
    than two; a control that is not significantly different from the baseline (its Fieller set is
    unbounded: any ratio would do); an effect, or an end of its interval, beyond the budgets that
    were trained.

    Args:
        differences: arm − baseline at T in nats, by seed: every planned pair.
        half: the baseline trained on T/2 − baseline, in nats by seed, above 0 as it should be.
        double: the baseline trained on 2T − baseline, below 0; None where it was not trained.
        alpha: 1 − level of the interval: the study's alpha / k for intervals that hold together.
        budget: T in tokens, for `TokensSaved.tokens`.
    """
    n, level = len(differences), 1 - alpha
    seeds = sorted(differences)
    try:
        _require_complete_pairs(differences, half, double)
        cost_of_half = [half[seed] for seed in seeds]
        gain_of_double = None if double is None else [-double[seed] for seed in seeds]
        effect = [differences[seed] for seed in seeds]
        halvings = _count_halvings(effect, cost_of_half, gain_of_double, alpha)
    except _Refused as refused:
        return TokensSaved(None, None, level, n, str(refused))
    # The share falls as ρ rises, so the ends change places.
    interval = (_share_saved(halvings.high), _share_saved(halvings.low))
    tokens = None if budget is None else round(budget * 2**-halvings.estimate)
    return TokensSaved(_share_saved(halvings.estimate), interval, level, n, "", tokens)


def _require_complete_pairs(
    differences: Mapping[int, float], half: Mapping[int, float], double: Mapping[int, float] | None
) -> None:
    if len(differences) < 2:
        raise _Refused("fewer than two pairs")
    controls = {"half": half} if double is None else {"half": half, "double": double}
    for factor, control in controls.items():
        if control.keys() != differences.keys():
            common = len(control.keys() & differences.keys())
            raise _Refused(
                f"the baseline on {factor} the tokens has {common} of the {len(differences)} seeds"
            )
    samples = (differences, *controls.values())
    if not all(math.isfinite(value) for sample in samples for value in sample.values()):
        raise _Refused("a loss is not finite")


def _count_halvings(
    effect: Sequence[float],
    cost_of_half: Sequence[float],
    gain_of_double: Sequence[float] | None,
    alpha: float,
) -> _Halvings:
    """Return ρ and its interval.

    The two controls meet at ρ = 0, where both ask whether the effect is 0: an interval that reaches
    across it has one end on each.
    """
    mean, (low, high) = float(np.mean(effect)), paired.t_interval(effect, alpha)
    ends: list[float] = []
    if high >= 0:
        _require_seen(cost_of_half, alpha, "half the tokens do not cost the baseline")
        interval = _fieller_interval(effect, cost_of_half, alpha)
        ends += [end for end in interval if end >= 0 or low >= 0]
    if low < 0:
        if gain_of_double is None:
            arm_better = "the arm is better"
            reach = arm_better if mean < 0 else f"the interval reaches to where {arm_better}"
            raise _Refused(
                f"{reach}, and no baseline was trained on double the tokens to tell by how many"
            )
        _require_seen(gain_of_double, alpha, "double the tokens do not gain the baseline")
        interval = _fieller_interval(effect, gain_of_double, alpha)
        ends += [end for end in interval if end <= 0 or high < 0]
    reference = gain_of_double if mean < 0 and gain_of_double else cost_of_half
    halvings = _Halvings(mean / float(np.mean(reference)), min(ends), max(ends))
    _require_trained_budgets(halvings)
    return halvings


def _share_saved(halvings: float) -> float:
    """Return 1 − 2^ρ; 0 rather than −0."""
    return -math.expm1(halvings * math.log(2)) + 0.0


def _require_seen(control: Sequence[float], alpha: float, unseen: str) -> None:
    """Refuse a control unless the pairs see that more tokens lower the loss: Fieller's set is
    bounded then.
    """
    if not (float(np.mean(control)) > 0 and paired.t_test_p(control) < alpha):
        level = f"a level of {100 * (1 - alpha):.4g} %"
        raise _Refused(f"{unseen} a loss that these pairs see at {level}")


def _fieller_interval(
    effect: Sequence[float], control: Sequence[float], alpha: float
) -> tuple[float, float]:
    """Return Fieller's interval of d̄ / r̄: every ρ for which d − ρ r has a mean that may be 0.

    (d̄ − ρ r̄)² ≤ t² (s_dd − 2ρ s_dr + ρ² s_rr) / n is a quadratic in ρ, between whose roots it
    holds where the control is seen (r̄² > t² s_rr / n).
    """
    n = len(effect)
    covariance = np.cov(np.array([effect, control])) * paired.critical_t(n, alpha) ** 2 / n
    (s_dd, s_dr), (_, s_rr) = covariance
    mean_d, mean_r = float(np.mean(effect)), float(np.mean(control))
    a, b, c = mean_r**2 - s_rr, mean_d * mean_r - s_dr, mean_d**2 - s_dd
    # Below 0 by rounding alone, where nothing scatters.
    root = math.sqrt(max(0.0, b * b - a * c))
    return float((b - root) / a), float((b + root) / a)


def _require_trained_budgets(halvings: _Halvings) -> None:
    """Refuse an effect that lies beyond one halving either way."""
    estimate, low, high = halvings
    if estimate > 1:
        hedge = "" if low > 1 else "as measured, "
        raise _Refused(f"{hedge}the arm is worse than the baseline on half the tokens")
    if estimate < -1:
        hedge = "" if high < -1 else "as measured, "
        raise _Refused(f"{hedge}the arm is better than the baseline on double the tokens")
    if high > 1:
        bound = f"; {_describe_bound(_share_saved(low), 'most')}" if low >= -1 else ""
        raise _Refused(f"the interval reaches beyond the baseline on half the tokens{bound}")
    if low < -1:
        bound = _describe_bound(_share_saved(high), "least")
        raise _Refused(f"the interval reaches beyond the baseline on double the tokens; {bound}")


def _describe_bound(share: float, end: Literal["most", "least"]) -> str:
    """Return the end of an interval that is known, in words."""
    if share >= 0:
        return f"the arm saves at {end} {share:.0%} of the tokens"
    # What saves at most a negative share takes at least that many more.
    other_end = "least" if end == "most" else "most"
    return f"the arm takes at {other_end} {-share:.0%} more tokens"
