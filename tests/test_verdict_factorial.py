"""Effects of a factorial design: contrasts against statsmodels and scipy, words, and what is not
computed.
"""

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from simulation.studies import World, simulate_factorial_studies
from statsmodels.stats.multitest import multipletests

from andrea.errors import UserError
from andrea.verdict.cells import cells
from andrea.verdict.design import factorial_contrasts
from andrea.verdict.judge import judge_arms, judge_effects
from andrea.verdict.judgement import Effect
from andrea.verdict.protocol import Protocol
from andrea.verdict.replicates import ArmData, Replicate
from andrea.verdict.seeds import replication_seed

TWO = {"norm": ["pre", "post"], "warmup": ["warm", "cold"]}
BASE = "pre+warm"


def arms(losses: dict[str, list[float]], **more: Any) -> dict[str, ArmData]:
    """Arms from their losses by seed; `more` by name without the plus sign."""
    return {
        name: ArmData(
            name,
            {replication_seed(i): Replicate(loss, digest="d") for i, loss in enumerate(values)},
            **more.get(name.replace("+", "_"), {}),
        )
        for name, values in losses.items()
    }


def drawn(
    factors: dict[str, list[str]], n: int, seed: int, effect: float = 0.2
) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    common = rng.normal(2.5, 0.1, n)
    return {
        name: list(common + rng.normal(0, effect) + rng.normal(0, 0.05, n))
        for name in cells(factors)
    }


def judged(
    losses: dict[str, list[float]],
    factors: Any = TWO,
    baseline: str = BASE,
    m: float = 0.05,
    **more: Any,
):
    n = len(next(iter(losses.values())))
    return judge_effects(Protocol(m=m, seeds=n), factors, baseline, arms(losses, **more))


def one(found: list[Effect], kind: str, **at: str) -> Effect:
    [effect] = [e for e in found if e.contrast.kind == kind and e.contrast.at == at]
    return effect


def main(found: list[Effect], factor: str) -> Effect:
    [effect] = [
        e for e in found if e.contrast.kind == "main" and e.contrast.steps[0].factor == factor
    ]
    return effect


def test_the_effects_of_two_by_two_are_the_textbooks() -> None:
    found = {
        (c.kind, c.steps[0].factor, *c.at.values()): c.weights
        for c in factorial_contrasts(TWO, BASE)
    }
    assert found == {
        ("main", "norm"): {"pre+warm": -0.5, "pre+cold": -0.5, "post+warm": 0.5, "post+cold": 0.5},
        ("main", "warmup"): {
            "pre+warm": -0.5,
            "pre+cold": 0.5,
            "post+warm": -0.5,
            "post+cold": 0.5,
        },
        ("simple", "norm", "warm"): {"pre+warm": -1, "post+warm": 1},
        ("simple", "norm", "cold"): {"pre+cold": -1, "post+cold": 1},
        ("simple", "warmup", "pre"): {"pre+warm": -1, "pre+cold": 1},
        ("simple", "warmup", "post"): {"post+warm": -1, "post+cold": 1},
        ("interaction", "norm"): {"pre+warm": 1, "pre+cold": -1, "post+warm": -1, "post+cold": 1},
    }


designs = st.lists(st.integers(2, 3), min_size=2, max_size=3).map(
    lambda sizes: {f"f{i}": [f"l{j}" for j in range(size)] for i, size in enumerate(sizes)}
)


