"""The schedule and the points of a run, as properties."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea.config import RunConfig, build
from andrea.errors import UserError
from andrea.training import schedule
from andrea.training.config import TrainConfig

configs = st.builds(
    TrainConfig,
    lr=st.floats(1e-6, 10),
    warmup=st.floats(0, 0.999),
    final_lr=st.floats(0, 1),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
)


@given(configs, st.integers(2, 5000))
def test_s4_first_step_has_a_rate_and_last_step_is_exactly_at_the_floor(cfg: TrainConfig, steps: int) -> None:
    floor = cfg.lr if cfg.schedule == "constant" else cfg.lr * cfg.final_lr
    assert schedule.lr(0, steps, cfg) > 0
    assert schedule.lr(steps - 1, steps, cfg) == floor


@given(configs, st.integers(3, 400))
def test_rate_rises_through_the_warmup_to_the_peak_and_then_falls(cfg: TrainConfig, steps: int) -> None:
    rates = [schedule.lr(k, steps, cfg) for k in range(steps)]
    warmup = min(round(cfg.warmup * steps), steps - 1)
    assert all(a < b for a, b in itertools.pairwise(rates[:warmup]))
    after = rates[max(warmup - 1, 0) :]
    assert after[0] == pytest.approx(cfg.lr, rel=1e-12)
    assert all(a >= b * (1 - 1e-12) for a, b in itertools.pairwise(after))


def test_warmup_and_cosine_have_the_values_that_their_formulas_say() -> None:
    cfg = TrainConfig(lr=1.0, warmup=0.1, final_lr=0.1, schedule="cosine")
    assert [schedule.lr(k, 100, cfg) for k in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert schedule.lr(54, 100, cfg) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 45 / 90)))
    linear = cfg.model_copy(update={"schedule": "linear"})
    assert schedule.lr(54, 100, linear) == pytest.approx(0.55)


def test_a_run_of_one_step_runs_at_the_peak() -> None:
    assert schedule.lr(0, 1, TrainConfig(lr=0.5, final_lr=0.0, warmup=0.9)) == 0.5


@given(st.integers(1, 300), st.integers(1, 3000))
def test_points_are_as_many_as_asked_evenly_spaced_and_end_at_the_end(count: int, steps: int) -> None:
    points = sorted(schedule.points(count, steps))
    assert len(points) == min(count, steps)
    assert points[0] >= 1
    assert points[-1] == steps
    gaps = [b - a for a, b in itertools.pairwise([0, *points])]
    assert max(gaps) - min(gaps) <= 1


def test_a_budget_smaller_than_a_batch_is_refused_in_words() -> None:
    cfg = build(RunConfig, {"train": {"tokens": 511, "batch_size": 8}, "model": {"context": 64}})
    with pytest.raises(UserError, match=r"train.tokens 511: less than one batch of 512 tokens"):
        schedule.steps(cfg)
    assert schedule.steps(build(RunConfig, {"train": {"tokens": 1100, "batch_size": 8}, "model": {"context": 64}})) == 2


def test_the_tail_is_a_tenth_and_never_nothing() -> None:
    assert [schedule.tail(steps) for steps in (1, 9, 10, 400)] == [1, 1, 1, 40]
