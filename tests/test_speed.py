"""Speed of the arms side by side, the budgets that follow from it, and what one process more costs
a study.
"""

import json
import math
import multiprocessing
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from training_kit import corpus, tiny

from andrea.errors import StudyError
from andrea.records.extras import Budget
from andrea.records.study import ResolvedArm, SpeedRatio, StudySpeed
from andrea.store.studies import StudyFolder
from andrea.study.stages import arm_speed as speed
from andrea.study.stages.equal_cost import costs_of
from andrea.training.speed import (
    LEVEL,
    arm_speed,
    measure_arms,
    median_with_interval,
    speed_ratio,
    visit_orders,
)


def test_every_arm_is_as_often_first_second_and_last() -> None:
    arms = ["pre", "post", "sandwich"]
    found = visit_orders(arms, 12)
    assert len(found) == 12 and all(sorted(order) == sorted(arms) for order in found)
    assert all(Counter(places) == dict.fromkeys(arms, 4) for places in zip(*found, strict=True))


def test_the_order_is_drawn_by_its_seed() -> None:
    arms = ["a", "b", "c", "d"]
    assert visit_orders(arms, 20) == visit_orders(arms, 20) != visit_orders(arms, 20, seed=1)
    followers = {(order[i], order[i + 1]) for order in visit_orders(arms, 20) for i in range(3)}
    assert len(followers) == 12  # nobody always comes after the same one


@pytest.mark.parametrize("n", [6, 9, 20, 41])
def test_the_interval_is_that_of_order_statistics(n: int) -> None:
    """The widest pair of ordered values that leaves at most 2.5 % of the binomial distribution
    outside on each side.
    """
    values = np.random.default_rng(n).standard_t(2, size=n)
    rank = int(stats.binom.ppf((1 - LEVEL) / 2, n, 0.5))
    assert stats.binom.cdf(rank - 1, n, 0.5) <= (1 - LEVEL) / 2 < stats.binom.cdf(rank, n, 0.5)
    ordered = np.sort(values)
    assert median_with_interval(list(values)) == (
        np.median(values),
        ordered[rank - 1],
        ordered[n - rank],
    )


def test_the_interval_covers_the_median_of_skewed_times() -> None:
    """Times have a long right tail: an interval by the normal distribution would miss their
    median.
    """
    draw, covered = np.random.default_rng(0), 0
    for _ in range(400):
        _, low, high = median_with_interval(list(draw.lognormal(sigma=1.0, size=15)))
        assert low is not None and high is not None
        covered += low <= 1.0 <= high
    assert covered >= 0.93 * 400


def test_under_six_rounds_there_is_a_median_and_no_interval() -> None:
    assert median_with_interval([3.0, 1.0, 2.0]) == (2.0, None, None)


def test_what_a_round_does_to_all_arms_cancels_in_the_ratio() -> None:
    """A machine that is up to ten times slower in some rounds: step times say little, ratios
    all.
    """
    slow = np.random.default_rng(1).uniform(1, 10, size=20)
    base_times, wide_times = list(0.01 * slow), list(0.015 * slow)
    base, wide = arm_speed(base_times, 512), arm_speed(wide_times, 1024)
    assert base.high > 1.5 * base.low
    ratio = speed_ratio(wide_times, base_times)
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert wide.tokens_per_s == pytest.approx(1024 / np.median(0.015 * slow))
    assert wide.rounds == 20
    assert wide.tokens_per_s_low == 1024 / wide.high
    assert wide.tokens_per_s_high == 1024 / wide.low


def frozen(tmp_path: Path, **arms: dict[str, Any]) -> Any:
    """What `andrea.study.stages.arm_speed` reads of a frozen study; the first arm is the
    baseline.
    """
    folder = StudyFolder(tmp_path / "study")
    folder.path.mkdir(exist_ok=True)
    configs = {arm: tiny(**settings) for arm, settings in arms.items()}
    resolved = {
        arm: ResolvedArm(config=config.model_dump(mode="json")) for arm, config in configs.items()
    }
    return SimpleNamespace(
        folder=folder,
        arms=list(arms),
        baseline=next(iter(arms)),
        resolved=SimpleNamespace(arms=resolved),
        config=configs.__getitem__,
        data_folder=corpus().folder,
        variants=None,
    )


