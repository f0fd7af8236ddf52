"""Stability, learning-rate sensitivity, the interval over documents: against scipy and statsmodels,
and their edges.
"""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from simulation.pairs import cover_over_documents
from statsmodels.stats.proportion import proportion_confint

from andrea.verdict.documents import over_documents
from andrea.verdict.rates import Point
from andrea.verdict.replicates import Replicate
from andrea.verdict.sensitivity import cap_loss, common_grid, measure_sensitivity
from andrea.verdict.stability import measure_stability

GOOD, DIVERGED, STALLED = Replicate(2.5), Replicate(None, "diverged"), Replicate(3.3, stalled=True)
FAILED = Replicate(None, "failed")


@given(
    good=st.integers(0, 40),
    diverged=st.integers(0, 10),
    stalled=st.integers(0, 10),
    failed=st.integers(0, 5),
)
@settings(max_examples=80, deadline=None)
def test_rates_have_wilsons_interval(good: int, diverged: int, stalled: int, failed: int) -> None:
    found = measure_stability(
        [GOOD] * good + [DIVERGED] * diverged + [STALLED] * stalled + [FAILED] * failed
    )
    n = good + diverged + stalled
    assert (found.n, found.diverged, found.stalled) == (n, diverged, stalled)
    if n == 0:
        assert (found.rate, found.low, found.high) == (None, None, None)
        return
    low, high = proportion_confint(diverged + stalled, n, method="wilson")
    assert found.rate == (diverged + stalled) / n
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-9)
    assert found.low <= found.rate <= found.high


def test_none_of_five_is_compatible_with_two_of_five() -> None:
    """docs/method.md, *Stability*."""
    assert measure_stability([GOOD] * 5).high == pytest.approx(0.434, abs=5e-4)


def test_a_completed_run_without_a_finite_loss_is_neither_good_nor_a_divergence() -> None:
    assert measure_stability([Replicate(math.nan), Replicate(None), GOOD]).n == 1


GRID = [1e-3, 3.16e-3, 1e-2]


def test_sensitivity_is_the_mean_excess_over_the_best_of_the_grid() -> None:
    points = [
        Point(1e-2, 5.5, ok=False),
        Point(1e-3, 2.6),
        Point(3.16e-3, 2.5),
        Point(1.78e-3, 2.4),
    ]
    found = measure_sensitivity(points, GRID)
    assert found.value == pytest.approx((0.1 + 0 + 3.0) / 3)
    assert (found.rates, found.losses, found.best, found.n) == (GRID, [2.6, 2.5, 5.5], 2.5, 3)
    assert found.reason == ""


def test_a_loss_counts_as_at_most_that_at_initialisation() -> None:
    assert cap_loss(2.5, 5.5) == 2.5
    assert cap_loss(3.3, 5.5) == 3.3, "a stalled run has the loss that it has"
    assert [cap_loss(loss, 5.5) for loss in (9.4, math.nan, math.inf, None)] == [5.5] * 4


@pytest.mark.parametrize(
    ("points", "grid", "words"),
    [
        ([], GRID, "no result at rate 0.001, 0.00316, 0.01"),
        ([Point(1e-3, 2.6), Point(1e-2, 2.6)], GRID, "no result at rate 0.00316"),
        ([Point(1e-3, 2.6), Point(1e-2, 2.6)], [1e-3, 1e-2], "2 rates in common"),
        ([], [], "0 rates in common"),
        ([Point(1e-3, 2.6)], [1e-3], "1 rate in common"),
    ],
)
def test_sensitivity_without_a_whole_grid_is_refused(points, grid, words: str) -> None:
    found = measure_sensitivity(points, grid)
    assert (found.value, found.losses, found.best) == (None, [], None)
    assert words in found.reason


def test_the_common_grid_is_what_all_arms_have() -> None:
    assert common_grid([[1e-3, 1e-2, 1e-1], [1e-2, 1e-1, 1.0]]) == [1e-2, 1e-1]
    assert common_grid([[1e-3], [1.0]]) == common_grid([]) == []


def runs(
    delta: np.ndarray, tokens: np.ndarray, base: float = 2.5
) -> dict[int, dict[str, tuple[int, float]]]:
    """delta [seeds, documents]."""
    return {
        seed: {f"d{i}": (int(size), base + row[i]) for i, size in enumerate(tokens)}
        for seed, row in enumerate(delta)
    }


def test_documents_of_one_length_give_the_t_interval_of_their_means_over_seeds() -> None:
    rng = np.random.default_rng(0)
    arm, base = rng.normal(0.02, 0.1, (3, 7)), rng.normal(0, 0.1, (3, 7))
    found = over_documents(runs(arm, np.full(7, 500)), runs(base, np.full(7, 500)))
    test = stats.ttest_1samp((arm - base).mean(axis=0), 0)
    assert found.interval == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert (found.n_documents, found.freedom) == (7, pytest.approx(6))


