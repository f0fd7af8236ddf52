"""Regret: what the choice of a rate may have cost."""

import math

import numpy as np
import pytest

from andrea.verdict.rates import Choice, Point, choose_rate, midpoint_rates, rate_grid
from andrea.verdict.regret import estimate_regrets, pooled_scatter

GRID = rate_grid(7, 3.16e-3)
MIDDLE = midpoint_rates(GRID, 0.00316)


def choice(noise: float, curvature: float = 0.3, seed: int = 0, cliff: float = math.inf) -> Choice:
    """A tuned arm with its optimum at the grid's centre."""
    rng = np.random.default_rng(seed)
    points = []
    for lr in [*GRID, *MIDDLE]:
        loss = 2.5 + curvature * (math.log10(lr) + 2.5) ** 2 + noise * rng.standard_normal()
        points.append(Point(lr, 5.5, False) if lr >= cliff else Point(lr, float(loss)))
    return choose_rate(points, GRID)


def test_without_scatter_a_vertex_costs_nothing() -> None:
    assert estimate_regrets({"a": choice(0.0)})["a"] == pytest.approx(0.0, abs=1e-7)


def test_regret_grows_with_the_square_of_the_scatter() -> None:
    """Vertex error is proportional to the noise, its cost to the square of that."""
    small, large = (estimate_regrets({"a": choice(noise)})["a"] for noise in (0.002, 0.008))
    assert small is not None and large is not None
    assert large / small == pytest.approx(16, rel=0.25)


def test_regret_is_the_textbook_one_for_a_steep_valley() -> None:
    """Var(vertex) = s² / (4 c² Σx²); its cost c·v² has the 95th percentile 3.84 s² / (4 c Σx²)."""
    data = choice(0.002)
    assert data.fit is not None
    s, _ = pooled_scatter({"a": data})
    x = np.log10(data.fit.lrs)
    expected = 3.841 * s**2 / (4 * data.fit.coefficients[2] * float(((x - x.mean()) ** 2).sum()))
    assert estimate_regrets({"a": data}, draws=20_000)["a"] == pytest.approx(expected, rel=0.1)


def test_scatter_is_pooled_over_arms() -> None:
    quiet, loud = choice(0.0), choice(0.01)
    alone, freedom = pooled_scatter({"loud": loud})
    together, more = pooled_scatter({"loud": loud, "quiet": quiet})
    assert (freedom, more) == (2, 4)
    assert together == pytest.approx(alone / math.sqrt(2))
    assert estimate_regrets({"loud": loud, "quiet": quiet})["quiet"] > 1e-5  # type: ignore[operator]
    assert pooled_scatter({}) == (0.0, 0)


def test_a_crooked_curve_has_a_regret_of_the_size_of_its_true_cost() -> None:
    """Steeper below the optimum, no noise at all: the parabola's vertex is off, and its misfit says
    so.
    """

    def above(lr: float) -> float:
        u = math.log10(lr) + 2.5
        return 0.6 * (math.exp(-4 * u) + 4 * u - 1) / 16

    crooked = choose_rate([Point(lr, 2.5 + above(lr)) for lr in [*GRID, *MIDDLE]], GRID)
    assert crooked.method == "vertex"
    regret = estimate_regrets({"a": crooked})["a"]
    assert regret is not None
    assert 0.5 < regret / above(crooked.lr) < 5
    assert above(crooked.lr) > 0.001


def test_beside_a_cliff_the_regret_counts_what_no_good_run_could_see() -> None:
    """The losses fall right up to the rate that stalled: the best may lie beyond the last good."""
    falling = [Point(0.000316, 2.8), Point(0.001, 2.65), Point(0.00178, 2.58), Point(0.00316, 2.52)]
    beside = choose_rate(
        [*falling, *(Point(lr, 5.5, False) for lr in (0.00562, 0.01, 0.0316))], GRID
    )
    assert (beside.lr, beside.reach) == (0.00316, (0.001, 0.00562))
    regret = estimate_regrets({"a": beside})["a"]
    assert regret is None or regret > 0.005


def test_how_low_the_curve_falls_beyond_the_last_good_run_is_no_known_number() -> None:
    """Three good points before a cliff leave no residual: the parabola is as uncertain as other
    arms' scatter says.
    """
    good = [(0.000316, 2.8), (0.001, 2.65), (0.00178, 2.58), (0.00316, 2.528)]
    three = choose_rate(
        [*(Point(*p) for p in good), *(Point(lr, 5.5, False) for lr in GRID[3:])], GRID
    )
    alone, among = (
        estimate_regrets({"a": three} | more)["a"] for more in ({}, {"b": choice(0.01, seed=1)})
    )
    assert len(three.window) == 3 and alone is not None and among is not None
    assert among > 1.3 * alone


def test_an_argmin_between_grid_points_costs_its_distance() -> None:
    optimum = -2.25
    points = [Point(lr, 2.5 + 0.3 * (math.log10(lr) - optimum) ** 2) for lr in GRID]
    hardly = choose_rate(points, GRID, hardly_tuned=True)
    assert estimate_regrets({"a": hardly})["a"] == pytest.approx(
        0.3 * (math.log10(hardly.lr) - optimum) ** 2, abs=1e-3
    )


def test_without_a_parabola_the_regret_is_unknown() -> None:
    single = choose_rate([Point(0.00316, 2.5)], [0.00316], hardly_tuned=True)
    assert estimate_regrets({"a": single, "b": choice(0.01)})["a"] is None


def test_the_same_seed_gives_the_same_regret_in_any_order_of_arms() -> None:
    first, second = choice(0.01, seed=1), choice(0.01, seed=2)
    there = estimate_regrets({"a": first, "b": second})
    assert estimate_regrets({"b": second, "a": first}) == there
    assert list(there) == ["a", "b"]
    assert estimate_regrets({"a": first, "b": second}, seed=1) != there