def measured(**ratios: float) -> StudySpeed:
    spans = {arm: SpeedRatio(ratio=ratio, low=ratio, high=ratio) for arm, ratio in ratios.items()}
    return StudySpeed(ratio=spans)


def equal_tokens(study: Any, measured: StudySpeed | None, budget: Budget) -> dict[str, int | None]:
    costs = costs_of(study, budget, measured)
    return {arm: costs.equal_tokens(arm) for arm in study.arms}


def test_equal_flops_are_whole_batches_that_come_nearest(tmp_path: Path) -> None:
    study = frozen(
        tmp_path,
        base={},
        deep={"model__n_layer": 4},
        twin={"train__batch_size": 8, "train__tokens": 1536},
    )
    for arm, flops in (("base", 1000.0), ("deep", 1700.0), ("twin", 1000.0)):
        known = study.resolved.arms
        known[arm] = known[arm].model_copy(update={"flops_per_token": flops})
    tokens = equal_tokens(study, None, "flops")
    assert tokens == {
        "base": 1536,
        "deep": 14 * 64,
        "twin": 1536,
    }  # 24 / 1.7 = 14.1 steps of 64 tokens
    assert abs(tokens["deep"] * 1700 - 1536 * 1000) <= 1700 * 64 / 2


def test_a_study_that_tells_no_flops_has_them_counted(tmp_path: Path) -> None:
    study = frozen(tmp_path, base={}, deep={"model__n_layer": 4})
    assert 0.5 * 1536 <= equal_tokens(study, None, "flops")["deep"] < 1536


def test_equal_time_is_in_steps_of_the_arm(tmp_path: Path) -> None:
    """Twice the batch at 1.5 times the time per step: more tokens in the same time."""
    study = frozen(
        tmp_path, base={}, wide={"train__batch_size": 8}, slow={}, glacial={}, unknown={}
    )
    tokens = equal_tokens(study, measured(wide=1.5, slow=2.0, glacial=100.0), "time")
    times = {"base": 1536, "wide": 16 * 128, "slow": 12 * 64, "glacial": 64}
    assert tokens == {**times, "unknown": None}
    assert set(equal_tokens(study, None, "time").values()) == {1536, None}


def test_a_budget_that_is_no_whole_number_of_batches_is_one_at_equal_cost(tmp_path: Path) -> None:
    study = frozen(
        tmp_path, base={"train__tokens": 24 * 64 + 63}, same={"train__tokens": 24 * 64 + 63}
    )
    assert equal_tokens(study, measured(same=1.0), "time") == {"base": 1536, "same": 1536}


def test_a_measurement_of_other_arms_or_of_another_format_is_none(tmp_path: Path) -> None:
    study = frozen(tmp_path, base={}, deep={"model__n_layer": 4})
    found = {
        "format": speed.FORMAT,
        "arms": {"base": {}, "deep": {}},
        "ratio": {"deep": {"ratio": 2.0}},
    }
    for wrong in (
        {**found, "format": 0},
        {**found, "arms": {"base": {}}},
        {**found, "ratio": {}},
        [],
        {},
    ):
        (study.folder.path / speed.SPEED_FILE).write_text(json.dumps(wrong))
        assert speed.read(study.folder, study) is None
    study.folder.write(speed.SPEED_FILE, found)
    assert speed.measure(study.folder, study, print).to_json() == found


def test_the_ratios_are_told_and_that_they_are_uncertain_where_they_are() -> None:
    ratio = {
        "deep": {"ratio": 2.0, "low": 1.96, "high": 2.04},
        "odd": {"ratio": 1.0, "low": 0.97, "high": 1.02},
    }

    def line() -> str:
        return speed.summarise(StudySpeed(baseline="base", load=3.5, ratio=ratio))

    assert (
        line() == "time of a step over base's: deep 2.000 [1.960, 2.040], odd 1.000 [0.970, 1.020]"
    )
    ratio["odd"]["high"] = 1.08
    assert "uncertain by more than 5% (load of the machine 3.5)" in line()


