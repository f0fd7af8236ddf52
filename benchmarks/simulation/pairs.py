"""Synthetic pairs through the real code of controls, tokens saved, documents and slopes.

No tuning is played here: these read replicates alone. `studies.py` plays whole studies.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from andrea.verdict import controls
from andrea.verdict.documents import over_documents
from andrea.verdict.replicates import Replicate
from andrea.verdict.scaling import fit_slope
from andrea.verdict.tokens_saved import convert_to_tokens

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pairs:
    """Replicates of a baseline and of what is paired with it. Losses in nats."""

    n: int = 5
    noise: float = 0.005
    """Standard deviation of what a run shares with no other."""
    shared: float = 0.01
    """Of what runs of one seed share: pairing cancels it."""
    half: float = 0.05
    """What half the tokens cost the baseline."""
    double: float = 0.04
    """What double the tokens gain it."""

    def draw_losses(self, rng: np.random.Generator, *levels: float) -> list[Array]:
        """Draw losses [n] of runs at these levels, paired by seed."""
        common = self.shared * rng.standard_normal(self.n)
        return [2.5 + level + common + self.noise * rng.standard_normal(self.n) for level in levels]


def share_of_false_alarms(pairs: Pairs, margin: float, studies: int, seed: int = 0) -> float:
    """Return the share of studies whose A/A control fails though the baseline is itself."""
    rng, failed = np.random.default_rng(seed), 0
    for _ in range(studies):
        baseline, other = pairs.draw_losses(rng, 0, 0)
        control = controls.judge_a_a(
            _replicates(baseline), _replicates(other), range(pairs.n), margin
        )
        failed += control.ok is False
    return failed / studies


def positive_control_power(pairs: Pairs, alpha: float, studies: int, seed: int = 0) -> float:
    """Return the share of studies that see what half the tokens cost."""
    rng, held = np.random.default_rng(seed), 0
    for _ in range(studies):
        baseline, half = pairs.draw_losses(rng, 0, pairs.half)
        control = controls.judge_positive_control(
            _replicates(baseline), _replicates(half), range(pairs.n), alpha
        )
        held += control.ok is True
    return held / studies


@dataclass(frozen=True)
class Coverage:
    """Share of studies in which an interval was given, and held what is true."""

    given: float
    """Share of studies with an interval."""
    held: float
    """Share of those whose interval holds it."""

    @property
    def wrong(self) -> float:
        """Share of all studies with an interval that does not hold what is true."""
        return self.given * (1 - self.held) if self.given else 0.0


def cover_tokens_saved(
    pairs: Pairs,
    effect: float,
    alpha: float,
    studies: int,
    seed: int = 0,
    *,
    power: float | None = None,
) -> Coverage:
    """Count intervals of the tokens saved by an arm that is `effect` nats worse (below 0: better).

    Args:
        power: exponent β of a baseline whose loss falls as t^−β, with `pairs.half` for what half
            the tokens cost; what is true is then read off that law, which is not the straight line
            that the conversion takes it for. By default the law is that line.
    """
    rng = np.random.default_rng(seed)
    if power is None:
        double = pairs.double
        true_share = _share_saved_by_line(effect, pairs.half, double)
    else:
        double = pairs.half * 2**-power
        true_share = _share_saved_by_law(effect, pairs.half, power)
    given = held = 0
    for _ in range(studies):
        base, arm, half, twice = pairs.draw_losses(rng, 0, effect, pairs.half, -double)
        differences = (_by_seed(arm - base), _by_seed(half - base), _by_seed(twice - base))
        interval = convert_to_tokens(*differences, alpha).interval
        given += interval is not None
        held += _covers(interval, true_share)
    return Coverage(given / studies, held / given if given else math.nan)


def _share_saved_by_line(effect: float, half: float, double: float) -> float:
    return float(1 - 2 ** (effect / (half if effect >= 0 else double)))


def _share_saved_by_law(effect: float, half: float, power: float) -> float:
    """Return 1 − T/t with A t^−β = A T^−β + effect, where half the tokens cost A T^−β (2^β − 1)."""
    level = half / (2**power - 1)
    return float(1 - ((level + effect) / level) ** (1 / power))


def cover_over_documents(
    count: int, unequal: float, studies: int, seed: int = 0, *, by_length: float = 0.0
) -> Coverage:
    """Count intervals over documents whose lengths are lognormal (σ = `unequal`), and whose
    differences scatter round 0.

    Args:
        by_length: 0: long and short documents scatter alike; 1: their variance falls with their
            length.
    """
    rng, held = np.random.default_rng(seed), 0
    for _ in range(studies):
        tokens = np.ceil(10_000 * np.exp(unequal * rng.standard_normal(count)))
        delta = 0.02 * rng.standard_normal(count) * (10_000 / tokens) ** (by_length / 2)
        base = {f"d{i}": (int(tokens[i]), 2.5) for i in range(count)}
        arm = {f"d{i}": (int(tokens[i]), 2.5 + float(delta[i])) for i in range(count)}
        held += _covers(over_documents({0: arm}, {0: base}).interval, 0.0)
    return Coverage(1.0, held / studies)


def cover_slopes(
    ns: tuple[int, ...], noises: tuple[float, ...], studies: int, seed: int = 0, *, same: bool
) -> Coverage:
    """Count intervals of a slope over sizes a decade apart at which the effect is the same.

    Args:
        same: all sizes have the same seeds (`ns` are equal then).
    """
    rng, held = np.random.default_rng(seed), 0
    sizes = [10.0 ** (6 + i) for i in range(len(ns))]
    for _ in range(studies):
        effects = []
        for i, (n, noise) in enumerate(zip(ns, noises, strict=True)):
            values = 0.02 + noise * rng.standard_normal(n)
            effects.append(_by_seed(values, 0 if same else 100 * i))
        held += _covers(fit_slope(sizes, effects, [0.0] * len(ns)).interval, 0.0)
    return Coverage(1.0, held / studies)


def _covers(interval: tuple[float, float] | None, value: float) -> bool:
    return interval is not None and interval[0] <= value <= interval[1]


def _replicates(losses: Array) -> dict[int, Replicate]:
    return {seed: Replicate(loss) for seed, loss in _by_seed(losses).items()}


def _by_seed(values: Array, first: int = 0) -> dict[int, float]:
    return {first + i: float(value) for i, value in enumerate(values)}
