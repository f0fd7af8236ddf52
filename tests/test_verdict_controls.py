"""Controls as pure numbers: against scipy, at their thresholds, and where runs went wrong."""

import math

import numpy as np
import pytest
from scipy import stats

from andrea.verdict.controls import (
    ControlSummary,
    check_determinism,
    judge_a_a,
    judge_positive_control,
)
from andrea.verdict.judge import judge_arms, judge_effects
from andrea.verdict.protocol import Protocol
from andrea.verdict.replicates import ArmData, Replicate
from andrea.verdict.seeds import (
    BLOCK,
    confirmation_seeds,
    control_seed,
    replication_seed,
    tuning_seed,
)

SEEDS = [0, 1, 2, 3, 4]
GOOD = {"digest": "same"}
STALLED, DIVERGED = Replicate(3.3, stalled=True, **GOOD), Replicate(None, "diverged", **GOOD)


def runs(shift=0.0, noise=0.0, seed=0, level=2.0):
    draw = np.random.default_rng(seed)
    return {
        s: Replicate(level + shift + noise * float(draw.standard_normal()), **GOOD) for s in SEEDS
    }


def test_a_repeat_on_a_deterministic_route_is_the_same_to_the_last_bit():
    run = Replicate(2.5, **GOOD)
    assert check_determinism(run, run, 0.05, deterministic=True).ok is True
    near = check_determinism(
        run, Replicate(math.nextafter(2.5, 3), **GOOD), 0.05, deterministic=True
    )
    assert near.ok is False and near.difference == math.ulp(2.5) and "loss" in near.reason
    other = check_determinism(
        run, run, 0.05, deterministic=True, changed=["documents", "metrics.jsonl"]
    )
    assert other.ok is False and "documents, metrics.jsonl" in other.reason


@pytest.mark.parametrize(
    "difference, ok", [(0.0, True), (0.0499, True), (0.0501, False), (-0.2, False)]
)
def test_elsewhere_a_repeat_is_within_m(difference, ok):
    found = check_determinism(
        Replicate(2.0, **GOOD), Replicate(2.0 + difference, **GOOD), 0.05, deterministic=False
    )
    assert found.ok is ok and found.difference == pytest.approx(abs(difference))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_repeat_that_ends_otherwise_fails_and_one_that_is_missing_is_unknown(deterministic):
    run = Replicate(2.0, **GOOD)
    for other in (STALLED, DIVERGED):
        assert check_determinism(run, other, 0.05, deterministic=deterministic).ok is False
        assert check_determinism(other, run, 0.05, deterministic=deterministic).ok is False
    for one, two in ((run, None), (None, run), (None, None)):
        found = check_determinism(one, two, 0.05, deterministic=deterministic)
        assert found.ok is None and "failed or is missing" in found.reason
    assert check_determinism(DIVERGED, DIVERGED, 0.05, deterministic=True).ok is True
    assert check_determinism(DIVERGED, DIVERGED, 0.05, deterministic=False).ok is None


def test_a_paired_control_has_the_numbers_of_scipy():
    baseline, other = runs(noise=0.01, seed=1), runs(0.004, noise=0.01, seed=2)
    values = [other[s].loss - baseline[s].loss for s in SEEDS]
    found = judge_a_a(baseline, other, SEEDS, margin=0.05)
    expected = stats.ttest_1samp(values, 0.0)
    interval = expected.confidence_interval(0.95)
    assert [d.difference for d in found.differences] == values and found.n == 5
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx((interval.low, interval.high))
    assert (found.mean, found.sd) == (
        pytest.approx(np.mean(values)),
        pytest.approx(np.std(values, ddof=1)),
    )
    for factor, side in ((0.5, "greater"), (2.0, "less")):
        one_sided = judge_positive_control(baseline, other, SEEDS, 0.05, factor=factor)
        assert one_sided.p == pytest.approx(stats.ttest_1samp(values, 0.0, alternative=side).pvalue)