@given(designs, st.integers(0, 100), st.randoms())
@settings(max_examples=60, deadline=None)
def test_effects_are_as_many_as_the_design_has_and_their_weights_balance(
    factors, seed, random
) -> None:
    baseline = random.choice(list(cells(factors)))
    found = factorial_contrasts(factors, baseline)
    spare = [len(levels) - 1 for levels in factors.values()]
    counts = {
        kind: sum(c.kind == kind for c in found) for kind in ("main", "simple", "interaction")
    }
    simple = sum((len(a) - 1) * len(b) for a, b in itertools.permutations(factors.values(), 2))
    assert counts["main"] == sum(spare)
    assert counts["interaction"] == sum(a * b for a, b in itertools.combinations(spare, 2))
    assert counts["simple"] == (simple if len(factors) == 2 else 0)
    for contrast in found:
        assert sum(contrast.weights.values()) == pytest.approx(0)
        size = 4 if contrast.kind == "interaction" else 2
        assert sum(map(abs, contrast.weights.values())) == pytest.approx(size)
    # In a table of cells that is a sum over factors, every interaction vanishes.
    rng = np.random.default_rng(seed)
    parts = {(f, level): rng.normal() for f, levels in factors.items() for level in levels}
    table = {
        name: sum(parts[item] for item in levels.items()) for name, levels in cells(factors).items()
    }
    for contrast in found:
        value = sum(weight * table[name] for name, weight in contrast.weights.items())
        step = contrast.steps[0]
        expected = parts[step.factor, step.level] - parts[step.factor, step.against]
        assert value == pytest.approx(0 if contrast.kind == "interaction" else expected)


@given(designs, st.sampled_from([2, 5]), st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_estimates_are_those_of_least_squares_with_seeds_as_blocks(factors, n, seed) -> None:
    """A saturated model of the cells and a block per seed: the cells' means with the seeds taken
    out.
    """
    losses = drawn(factors, n, seed)
    rows = [(name, i, loss) for name, values in losses.items() for i, loss in enumerate(values)]
    fit = smf.ols(
        "loss ~ C(cell) + C(seed)", pd.DataFrame(rows, columns=["cell", "seed", "loss"])
    ).fit()
    level = {name: fit.params.get(f"C(cell)[T.{name}]", 0.0) for name in losses}
    baseline = next(iter(losses))
    for effect in judged(losses, factors, baseline):
        expected = sum(weight * level[name] for name, weight in effect.contrast.weights.items())
        assert effect.mean == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("n", "seed"), [(3, 1), pytest.param(5, 2, marks=pytest.mark.slow)])
def test_tests_are_paired_and_families_are_the_kinds(n: int, seed: int) -> None:
    factors = {"a": ["x", "y", "z"], "b": ["0", "1"]}
    losses = drawn(factors, n, seed)
    found = judged(losses, factors, "x+0", m=1.0)  # a small m has many pairs to count
    for kind, k in (("main", 3), ("simple", 7), ("interaction", 2)):
        family = [e for e in found if e.contrast.kind == kind]
        assert [e.family_size for e in family] == [k] * k
        for effect in family:
            values = sum(w * np.array(losses[name]) for name, w in effect.contrast.weights.items())
            whole = stats.ttest_1samp(values, 0)
            assert effect.p == pytest.approx(whole.pvalue, rel=1e-6, abs=1e-12)
            low, high = whole.confidence_interval(1 - 0.05 / k)
            assert effect.interval == pytest.approx((low, high), abs=1e-9)
            assert [d.difference for d in effect.differences] == pytest.approx(list(values))
        adjusted = multipletests([e.p for e in family], method="holm")[1]
        assert [e.p_holm for e in family] == pytest.approx(list(adjusted))


def exact(**means: float) -> dict[str, list[float]]:
    """Cells of five seeds with hardly any noise of their own."""
    return {
        name.replace("_", "+"): [mean + 0.01 * i + 1e-4 * ((1 + j) * i % 5 - 2) for i in range(5)]
        for j, (name, mean) in enumerate(means.items())
    }