def test_unequal_documents_have_the_variance_of_robust_weighted_least_squares() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(100, 5000, 15)
    delta = rng.normal(0.02, 0.1, (1, 15))
    found = over_documents(runs(delta, tokens), runs(np.zeros((1, 15)), tokens))
    fit = sm.WLS(delta[0], np.ones(15), weights=tokens).fit(cov_type="HC2")
    assert found.mean == pytest.approx(fit.params[0])
    assert found.mean == pytest.approx(np.average(delta[0], weights=tokens)), (
        "the difference of the final losses"
    )
    half = (found.interval[1] - found.interval[0]) / 2
    assert half / stats.t.isf(0.025, found.freedom) == pytest.approx(fit.bse[0])
    assert found.freedom < 14, "a few long documents decide"


def test_one_document_that_is_nearly_all_of_the_text_widens_the_interval() -> None:
    delta = np.array([[0.02, 0.03, 0.01, 0.025]])
    even = over_documents(runs(delta, np.full(4, 100)), runs(0 * delta, np.full(4, 100)))
    lengths = np.array([100_000, 100, 100, 100])
    odd = over_documents(runs(delta, lengths), runs(0 * delta, lengths))
    assert odd.freedom < 1.1 < even.freedom
    assert odd.interval[0] <= odd.mean <= odd.interval[1]


@given(st.lists(st.integers(1, 100_000), min_size=2, max_size=12))
@settings(max_examples=60, deadline=None)
def test_degrees_of_freedom_are_those_of_the_quadratic_form(lengths: list[int]) -> None:
    """Bell & McCaffrey (2002), the matrices written out: A = M'DM for δ of variance 1/p."""
    tokens = np.array(lengths)
    found = over_documents(
        runs(np.ones((1, len(lengths))), tokens), runs(np.zeros((1, len(lengths))), tokens)
    )
    p = tokens / tokens.sum()
    maker = np.eye(len(p)) - p[None, :]
    maker = maker @ np.diag(p**-0.5)
    form = maker.T @ np.diag(p**2 * tokens.sum() / (tokens.sum() - tokens)) @ maker
    assert found.freedom == pytest.approx(np.trace(form) ** 2 / np.sum(form * form), rel=1e-6)
    assert 1 - 1e-9 <= found.freedom <= len(p) - 1 + 1e-9


def test_many_documents_need_no_matrix_of_documents_by_documents() -> None:
    n = 20_000
    delta, tokens = np.random.default_rng(3).normal(0.02, 0.1, (1, n)), np.full(n, 300)
    found = over_documents(runs(delta, tokens), runs(np.zeros((1, n)), tokens))
    assert found.freedom == pytest.approx(n - 1)
    assert found.interval == pytest.approx(
        tuple(stats.ttest_1samp(delta[0], 0).confidence_interval(0.95))
    )


ONE = runs(np.zeros((2, 1)), np.array([100]))
TWO = runs(np.zeros((2, 2)), np.array([100, 200]))


@pytest.mark.parametrize(
    ("arm", "baseline", "words"),
    [
        (ONE, ONE, "one document"),
        ({}, {}, "not whole"),
        ({0: TWO[0]}, TWO, "not whole"),
        ({0: {}}, {0: {}}, "no documents"),
        (ONE, TWO, "different documents"),
        (TWO, runs(np.zeros((2, 2)), np.array([100, 201])), "different documents"),
        (runs(np.array([[math.nan, 0.0], [0.0, 0.0]]), np.array([100, 200])), TWO, "not finite"),
    ],
)
def test_documents_that_cannot_be_compared_are_refused_with_the_reason(
    arm, baseline, words: str
) -> None:
    found = over_documents(arm, baseline)
    assert found.interval is None
    assert words in found.reason
    assert found.interval is None


def test_documents_that_say_the_same_have_a_point_for_an_interval() -> None:
    found = over_documents(
        runs(np.full((1, 3), 0.5), np.array([1, 2, 3])), runs(np.zeros((1, 3)), np.array([1, 2, 3]))
    )
    assert found.interval == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize("by_length", [0.0, 1.0])
@pytest.mark.parametrize("count", [3, 12])
def test_the_interval_over_documents_covers_where_their_lengths_differ(
    count: int, by_length: float
) -> None:
    """docs/method.md, *Documents*: 94–98 % whether long documents scatter less or not."""
    studies = 1000
    told = cover_over_documents(count, 1.0, studies, seed=2, by_length=by_length)
    assert told.held >= 1 - stats.binom.isf(0.001, studies, 0.06) / studies
