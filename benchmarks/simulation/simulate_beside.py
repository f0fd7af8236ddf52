"""Synthetic pairs through the real code of what stands beside the verdict: controls, tokens saved,
documents, slopes.

No tuning is played here: these read replicates alone. `simulate.py` plays whole studies.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from andrea.verdict import controls, documents, scaling, tokens_saved
from andrea.verdict.replicates import Replicate

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

    def losses(self, rng: np.random.Generator, *levels: float) -> list[Array]:
        """Losses [n] of runs at these levels, paired by seed."""
        luck = self.shared * rng.standard_normal(self.n)
        return [2.5 + level + luck + self.noise * rng.standard_normal(self.n) for level in levels]


def false_alarms(pairs: Pairs, m: float, studies: int, seed: int = 0) -> float:
    """Share of studies whose A/A control fails though the baseline is itself."""
    rng, seeds = np.random.default_rng(seed), range(pairs.n)
    drawn = (pairs.losses(rng, 0, 0) for _ in range(studies))
    told = (controls.judge_a_a(_runs(base), _runs(other), seeds, m) for base, other in drawn)
    return sum(found.ok is False for found in told) / studies


def ruler_power(pairs: Pairs, alpha: float, studies: int, seed: int = 0) -> float:
    """Share of studies that see what half the tokens cost."""
    rng, seeds = np.random.default_rng(seed), range(pairs.n)
    drawn = (pairs.losses(rng, 0, pairs.half) for _ in range(studies))
    told = (
        controls.judge_positive_control(_runs(base), _runs(half), seeds, alpha)
        for base, half in drawn
    )
    return sum(found.ok is True for found in told) / studies


@dataclass(frozen=True)
class Told:
    """How often an interval was given, and held what is true."""

    given: float
    """Share of studies with an interval."""
    held: float
    """Share of those whose interval holds it."""

    @property
    def wrong(self) -> float:
        """Share of all studies with an interval that does not hold it."""
        return self.given * (1 - self.held) if self.given else 0.0


def saved(
    pairs: Pairs,
    effect: float,
    alpha: float,
    studies: int,
    seed: int = 0,
    *,
    power: float | None = None,
) -> Told:
    """Tokens saved by an arm that is `effect` nats worse (below 0: better) than the baseline.

    Args:
        power: exponent β of a baseline whose loss falls as t^−β, with `pairs.half` for what half
            the tokens cost; what is true is then read off that law, which is not the straight line
            that the conversion takes it for. By default the law is that line.
    """
    rng = np.random.default_rng(seed)
    double = pairs.double if power is None else pairs.half * 2**-power
    true = (
        _saved_by_line(effect, pairs.half, double)
        if power is None
        else _saved_by_law(effect, pairs.half, power)
    )
    given = held = 0
    for _ in range(studies):
        base, arm, half, twice = pairs.losses(rng, 0, effect, pairs.half, -double)
        differences = (_by_seed(arm - base), _by_seed(half - base), _by_seed(twice - base))
        found = tokens_saved.convert_to_tokens(*differences, alpha)
        if found.interval:
            given += 1
            held += found.interval[0] <= true <= found.interval[1]
    return Told(given / studies, held / given if given else math.nan)


def _saved_by_line(effect: float, half: float, double: float) -> float:
    return float(1 - 2 ** (effect / (half if effect >= 0 else double)))


def _saved_by_law(effect: float, half: float, power: float) -> float:
    """1 − T/t with A t^−β = A T^−β + effect, where A T^−β (2^β − 1) is what half the tokens cost."""
    level = half / (2**power - 1)
    return float(1 - ((level + effect) / level) ** (1 / power))


def over_documents(
    count: int, unequal: float, studies: int, seed: int = 0, *, by_length: float = 0.0
) -> Told:
    """The interval over documents whose lengths are lognormal (σ = `unequal`), and whose
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
        arm = {
            name: (size, loss + float(delta[i]))
            for i, (name, (size, loss)) in enumerate(base.items())
        }
        found = documents.over_documents({0: arm}, {0: base})
        held += found.interval is not None and found.interval[0] <= 0 <= found.interval[1]
    return Told(1.0, held / studies)


def slopes(
    ns: tuple[int, ...], noises: tuple[float, ...], studies: int, seed: int = 0, *, same: bool
) -> Told:
    """The interval of a slope over sizes a decade apart at which the effect is the same.

    Args:
        same: all sizes have the same seeds (`ns` are equal then).
    """
    rng, held, sizes = np.random.default_rng(seed), 0, [10.0 ** (6 + i) for i in range(len(ns))]
    for _ in range(studies):
        drawn = [0.02 + noise * rng.standard_normal(n) for n, noise in zip(ns, noises, strict=True)]
        effects = [_by_seed(values, 0 if same else 100 * i) for i, values in enumerate(drawn)]
        found = scaling.fit_slope(sizes, effects, [0.0] * len(ns))
        held += found.interval is not None and found.interval[0] <= 0 <= found.interval[1]
    return Told(1.0, held / studies)


def _runs(losses: Array) -> dict[int, Replicate]:
    return {seed: Replicate(loss) for seed, loss in _by_seed(losses).items()}


def _by_seed(values: Array, first: int = 0) -> dict[int, float]:
    return {first + i: float(value) for i, value in enumerate(values)}
