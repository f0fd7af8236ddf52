"""Whole synthetic studies through the real tuning, regret and verdict code: false verdicts stay
near 5 %.

Bounds are what a binomial of 5 % exceeds once in a thousand times; seeds are fixed.
benchmarks/simulate_verdicts.py prints the whole table.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from simulation.pairs import Pairs, positive_control_power, share_of_false_alarms
from simulation.studies import World, simulate_studies, word_without_regret

from andrea.verdict.protocol import Protocol

TINY = 0.001
"""A margin too small for `equivalent`, so that every verdict on equal arms is false."""


def at_most(studies: int, share: float = 0.05) -> float:
    """The share that so many studies exceed once in a thousand times if the true one is `share`."""
    return float(stats.binom.isf(0.001, studies, share)) / studies


def at_least(studies: int, share: float) -> float:
    """The share that so many studies stay below once in a thousand times if the true one is
    `share`.
    """
    return float(stats.binom.ppf(0.001, studies, share)) / studies


def test_midpoints_and_vertex_hold_what_grid_and_argmin_do_not() -> None:
    world, studies = World(noise=0.003), 150
    argmin = simulate_studies(world, Protocol(m=TINY, seeds=10, trials=5), studies, seed=1)
    vertex = simulate_studies(world, Protocol(m=TINY, seeds=10), studies, seed=1)
    assert argmin.unguarded["false"] / studies > 0.5
    assert argmin.share_with("false") <= at_most(studies), (
        "the regret catches what the argmin costs"
    )
    assert vertex.unguarded["false"] / studies <= at_most(studies, 0.06)
    assert vertex.share_with("false") <= at_most(studies)


def test_arms_that_differ_by_m_are_rarely_called_equivalent() -> None:
    studies = 100
    tally = simulate_studies(World(effects=(0.05, -0.05)), Protocol(m=0.05), studies, seed=2)
    assert tally.share_with("equivalent") <= at_most(studies)


def test_the_guard_leaves_the_power_to_see_what_matters() -> None:
    """Realistic noise and curvature, m = 0.05: twice m is seen, none is equivalent, hardly any is
    uncertain.
    """
    studies = 60
    seen = simulate_studies(World(effects=(0.1,)), Protocol(m=0.05), studies, seed=3)
    none = simulate_studies(World(effects=(0.0,)), Protocol(m=0.05), studies, seed=3)
    assert seen.share_with("worse") >= 0.95
    assert none.share_with("equivalent") >= 0.95


def test_an_arm_that_always_stalls_is_unstable_in_every_study() -> None:
    tally = simulate_studies(World(cliff=-9.0), Protocol(m=0.05), 3)
    assert tally.share_with("invalid") == 1.0, "the baseline stalls as well"


def test_the_same_seed_plays_the_same_studies() -> None:
    assert simulate_studies(World(), Protocol(m=0.01), 5, seed=4) == simulate_studies(
        World(), Protocol(m=0.01), 5, seed=4
    )


def test_tests_alone_say_what_the_verdict_was_before_the_guard() -> None:
    from andrea.verdict.judge import judge_arms
    from andrea.verdict.replicates import ArmData, Replicate

    base = ArmData("base", {s: Replicate(2.5 + 0.01 * s) for s in range(5)}, regret=0.2)
    arm = ArmData("arm", {s: Replicate(2.6 + 0.011 * s) for s in range(5)})
    verdict = judge_arms(Protocol(m=0.05), base, [arm])[0]
    assert str(verdict) == "inconclusive (rate uncertain)"
    assert word_without_regret(verdict, 0.05) == "worse"
    assert word_without_regret(
        judge_arms(Protocol(m=0.05), base, [ArmData("x", untrainable=True)])[0], 0.05
    ).startswith("unst")


EQUAL = {
    "parabola": World(),
    "flat and noisy": World(curvature=0.12, noise=0.01),
    "steeper below": World(skew=-4, noise=0.003),
    "cliff": World(cliff=0.05, noise=0.003),
    "unequal noise": World(noise_ratio=2.0),
    "t3 tails": World(shape="t3"),
}


@pytest.mark.parametrize("n", [3, 5])
def test_an_a_a_control_of_a_right_study_fails_once_in_two_hundred(n: int) -> None:
    studies = 600
    assert share_of_false_alarms(Pairs(n=n), 0.001, studies, seed=22) <= at_most(studies, 0.005)
    assert share_of_false_alarms(Pairs(n=n), 0.05, studies, seed=22) == 0, "no pair strays beyond m"


def test_the_ruler_sees_what_half_the_tokens_cost_and_nothing_where_they_cost_nothing() -> None:
    studies, sd = 500, 0.005 * 2**0.5
    assert positive_control_power(Pairs(half=0.0), 0.05, studies, seed=23) <= at_most(studies)
    assert positive_control_power(Pairs(half=4 * sd), 0.05, studies, seed=23) > 0.98
    assert positive_control_power(Pairs(n=3, half=sd), 0.05, studies, seed=23) < 0.5, (
        "small studies see little"
    )


FAILS = {
    "skewed noise, three times the baseline's": (
        World(shape="lognormal", noise_ratio=3.0),
        5,
        0.081,
    ),
    "replicates alike": (World(alike=0.3), 10, 0.319),
}


DESIGNS = [(name, k, n) for name in EQUAL for k, n in ((1, 10), (4, 5), (8, 3))]
"""Every k and every n in every world; the whole table is the benchmark's."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "k", "n"), [*DESIGNS, ("cliff", 8, 10)])
def test_false_verdicts_on_equal_arms_stay_near_five_percent_per_family(
    name: str, k: int, n: int
) -> None:
    """And simultaneous intervals cover 93 to 97 %; where the valley is skewed they do with the
    regret added.
    """
    studies = 120 if k == 8 else 200
    tally = simulate_studies(
        replace(EQUAL[name], effects=(0.0,) * k), Protocol(m=TINY, seeds=n), studies, seed=n
    )
    assert tally.share_with("false") <= at_most(studies)
    assert tally.covered_with_regret / studies >= 1 - at_most(studies)
    if name not in ("steeper below", "cliff"):
        assert 1 - at_most(studies, 0.07) <= tally.covered / studies <= 1 - at_least(studies, 0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "n", "documented"), FAILS.values(), ids=FAILS)
