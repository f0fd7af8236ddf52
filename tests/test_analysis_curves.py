"""Crossings and smoothing: by tokens, whatever was logged how often, and nothing hidden."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.analysis.tables import curves
from andrea.errors import UserError

LOSSES = st.floats(0.1, 12, allow_nan=False)


def run(
    tokens: list[int], losses: list[float], kind: str = "eval", name: str = "x"
) -> pd.DataFrame:
    """One run's rows of `curves`, as far as they are needed."""
    frame = pd.DataFrame({"tokens": tokens, "loss": losses})
    return frame.assign(arm="a", phase="replicate", seed=1, run_id=name, kind=kind)


@st.composite
def logged(draw: st.DrawFn, kind: str = "eval") -> pd.DataFrame:
    """A run with two to twelve records at increasing tokens."""
    tokens = sorted(draw(st.sets(st.integers(1, 1000), min_size=2, max_size=12)))
    losses = draw(st.lists(LOSSES, min_size=len(tokens), max_size=len(tokens)))
    return run([1000 * t for t in tokens], losses, kind)


def crossed(frame: pd.DataFrame, level: float) -> float:
    return float(curves.find_crossings(frame, level)["tokens"].iloc[0])


# ---- crossings
# --------------------------------------------------------------------------------------------------


def test_a_crossing_lies_on_the_line_between_the_two_evaluations_that_enclose_it() -> None:
    told = curves.find_crossings(run([0, 100, 200, 300], [5.0, 4.0, 3.0, 3.5]), 3.25).iloc[0]
    assert told[["tokens", "before", "after", "n"]].tolist() == [175.0, 100.0, 200.0, 4]
    assert crossed(run([0, 100, 200], [5.0, 3.0, 2.0]), 3.0) == 100.0, (
        "an evaluation at the level is the crossing"
    )


def test_a_run_that_never_comes_down_crosses_nowhere_and_nothing_is_extrapolated() -> None:
    told = curves.find_crossings(run([0, 100, 200], [5.0, 4.0, 3.0]), 2.999).iloc[0]
    assert (
        math.isnan(told["tokens"])
        and math.isnan(told["before"])
        and math.isnan(told["after"])
        and told["n"] == 3
    )


def test_a_run_that_begins_below_is_said_to() -> None:
    told = curves.find_crossings(run([50, 100], [2.0, 1.0]), 3.0).iloc[0]
    assert told["tokens"] == 50 and math.isnan(told["before"]) and told["after"] == 50


def test_where_the_evaluation_before_is_not_finite_nobody_knows_since_when() -> None:
    told = curves.find_crossings(run([0, 100, 200], [5.0, math.nan, 2.0]), 3.0).iloc[0]
    assert math.isnan(told["tokens"]) and told[["before", "after", "n"]].tolist() == [
        100.0,
        200.0,
        2,
    ]
    assert crossed(run([0, 100, 200, 300], [5.0, math.nan, 4.0, 2.0]), 3.0) == 250.0
    assert math.isnan(crossed(run([0, 100], [5.0, -math.inf]), 3.0)), "a loss of −∞ is no loss"


def test_every_run_has_its_own_level_and_rows_of_training_are_left_out() -> None:
    both = pd.concat(
        [run([0, 100], [4.0, 2.0]), run([0, 100], [4.0, 2.0], name="y"), run([5], [1.0], "train")]
    )
    told = curves.find_crossings(both, {"x": 3.0}).set_index("run_id")
    assert told.loc["x", "tokens"] == 50 and math.isnan(told.loc["y", "tokens"])
    assert curves.find_crossings(both.head(0), 3.0).empty