def test_the_words_of_main_effects_and_interactions() -> None:
    found = judged(exact(pre_warm=2.5, pre_cold=2.5, post_warm=2.6, post_cold=2.9))
    assert main(found, "norm").verdict == "worse"
    assert "0.2500 nats higher with post than with pre" in main(found, "norm").reason
    assert one(found, "simple", warmup="warm").verdict == "worse"
    assert one(found, "simple", norm="pre").verdict == "equivalent"
    crossed = one(found, "interaction")
    assert crossed.verdict == "present" and crossed.mean == pytest.approx(0.3, abs=1e-3)
    assert (
        crossed.reason
        == "the effect of post on the loss is 0.3000 nats higher with cold than with warm"
    )
    added = judged(exact(pre_warm=2.5, pre_cold=2.4, post_warm=2.6, post_cold=2.5))
    assert main(added, "warmup").verdict == "better"
    assert one(added, "interaction").verdict == "absent"
    assert one(added, "interaction").reason.endswith(
        "with cold is that with warm to within 0.05 nats"
    )
    assert one(added, "interaction").to_dict()["steps"][1] == {
        "factor": "warmup",
        "level": "cold",
        "against": "warm",
    }


def test_the_regret_of_every_cell_counts_by_the_size_of_its_weight() -> None:
    losses = exact(pre_warm=2.5, pre_cold=2.5, post_warm=2.6, post_cold=2.9)
    costs = {"pre_warm": 0.01, "pre_cold": 0.02, "post_warm": 0.04, "post_cold": 0.2}
    found = judged(losses, **{name: {"regret": cost} for name, cost in costs.items()})
    assert main(found, "norm").regret == pytest.approx(0.135)
    assert one(found, "interaction").regret == pytest.approx(0.27)
    assert one(found, "interaction").verdict == "present"
    costs["post_cold"] = 0.3
    found = judged(losses, **{name: {"regret": cost} for name, cost in costs.items()})
    assert str(one(found, "interaction").cause) == "rate uncertain"
    assert "the runs alone say present" in one(found, "interaction").reason
    unknown = judged(losses, post_cold={"regret": None})
    assert (
        one(unknown, "interaction").cause == "rate uncertain"
        and one(unknown, "interaction").regret is None
    )
    assert one(unknown, "simple", norm="pre").verdict == "equivalent", (
        "a cell that it does not need does not matter"
    )


def test_what_needs_a_cell_that_did_not_train_says_how_often_it_did_not_and_is_not_computed() -> (
    None
):
    data = arms(exact(pre_warm=2.5, pre_cold=2.5, post_warm=2.6, post_cold=2.9))
    runs = dict(data["post+cold"].runs)
    for i, run in (
        (0, Replicate(2.97, stalled=True)),
        (1, Replicate(None, "diverged")),
        (3, Replicate(3.0, stalled=True)),
    ):
        runs[replication_seed(i)] = run
    data["post+cold"] = ArmData("post+cold", runs)
    found = judge_effects(Protocol(m=0.05), TWO, BASE, data)
    crossed = one(found, "interaction")
    assert crossed.verdict == "unstable" and crossed.n == 2 and len(crossed.differences) == 2
    assert crossed.reason.startswith(
        "post+cold: 1 diverged and 2 stalled of 5 runs; so there is nothing"
    )
    assert crossed.fates["post+cold"] == {
        "good": 2,
        "diverged": 1,
        "stalled": 2,
        "failed": 0,
        "missing": 0,
    }
    assert (crossed.mean, crossed.interval, crossed.p, crossed.pairs_needed) == (
        None,
        None,
        None,
        None,
    )
    assert one(found, "simple", warmup="warm").verdict == "worse", (
        "what does not need that cell is judged"
    )
    assert one(found, "simple", warmup="warm").family_size == 4, "in the whole family"
    data["post+cold"] = ArmData("post+cold", untrainable=True, regret=None)
    assert (
        "post+cold: every tuning run diverged"
        in one(judge_effects(Protocol(m=0.05), TWO, BASE, data), "interaction").reason
    )


