"""Synthetic studies through the real tuning, regret and verdict code, to count false verdicts.

No model is trained. A `World` says what loss a run would have; `simulate_studies` plays whole
studies in it and counts the verdicts. benchmarks/simulate_verdicts.py prints the tables of
docs/method.md.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from andrea.verdict.cells import Factors, cells
from andrea.verdict.design import KINDS, Kind
from andrea.verdict.judge import judge_arms, judge_effects
from andrea.verdict.judgement import Verdict
from andrea.verdict.protocol import Protocol
from andrea.verdict.rates import Choice, Point
from andrea.verdict.regret import estimate_regrets
from andrea.verdict.replicates import ArmData, Replicate
from andrea.verdict.seeds import replication_seeds
from andrea.verdict.tuning import next_step

INITIAL_LOSS = 5.55
LEVEL = 2.5
"""Loss of the baseline at its best rate, in nats."""
DRAWS = 400
"""Redrawn choices per arm: fewer than a study's, the percentile is as good for counting."""


Shape = Literal["normal", "t3", "exponential", "lognormal"]
_UNIT_DRAWS: dict[Shape, Callable[[np.random.Generator], float]] = {
    "normal": lambda rng: float(rng.standard_normal()),
    "t3": lambda rng: float(rng.standard_t(3)) / math.sqrt(3),
    "exponential": lambda rng: float(rng.standard_exponential()) - 1,
    "lognormal": lambda rng: (
        (math.exp(rng.standard_normal()) - math.sqrt(math.e)) / math.sqrt(math.e * (math.e - 1))
    ),
}
"""Draws of mean 0 and standard deviation 1."""


@dataclass(frozen=True)
class World:
    """True effects, and the noise under which they are seen.

    Losses in nats, distances in decades of learning rate.
    """

    effects: tuple[float, ...] = (0.0,)
    """True difference of every arm from the baseline, each at its own best rate. One per arm: k of
    them.
    """
    curvature: float = 0.3
    """Near the optimum the loss is `curvature · u²` above it, u decades away: half a decade costs a
    quarter of this.
    """
    skew: float = 0.0
    """0: a parabola; else 2 · curvature · (e^(skew u) − skew u − 1) / skew²: negative is steeper
    below the optimum.
    """
    noise: float = 0.005
    """Standard deviation of what a run shares with no other."""
    noise_ratio: float = 1.0
    """Noise of the arms over the baseline's."""
    shape: Shape = "normal"
    """Of the noise, at the same standard deviation: t3 has the tails of a t distribution with 3
    degrees of freedom; exponential and lognormal (of σ = 1) are skewed to high losses. Equally
    noisy arms have symmetric differences.
    """
    alike: float = 0.0
    """Share of the noise's variance that all replicates of an arm have in common: seeds that are
    not independent.
    """
    shared: float = 0.01
    """Standard deviation of what runs of one seed share: pairing cancels it."""
    spread: float = 0.5
    """Optima lie uniformly within ± this of the grid's centre, every arm's by itself."""
    wobble: float = 0.0
    """Standard deviation of one seed's optimum about the arm's, in decades: tuning sees one seed's.
    """
    cliff: float = math.inf
    """Distance above the optimum from which on a run stalls, in every arm."""

    def excess_at(self, u: float) -> float:
        """Return the loss above the minimum, `u` decades from the optimum."""
        if not self.skew:
            return self.curvature * u * u
        return 2 * self.curvature * (math.exp(self.skew * u) - self.skew * u - 1) / self.skew**2

    def draw_noise(self, rng: np.random.Generator, arm: int) -> float:
        """Draw the part of one run's loss that is its own; arm 0 is the baseline."""
        ratio = self.noise_ratio if arm else 1.0
        return _UNIT_DRAWS[self.shape](rng) * self.noise * ratio

    def draw_replicate_noise(self, rng: np.random.Generator, arm: int, n: int) -> list[float]:
        """Draw the same for the replicates of one arm, which may have something in common."""
        noises = [self.draw_noise(rng, arm) for _ in range(n)]
        if not self.alike:
            return noises
        common = math.sqrt(self.alike) * self.draw_noise(rng, arm)
        return [common + math.sqrt(1 - self.alike) * noise for noise in noises]


@dataclass
class Tally:
    """Counts over many studies of one world."""

    studies: int = 0
    arms: Counter[str] = field(default_factory=Counter)
    """Arms by verdict (`inconclusive (rate uncertain)` and its kind apart from `inconclusive`)."""
    families: Counter[str] = field(default_factory=Counter)
    """Studies with at least one such arm; `false`: better or worse."""
    unguarded: Counter[str] = field(default_factory=Counter)
    """The same as `families`, had the tests alone decided, without the guard of regret."""
    covered: int = 0
    """Studies whose simultaneous intervals hold every arm's true effect."""
    covered_with_regret: int = 0
    """The same with the intervals widened by the regret on both sides."""
    regret: list[float] = field(default_factory=list)
    """Estimated regrets of all arms, the baseline's too."""
    true_regret: list[float] = field(default_factory=list)

    def share_with(self, word: str) -> float:
        """Return the share of studies with at least one arm of that verdict."""
        return self.families[word] / self.studies

    def add_study(self, verdicts: list[Verdict], effects: tuple[float, ...], alpha: float) -> None:
        """Count one study."""
        self.studies += 1
        words, unguarded = [], []
        covered = covered_with_regret = True
        for verdict, effect in zip(verdicts, effects, strict=True):
            inconclusive = verdict.verdict == "inconclusive"
            words.append(str(verdict) if inconclusive else verdict.verdict)
            unguarded.append(word_without_regret(verdict, alpha))
            covered &= _covers(verdict, effect, 0.0)
            covered_with_regret &= _covers(verdict, effect, verdict.regret or 0.0)
        self.arms.update(words)
        self.families.update(_words_of_family(words))
        self.unguarded.update(_words_of_family(unguarded))
        self.covered += covered
        self.covered_with_regret += covered_with_regret