@pytest.mark.parametrize(
    "shift, noise, ok",
    [
        (0.0, 0.01, True),
        (0.06, 0.001, False),  # beyond m, and surely
        (0.04, 0.001, True),  # surely, but within m
        (0.06, 0.2, True),  # beyond m, as chance gives it
    ],
)
def test_a_a_fails_at_p_below_half_a_percent_and_a_mean_beyond_m(shift, noise, ok):
    found = judge_a_a(runs(), runs(shift, noise, seed=3), SEEDS, margin=0.05)
    assert found.ok is ok
    assert ok or (found.p < 0.005 and abs(found.mean) > 0.05)


def test_a_a_fails_about_once_in_two_hundred_studies_of_noise_that_is_large_beside_m():
    draw, failed = np.random.default_rng(0), 0
    for _ in range(4000):
        pairs = draw.standard_normal((2, 5))
        sides = [{s: Replicate(10 + float(row[s]), **GOOD) for s in SEEDS} for row in pairs]
        failed += judge_a_a(*sides, SEEDS, margin=1e-6).ok is False
    assert 0.002 < failed / 4000 < 0.009


def test_where_no_loss_changed_no_other_weights_were_drawn():
    found = judge_a_a(runs(noise=0.1), runs(noise=0.1), SEEDS, margin=0.05)
    assert found.ok is False and "not drawn" in found.reason


@pytest.mark.parametrize("bad", [STALLED, DIVERGED])
def test_a_baseline_that_does_not_train_with_other_weights_fails_a_a(bad):
    found = judge_a_a(runs(), {**runs(0.001, 0.01), 2: bad}, SEEDS, margin=0.05)
    assert found.ok is False and found.mean is found.p is found.interval is None and found.n == 4
    assert "1 of 5 runs diverged or stalled" in found.reason


@pytest.mark.parametrize(
    "judged",
    [
        lambda b, o: judge_a_a(b, o, SEEDS, 0.05),
        lambda b, o: judge_positive_control(b, o, SEEDS, 0.05),
    ],
)
def test_what_failed_or_was_never_comparable_leaves_a_control_unknown(judged):
    whole = runs(0.1, 0.01)
    assert judged(runs(), {s: whole[s] for s in SEEDS[1:]}).ok is None
    assert judged(runs(), {**whole, 1: Replicate(None, "stopped")}).ok is None
    assert judged({s: run for s, run in runs().items() if s}, whole).ok is None
    lost = judged({**runs(), 0: STALLED}, whole)
    assert lost.ok is None and "nothing to compare with" in lost.reason
    assert judged(runs(), {**whole, 3: Replicate(2.0, digest="other")}).ok is False


def test_a_ruler_holds_where_half_the_tokens_are_seen_to_cost_something():
    assert judge_positive_control(runs(), runs(0.02, 0.005), SEEDS, 0.05).ok is True
    assert judge_positive_control(runs(), runs(0.02, 0.2), SEEDS, 0.05).ok is False
    assert judge_positive_control(runs(), runs(-0.1, 0.005), SEEDS, 0.05).ok is False, (
        "better is not worse"
    )
    assert judge_positive_control(runs(), runs(-0.1, 0.005), SEEDS, 0.05, factor=2).ok is True
    between = judge_positive_control(runs(), runs(0.01, 0.012, seed=4), SEEDS, 0.05)
    assert (
        between.ok is (between.p < 0.05)
        and judge_positive_control(runs(), runs(0.01, 0.012, seed=4), SEEDS, between.p * 1.01).ok
    )


@pytest.mark.parametrize("bad", [STALLED, DIVERGED])
def test_a_ruler_run_that_did_not_train_came_out_worse(bad):
    found = judge_positive_control(runs(), {**runs(0.02, 0.001), 1: bad}, SEEDS, 0.05)
    assert (
        found.ok is True and found.mean is None and "the other pairs are worse too" in found.reason
    )
    assert judge_positive_control(runs(), {**runs(-0.02, 0.001), 1: bad}, SEEDS, 0.05).ok is False
    assert judge_positive_control(runs(), dict.fromkeys(SEEDS, bad), SEEDS, 0.05).ok is True
    assert (
        judge_positive_control(runs(), {**runs(-0.1, 0.001), 1: bad}, SEEDS, 0.05, factor=2).ok
        is False
    ), "longer is not worse"