@pytest.mark.parametrize("untrainable", [True, False])
def test_a_baseline_that_did_not_train_makes_every_effect_invalid_for_the_reason_of_the_arms(
    untrainable,
) -> None:
    data = arms(exact(pre_warm=2.5, pre_cold=2.5, post_warm=2.6, post_cold=2.9))
    runs = data[BASE].runs | {replication_seed(1): Replicate(2.97, stalled=True)}
    data[BASE] = (
        ArmData(BASE, untrainable=True, regret=None) if untrainable else ArmData(BASE, runs)
    )
    found = judge_effects(Protocol(m=0.05), TWO, BASE, data)
    assert {(e.verdict, e.cause, e.mean, e.p) for e in found} == {
        ("invalid", "under-trained", None, None)
    }
    assert len(found) == 7, "also those that need other cells"
    others = [arm for name, arm in data.items() if name != BASE]
    assert {e.reason for e in found} == {
        v.reason for v in judge_arms(Protocol(m=0.05), data[BASE], others)
    }


def test_what_is_missing_at_the_edge_or_evaluated_otherwise_is_not_tested() -> None:
    losses = exact(pre_warm=2.5, pre_cold=2.5, post_warm=2.6, post_cold=2.9)
    data = arms(losses)
    runs = {
        seed: run for seed, run in data["post+cold"].runs.items() if seed != replication_seed(2)
    }
    crossed = one(
        judge_effects(
            Protocol(m=0.05), TWO, BASE, {**data, "post+cold": ArmData("post+cold", runs)}
        ),
        "interaction",
    )
    assert (crossed.verdict, crossed.cause) == ("inconclusive", "failed or missing run")
    assert (
        crossed.reason == "1 of 5 runs of post+cold failed or are missing" and crossed.mean is None
    )
    edge = one(judged(losses, post_cold={"edge": "high"}), "interaction")
    assert (
        edge.cause == "rate at edge"
        and "post+cold at the high end" in edge.reason
        and edge.mean is not None
    )
    other = {
        seed: Replicate(run.loss, digest="other") for seed, run in data["pre+cold"].runs.items()
    }
    mixed = judge_effects(
        Protocol(m=0.05), TWO, BASE, {**data, "pre+cold": ArmData("pre+cold", other)}
    )
    assert one(mixed, "interaction").verdict == "invalid" and one(mixed, "interaction").mean is None
    assert one(mixed, "simple", warmup="warm").verdict == "worse"


def test_two_seeds_are_enough_and_one_is_not_and_no_spread_is_no_fault() -> None:
    flat = {name: [2.5, 2.6] for name in cells(TWO)}
    found = judged(flat)
    assert {e.verdict for e in found} == {"equivalent", "absent"}
    assert all(e.interval == pytest.approx((0, 0), abs=1e-12) for e in found)
    shifted = judged({**flat, "post+cold": [3.5, 3.6]})
    assert one(shifted, "interaction").verdict == "present" and one(shifted, "interaction").p == 0
    with pytest.raises(UserError, match="at least 2 seeds"):
        judge_effects(Protocol(m=0.05), TWO, BASE, arms(flat), seeds=[0])


def test_tags_come_from_every_cell_that_is_needed() -> None:
    losses = exact(pre_warm=2.5, pre_cold=2.5, post_warm=2.6, post_cold=2.9)
    found = judged(losses, post_cold={"exploratory": True, "hardly_tuned": True, "regret": None})
    assert one(found, "interaction").tags == ["exploratory", "rate hardly tuned", "regret unknown"]
    assert (one(found, "interaction").verdict, one(found, "interaction").cause) == (
        "present",
        "rate hardly tuned",
    )
    assert one(found, "simple", norm="pre").tags == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "world", [World((0.0,) * 3), World((0.0,) * 3, skew=-4, noise=0.003)], ids=["even", "skewed"]
)
def test_equal_cells_seldom_have_effects_whatever_tuning_makes_of_them(world: World) -> None:
    """Whole studies of four equal cells, each with an optimum of its own, and a margin too small
    for `equivalent`.
    """
    studies = 300
    found = simulate_factorial_studies(world, Protocol(m=0.001, seeds=5), studies, seed=5)
    most = 0.05 + 2 * math.sqrt(0.05 * 0.95 / studies)
    assert all(guarded <= most for _, guarded in found.values()), found
