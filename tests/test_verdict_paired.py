"""The statistics of paired differences against scipy and statsmodels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from andrea.verdict import paired

calm = settings(deadline=None)
"""A slow machine is no failure."""

multitest = pytest.importorskip("statsmodels.stats.multitest")
smpower = pytest.importorskip("statsmodels.stats.power")
weightstats = pytest.importorskip("statsmodels.stats.weightstats")

NORMALS = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        st.just(n), st.integers(0, 10_000), st.floats(0.001, 0.1), st.floats(-0.1, 0.1)
    )
)


def draws(n: int, seed: int, sd: float, mean: float) -> list[float]:
    return [float(x) for x in np.random.default_rng(seed).normal(mean, sd, n)]


@calm
@given(NORMALS, st.floats(-0.05, 0.05), st.sampled_from(["two-sided", "less", "greater"]))
def test_p_values_are_scipys(
    case: tuple[int, int, float, float], about: float, alternative: paired.Alternative
) -> None:
    differences = draws(*case)
    expected = stats.ttest_1samp(differences, about, alternative=alternative).pvalue
    assert paired.t_test_p(differences, about, alternative) == pytest.approx(
        expected, rel=1e-9, abs=1e-300
    )


@calm
@given(NORMALS, st.sampled_from([0.05, 0.0125, 0.00625]))
def test_intervals_are_scipys_paired_ones(
    case: tuple[int, int, float, float], alpha: float
) -> None:
    differences = draws(*case)
    baseline = draws(case[0], case[1] + 1, 0.01, 2.5)
    arm = [b + d for b, d in zip(baseline, differences, strict=True)]
    expected = stats.ttest_rel(arm, baseline).confidence_interval(1 - alpha)
    found = paired.t_interval([a - b for a, b in zip(arm, baseline, strict=True)], alpha)
    assert found == pytest.approx((expected.low, expected.high), rel=1e-7, abs=1e-10)


@calm
@given(NORMALS, st.floats(0.001, 0.2))
def test_equivalence_is_statsmodels_tost(
    case: tuple[int, int, float, float], margin: float
) -> None:
    differences = draws(*case)
    expected, *_ = weightstats.ttost_paired(
        np.array(differences), np.zeros(len(differences)), -margin, margin
    )
    assert paired.tost_p(differences, margin) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_holm_is_statsmodels(k: int) -> None:
    p_values = [float(p) for p in np.random.default_rng(k).beta(0.3, 2.0, k)] + [1.0, 0.01, 0.01]
    expected = multitest.multipletests(p_values, method="holm")[1]
    assert paired.adjust_holm(p_values) == pytest.approx(list(expected))


def test_holm_of_nothing_is_nothing() -> None:
    assert paired.adjust_holm([]) == []


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("effect", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("alpha", [0.05, 0.0125])
def test_power_is_statsmodels(n: int, effect: float, alpha: float) -> None:
    oracle = smpower.TTestPower()
    expected = oracle.power(effect, n, alpha)
    if math.isnan(expected):  # its far tail; the near one is all there is
        expected = oracle.power(effect, n, alpha / 2, alternative="larger")
    assert paired.t_test_power(effect, n, alpha) == pytest.approx(expected, abs=1e-6)


@calm
@given(st.floats(0.005, 0.2), st.floats(0.001, 0.2), st.sampled_from([0.05, 0.0125]))
def test_pairs_needed_are_the_fewest_that_see_the_effect(
    effect: float, sd: float, alpha: float
) -> None:
    n = paired.pairs_needed(effect, sd, alpha)
    if n is None:
        assert paired.t_test_power(effect / sd, paired.MOST_PAIRS, alpha) < paired.POWER + 0.01
    else:
        assert paired.t_test_power(effect / sd, n, alpha) >= paired.POWER
        assert n == 2 or paired.t_test_power(effect / sd, n - 1, alpha) < paired.POWER


def test_pairs_needed_knows_when_there_is_no_answer() -> None:
    assert paired.pairs_needed(0.0, 0.01, 0.05) is None
    assert paired.pairs_needed(-0.01, 0.01, 0.05) is None
    assert paired.pairs_needed(1e-6, 1.0, 0.05) is None
    assert paired.pairs_needed(0.01, 0.0, 0.05) == 2


@pytest.mark.parametrize(("n", "sd"), [(3, 3.26), (5, 1.68), (10, 1.00)])
def test_the_smallest_visible_effect_is_the_published_one(n: int, sd: float) -> None:
    """In standard deviations of differences, 80 % power at .05 two-sided."""
    assert paired.visible_effect(n, 0.05) == pytest.approx(sd, abs=0.006)
    assert paired.t_test_power(paired.visible_effect(n, 0.05), n, 0.05) == pytest.approx(
        paired.POWER, abs=1e-4
    )


def test_differences_without_spread_are_certain_either_way() -> None:
    assert paired.t_test_p([0.0, 0.0, 0.0]) == 1.0
    assert paired.t_test_p([0.1, 0.1]) == 0.0
    assert paired.t_test_p([0.1, 0.1], 0.1) == 1.0
    assert paired.t_test_p([0.1, 0.1], 0.0, "less") == 1.0
    assert paired.tost_p([0.01, 0.01], 0.05) == 0.0
    assert paired.tost_p([0.05, 0.05], 0.05) == 1.0
    assert paired.t_interval([0.1, 0.1], 0.05) == (0.1, 0.1)


def test_rounding_is_no_spread() -> None:
    """2.6 − 2.5 and 3.6 − 3.5 differ in their last bit; that is no noise to judge by."""
    assert paired.t_test_p([2.6 - 2.6, 3.1 + 0.2 - 3.3]) == 1.0
    assert paired.t_test_p([2.6 - 2.5, 3.6 - 3.5, 4.6 - 4.5]) == 0.0


@pytest.mark.parametrize("differences", [[], [0.1]])
def test_one_pair_is_no_test(differences: list[float]) -> None:
    with pytest.raises(ValueError, match="two differences"):
        paired.t_test_p(differences)
    with pytest.raises(ValueError, match="two differences"):
        paired.t_interval(differences, 0.05)
    assert paired.sd_of(differences) is None


def test_no_margin_is_no_equivalence() -> None:
    assert paired.tost_p([0.0, 0.0], 0.0) == 1.0
    assert paired.tost_p([0.0, 0.0], -0.01) == 1.0


@calm
@given(NORMALS, st.floats(0, 0.1))
def test_regret_only_weakens_a_difference(
    case: tuple[int, int, float, float], regret: float
) -> None:
    differences = draws(*case)
    assert paired.p_beyond_regret(differences, regret) >= paired.t_test_p(differences) * (1 - 1e-9)
    assert paired.p_beyond_regret(differences, 0.0) == paired.t_test_p(differences)
    assert paired.p_beyond_regret(differences, abs(paired.mean_of(differences) or 0.0)) == 1.0


def test_fishers_exact_p_of_five_of_five_against_none() -> None:
    assert paired.fisher_p(5, 0, 0, 5) == pytest.approx(2 / math.comb(10, 5))
    assert paired.fisher_p(1, 4, 0, 5) == 1.0
