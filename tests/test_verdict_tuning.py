"""The decision what to tune next, told as the stories of whole tunings."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.verdict.protocol import Protocol
from andrea.verdict.rates import Point
from andrea.verdict.tuning import Decision, next_step

calm = settings(deadline=None)
"""A slow machine is no failure."""

Run = Callable[[float], Point]


def arm(optimum: float, cliff: float = math.inf, curvature: float = 0.3) -> Run:
    """A noiseless arm: its optimum, and the log10 rate from which on it stalls."""

    def run(lr: float) -> Point:
        x = math.log10(lr)
        return (
            Point(lr, 5.5, ok=False)
            if x >= cliff
            else Point(lr, 2.5 + curvature * (x - optimum) ** 2)
        )

    return run


def tune(
    runs: dict[str, Run],
    protocol: Protocol,
    baseline: str | None = None,
    centers: dict[str, float] | None = None,
) -> list[Decision]:
    """Do what is asked until nothing is."""
    points: dict[str, list[Point]] = {name: [] for name in runs}
    story = []
    while not story or story[-1].phase != "done":
        story.append(next_step(points, protocol, baseline=baseline, centers=centers))
        for name, rates in story[-1].rates.items():
            points[name] += [runs[name](lr) for lr in rates]
        assert len(story) < 10
    return story


def phases(story: list[Decision]) -> list[str]:
    return [decision.phase for decision in story]


PROTOCOL = Protocol(m=0.05)


def test_every_arm_gets_the_same_grid_and_then_its_own_midpoints() -> None:
    story = tune({"pre": arm(-2.5), "post": arm(-3.0)}, PROTOCOL)
    assert phases(story) == ["grid", "midpoint", "done"]
    assert story[0].rates["pre"] == story[0].rates["post"] == story[0].grids["pre"]
    assert story[1].rates == {"pre": [0.00178, 0.00562], "post": [0.000562, 0.00178]}
    assert {name: choice.lr for name, choice in story[2].choices.items()} == {
        "pre": 0.00316,
        "post": 0.001,
    }
    assert [decision.generation for decision in story] == [0, 1, 2]


def test_the_default_costs_seven_trials_an_arm() -> None:
    story = tune({"pre": arm(-2.5), "post": arm(-3.0)}, PROTOCOL)
    assert sum(len(decision.rates.get("pre", [])) for decision in story) == PROTOCOL.trials


def test_one_arm_at_an_edge_extends_every_arms_grid() -> None:
    story = tune({"pre": arm(-2.5), "post": arm(-1.4)}, PROTOCOL)
    assert phases(story) == ["grid", "extension", "midpoint", "done"]
    assert story[1].rates == {"pre": [0.1], "post": [0.1]}
    assert "post" in story[1].note
    assert story[-1].choices["post"].edge is None
    assert abs(math.log10(story[-1].choices["post"].lr) + 1.4) < 3e-3


def test_arms_that_pull_apart_extend_both_sides_in_one_generation() -> None:
    story = tune({"low": arm(-3.6), "high": arm(-1.4)}, PROTOCOL)
    assert phases(story) == ["grid", "extension", "midpoint", "done"]
    assert story[1].rates["low"] == [0.0001, 0.1]


def test_after_two_extensions_the_arm_stays_at_the_edge_and_gets_no_midpoints() -> None:
    story = tune({"pre": arm(-2.5), "far": arm(2.0)}, PROTOCOL)
    assert phases(story) == ["grid", "extension", "extension", "midpoint", "done"]
    assert "far" not in story[3].rates
    assert story[-1].choices["far"].edge == "high"
    assert story[-1].choices["pre"].edge is None


@pytest.mark.parametrize("extensions", [0, 1, 2])
def test_the_protocol_bounds_the_extensions(extensions: int) -> None:
    story = tune({"far": arm(2.0)}, Protocol(m=0.05, extensions=extensions))
    assert phases(story).count("extension") == extensions
    assert story[-1].choices["far"].edge == "high"


def test_an_arm_that_never_trains_is_neither_extended_nor_chosen() -> None:
    story = tune({"pre": arm(-1.4), "dead": arm(-2.5, cliff=-9)}, PROTOCOL, "pre")
    assert phases(story) == ["grid", "extension", "midpoint", "done"]
    assert all("dead" not in decision.rates for decision in story[1:])
    assert story[-1].untrainable == ["dead"]
    assert set(story[-1].choices) == {"pre"}


def test_a_baseline_that_never_trains_ends_the_tuning() -> None:
    story = tune({"dead": arm(-2.5, cliff=-9), "arm": arm(-1.0)}, PROTOCOL, "dead")
    assert phases(story) == ["grid", "done"]
    assert story[-1].untrainable == ["dead"]
    assert not story[-1].choices


def test_only_what_is_missing_is_asked_for_again() -> None:
    points = {"a": [arm(-2.5)(lr) for lr in (0.000316, 0.00316)], "b": []}
    decision = next_step(points, PROTOCOL)
    assert decision.rates["a"] == [0.001, 0.01, 0.0316]
    assert decision.rates["b"] == decision.grids["b"]


@pytest.mark.parametrize("trials", range(1, 7))
def test_few_trials_end_without_midpoints(trials: int) -> None:
    story = tune({"a": arm(-2.4)}, Protocol(m=0.05, trials=trials))
    assert phases(story) == ["grid", "done"]
    choice = story[-1].choices["a"]
    assert choice.method == "argmin"
    assert choice.hardly_tuned
    assert choice.lr in next(iter(story[0].grids.values()))


def test_few_trials_at_an_edge_are_extended_like_any_other() -> None:
    story = tune({"a": arm(-1.0)}, Protocol(m=0.05, trials=3))
    assert phases(story) == ["grid", "extension", "extension", "done"]
    assert next(iter(story[-1].grids.values())) == [0.000316, 0.00316, 0.0316, 0.1, 0.316]
    assert story[-1].choices["a"].lr == 0.1


def test_a_cliff_beside_the_best_is_no_edge_and_no_point_of_the_fit() -> None:
    story = tune({"post": arm(-2.6, cliff=-2.1)}, PROTOCOL)
    assert phases(story) == ["grid", "midpoint", "done"]
    choice = story[-1].choices["post"]
    assert choice.method == "vertex"
    assert choice.fit is not None and 0.01 not in choice.fit.lrs
    assert abs(math.log10(choice.lr) + 2.6) < 3e-3


@calm
@given(
    st.lists(st.floats(-4.5, -0.5), min_size=1, max_size=4), st.integers(1, 10), st.integers(0, 2)
)
def test_tuning_always_ends_and_is_the_same_whatever_is_remembered(
    optima: list[float], trials: int, extensions: int
) -> None:
    protocol = Protocol(m=0.05, trials=trials, extensions=extensions)
    runs = {f"arm{i}": arm(x) for i, x in enumerate(optima)}
    story = tune(runs, protocol)
    tried = {
        name: [lr for decision in story for lr in decision.rates.get(name, [])] for name in runs
    }
    assert all(len(set(rates)) == len(rates) for rates in tried.values()), "no rate is tried twice"
    again = next_step(
        {name: [runs[name](lr) for lr in reversed(rates)] for name, rates in tried.items()},
        protocol,
    )
    assert again == story[-1]
    assert all(choice.lr > 0 for choice in again.choices.values())


def test_an_arm_with_a_center_of_its_own_gets_as_many_rates_and_extensions_elsewhere() -> None:
    runs = {"adamw": arm(-2.5), "sgd": arm(0.7), "lion": arm(-3.6)}
    story = tune(runs, PROTOCOL, centers={"sgd": 0.316, "lion": 0.000316})
    assert phases(story) == ["grid", "extension", "midpoint", "done"]
    assert story[0].rates["adamw"] == [0.000316, 0.001, 0.00316, 0.01, 0.0316]
    assert story[0].rates["sgd"] == [0.0316, 0.1, 0.316, 1.0, 3.16]
    assert story[0].note == "5 rates per arm"
    assert story[1].rates == {"adamw": [0.1], "sgd": [10.0], "lion": [0.01]}, (
        "whoever's edge it was"
    )
    counts = {name: sum(len(decision.rates.get(name, [])) for decision in story) for name in runs}
    assert set(counts.values()) == {8}
    chosen = {name: math.log10(choice.lr) for name, choice in story[-1].choices.items()}
    assert chosen == pytest.approx({"adamw": -2.5, "sgd": 0.7, "lion": -3.6}, abs=0.01)
    assert story[-1].choices["sgd"].grid == (0.0316, 0.1, 0.316, 1.0, 3.16, 10.0)
