"""Whole synthetic studies through the real tuning, regret and verdict code: false verdicts stay near 5 %.

Bounds are what a binomial of 5 % exceeds once in a thousand times; seeds are fixed. benchmarks/simulate_verdicts.py
prints the whole table.
"""

import numpy as np
import pytest
from scipy import stats

from andrea.verdict.protocol import Protocol
from andrea.verdict.simulate import World, simulate, without_regret

TINY = 0.001
"""A margin too small for `equivalent`, so that every verdict on equal arms is false."""


def at_most(studies: int, share: float = 0.05) -> float:
    """The share that so many studies exceed once in a thousand times if the true one is `share`."""
    return float(stats.binom.isf(0.001, studies, share)) / studies


def test_midpoints_and_vertex_hold_what_grid_and_argmin_do_not() -> None:
    world, studies = World(noise=0.003), 150
    argmin = simulate(world, Protocol(m=TINY, seeds=10, trials=5), studies, seed=1)
    vertex = simulate(world, Protocol(m=TINY, seeds=10), studies, seed=1)
    assert argmin.unguarded["false"] / studies > 0.5
    assert argmin.share("false") <= at_most(studies), "the regret catches what the argmin costs"
    assert vertex.unguarded["false"] / studies <= at_most(studies, 0.06)
    assert vertex.share("false") <= at_most(studies)


def test_arms_that_differ_by_m_are_rarely_called_equivalent() -> None:
    studies = 100
    tally = simulate(World(effects=(0.05, -0.05)), Protocol(m=0.05), studies, seed=2)
    assert tally.share("equivalent") <= at_most(studies)


def test_the_guard_leaves_the_power_to_see_what_matters() -> None:
    """Realistic noise and curvature, m = 0.05: twice m is seen, none is equivalent, hardly any is uncertain."""
    studies = 60
    seen = simulate(World(effects=(0.1,)), Protocol(m=0.05), studies, seed=3)
    none = simulate(World(effects=(0.0,)), Protocol(m=0.05), studies, seed=3)
    assert seen.share("worse") >= 0.95
    assert none.share("equivalent") >= 0.95


def test_an_arm_that_always_stalls_is_unstable_in_every_study() -> None:
    tally = simulate(World(cliff=-9.0), Protocol(m=0.05), 3)
    assert tally.share("invalid") == 1.0, "the baseline stalls as well"


def test_the_same_seed_plays_the_same_studies() -> None:
    assert simulate(World(), Protocol(m=0.01), 5, seed=4) == simulate(World(), Protocol(m=0.01), 5, seed=4)


def test_tests_alone_say_what_the_verdict_was_before_the_guard() -> None:
    from andrea.verdict.judge import judge
    from andrea.verdict.records import ArmData, Replicate

    base = ArmData("base", {s: Replicate(2.5 + 0.01 * s) for s in range(5)}, regret=0.2)
    arm = ArmData("arm", {s: Replicate(2.6 + 0.011 * s) for s in range(5)})
    verdict = judge(Protocol(m=0.05), base, [arm])[0]
    assert str(verdict) == "inconclusive (rate uncertain)"
    assert without_regret(verdict, 0.05) == "worse"
    assert without_regret(judge(Protocol(m=0.05), base, [ArmData("x", untrainable=True)])[0], 0.05).startswith("unst")


EQUAL = {
    "parabola": World(),
    "flat and noisy": World(curvature=0.12, noise=0.01),
    "steeper below": World(skew=-4, noise=0.003),
    "cliff": World(cliff=0.1, noise=0.003),
    "unequal noise": World(noise_ratio=2.0),
    "t3 tails": World(heavy=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("name", EQUAL)
def test_false_verdicts_on_equal_arms_stay_near_five_percent_per_family(name: str, k: int) -> None:
    studies = 300
    world = World(**{**EQUAL[name].__dict__, "effects": (0.0,) * k})
    for n in (3, 5, 10) if name in ("parabola", "steeper below", "cliff") else (5,):
        tally = simulate(world, Protocol(m=TINY, seeds=n), studies, seed=n)
        assert tally.share("false") <= at_most(studies), f"n = {n}"
        assert tally.covered_with_regret / studies >= 1 - at_most(studies), f"n = {n}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wobble", "n", "documented"), [(0.05, 5, 0.043), (0.05, 10, 0.056), (0.1, 5, 0.089), (0.1, 10, 0.139)]
)
def test_where_a_seeds_optimum_strays_the_method_fails_as_documented(wobble: float, n: int, documented: float) -> None:
    """docs/method.md, *What is not covered*: tuning sees one seed, so 5 % is not held; that must not be forgotten."""
    studies = 600
    false = simulate(World(wobble=wobble), Protocol(m=TINY, seeds=n), studies, seed=13).share("false")
    assert abs(false - documented) <= 3 * (documented * (1 - documented) / studies) ** 0.5
    assert wobble < 0.1 or false > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("name", ["parabola", "steeper below", "cliff"])
def test_false_equivalence_at_the_margin_stays_near_five_percent(name: str, k: int) -> None:
    studies = 300
    world = World(**{**EQUAL[name].__dict__, "effects": (0.05, -0.05, 0.05, -0.05)[:k]})
    tally = simulate(world, Protocol(m=0.05), studies, seed=11)
    assert tally.share("equivalent") <= at_most(studies)


@pytest.mark.slow
def test_the_estimated_regret_is_of_the_size_of_the_true_one() -> None:
    """Neither nothing nor so much that it drowns every effect: within a small factor at the 95th percentile."""
    for world in (World(), World(skew=-4, noise=0.003)):
        tally = simulate(world, Protocol(m=TINY), 200, seed=12)
        ratio = np.quantile(tally.regret, 0.95) / np.quantile(tally.true_regret, 0.95)
        assert 1 <= ratio <= 10
