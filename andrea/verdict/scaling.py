"""Growth of an effect with the size of the model: a line in log10 of the parameters, with an
interval.

One ablation at several sizes has an effect at each, a sample of paired differences by seed. The
slope of the least-squares line through their means is a weighted sum of them, Σ c_i d̄_i with
c_i = (x_i − x̄) / Σ (x − x̄)². docs/method.md, *Several sizes*.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import scipy  # its parts load when they are used: most commands judge nothing
from numpy.typing import NDArray

from andrea.verdict import paired

Word = Literal["grows", "fades", "reverses", "moves", "neither", "uncertain", "refused"]

Effects = Sequence[Mapping[int, float]]
"""By size: arm − baseline in nats, by seed."""
Regrets = Sequence[float | None]
"""By size: regret of the effect in nats; None where unknown."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class End:
    """The fitted effect at the smallest or the largest size."""

    size: float
    effect: float
    """Nats."""
    interval: tuple[float, float]


@dataclass(frozen=True)
class Slope:
    """Movement of an effect with size."""

    word: Word
    """grows, fades: further from 0, or nearer to it, at larger sizes. reverses: seen with one sign
    at the smallest and with the other at the largest. moves: a slope was seen, and which of the
    three it is stays open. neither: no slope was seen, which is not that there is none. uncertain:
    the learning rates may have made it.
    """
    reason: str
    slope: float | None = None
    """Nats per tenfold number of parameters; above 0: the effect becomes larger, that is worse for
    the arm.
    """
    interval: tuple[float, float] | None = None
    level: float | None = None
    p: float | None = None
    """Two-sided, that the slope is 0."""
    freedom: float | None = None
    """None also where nothing scatters."""
    paired: bool = False
    """All sizes have the same seeds, so that the slope is one number per seed."""
    regret: float | None = None
    """Nats per tenfold size by which the choice of the rates may have moved it; None: unknown."""
    ends: list[End] = field(default_factory=list)
    lack_of_fit: float | None = None
    """p that the effects lie on a line, from three sizes on."""
    n: list[int] = field(default_factory=list)
    """Pairs by size, in the order given."""


class _Sum(NamedTuple):
    """A weighted sum of the effects' means."""

    value: float
    error: float
    freedom: float

    @property
    def p(self) -> float:
        """Two-sided, that the sum is 0."""
        if self.error == 0:
            return 0.0 if abs(self.value) > paired.ROUNDING else 1.0
        return 2 * float(scipy.special.stdtr(self.freedom, -abs(self.value) / self.error))

    def interval_at(self, alpha: float) -> tuple[float, float]:
        quantile = float(-scipy.special.stdtrit(self.freedom, alpha / 2))
        half = self.error * quantile if self.error else 0.0
        return self.value - half, self.value + half


class _Signs(NamedTuple):
    """Sign of each weighted sum that is seen beyond its regret; 0 where it is not."""

    slope: int
    smallest: int
    middle: int
    largest: int


def fit_slope(
    sizes: Sequence[float], effects: Effects, regrets: Regrets, alpha: float = 0.05
) -> Slope:
    """Fit the trend of one arm's effect over sizes.

    Where all sizes have the same seeds, the weighted sum is taken seed by seed and has a one-sample
    t test (exact whatever the sizes' noise, and whatever they share at one seed). Else the samples
    are taken as independent, each with a variance of its own, and the degrees of freedom are those
    of Satterthwaite (1946); for two sizes this is the test of Welch (1947).

    Refused, with the reason: fewer than two distinct sizes, fewer than two pairs at one, a value
    that is not finite.

    Args:
        sizes: parameters of each size.
        effects: arm − baseline in nats by seed, of each size.
        regrets: regret of each effect in nats, the arm's plus the baseline's; None where unknown.
        alpha: level of the words; intervals are at 1 − alpha.

    Raises:
        ValueError: the three are not equally many, or a size is not a positive number.
    """
    _check_arguments(sizes, effects, regrets)
    counts = [len(effect) for effect in effects]
    if reason := _explain_refusal(sizes, effects):
        return Slope("refused", reason, n=counts)
    x = np.log10(sizes)
    centred = x - x.mean()
    weights = centred / np.sum(centred**2)
    # Slope, ends and middle are all weighted sums of the same effects, so one test serves them.
    low, high = float(centred.min()), float(centred.max())
    total, regret = _weighted_sum(weights, effects), _weighted_regret(weights, regrets)
    ends = [_fit_end(at, centred, sizes, effects, alpha) for at in (low, high)]
    rows = [weights, *(_line_weights(at, centred) for at in (low, (low + high) / 2, high))]
    signs = _Signs(*(_seen_sign(row, effects, regrets, alpha) for row in rows))
    word, reason = _choose_word(total, regret, ends, signs, alpha)
    return Slope(
        word=word,
        reason=reason,
        slope=total.value,
        interval=total.interval_at(alpha),
        level=1 - alpha,
        p=total.p,
        freedom=total.freedom if math.isfinite(total.freedom) else None,
        paired=_have_same_seeds(effects),
        regret=regret,
        ends=ends,
        lack_of_fit=_lack_of_fit(centred, effects),
        n=counts,
    )


