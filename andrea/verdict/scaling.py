"""One ablation at several sizes: does the effect grow or fade? A line in log10 of the parameters,
with an interval.

Every size has its effect, a sample of paired differences by seed; the slope of the least-squares
line through their means is a weighted sum of them, Σ c_i d̄_i with c_i = (x_i − x̄) / Σ (x − x̄)².
docs/method.md, *Several sizes*.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from andrea.verdict import paired

Word = Literal["grows", "fades", "reverses", "moves", "neither", "uncertain", "refused"]

Effects = Sequence[Mapping[int, float]]
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
    """How an effect moves with size."""

    word: Word
    """grows, fades: further from 0, or nearer to it, at larger sizes. reverses: there with one sign
    at the smallest and with the other at the largest. moves: the slope is there, and which of the
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
    """Whether all sizes have the same seeds, so that the slope is one number per seed."""
    regret: float | None = None
    """What the choice of the learning rates may have moved the slope by; None: unknown."""
    ends: list[End] = field(default_factory=list)
    lack_of_fit: float | None = None
    """p that the effects lie on a line, from three sizes on."""
    n: list[int] = field(default_factory=list)
    """Pairs by size, in the order given."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = asdict(self)
        values["interval"] = list(self.interval) if self.interval else None
        for end in values["ends"]:
            end["interval"] = list(end["interval"])
        return values


class _Sum(NamedTuple):
    """A weighted sum of the effects' means."""

    value: float
    error: float
    freedom: float

    def p(self) -> float:
        if self.error == 0:
            return 0.0 if abs(self.value) > paired.ROUNDING else 1.0
        return 2 * float(special.stdtr(self.freedom, -abs(self.value) / self.error))

    def interval(self, alpha: float) -> tuple[float, float]:
        half = self.error * float(-special.stdtrit(self.freedom, alpha / 2)) if self.error else 0.0
        return self.value - half, self.value + half


def fit_slope(
    sizes: Sequence[float], effects: Effects, regrets: Sequence[float | None], alpha: float = 0.05
) -> Slope:
    """The trend of one arm's effect over sizes.

    Where all sizes have the same seeds, the weighted sum is taken seed by seed and has a one-sample
    t test (exact whatever the sizes' noise, and whatever they share at one seed); else the samples
    are taken as independent, each with a variance of its own, and the degrees of freedom are
    Satterthwaite's (two sizes: Welch's test).

    Args:
        sizes: parameters of each size.
        effects: arm − baseline in nats by seed, of each size.
        regrets: regret of each effect in nats, the arm's plus the baseline's; None where unknown.
        alpha: level of the words; intervals are at 1 − alpha.

    Refused, with the reason: fewer than two distinct sizes, fewer than two pairs at one, a value
        that is not finite.

    Raises:
        ValueError: the three are not equally many.
    """
    x, n = np.log10(_checked(sizes, effects, regrets)), [len(effect) for effect in effects]
    if why := _no_slope(sizes, effects):
        return Slope("refused", why, n=n)
    centred = x - x.mean()
    weights = centred / np.sum(centred**2)
    found = _weigh(weights, effects)
    guard = _guard(weights, regrets)
    ends = [
        _at(float(end), centred, sizes, effects, alpha) for end in (centred.min(), centred.max())
    ]
    low, high = float(centred.min()), float(centred.max())
    rows = [weights, *(_line_at(at, centred) for at in (low, (low + high) / 2, high))]
    word, reason = _word(
        found, guard, ends, [_sign(row, effects, regrets, alpha) for row in rows], alpha
    )
    return Slope(
        word=word,
        reason=reason,
        slope=found.value,
        interval=found.interval(alpha),
        level=1 - alpha,
        p=found.p(),
        freedom=found.freedom if math.isfinite(found.freedom) else None,
        paired=_same_seeds(effects),
        regret=guard,
        ends=ends,
        lack_of_fit=_lack_of_fit(centred, effects),
        n=n,
    )


def _checked(
    sizes: Sequence[float], effects: Effects, regrets: Sequence[float | None]
) -> Sequence[float]:
    if not len(sizes) == len(effects) == len(regrets):
        raise ValueError(
            f"{len(sizes)} sizes, {len(effects)} effects and {len(regrets)} regrets are not "
            "equally many"
        )
    if not all(size > 0 and math.isfinite(size) for size in sizes):
        raise ValueError(f"sizes must be positive numbers, not {sizes}")
    return sizes