def test_what_breaks_the_t_tests_assumptions_fails_as_documented(
    world: World, n: int, documented: float
) -> None:
    """docs/method.md, *What is not covered*: noise that is skewed in the arms alone, replicates
    that are alike.
    """
    studies = 500
    false = simulate_studies(world, Protocol(m=TINY, seeds=n), studies, seed=21).share_with("false")
    assert abs(false - documented) <= 3 * (2 * documented * (1 - documented) / studies) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wobble", "n", "documented"), [(0.05, 10, 0.062), (0.1, 5, 0.079), (0.1, 10, 0.137)]
)
def test_where_a_seeds_optimum_strays_the_method_fails_as_documented(
    wobble: float, n: int, documented: float
) -> None:
    """docs/method.md, *What is not covered*: tuning sees one seed, so 5 % is not held; that must
    not be forgotten.
    """
    studies = 500
    false = simulate_studies(
        World(wobble=wobble), Protocol(m=TINY, seeds=n), studies, seed=13
    ).share_with("false")
    assert abs(false - documented) <= 3 * (documented * (1 - documented) / studies) ** 0.5
    assert wobble < 0.1 or false > 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "k", "n"),
    [
        ("parabola", 1, 10), ("parabola", 8, 3), ("steeper below", 4, 5), ("cliff", 1, 5),
        ("cliff", 4, 10), ("unequal noise", 4, 5), ("t3 tails", 1, 3), ("t3 tails", 4, 5),
    ],
)  # fmt: skip
def test_false_equivalence_at_the_margin_stays_near_five_percent(name: str, k: int, n: int) -> None:
    studies = 120
    world = replace(EQUAL[name], effects=(0.05, -0.05, 0.05, -0.05, 0.05, -0.05, 0.05, -0.05)[:k])
    tally = simulate_studies(world, Protocol(m=0.05, seeds=n), studies, seed=11)
    assert tally.share_with("equivalent") <= at_most(studies)


@pytest.mark.slow
def test_the_estimated_regret_is_of_the_size_of_the_true_one() -> None:
    """Neither nothing nor so much that it drowns every effect: within a small factor at the 95th
    percentile.
    """
    for world in (World(), World(skew=-4, noise=0.003)):
        tally = simulate_studies(world, Protocol(m=TINY), 200, seed=12)
        ratio = np.quantile(tally.regret, 0.95) / np.quantile(tally.true_regret, 0.95)
        assert 1 <= ratio <= 10
