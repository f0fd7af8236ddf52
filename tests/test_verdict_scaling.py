"""The trend of an effect over sizes: against scipy's tests and least squares, its words, and its
edges.
"""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from simulation.pairs import cover_slopes

from andrea.verdict.scaling import fit_slope


def sample(
    seed: int, mean: float, n: int = 5, noise: float = 0.003, first: int = 0
) -> dict[int, float]:
    drawn = mean + noise * np.random.default_rng(seed).standard_normal(n)
    return {first + i: float(value) for i, value in enumerate(drawn)}


def test_two_sizes_with_other_seeds_are_welchs_test() -> None:
    small, large = sample(1, 0.02, 4), sample(2, 0.05, 7, noise=0.01, first=100)
    found = fit_slope([1e6, 1e8], [small, large], [0.0, 0.0])
    test = stats.ttest_ind(list(large.values()), list(small.values()), equal_var=False)
    assert not found.paired
    assert found.p == pytest.approx(test.pvalue)
    assert found.freedom == pytest.approx(test.df)
    assert found.interval == pytest.approx(tuple(end / 2 for end in test.confidence_interval())), (
        "two decades"
    )
    assert found.lack_of_fit is None


def test_sizes_with_the_same_seeds_have_one_slope_a_seed() -> None:
    effects = [sample(i, mean) for i, mean in enumerate((0.02, 0.03, 0.05))]
    found = fit_slope([1e6, 1e7, 1e9], effects, [0.0] * 3)
    each = [
        stats.linregress([6, 7, 9], [effect[seed] for effect in effects]).slope for seed in range(5)
    ]
    test = stats.ttest_1samp(each, 0)
    assert found.paired
    assert (found.slope, found.p) == pytest.approx((np.mean(each), test.pvalue))
    assert found.interval == pytest.approx(tuple(test.confidence_interval()))
    assert found.freedom == 4


def test_the_ends_are_the_least_squares_lines() -> None:
    effects = [sample(i, mean, first=10 * i) for i, mean in enumerate((0.02, 0.03, 0.05))]
    found = fit_slope([1e6, 1e7, 1e9], effects, [0.0] * 3)
    line = sm.OLS([np.mean(list(e.values())) for e in effects], sm.add_constant([6, 7, 9])).fit()
    assert [end.effect for end in found.ends] == pytest.approx(
        [line.fittedvalues[0], line.fittedvalues[-1]]
    )
    assert [end.size for end in found.ends] == [1e6, 1e9]


@pytest.mark.parametrize(
    ("small", "large", "word"),
    [
        (0.02, 0.05, "grows"),
        (-0.02, -0.05, "grows"),
        (0.05, 0.02, "fades"),
        (-0.05, -0.02, "fades"),
        (-0.05, 0.001, "fades"),
        (0.001, 0.05, "grows"),
        (-0.03, 0.03, "reverses"),
        (0.03, 0.031, "neither"),
    ],
)
def test_the_word_says_whether_the_effect_grows_or_fades(
    small: float, large: float, word: str
) -> None:
    found = fit_slope([1e6, 1e8], [sample(1, small), sample(2, large)], [0.001, 0.001])
    assert found.word == word
    assert f"{found.ends[0].effect:+.4f}" in found.reason


def test_a_slope_between_ends_that_are_not_there_only_moves() -> None:
    noisy = dict(enumerate([-0.03, 0.01, -0.02, 0.0]))
    shifted = {seed: value + 0.022 for seed, value in noisy.items()}
    shifted[0] += 0.001
    found = fit_slope([1e6, 1e7], [noisy, shifted], [0.0, 0.0])
    assert found.p < 0.05
    assert all(end.interval[0] < 0 < end.interval[1] for end in found.ends)
    assert found.word == "moves"


def test_an_effect_that_turns_round_is_rarely_said_to_grow_or_to_fade() -> None:
    """As large at both sizes, with other signs: that one end is there and one is not tells of no
    larger one.
    """
    rng, said = np.random.default_rng(5), []
    for _ in range(300):
        ends = [
            {s: mean + 0.005 * float(rng.standard_normal()) for s in range(5)}
            for mean in (-0.006, 0.006)
        ]
        said.append(fit_slope([1e6, 1e8], ends, [0.0, 0.0]).word)
    assert (said.count("grows") + said.count("fades")) / len(said) <= 0.09, (
        "5 %, and what 300 studies may stray"
    )
    assert said.count("moves") > 30


def test_a_regret_of_the_middle_leaves_open_whether_an_effect_grows() -> None:
    turned = [sample(1, -0.02, noise=0.001), sample(2, 0.03, noise=0.001)]
    assert fit_slope([1e6, 1e8], turned, [0.0, 0.0]).word == "reverses"
    assert fit_slope([1e6, 1e8], turned, [0.022, 0.022]).word == "moves", (
        "neither an end nor the middle is beyond it"
    )


