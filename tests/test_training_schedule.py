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
    schedule=st.sampled_from(["cosine", "linear", "constant", "inverse_sqrt"]),
)
falling_late = st.floats(0, 0.99).flatmap(
    lambda warmup: st.builds(
        TrainConfig,
        lr=st.floats(1e-6, 10),
        warmup=st.just(warmup),
        decay=st.floats(1e-3, 1 - warmup),
        final_lr=st.floats(0, 1),
        schedule=st.just("wsd"),
    )
)
configs = configs | falling_late


@given(configs, st.integers(2, 5000))
def test_first_step_has_a_rate_and_last_step_is_exactly_at_the_floor(
    cfg: TrainConfig, steps: int
) -> None:
    floor = {
        "constant": cfg.lr,
        "inverse_sqrt": cfg.lr * math.sqrt(max(schedule.warmup_steps(steps, cfg), 1) / steps),
    }
    assert schedule.lr(0, steps, cfg) > 0
    assert schedule.lr(steps - 1, steps, cfg) == floor.get(cfg.schedule, cfg.lr * cfg.final_lr)


@given(configs, st.integers(3, 400))
def test_rate_rises_through_the_warmup_to_the_peak_and_then_falls(
    cfg: TrainConfig, steps: int
) -> None:
    rates = [schedule.lr(k, steps, cfg) for k in range(steps)]
    warmup = min(round(cfg.warmup * steps), steps - 1)
    assert all(a < b for a, b in itertools.pairwise(rates[:warmup]))
    after = rates[max(warmup - 1, 0) :]
    assert after[0] == pytest.approx(cfg.lr, rel=1e-12)
    assert all(a >= b * (1 - 1e-12) for a, b in itertools.pairwise(after))


def test_warmup_and_cosine_have_the_values_that_their_formulas_say() -> None:
    cfg = TrainConfig(lr=1.0, warmup=0.1, final_lr=0.1, schedule="cosine")
    assert [schedule.lr(k, 100, cfg) for k in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert schedule.lr(54, 100, cfg) == pytest.approx(
        0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 45 / 90))
    )
    linear = cfg.model_copy(update={"schedule": "linear"})
    assert schedule.lr(54, 100, linear) == pytest.approx(0.55)


def test_a_late_decay_stays_at_the_peak_and_falls_over_its_share_of_the_steps() -> None:
    cfg = TrainConfig(lr=1.0, warmup=0.1, final_lr=0.1, schedule="wsd", decay=0.2)
    rates = [schedule.lr(k, 100, cfg) for k in range(100)]
    assert rates[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert rates[9:80] == [1.0] * 71
    assert rates[79:] == pytest.approx([1 - 0.9 * k / 20 for k in range(21)])
    whole = cfg.model_copy(update={"decay": 0.9, "schedule": "wsd"})
    linear = cfg.model_copy(update={"schedule": "linear"})
    assert [schedule.lr(k, 100, whole) for k in range(10, 100)] == pytest.approx(
        [schedule.lr(k, 100, linear) for k in range(10, 100)], abs=0.011
    )


def test_an_inverse_square_root_goes_on_from_the_warmup_whatever_the_length_of_the_run() -> None:
    cfg = TrainConfig(lr=1.0, warmup=0.1, schedule="inverse_sqrt")
    assert [schedule.lr(k, 100, cfg) for k in (4, 9, 39, 89)] == pytest.approx(
        [0.5, 1.0, 0.5, 1 / 3]
    )
    assert schedule.lr(40, 50, cfg.model_copy(update={"warmup": 0.2})) == schedule.lr(40, 100, cfg)


def test_a_run_of_one_step_runs_at_the_peak() -> None:
    assert schedule.lr(0, 1, TrainConfig(lr=0.5, final_lr=0.0, warmup=0.9)) == 0.5


@given(st.integers(1, 300), st.integers(1, 3000))
def test_points_are_as_many_as_asked_evenly_spaced_and_end_at_the_end(
    count: int, steps: int
) -> None:
    points = sorted(schedule.evenly_spaced(count, steps))
    assert len(points) == min(count, steps)
    assert points[0] >= 1
    assert points[-1] == steps
    gaps = [b - a for a, b in itertools.pairwise([0, *points])]
    assert max(gaps) - min(gaps) <= 1


def test_a_budget_smaller_than_a_batch_is_refused_in_words() -> None:
    cfg = build(RunConfig, {"train": {"tokens": 511, "batch_size": 8}, "model": {"context": 64}})
    with pytest.raises(UserError, match=r"train.tokens 511: less than one batch of 512 tokens"):
        schedule.steps(cfg)
    assert (
        schedule.steps(
            build(RunConfig, {"train": {"tokens": 1100, "batch_size": 8}, "model": {"context": 64}})
        )
        == 2
    )


def test_the_tail_is_a_tenth_and_never_nothing() -> None:
    assert [schedule.tail_steps(steps) for steps in (1, 9, 10, 400)] == [1, 1, 1, 40]