@pytest.mark.parametrize(
    ("n", "alpha", "ok"), [(3, 0.05, False), (4, 0.05, False), (5, 0.05, True), (5, 0.01, False)]
)
def test_a_ruler_that_lost_a_run_holds_by_a_sign_test_at_its_level(n, alpha, ok):
    """That all of n pairs are worse by chance has a probability of 2^-n: one in eight at n = 3."""
    found = judge_positive_control(runs(), {**runs(0.02, 0.001), 1: DIVERGED}, SEEDS[:n], alpha)
    assert found.ok is ok and found.mean is None and "the other pairs are worse too" in found.reason
    assert ok == ("as chance has it" not in found.reason)


def arms(**means):
    noise = np.random.default_rng(5).normal(0, 0.002, (len(means), len(SEEDS)))
    return [
        ArmData(name, {s: Replicate(2 + mean + float(noise[i, s]), **GOOD) for s in SEEDS})
        for i, (name, mean) in enumerate(means.items())
    ]


def test_a_failed_ruler_takes_away_the_words_that_say_that_nothing_was_seen():
    protocol = Protocol(m=0.05)
    baseline, *others = arms(base=0.0, worse=0.2, same=0.0, better=-0.2, torn=0.0)
    others[-1] = ArmData(
        "torn", {0: Replicate(None, "diverged")} | {s: others[-1].runs[s] for s in SEEDS[1:]}
    )
    absent = ArmData("absent", {})
    said = judge_arms(
        protocol, baseline, [*others, absent], controls=ControlSummary(True, True, False)
    )
    assert [v.verdict for v in said] == ["worse", "invalid", "better", "unstable", "invalid"]
    assert said[1].cause == said[4].cause == "ruler failed"
    assert said[1].mean is said[1].p is said[1].tost_p is None
    for unknown in (
        ControlSummary(),
        ControlSummary(True, True, None),
        ControlSummary(True, True, True),
        None,
    ):
        words = [
            v.verdict for v in judge_arms(protocol, baseline, [*others, absent], controls=unknown)
        ]
        assert words == ["worse", "equivalent", "better", "unstable", "inconclusive"]


@pytest.mark.parametrize(
    "controls", [ControlSummary(determinism=False), ControlSummary(a_a=False, positive=False)]
)
def test_controls_void_effects_as_they_void_arms(controls):
    factors = {"one": ["a", "b"], "two": ["x", "y"]}
    names = ("a+x", "a+y", "b+x", "b+y")
    cells = {name: ArmData(name, arm.runs) for name, arm in zip(names, CELLS, strict=True)}
    found = judge_effects(Protocol(m=0.05), factors, "a+x", cells, controls=controls)
    assert {e.verdict for e in found} == {"invalid"} and {e.cause for e in found} == {
        "control failed"
    }
    assert {e.mean for e in found} == {None}
    blind = judge_effects(
        Protocol(m=0.05), factors, "a+x", cells, controls=ControlSummary(positive=False)
    )
    assert {(e.contrast.kind, e.verdict, e.cause) for e in blind} == {
        ("main", "worse", ""),
        ("main", "invalid", "ruler failed"),
        ("simple", "worse", ""),
        ("simple", "invalid", "ruler failed"),
        ("interaction", "invalid", "ruler failed"),
    }


CELLS = arms(ax=0.0, ay=0.0, bx=0.2, by=0.2)


def test_no_two_namespaces_of_seeds_meet():
    ranges = [(seed(0), seed(BLOCK - 1)) for seed in (replication_seed, tuning_seed, control_seed)]
    assert ranges == [(0, BLOCK - 1), (BLOCK, 2 * BLOCK - 1), (2 * BLOCK, 3 * BLOCK - 1)]
    assert confirmation_seeds(3) == [3, 4, 5] and not set(confirmation_seeds(10)) & set(range(10))
    with pytest.raises(ValueError):
        control_seed(BLOCK)