def test_regrets_of_all_sizes_are_held_against_the_slope() -> None:
    effects = [sample(1, 0.02), sample(2, 0.03)]
    sure, unsure, unknown = (
        fit_slope([1e6, 1e7], effects, told) for told in ([0.001, 0.0], [0.006, 0.006], [0.0, None])
    )
    assert (sure.word, sure.regret) == ("grows", pytest.approx(0.001))
    assert (unsure.word, unsure.regret) == ("uncertain", pytest.approx(0.012))
    assert (unknown.word, unknown.regret) == ("uncertain", None)


def test_effects_off_a_line_are_told() -> None:
    crooked = [sample(i, mean) for i, mean in enumerate((0.02, 0.06, 0.02, 0.06))]
    straight = [sample(i, mean) for i, mean in enumerate((0.02, 0.03, 0.04, 0.05))]
    sizes = [1e6, 1e7, 1e8, 1e9]
    assert fit_slope(sizes, crooked, [0.0] * 4).lack_of_fit < 0.001
    assert fit_slope(sizes, straight, [0.0] * 4).lack_of_fit > 0.05


def test_three_sizes_leave_one_test_of_the_line() -> None:
    effects = [sample(i, mean) for i, mean in enumerate((0.02, 0.05, 0.04))]
    found = fit_slope([1e6, 1e7, 1e8], effects, [0.0] * 3)
    bend = [effects[0][s] - 2 * effects[1][s] + effects[2][s] for s in range(5)]
    assert found.lack_of_fit == pytest.approx(stats.ttest_1samp(bend, 0).pvalue)


def test_without_scatter_a_slope_is_certain_or_none() -> None:
    flat = fit_slope([1e6, 1e7], [{0: 0.1, 1: 0.1}, {0: 0.1, 1: 0.1}], [0.0, 0.0])
    steep = fit_slope([1e6, 1e7], [{0: 0.1, 1: 0.1}, {5: 0.3, 6: 0.3}], [0.0, 0.0])
    assert (flat.p, flat.word) == (1.0, "neither")
    assert (steep.p, steep.word) == (0.0, "grows")
    assert steep.interval == pytest.approx((0.2, 0.2))
    assert steep.freedom is None, "and no infinity, which is no JSON"


@pytest.mark.parametrize(
    ("sizes", "effects", "words"),
    [
        ([1e6], [{0: 0.1, 1: 0.2}], "one size"),
        ([], [], "one size"),
        ([1e6, 1e6], [{0: 0.1, 1: 0.2}] * 2, "one size"),
        ([1e6, 1e7], [{0: 0.1}, {0: 0.1, 1: 0.2}], "fewer than two pairs"),
        ([1e6, 1e7], [{}, {0: 0.1, 1: 0.2}], "fewer than two pairs"),
        ([1e6, 1e7], [{0: math.nan, 1: 0.1}, {0: 0.1, 1: 0.2}], "not finite"),
    ],
)
def test_what_has_no_slope_is_refused_with_the_reason(sizes, effects, words: str) -> None:
    found = fit_slope(sizes, effects, [0.0] * len(sizes))
    assert (found.word, found.slope, found.interval) == ("refused", None, None)
    assert words in found.reason


def test_what_is_no_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="positive"):
        fit_slope([0, 1e6], [{}, {}], [None, None])
    with pytest.raises(ValueError, match="equally many"):
        fit_slope([1e6], [{}, {}], [None, None])


@given(
    seed=st.integers(0, 50),
    sizes=st.lists(st.floats(1e4, 1e11), min_size=2, max_size=5, unique=True),
    same=st.booleans(),
    shift=st.floats(-1, 1),
)
@settings(max_examples=60, deadline=None)
def test_a_slope_is_that_of_the_effects_whatever_the_unit_of_size_and_the_level(
    seed, sizes, same, shift
) -> None:
    effects = [sample(seed + i, 0.02, 4, first=0 if same else 10 * i) for i in range(len(sizes))]
    moved = [{s: value + shift for s, value in effect.items()} for effect in effects]
    found = fit_slope(sizes, effects, [0.0] * len(sizes))
    other = fit_slope([1000 * size for size in sizes], moved, [0.0] * len(sizes))
    assert found.interval[0] <= found.slope <= found.interval[1]
    scale = found.interval[1] - found.interval[0]
    assert other.slope == pytest.approx(found.slope, abs=1e-3 * scale)
    assert (found.p < 0.05) == (not found.interval[0] <= 0 <= found.interval[1])


@pytest.mark.parametrize("same", [True, False])
def test_the_slopes_interval_covers_with_unequal_noise(same: bool) -> None:
    studies = 500
    told = cover_slopes(
        (5, 5, 5) if same else (5, 3, 8), (0.01, 0.003, 0.02), studies, seed=6, same=same
    )
    assert told.held >= 1 - stats.binom.isf(0.001, studies, 0.055) / studies
