"""Tokens saved: an effect in nats converted into tokens of the baseline, by rulers that were
trained.

The *ruler* is the baseline trained on half (or double) the tokens, with a schedule of its own that
ends there. With T the tokens of the study, L(t) the baseline's final loss at a budget t and d = arm
− baseline at T,

    ρ = d / (L(T/2) − L(T))   where the arm is worse,
    ρ = d / (L(T) − L(2T))    where it is better,

is the effect in halvings of the budget: the loss is taken to be linear in log t between two
neighbouring budgets. The
baseline has the arm's loss at t = T · 2^−ρ tokens, and what is printed is the share of them that
the arm saves, 1 − T/t = 1 − 2^ρ: 0.2 is "the baseline needs T / (1 − 0.2) tokens for it", −0.3 "the
arm takes 30 % more tokens than the baseline for the same loss".

The interval is the set of budgets at which the paired t test does not tell arm and baseline apart:
Fieller's (1954), for a ratio of two paired means, exact where differences and rulers are normal.
docs/method.md, *Tokens saved*.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from andrea.verdict import paired


@dataclass(frozen=True)
class TokensSaved:
    """What an effect is worth in tokens. Where it cannot be said, `saved` is None and `reason` says
    why.
    """

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
    """Tokens at which the baseline has the arm's loss, where the study's were told."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = asdict(self)
        values["interval"] = list(self.interval) if self.interval else None
        return values


def convert_to_tokens(
    differences: Mapping[int, float],
    half: Mapping[int, float],
    double: Mapping[int, float] | None,
    alpha: float,
    *,
    budget: int | None = None,
) -> TokensSaved:
    """Convert an effect into tokens, or refuse.

    Refused: pairs that are not whole (a ruler lacks a seed, or a value is not finite), fewer than
        two, a ruler that
    is not significantly there (its Fieller set is unbounded: any ratio would do), and an effect, or
    an end of its interval, beyond the budgets that were trained.

    Args:
        differences: arm − baseline at T in nats, by seed: every planned pair.
        half: ruler − baseline in nats by seed, of the baseline trained on T/2: above 0 as it should
            be.
        double: the same of the baseline trained on 2T, below 0; None where it was not trained.
        alpha: 1 − level of the interval: the study's alpha / k for intervals that hold together.
        budget: T in tokens, for `TokensSaved.tokens`.
    """
    n, level = len(differences), 1 - alpha
    if why := _not_whole(differences, half, double):
        return TokensSaved(None, None, level, n, why)
    seeds = sorted(differences)
    d, worse = [differences[seed] for seed in seeds], [half[seed] for seed in seeds]
    better = None if double is None else [-double[seed] for seed in seeds]
    found = _halvings(d, worse, better, alpha)
    if isinstance(found, str):
        return TokensSaved(None, None, level, n, found)
    estimate, first, last = found
    tokens = None if budget is None else round(budget * 2**-estimate)
    return TokensSaved(_share(estimate), (_share(last), _share(first)), level, n, "", tokens)


def _halvings(
    d: Sequence[float], worse: Sequence[float], better: Sequence[float] | None, alpha: float
) -> tuple[float, float, float] | str:
    """ρ and its interval, or why there is none.

    The two rulers meet at ρ = 0, where both ask whether d is 0: an interval that reaches across it
    has one end on each.
    """
    mean, (low, high) = float(np.mean(d)), paired.t_interval(d, alpha)
    sure = f"a level of {100 * (1 - alpha):.4g} %"
    ends: list[float] = []
    if high >= 0:
        if not _there(worse, alpha):
            return f"half the tokens do not cost the baseline a loss that these pairs see at {sure}"
        ends += [end for end in _fieller(d, worse, alpha) if end >= 0 or low >= 0]
    if low < 0:
        if better is None:
            what = (
                "the arm is better"
                if mean < 0
                else "the interval reaches to where the arm is better"
            )
            return f"{what}, and no baseline was trained on double the tokens to tell by how many"
        if not _there(better, alpha):
            return (
                f"double the tokens do not gain the baseline a loss that these pairs see at {sure}"
            )
        ends += [end for end in _fieller(d, better, alpha) if end <= 0 or high < 0]
    estimate = mean / float(np.mean(better if mean < 0 and better else worse))
    return _outside(estimate, min(ends), max(ends)) or (estimate, min(ends), max(ends))


def _share(halvings: float) -> float:
    """1 − 2^ρ; 0 rather than −0."""
    return -math.expm1(halvings * math.log(2)) + 0.0


def _not_whole(*rulers: Mapping[int, float] | None) -> str:
    """Why these pairs give no ratio; empty where they do."""
    differences, *others = rulers
    assert differences is not None
    if len(differences) < 2:
        return "fewer than two pairs"
    for ruler, what in zip(others, ("half", "double"), strict=True):
        if ruler is not None and ruler.keys() != differences.keys():
            common = len(ruler.keys() & differences.keys())
            return f"the baseline on {what} the tokens has {common} of the {len(differences)} seeds"
    if not all(
        math.isfinite(value) for ruler in rulers if ruler is not None for value in ruler.values()
    ):
        return "a loss is not finite"
    return ""


def _there(ruler: Sequence[float], alpha: float) -> bool:
    """Whether more tokens lower the baseline's loss, as far as the pairs can tell: then Fieller's
    set is bounded.
    """
    return float(np.mean(ruler)) > 0 and paired.t_test_p(ruler) < alpha


def _fieller(d: Sequence[float], ruler: Sequence[float], alpha: float) -> tuple[float, float]:
    """Fieller's interval of mean(d) / mean(ruler): every ρ for which d − ρ · ruler has a mean that
    may be 0.

    (d̄ − ρ r̄)² ≤ t² (s_dd − 2ρ s_dr + ρ² s_rr) / n is a quadratic in ρ, between whose roots it
    holds where the ruler is there (r̄² > t² s_rr / n).
    """
    n = len(d)
    (s_dd, s_dr), (_, s_rr) = np.cov(np.array([d, ruler])) * paired.critical_t(n, alpha) ** 2 / n
    mean_d, mean_r = float(np.mean(d)), float(np.mean(ruler))
    a, b, c = mean_r**2 - s_rr, mean_d * mean_r - s_dr, mean_d**2 - s_dd
    root = math.sqrt(max(0.0, b * b - a * c))  # below 0 by rounding alone, where nothing scatters
    return float((b - root) / a), float((b + root) / a)


def _outside(estimate: float, first: float, last: float) -> str:
    """Why the effect cannot be read off rulers that reach one halving either way; empty where it
    can.
    """
    if estimate > 1:
        return f"{'' if first > 1 else 'as measured, '}the arm is worse than the baseline on half the tokens"
    if estimate < -1:
        return f"{'' if last < -1 else 'as measured, '}the arm is better than the baseline on double the tokens"
    if last > 1:
        told = f"; {_bound(_share(first), 'most')}" if first >= -1 else ""
        return f"the interval reaches beyond the baseline on half the tokens{told}"
    if first < -1:
        return f"the interval reaches beyond the baseline on double the tokens; {_bound(_share(last), 'least')}"
    return ""


def _bound(share: float, of: Literal["most", "least"]) -> str:
    """The end of an interval that is known, in words: what saves at most a negative share takes at
    least that more.
    """
    if share >= 0:
        return f"the arm saves at {of} {share:.0%} of the tokens"
    return f"the arm takes at {'least' if of == 'most' else 'most'} {-share:.0%} more tokens"