@pytest.mark.slow
def test_twice_the_layers_are_slower_and_the_same_arm_is_not() -> None:
    lines: list[str] = []
    configs = {"base": tiny(), "deep": tiny(model__n_layer=8), "twin": tiny()}
    found = measure_arms(configs, corpus(), lines.append, budget_s=4.0)
    assert found.ratio.keys() == {"deep", "twin"}
    assert found.ratio["deep"].low > 1.3
    # One interval in twenty misses, hardly ever by as much again as it is wide.
    low, high = found.ratio["twin"].low, found.ratio["twin"].high
    assert low - (high - low) <= 1 <= high + (high - low)
    base, deep = found.arms["base"], found.arms["deep"]
    assert deep.rounds % 3 == 0 and deep.compile_s is None
    assert base.low <= base.step_s <= base.high
    assert "3 arms" in lines[0] and math.isfinite(found.load)


@pytest.mark.slow
def test_every_arm_is_compiled_for_itself_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one process torch would stop compiling at the ninth arm, and take other sizes for
    variable.
    """
    variable: list[bool] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        variable.append(any(isinstance(one, torch.SymInt) for one in inputs))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr("andrea.training.speed.VISIT_S", 0.0)
    torch._dynamo.reset()
    small = {"model__n_layer": 1, "train__compile": "on"}
    arms = {f"of {n}": tiny(**small, train__batch_size=n, train__tokens=2000) for n in range(2, 12)}
    found = measure_arms(arms, corpus(), print, budget_s=0.0)
    torch._dynamo.reset()
    assert variable == [False] * len(arms)
    assert all(arm.compile_s > 0 for arm in found.arms.values())


@pytest.mark.slow
def test_a_study_is_measured_once_in_a_child_that_leaves_nothing(tmp_path: Path) -> None:
    study, lines = frozen(tmp_path, base={}, deep={"model__n_layer": 4}), []
    found = speed.measure(study.folder, study, lines.append, budget_s=0.5)
    assert found.to_json() == json.loads((study.folder.path / speed.SPEED_FILE).read_text())
    assert found.arms.keys() == {"base", "deep"}
    assert (found.baseline, found.threads) == ("base", 1)
    assert len(lines) == 3 and "rounds" in lines[1] and "deep" in lines[2]
    assert [path.name for path in study.folder.path.iterdir()] == [speed.SPEED_FILE]
    assert not _children()
    assert speed.measure(study.folder, study, lines.append) == found and len(lines) == 3


@pytest.mark.slow
def test_a_child_that_is_killed_leaves_no_file_and_an_error_that_says_so(tmp_path: Path) -> None:
    study, pids = frozen(tmp_path, base={}, deep={"model__n_layer": 4}), set[int]()

    def kill(line: str) -> None:
        pids.update(_children())
        for pid in _children():
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(StudyError, match="SIGKILL"):
        speed.measure(study.folder, study, kill, budget_s=60.0)
    assert len(pids) == 1 and not any(map(_alive, pids))
    assert not list(study.folder.path.iterdir())


@pytest.mark.slow
def test_ctrl_c_ends_the_child_too(tmp_path: Path) -> None:
    study, pids = frozen(tmp_path, base={}, deep={"model__n_layer": 4}), set[int]()

    def interrupt(line: str) -> None:
        pids.update(_children())
        if pids:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        speed.measure(study.folder, study, interrupt, budget_s=60.0)
    assert len(pids) == 1 and not any(map(_alive, pids))
    assert not list(study.folder.path.iterdir())


@pytest.mark.slow
def test_arms_that_cannot_be_built_are_told_and_the_study_is_as_it_was(tmp_path: Path) -> None:
    study = frozen(tmp_path, base={}, deep={"model__n_layer": 4})
    study.data_folder = tmp_path / "gone"
    with pytest.raises(StudyError, match="could not be measured"):
        speed.measure(study.folder, study, print, budget_s=0.5)
    assert not list(study.folder.path.iterdir())


def _children() -> list[int]:
    """Workers of this process that are alive."""
    return [child.pid for child in multiprocessing.active_children() if child.pid]


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
