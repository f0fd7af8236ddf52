"""The rate of an arm: grid, edge, midpoints, vertex or argmin."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.verdict.rates import (
    Point,
    best_point,
    choose_rate,
    edge_of_best,
    fit_parabola,
    midpoint_rates,
    rate_beyond,
    rate_grid,
    round_rate,
)
from andrea.verdict.seeds import BLOCK, replication_seed, tuning_seed

calm = settings(deadline=None)
"""A slow machine is no failure."""

CENTER = 3.16e-3
GRID = [0.000316, 0.001, 0.00316, 0.01, 0.0316]


def valley(lrs: list[float], optimum: float, curvature: float = 0.3) -> list[Point]:
    """Noiseless points on a parabola in log10 lr."""
    return [Point(lr, 2.5 + curvature * (math.log10(lr) - optimum) ** 2) for lr in lrs]


def tuned(optimum: float, rates: list[float] = GRID) -> list[Point]:
    """Grid and midpoints, as a study would have tried them."""
    on_grid = valley(rates, optimum)
    top = best_point(on_grid)
    assert top is not None
    return on_grid + valley(midpoint_rates(rates, top.lr), optimum)


def test_the_default_grid_is_five_half_decades_that_a_reader_can_copy() -> None:
    assert rate_grid(7, CENTER) == GRID


@pytest.mark.parametrize("trials", range(1, 13))
def test_every_number_of_trials_has_a_grid_round_the_center(trials: int) -> None:
    rates = rate_grid(trials, CENTER)
    assert len(rates) == (trials if trials < 7 else trials - 2)
    steps = [math.log10(b / a) for a, b in pairwise(rates)]
    assert all(abs(step - steps[0]) < 2e-3 for step in steps), "evenly spaced"
    assert all(abs(step - 0.5) < 2e-3 for step in steps) or trials in (2, 3)
    offset = math.log10(rates[0] * rates[-1]) / 2 - math.log10(CENTER)
    assert abs(offset) < 2e-3 or (len(rates) % 2 == 0 and abs(offset + 0.25) < 2e-3), (
        "an extra rate is a low one"
    )


def test_more_trials_only_add_rates() -> None:
    for trials in range(7, 12):
        assert set(rate_grid(trials, CENTER)) <= set(rate_grid(trials + 1, CENTER))


def test_a_center_off_the_half_decades_keeps_its_own_grid() -> None:
    assert rate_grid(7, 2e-3) == [0.0002, 0.000632, 0.002, 0.00632, 0.02]


@pytest.mark.parametrize(("trials", "center"), [(0, CENTER), (7, 0.0), (7, -1.0), (7, math.nan)])
def test_a_grid_of_nothing_is_refused(trials: int, center: float) -> None:
    with pytest.raises(ValueError):
        rate_grid(trials, center)


def test_an_extension_adds_half_a_decade_without_drift() -> None:
    assert rate_beyond(GRID, "high") == 0.1
    assert rate_beyond(GRID, "low") == 0.0001
    assert rate_beyond([*GRID, 0.1], "high") == 0.316


@calm
@given(st.floats(1e-8, 1e3))
def test_rounding_to_three_digits_is_idempotent_and_close(x: float) -> None:
    assert round_rate(round_rate(x)) == round_rate(x)
    assert abs(round_rate(x) / x - 1) <= 0.005


def test_best_ignores_what_diverged_and_prefers_the_lower_rate_in_a_tie() -> None:
    points = [Point(0.01, 2.5), Point(0.001, 2.5), Point(0.1, 1.0, ok=False)]
    assert best_point(points) == points[1]
    assert best_point([points[2]]) is None
    assert best_point([]) is None


def test_a_loss_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="loss at initialisation"):
        Point(0.01, math.nan, ok=False)


def test_an_edge_is_where_the_grid_ends_not_where_runs_fail() -> None:
    assert edge_of_best(valley(GRID, -4), GRID) == "low"
    assert edge_of_best(valley(GRID, -1), GRID) == "high"
    assert edge_of_best(valley(GRID, -2.5), GRID) is None
    cliff = [Point(p.lr, 5.5, ok=p.lr < 0.0316) if p.lr >= 0.0316 else p for p in valley(GRID, -1)]
    assert edge_of_best(cliff, GRID) is None, "a stalled rate above the best brackets it"
    assert edge_of_best([Point(lr, 5.5, ok=False) for lr in GRID], GRID) is None


def test_midpoints_do_not_move_the_edge() -> None:
    points = [*valley(GRID, -2.5), Point(0.000178, 1.0)]
    assert edge_of_best(points, GRID) is None


@pytest.mark.parametrize("rates", [[0.00316], [0.001, 0.01]])
def test_with_fewer_than_three_rates_there_is_no_edge(rates: list[float]) -> None:
    assert edge_of_best(valley(rates, -5), rates) is None


def test_midpoints_lie_halfway_in_log() -> None:
    assert midpoint_rates(GRID, 0.00316) == [0.00178, 0.00562]
    assert midpoint_rates(GRID, 0.000316) == [0.000562]
    assert midpoint_rates([0.00316], 0.00316) == []


@calm
@given(st.floats(-3.2, -1.8))
def test_the_vertex_finds_an_optimum_anywhere_between_grid_points(optimum: float) -> None:
    choice = choose_rate(tuned(optimum), GRID)
    assert choice.method == "vertex"
    assert choice.note == ""
    # Tuning ran at rounded rates, and the choice is rounded too.
    assert choice.lr == round_rate(10**optimum) or abs(math.log10(choice.lr) - optimum) < 3e-3


def test_the_vertex_uses_the_window_round_the_best_alone() -> None:
    points = tuned(-2.5)
    far = [Point(p.lr, p.loss + 3.0) if p.lr == 0.0316 else p for p in points]
    assert choose_rate(far, GRID).lr == choose_rate(points, GRID).lr
    assert choose_rate(far, GRID).fit == choose_rate(points, GRID).fit


def test_a_stalled_neighbour_does_not_bend_the_fit() -> None:
    points = tuned(-2.6)
    stalled = [Point(p.lr, 5.5, ok=False) if p.lr >= 0.01 else p for p in points]
    choice = choose_rate(stalled, GRID)
    assert choice.method == "vertex"
    assert abs(math.log10(choice.lr) + 2.6) < 3e-3
    assert choice.reach == (0.001, 0.01), "the optimum may lie as far as the rate that stalled"


def test_the_vertex_is_clamped_to_what_was_tried() -> None:
    rising = [
        Point(0.001, 2.9),
        Point(0.00178, 2.7),
        Point(0.00316, 2.6),
        Point(0.00562, 2.59),
        Point(0.01, 2.61),
    ]
    falling = [Point(p.lr, p.loss, p.lr < 0.00562) for p in rising] + [
        Point(0.000316, 3.3),
        Point(0.0316, 5.5, False),
    ]
    choice = choose_rate([*falling, Point(0.00237, 2.64)], GRID)
    assert choice.lr == 0.00316
    assert "clamped" in choice.note


def test_three_good_points_give_the_argmin_and_say_so() -> None:
    points = [Point(p.lr, p.loss, p.lr <= 0.00316) for p in tuned(-2.5)]
    choice = choose_rate(points, GRID)
    assert choice.method == "argmin"
    assert choice.lr == 0.00316
    assert "3 usable points" in choice.note
    assert choice.fit is not None, "which still tells what the argmin may cost"


def test_a_hill_gives_the_argmin_and_says_so() -> None:
    hill = {
        0.000316: 2.7,
        0.001: 2.60,
        0.00178: 2.66,
        0.00316: 2.59,
        0.00562: 2.66,
        0.01: 2.60,
        0.0316: 2.7,
    }
    choice = choose_rate([Point(lr, loss) for lr, loss in hill.items()], GRID)
    assert (choice.method, choice.lr, choice.fit) == ("argmin", 0.00316, None)
    assert "not convex" in choice.note


def test_a_flat_curve_is_not_convex_and_the_lower_rate_wins() -> None:
    choice = choose_rate([Point(lr, 2.5) for lr in [*GRID, 0.000178, 0.000562]], GRID)
    assert choice.method == "argmin"


def test_a_hardly_tuned_arm_gets_the_argmin() -> None:
    choice = choose_rate(tuned(-2.5), GRID, hardly_tuned=True)
    assert choice.method == "argmin"
    assert choice.hardly_tuned
    assert "hardly tuned" in choice.note


def test_at_an_edge_the_choice_is_the_argmin_and_the_side_is_said() -> None:
    choice = choose_rate(valley(GRID, -1), GRID)
    assert (choice.method, choice.lr, choice.edge) == ("argmin", 0.0316, "high")


def test_an_arm_without_a_good_point_has_no_rate() -> None:
    with pytest.raises(ValueError, match="no good point"):
        choose_rate([Point(lr, 5.5, ok=False) for lr in GRID], GRID)


@calm
@given(st.lists(st.floats(2.0, 4.0), min_size=5, max_size=5), st.permutations(range(5)))
def test_the_choice_does_not_depend_on_the_order_of_the_runs(
    losses: list[float], order: list[int]
) -> None:
    points = [Point(lr, loss) for lr, loss in zip(GRID, losses, strict=True)]
    assert choose_rate(points, GRID) == choose_rate([points[i] for i in order], GRID)


def test_the_fit_is_the_least_squares_parabola_in_log10_of_the_rate() -> None:
    fit = fit_parabola(valley(GRID, -2.5))
    assert fit is not None
    assert fit.coefficients == pytest.approx((2.5 + 0.3 * 6.25, 2 * 0.3 * 2.5, 0.3))
    assert fit.loss_at(0.01) == pytest.approx(2.5 + 0.3 * 0.25)
    assert list(fit.lrs) == GRID
    assert fit_parabola(valley([0.001, 0.01], -2.5)) is None


def test_tuning_and_replication_never_share_a_seed() -> None:
    assert replication_seed(BLOCK - 1) < tuning_seed(0)
    assert [replication_seed(0), replication_seed(1)] == [0, 1]
    for outside in (-1, BLOCK):
        with pytest.raises(ValueError):
            replication_seed(outside)
        with pytest.raises(ValueError):
            tuning_seed(outside)