def simulate_studies(world: World, protocol: Protocol, studies: int, seed: int = 0) -> Tally:
    """Play whole studies in a world: tune, replicate on fresh noise, judge, count."""
    rng = np.random.default_rng(seed)
    tally = Tally()
    for _ in range(studies):
        arms, true_regrets = draw_arms(world, protocol, rng)
        tally.true_regret += true_regrets
        for arm in arms:
            if arm.regret is not None and not arm.untrainable:
                tally.regret.append(arm.regret)
        tally.add_study(judge_arms(protocol, arms[0], arms[1:]), world.effects, protocol.alpha)
    return tally


def draw_arms(
    world: World, protocol: Protocol, rng: np.random.Generator
) -> tuple[list[ArmData], list[float]]:
    """Draw the arms of one study, tuned and replicated, the baseline first.

    Returns:
        The arms; and the true regrets of those whose regret was estimated.
    """
    names = ["baseline", *(f"arm{i}" for i in range(1, len(world.effects) + 1))]
    optima = [math.log10(protocol.center) + rng.uniform(-world.spread, world.spread) for _ in names]
    tuned_optima = {
        name: optimum + world.wobble * rng.standard_normal()
        for name, optimum in zip(names, optima, strict=True)
    }
    choices = _tune_arms(world, protocol, rng, tuned_optima)
    estimated = estimate_regrets(choices, draws=DRAWS, seed=int(rng.integers(2**31)))
    seeds = replication_seeds(protocol.seeds)
    common = world.shared * rng.standard_normal(len(seeds))
    arms, true_regrets = [], []
    for i, (name, optimum) in enumerate(zip(names, optima, strict=True)):
        choice = choices.get(name)
        if choice is None:
            arms.append(ArmData(name, untrainable=True))
            continue
        distance = math.log10(choice.lr) - optimum
        effect = world.effects[i - 1] if i else 0.0
        own = world.draw_replicate_noise(rng, i, len(seeds))
        runs = {}
        for seed, common_noise, noise in zip(seeds, common, own, strict=True):
            u = distance + world.wobble * rng.standard_normal()
            loss = LEVEL + effect + world.excess_at(u) + common_noise + noise
            runs[seed] = Replicate(loss, stalled=u >= world.cliff)
        arms.append(ArmData(name, runs, choice.edge, estimated[name], choice.hardly_tuned))
        if estimated[name] is not None:
            true_regrets.append(world.excess_at(distance))
    return arms, true_regrets


DESIGN: Factors = {"a": ["0", "1"], "b": ["0", "1"]}
"""Two factors with two levels each: the world's three effects are those of the cells 0+1, 1+0 and
1+1.
"""


def simulate_factorial_studies(
    world: World, protocol: Protocol, studies: int, seed: int = 0
) -> dict[Kind, tuple[float, float]]:
    """Play factorial studies of `DESIGN` in a world.

    Returns:
        By kind of effect, the share of studies in which any of that kind is better, worse or
        present: by the tests alone, and with the guard of regret.
    """
    rng, names = np.random.default_rng(seed), list(cells(DESIGN))
    alone, guarded = Counter[Kind](), Counter[Kind]()
    for _ in range(studies):
        arms, _ = draw_arms(world, protocol, rng)
        effects = judge_effects(protocol, DESIGN, names[0], dict(zip(names, arms, strict=True)))
        seen = [e for e in effects if e.verdict in ("better", "worse", "present")]
        significant = [e for e in effects if e.p_holm is not None and e.p_holm < protocol.alpha]
        guarded.update({effect.contrast.kind for effect in seen})
        alone.update({effect.contrast.kind for effect in significant})
    return {kind: (alone[kind] / studies, guarded[kind] / studies) for kind in KINDS}


def _tune_arms(
    world: World, protocol: Protocol, rng: np.random.Generator, optima: dict[str, float]
) -> dict[str, Choice]:
    """Tune until it is done. An arm's effect is left out: a constant moves no vertex."""
    points: dict[str, list[Point]] = {name: [] for name in optima}
    while (decision := next_step(points, protocol, baseline="baseline")).phase != "done":
        for name, rates in decision.rates.items():
            for lr in rates:
                u = math.log10(lr) - optima[name]
                loss = LEVEL + world.excess_at(u) + world.draw_noise(rng, list(optima).index(name))
                if u < world.cliff:
                    points[name].append(Point(lr, loss))
                else:
                    points[name].append(Point(lr, INITIAL_LOSS, ok=False))
    return decision.choices


def word_without_regret(verdict: Verdict, alpha: float) -> str:
    """Return the word that the tests alone would give."""
    if verdict.p_holm is None or verdict.tost_p is None or verdict.mean is None:
        return str(verdict)
    if verdict.tost_p < alpha / verdict.family_size:
        return "equivalent"
    if verdict.p_holm < alpha:
        return "better" if verdict.mean < 0 else "worse"
    return "inconclusive"


def _words_of_family(words: list[str]) -> set[str]:
    """Return the words that occur, and `false` for better or worse."""
    distinct = set(words)
    return distinct | {"false"} if distinct & {"better", "worse"} else distinct


def _covers(verdict: Verdict, effect: float, slack: float) -> bool:
    if verdict.interval is None:
        return True
    low, high = verdict.interval
    return low - slack <= effect <= high + slack