def _check_arguments(sizes: Sequence[float], effects: Effects, regrets: Regrets) -> None:
    if not len(sizes) == len(effects) == len(regrets):
        raise ValueError(
            f"{len(sizes)} sizes, {len(effects)} effects and {len(regrets)} regrets are not "
            "equally many"
        )
    if not all(size > 0 and math.isfinite(size) for size in sizes):
        raise ValueError(f"sizes must be positive numbers, not {sizes}")


def _explain_refusal(sizes: Sequence[float], effects: Effects) -> str:
    """Return why there is no slope; empty where there is one."""
    if len(set(sizes)) < 2:
        return "an effect at one size has no slope"
    if any(len(effect) < 2 for effect in effects):
        return "a size has fewer than two pairs"
    if not all(math.isfinite(value) for effect in effects for value in effect.values()):
        return "a difference is not finite"
    return ""


def _have_same_seeds(effects: Effects) -> bool:
    return all(effect.keys() == effects[0].keys() for effect in effects)


def _weighted_sum(weights: Array, effects: Effects) -> _Sum:
    """Return Σ w_i · mean(effect i), with its standard error and degrees of freedom."""
    if _have_same_seeds(effects):
        return _sum_of_paired(weights, effects)
    return _sum_of_independent(weights, effects)


def _sum_of_paired(weights: Array, effects: Effects) -> _Sum:
    sums = []
    for seed in sorted(effects[0]):
        terms = (w * effect[seed] for w, effect in zip(weights, effects, strict=True))
        sums.append(float(sum(terms)))
    sd = paired.sd_of(sums)
    assert sd is not None
    error = sd / math.sqrt(len(sums)) if sd > paired.ROUNDING else 0.0
    return _Sum(float(np.mean(sums)), error, len(sums) - 1)


def _sum_of_independent(weights: Array, effects: Effects) -> _Sum:
    value, variances, spent = 0.0, [], []
    for weight, effect in zip(weights, effects, strict=True):
        sample = np.array(list(effect.values()))
        variance = float(weight**2 * sample.var(ddof=1) / len(sample))
        value += weight * sample.mean()
        variances.append(variance)
        spent.append(variance**2 / (len(sample) - 1))
    total = math.fsum(variances)
    if total <= paired.ROUNDING**2:
        return _Sum(float(value), 0.0, math.inf)
    return _Sum(float(value), math.sqrt(total), total**2 / math.fsum(spent))


def _weighted_regret(weights: Array, regrets: Regrets) -> float | None:
    """Return what the rates may have moved a weighted sum by; None if unknown.

    Regrets are added whatever the signs of the weights: one must not cancel another.
    """
    numbers = [regret for regret in regrets if regret is not None]
    if len(numbers) < len(regrets):
        return None
    return float(np.abs(weights) @ np.array(numbers))


def _line_weights(at: float, centred: Array) -> Array:
    """Return the weights of the fitted effect at a (centred) log10 size."""
    weights: Array = 1 / len(centred) + at * centred / np.sum(centred**2)
    return weights


def _fit_end(
    at: float, centred: Array, sizes: Sequence[float], effects: Effects, alpha: float
) -> End:
    fitted = _weighted_sum(_line_weights(at, centred), effects)
    size = min(sizes) if at < 0 else max(sizes)
    return End(float(size), fitted.value, fitted.interval_at(alpha))


def _lack_of_fit(centred: Array, effects: Effects) -> float | None:
    """Return p that the effects lie on a line; None below three sizes.

    It is the least p of every size's distance from the line, times the sizes (Bonferroni).
    """
    if len(set(centred.tolist())) < 3:
        return None
    lines = np.array([_line_weights(float(at), centred) for at in centred])
    least = min(_weighted_sum(row, effects).p for row in np.eye(len(centred)) - lines)
    # Three sizes leave one degree of freedom, so that all three distances are one test.
    tests = 1 if len(centred) == 3 else len(centred)
    return min(1.0, least * tests)


def _seen_sign(weights: Array, effects: Effects, regrets: Regrets, alpha: float) -> int:
    """Return −1 or 1 where a weighted sum is seen with that sign, beyond what the rates may have
    made of it; else 0.
    """
    total, regret = _weighted_sum(weights, effects), _weighted_regret(weights, regrets)
    if regret is None or abs(total.value) <= regret:
        return 0
    beyond_regret = total._replace(value=abs(total.value) - regret)
    if beyond_regret.p >= alpha:
        return 0
    return 1 if total.value > 0 else -1


def _choose_word(
    slope: _Sum, regret: float | None, ends: Sequence[End], signs: _Signs, alpha: float
) -> tuple[Word, str]:
    """Return the word and its sentence."""
    first, last = ends
    path = (
        f"from {first.effect:+.4f} nats at {first.size:.3g} parameters "
        f"to {last.effect:+.4f} at {last.size:.3g}"
    )
    if slope.p >= alpha:
        return "neither", f"{path}: no slope was seen, which is not that there is none"
    if not signs.slope:
        cost = "an unknown slope"
        if regret is not None:
            cost = f"a slope of up to {regret:.4f} nats per tenfold size"
        reason = f"the choice of learning rates may have made {cost}: tune with more trials"
        return "uncertain", f"{path}, but {reason}"
    if signs.smallest * signs.largest < 0:
        return "reverses", path
    # The effect is larger at one end than at the other where the middle between them has the
    # slope's sign, so the middle must be seen: that one end is seen and the other is not would not
    # do.
    if not signs.middle:
        return "moves", path
    return "grows" if signs.middle == signs.slope else "fades", path