def _no_slope(sizes: Sequence[float], effects: Effects) -> str:
    if len(set(sizes)) < 2:
        return "an effect at one size has no slope"
    if any(len(effect) < 2 for effect in effects):
        return "a size has fewer than two pairs"
    if not all(math.isfinite(value) for effect in effects for value in effect.values()):
        return "a difference is not finite"
    return ""


def _same_seeds(effects: Effects) -> bool:
    return all(effect.keys() == effects[0].keys() for effect in effects)


def _weigh(weights: Array, effects: Effects) -> _Sum:
    """Σ w_i · mean(effect i), with its standard error and degrees of freedom."""
    if _same_seeds(effects):
        seeds = sorted(effects[0])
        each = [
            float(sum(w * effect[seed] for w, effect in zip(weights, effects, strict=True)))
            for seed in seeds
        ]
        sd = paired.sd_of(each)
        assert sd is not None
        return _Sum(
            float(np.mean(each)),
            sd / math.sqrt(len(seeds)) if sd > paired.ROUNDING else 0.0,
            len(seeds) - 1,
        )
    samples = [np.array(list(effect.values())) for effect in effects]
    value = float(sum(w * sample.mean() for w, sample in zip(weights, samples, strict=True)))
    parts = [
        float(w**2 * sample.var(ddof=1) / len(sample))
        for w, sample in zip(weights, samples, strict=True)
    ]
    total = math.fsum(parts)
    if total <= paired.ROUNDING**2:
        return _Sum(value, 0.0, math.inf)
    spent = math.fsum(
        part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True)
    )
    return _Sum(value, math.sqrt(total), total**2 / spent)


def _guard(weights: Array, regrets: Sequence[float | None]) -> float | None:
    """What the rates may have moved a weighted sum by: no size's regret is let to cancel another's."""
    known = [regret for regret in regrets if regret is not None]
    return float(np.abs(weights) @ np.array(known)) if len(known) == len(regrets) else None


def _line_at(at: float, centred: Array) -> Array:
    """Weights of the fitted effect at a (centred) log10 size."""
    row: Array = 1 / len(centred) + at * centred / np.sum(centred**2)
    return row


def _at(at: float, centred: Array, sizes: Sequence[float], effects: Effects, alpha: float) -> End:
    found = _weigh(_line_at(at, centred), effects)
    size = min(sizes) if at < 0 else max(sizes)
    return End(float(size), found.value, found.interval(alpha))


def _lack_of_fit(centred: Array, effects: Effects) -> float | None:
    """p that the effects lie on a line: the least of every size's distance from it, times the sizes
    (Bonferroni).

    Three sizes leave one degree of freedom, so that all three distances are one test.
    """
    if len(set(centred.tolist())) < 3:
        return None
    rows = np.eye(len(centred)) - np.array([_line_at(float(at), centred) for at in centred])
    least = min(_weigh(row, effects).p() for row in rows)
    return min(1.0, least * (1 if len(centred) == 3 else len(centred)))


def _sign(weights: Array, effects: Effects, regrets: Sequence[float | None], alpha: float) -> int:
    """-1 or 1 where a weighted sum is there with that sign, beyond what the rates may have made of
    it; else 0.
    """
    found, guard = _weigh(weights, effects), _guard(weights, regrets)
    if guard is None or abs(found.value) <= guard:
        return 0
    beyond = found._replace(value=abs(found.value) - guard)
    return 0 if beyond.p() >= alpha else 1 if found.value > 0 else -1


def _word(
    found: _Sum, guard: float | None, ends: Sequence[End], signs: Sequence[int], alpha: float
) -> tuple[Word, str]:
    """The word, from the slope and the `signs` of slope, smallest size, middle and largest size.

    The effect is larger at one end than at the other where the middle between them has the slope's
    sign, so *grows* and
    *fades* are said only where the middle is there too: that one end is there and the other is not
        would not do.
    """
    first, last = ends
    told = f"from {first.effect:+.4f} nats at {first.size:.3g} parameters to {last.effect:+.4f} at {last.size:.3g}"
    if found.p() >= alpha:
        return "neither", f"{told}: no slope was seen, which is not that there is none"
    moves, smallest, middle, largest = signs
    if not moves:
        cost = (
            "an unknown slope"
            if guard is None
            else f"a slope of up to {guard:.4f} nats per tenfold size"
        )
        return (
            "uncertain",
            f"{told}, but the choice of learning rates may have made {cost}: tune with more trials",
        )
    if smallest * largest < 0:
        return "reverses", told
    if not middle:
        return "moves", told
    return "grows" if middle == moves else "fades", told