@settings(max_examples=60, deadline=None)
@given(logged(), LOSSES, st.data())
def test_a_point_added_on_the_line_moves_no_crossing(
    frame: pd.DataFrame, level: float, data: st.DataObject
) -> None:
    after = data.draw(st.integers(1, len(frame) - 1))
    (left, low), (right, high) = (
        frame[["tokens", "loss"]].iloc[after - 1 : after + 1].to_numpy().tolist()
    )
    between = int(left + (right - left) * data.draw(st.floats(0.01, 0.99)))
    on_line = low + (high - low) * (between - left) / (right - left)
    denser = pd.concat([frame, run([between], [on_line])]).sample(frac=1, random_state=0)
    assert crossed(denser, level) == pytest.approx(crossed(frame, level), rel=1e-9, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(logged(), LOSSES)
def test_a_crossing_is_where_the_straight_lines_first_reach_the_level(
    frame: pd.DataFrame, level: float
) -> None:
    told = crossed(frame, level)
    fine = np.unique(np.concatenate([np.linspace(1000, 1_000_000, 2000), frame["tokens"]]))
    fine = fine[(fine >= frame["tokens"].iloc[0]) & (fine <= frame["tokens"].iloc[-1])]
    line = np.interp(fine, frame["tokens"], frame["loss"])
    below = fine[line <= level]
    if math.isnan(told):
        assert not len(below)
    else:
        assert line[fine < told - 1e-6].min(initial=math.inf) > level - 1e-9
        assert np.interp(told, frame["tokens"], frame["loss"]) <= level + 1e-9


# ---- smoothing
# --------------------------------------------------------------------------------------------------


def by_hand(frame: pd.DataFrame, width: int) -> list[float]:
    """The mean over the last `width` tokens, token by token."""
    per_token = np.repeat(frame["loss"].to_numpy(), np.diff([0, *frame["tokens"]]))
    return [float(np.mean(per_token[max(0, t - width) : t])) for t in frame["tokens"]]


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 400), st.data())
def test_a_smoothed_loss_is_the_mean_over_the_last_tokens(
    tokens: set[int], width: int, data: st.DataObject
) -> None:
    losses = st.lists(LOSSES | st.just(math.nan), min_size=len(tokens), max_size=len(tokens))
    frame = run(sorted(tokens), data.draw(losses), "train")
    told = curves.smooth_losses(frame, width)
    assert told["tokens"].tolist() == sorted(tokens), "at logged steps only"
    assert told["loss"].tolist() == pytest.approx(by_hand(frame, width), rel=1e-9, nan_ok=True)
    assert (
        told["covered"].tolist() == [min(t, width) for t in sorted(tokens)]
        and (told["width"] == width).all()
    )


@settings(max_examples=60, deadline=None)
@given(logged("train"), st.integers(1, 400_000), st.data())
def test_smoothing_does_not_depend_on_how_often_was_logged(
    frame: pd.DataFrame, width: int, data: st.DataObject
) -> None:
    """Every record becomes several whose mean over tokens it is."""
    tokens, losses, start = [], [], 0
    for end, loss in frame[["tokens", "loss"]].to_numpy().tolist():
        cut = int(start + (end - start) * data.draw(st.floats(0.1, 0.9)))
        tokens += [cut, int(end)]
        losses += [loss, loss]
        start = end
    denser = curves.smooth_losses(run(tokens, losses, "train"), width).set_index("tokens")["loss"]
    told = curves.smooth_losses(frame, width)
    assert denser[told["tokens"]].tolist() == pytest.approx(told["loss"].tolist(), abs=1e-8)


def test_a_window_that_touches_a_loss_that_is_not_finite_has_none() -> None:
    frame = run([100, 200, 300, 400, 500], [4.0, math.nan, 3.0, 3.0, 3.0], "train")
    assert curves.smooth_losses(frame, 200)["loss"].isna().tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]
    zero = run([100, 100, 200], [4.0, math.nan, 3.0], "train")
    assert curves.smooth_losses(zero, 50)["loss"].isna().tolist() == [True, True, False], (
        "even one that covers no token"
    )
    assert curves.smooth_losses(run([0, 100], [9.0, 3.0], "train"), 50)["loss"].tolist() == [
        9.0,
        3.0,
    ]


def test_smoothing_leaves_evaluations_out_and_runs_apart() -> None:
    rows = [run([100], [4.0], "train"), run([100], [2.0], "train", "y"), run([100], [9.0])]
    told = curves.smooth_losses(pd.concat(rows), 1000)
    assert told[["run_id", "loss"]].to_numpy().tolist() == [["x", 4.0], ["y", 2.0]]
    assert curves.smooth_losses(rows[2], 10).empty and "width" in curves.smooth_losses(rows[2], 10)
    with pytest.raises(UserError, match="must be above 0"):
        curves.smooth_losses(rows[0], 0)
