"""The verdict rule: who is called what, in which order, and what stands beside it."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.errors import UserError
from andrea.verdict import paired
from andrea.verdict.controls import ControlSummary
from andrea.verdict.judge import judge_arms
from andrea.verdict.judgement import Verdict
from andrea.verdict.protocol import Protocol
from andrea.verdict.replicates import ArmData, Replicate, count_fates, summarise_arm

calm = settings(deadline=None)
"""A slow machine is no failure."""

SEEDS = list(range(5))
PROTOCOL = Protocol(m=0.05)


def arm(name: str, losses: Sequence[float | None], **about: object) -> ArmData:
    """An arm from its losses in seed order; None: a failed run."""
    runs = {
        s: Replicate(x, "failed" if x is None else "completed", digest="d")
        for s, x in enumerate(losses)
    }
    return replace(ArmData(name, runs), **about)  # type: ignore[arg-type]


def shifted(name: str, effect: float, noise: float = 0.002, **about: object) -> ArmData:
    """The baseline of `BASE` plus an effect and a little noise of its own."""
    draw = np.random.default_rng(sum(map(ord, name))).normal(0, noise, 5)
    return arm(
        name,
        [float(b + effect + d - draw.mean()) for b, d in zip(LOSSES, draw, strict=True)],
        **about,
    )


LOSSES = [2.51, 2.55, 2.49, 2.53, 2.50]
BASE = arm("base", LOSSES)


def one(
    data: ArmData, base: ArmData = BASE, protocol: Protocol = PROTOCOL, **options: object
) -> Verdict:
    return judge_arms(protocol, base, [data], **options)[0]  # type: ignore[arg-type]


def with_run(data: ArmData, seed: int, run: Replicate | None) -> ArmData:
    runs = {s: r for s, r in data.runs.items() if s != seed} | ({} if run is None else {seed: run})
    return replace(data, runs=runs)


def test_a_clear_improvement_is_better_and_its_mirror_worse() -> None:
    better, worse = one(shifted("a", -0.1)), one(shifted("b", 0.1))
    assert (str(better), str(worse)) == ("better", "worse")
    assert better.mean == pytest.approx(-0.1)
    assert better.interval is not None and better.interval[0] < -0.1 < better.interval[1] < 0
    assert better.p is not None and better.p < 0.05
    assert better.n == 5
    assert [d.seed for d in better.differences] == SEEDS


def test_no_difference_within_the_margin_is_equivalent() -> None:
    assert str(one(shifted("a", 0.0))) == "equivalent"


def test_a_real_difference_within_the_margin_is_equivalent_and_said_to_be_real() -> None:
    verdict = one(shifted("a", 0.02))
    assert str(verdict) == "equivalent (small but real)"
    assert verdict.p_holm is not None and verdict.p_holm < 0.05


def test_noise_is_inconclusive_and_says_how_many_pairs_would_see_m() -> None:
    verdict = one(shifted("a", 0.02, noise=0.1))
    assert str(verdict) == "inconclusive"
    assert verdict.pairs_needed is not None and verdict.pairs_needed > 5
    assert (
        f"about {verdict.pairs_needed} pairs to see 0.05 nats; this study has 5" in verdict.reason
    )


def test_pairs_needed_are_for_m_and_the_regret_has_a_number_of_its_own() -> None:
    sure, unsure = (
        one(shifted("a", 0.02, noise=0.1)),
        one(shifted("a", 0.02, noise=0.1, regret=0.03)),
    )
    assert sure.sd is not None
    assert unsure.pairs_needed == sure.pairs_needed == paired.pairs_needed(0.05, sure.sd, 0.05)
    assert unsure.pairs_needed_regret == paired.pairs_needed(0.02, sure.sd, 0.05)
    assert sure.pairs_needed_regret == sure.pairs_needed
    assert f"about {unsure.pairs_needed} pairs to see 0.05 nats" in unsure.reason
    assert f"({unsure.pairs_needed_regret} with the regret subtracted)" in unsure.reason
    assert "regret" not in sure.reason


def test_pairs_needed_never_looks_at_the_effect_just_seen() -> None:
    near, far = (
        one(shifted("a", 0.0, noise=0.1)),
        one(replace(shifted("a", 0.0, noise=0.1), name="b")),
    )
    moved = arm("b", [r.loss + 0.03 for r in shifted("a", 0.0, noise=0.1).runs.values() if r.loss])
    assert one(moved).pairs_needed == near.pairs_needed == far.pairs_needed


def test_a_failed_control_makes_everything_invalid() -> None:
    verdict = one(shifted("a", -0.1), controls=ControlSummary(determinism=False, a_a=True))
    assert str(verdict) == "invalid (control failed)"
    assert "repeat" in verdict.reason
    assert str(one(shifted("a", -0.1), controls=ControlSummary(determinism=True))) == "better"


def test_different_evaluated_tokens_make_an_arm_invalid_and_spare_the_others() -> None:
    odd = with_run(shifted("a", -0.1), 2, Replicate(2.4, digest="other"))
    said = judge_arms(PROTOCOL, BASE, [odd, shifted("b", -0.1)])
    assert [str(v) for v in said] == ["invalid (evaluation differs)", "better"]


@pytest.mark.parametrize("run", [Replicate(None, "diverged"), Replicate(3.3, stalled=True)])
def test_a_baseline_that_diverges_or_stalls_is_under_trained(run: Replicate) -> None:
    verdict = one(shifted("a", -0.1), with_run(BASE, 3, run))
    assert str(verdict) == "invalid (under-trained)"
    assert verdict.interval is None


@pytest.mark.parametrize("run", [Replicate(None, "diverged"), Replicate(2.0, stalled=True)])
def test_an_arm_that_loses_a_seed_is_unstable_not_better_over_the_rest(
    run: Replicate,
) -> None:
    verdict = one(with_run(shifted("a", -0.2), 3, run))
    assert str(verdict) == "unstable"
    assert (verdict.n, verdict.p, verdict.mean, verdict.interval, verdict.tost_p) == (
        4,
        None,
        None,
        None,
        None,
    )
    assert [d.seed for d in verdict.differences] == [0, 1, 2, 4]
    assert verdict.fisher_p == 1.0
    assert "1 of 5" in verdict.reason


def test_an_arm_that_always_stalls_has_counts_and_fishers_p() -> None:
    dead = ArmData("dead", {s: Replicate(3.3, stalled=True) for s in SEEDS})
    verdict = one(dead)
    assert str(verdict) == "unstable"
    assert verdict.fates["dead"] == {
        "good": 0,
        "diverged": 0,
        "stalled": 5,
        "failed": 0,
        "missing": 0,
    }
    assert verdict.fisher_p == pytest.approx(2 / 252)
    assert verdict.mean is None


def test_arms_without_a_rate_are_unstable_and_such_a_baseline_invalid() -> None:
    assert str(one(ArmData("a", untrainable=True))) == "unstable (no rate trains)"
    never = one(shifted("a", 0.0), ArmData("base", untrainable=True))
    assert str(never) == "invalid (under-trained)" and "train longer (--tokens)" in never.reason


def test_a_rate_at_the_edge_of_either_arm_is_inconclusive() -> None:
    assert str(one(shifted("a", -0.1, edge="high"))) == "inconclusive (rate at edge)"
    verdict = one(shifted("a", -0.1), replace(BASE, edge="low"))
    assert str(verdict) == "inconclusive (rate at edge)"
    assert "base at the low end" in verdict.reason


@pytest.mark.parametrize(
    "run", [None, Replicate(None, "failed"), Replicate(2.4, "stopped"), Replicate(None)]
)
def test_a_missing_or_failed_run_of_either_arm_is_inconclusive_and_nothing_is_averaged(
    run: Replicate | None,
) -> None:
    for verdict in (
        one(with_run(shifted("a", -0.1), 1, run)),
        one(shifted("a", -0.1), with_run(BASE, 1, run)),
    ):
        assert str(verdict) == "inconclusive (failed or missing run)"
        assert (verdict.n, len(verdict.differences)) == (4, 4)
        assert (verdict.p, verdict.mean, verdict.sd, verdict.interval) == (None,) * 4
        assert (verdict.pairs_needed, verdict.pairs_needed_regret, verdict.smallest_visible) == (
            None,
        ) * 3
    at_edge = one(with_run(shifted("a", -0.1, edge="low"), 1, run))
    assert (str(at_edge), at_edge.mean) == ("inconclusive (rate at edge)", None)


def test_the_first_match_wins() -> None:
    worst = with_run(
        with_run(shifted("a", -0.1, edge="low"), 0, Replicate(None, "diverged")), 1, None
    )
    sick = with_run(BASE, 2, Replicate(3.3, stalled=True))
    failed = ControlSummary(a_a=False)
    assert one(worst, sick, controls=failed).cause == "control failed"
    assert one(worst, sick).cause == "under-trained"
    assert str(one(worst)) == "unstable"
    assert one(with_run(worst, 0, Replicate(2.4, digest="d"))).cause == "rate at edge"
    assert (
        one(with_run(replace(worst, edge=None), 0, Replicate(2.4, digest="d"))).cause
        == "failed or missing run"
    )


def test_untested_arms_still_count_in_holm_and_in_the_intervals() -> None:
    alone = one(shifted("a", -0.06, noise=0.03))
    crowd = judge_arms(
        PROTOCOL,
        BASE,
        [shifted("a", -0.06, noise=0.03), *(ArmData(f"x{i}", untrainable=True) for i in range(3))],
    )
    assert crowd[0].p == alone.p
    assert crowd[0].p_holm == pytest.approx(min(1.0, 4 * (alone.p or 0)))
    assert crowd[0].level == pytest.approx(1 - 0.05 / 4)
    assert crowd[0].interval is not None and alone.interval is not None
    assert crowd[0].interval[0] < alone.interval[0]


def test_a_difference_within_the_regret_is_rate_uncertain() -> None:
    assert str(one(shifted("a", -0.1, regret=0.02), replace(BASE, regret=0.02))) == "better"
    verdict = one(shifted("a", -0.1, regret=0.05), replace(BASE, regret=0.06))
    assert str(verdict) == "inconclusive (rate uncertain)"
    assert verdict.regret == pytest.approx(0.11)
    assert str(one(shifted("a", 0.0, regret=0.06))) == "inconclusive (rate uncertain)"


def test_an_unknown_regret_leaves_a_full_tuning_uncertain() -> None:
    for effect in (-0.1, 0.0):
        verdict = one(shifted("a", effect, regret=None))
        assert str(verdict) == "inconclusive (rate uncertain)"
        assert "regret unknown" in verdict.tags


def test_one_rate_alone_gives_a_verdict_that_carries_its_weakness_in_its_name() -> None:
    few = replace(BASE, regret=None, hardly_tuned=True)
    assert (
        str(one(shifted("a", -0.1, regret=None, hardly_tuned=True), few))
        == "better (rate hardly tuned)"
    )
    assert "rate hardly tuned" in str(one(shifted("a", 0.0, regret=None, hardly_tuned=True), few))


def test_small_but_real_is_only_said_of_what_the_regret_leaves_real() -> None:
    assert str(one(shifted("a", 0.01, regret=0.02))) == "equivalent"


def test_arms_that_agree_to_the_last_bit_are_equivalent() -> None:
    verdict = one(arm("a", LOSSES))
    assert str(verdict) == "equivalent"
    assert (verdict.p, verdict.sd, verdict.interval) == (1.0, 0.0, (0.0, 0.0))


def test_arms_that_differ_by_a_constant_are_worse() -> None:
    verdict = one(arm("a", [x + 0.25 for x in LOSSES]))
    assert str(verdict) == "worse"
    assert verdict.p == 0.0


def test_two_seeds_are_judged_and_one_is_refused() -> None:
    assert one(shifted("a", -0.1), seeds=[0, 1]).n == 2
    with pytest.raises(UserError, match="at least 2 seeds"):
        one(shifted("a", -0.1), seeds=[0, 0])


def test_a_confirmation_is_judged_by_its_own_block_of_seeds() -> None:
    later = {s + 100: r for s, r in shifted("a", 0.1).runs.items()}
    both = replace(shifted("a", -0.1), runs={**shifted("a", -0.1).runs, **later})
    base = replace(BASE, runs={**BASE.runs, **{s + 100: r for s, r in BASE.runs.items()}})
    assert str(one(both, base)) == "better"
    assert str(one(both, base, seeds=range(100, 105))) == "worse"


def test_a_look_may_spend_less_than_all() -> None:
    verdict = one(shifted("a", -0.06, noise=0.02), alpha=0.001)
    assert verdict.level == 0.999
    assert str(verdict) == "inconclusive"
    assert str(one(shifted("a", -0.06, noise=0.02))) == "better"


def test_runs_older_than_the_freeze_are_said() -> None:
    assert "exploratory" in one(shifted("a", -0.1, exploratory=True)).tags
    assert "exploratory" in one(shifted("a", -0.1), replace(BASE, exploratory=True)).tags


def test_arms_need_names_of_their_own() -> None:
    with pytest.raises(UserError, match="distinct"):
        judge_arms(PROTOCOL, BASE, [BASE])


def test_a_study_of_one_arm_has_no_verdict() -> None:
    assert judge_arms(PROTOCOL, BASE, []) == []


def test_a_verdict_is_plain_json() -> None:
    for data in (
        shifted("a", -0.1),
        ArmData("b", untrainable=True),
        with_run(shifted("c", 0.0), 0, None),
    ):
        told = one(data).to_dict()
        assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_the_summary_of_an_arm_states_its_noise_and_every_run() -> None:
    data = with_run(with_run(BASE, 0, Replicate(None, "diverged")), 1, Replicate(None, "failed"))
    told = summarise_arm(data, range(6))
    assert (told.n, told.mean) == (3, pytest.approx(np.mean(LOSSES[2:])))
    assert told.sd == pytest.approx(np.std(LOSSES[2:], ddof=1))
    assert told.counts == {"good": 3, "diverged": 1, "stalled": 0, "failed": 1, "missing": 1}
    assert sum(count_fates(data, range(6)).values()) == 6


PAIRS = st.lists(st.tuples(st.floats(2.0, 3.0), st.floats(-0.1, 0.1)), min_size=2, max_size=8)


@calm
@given(PAIRS, st.floats(0, 0.02))
def test_swapping_the_arms_swaps_better_and_worse_and_nothing_else(
    pairs: list[tuple[float, float]], regret: float
) -> None:
    base = arm("base", [b for b, _ in pairs])
    other = arm("other", [b + d for b, d in pairs], regret=regret)
    there = one(other, base, seeds=range(len(pairs)))
    back = one(base, other, seeds=range(len(pairs)))
    swap = {"better": "worse", "worse": "better"}
    assert back.verdict == swap.get(there.verdict, there.verdict)
    assert back.cause == there.cause
    assert back.mean == pytest.approx(-(there.mean or 0.0))
    assert (back.p, back.pairs_needed) == (there.p, there.pairs_needed)


@calm
@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_the_seeds_changes_nothing(
    pairs: list[tuple[float, float]], chance: object
) -> None:
    base, other = arm("base", [b for b, _ in pairs]), arm("other", [b + d for b, d in pairs])
    order = list(range(len(pairs)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    mixed = replace(other, runs={s: other.runs[s] for s in order})
    assert one(mixed, base, seeds=order) == one(other, base, seeds=range(len(pairs)))


@calm
@given(PAIRS, st.floats(-2.0, 2.0))
def test_a_constant_added_to_both_arms_changes_no_verdict(
    pairs: list[tuple[float, float]], constant: float
) -> None:
    def judged(extra: float) -> Verdict:
        base = arm("base", [b + extra for b, _ in pairs])
        return one(arm("other", [b + extra + d for b, d in pairs]), base, seeds=range(len(pairs)))

    here, there = judged(0.0), judged(constant)
    assert here.mean == pytest.approx(there.mean, abs=1e-12)
    assert here.p == pytest.approx(there.p, rel=1e-5, abs=1e-9)
    assert here.verdict == there.verdict


@settings(deadline=None, max_examples=40)
@given(st.lists(PAIRS, min_size=2, max_size=4), st.floats(-3, 3), st.permutations(range(4)))
def test_neither_the_unit_of_the_loss_nor_the_order_of_the_arms_changes_a_word(
    sets: list[list[tuple[float, float]]], decades: float, order: list[int]
) -> None:
    n = min(len(pairs) for pairs in sets)

    def judged(unit: float, rows: list[int]) -> dict[str, Verdict]:
        base = arm("base", [unit * b for b, _ in sets[0][:n]], regret=0.001 * unit)
        arms = [
            arm(f"a{i}", [unit * (b + sets[i][s][1]) for s, (b, _) in enumerate(sets[0][:n])])
            for i in rows
        ]
        return {
            v.contrast.arm: v
            for v in judge_arms(Protocol(m=0.05 * unit), base, arms, seeds=range(n))
        }

    here, there = (
        judged(1.0, list(range(len(sets)))),
        judged(10**decades, [i for i in order if i < len(sets)]),
    )
    for name, verdict in here.items():
        told = [
            verdict.p_holm,
            verdict.p_holm_regret,
            *(len(sets) * (p or 0) for p in (verdict.tost_p, verdict.tost_p_regret)),
        ]
        if (verdict.sd or 0) > 1e-8 and not any(abs((p or 0) - 0.05) < 1e-6 for p in told):
            assert str(there[name]) == str(verdict)


@calm
@given(st.integers(0, 500), st.floats(0.0, 0.1))
def test_regret_can_only_make_a_verdict_uncertain(seed: int, regret: float) -> None:
    """No verdict turns into another one, and no interval or p moves."""
    draw = np.random.default_rng(seed)
    data = arm("a", [float(b + draw.normal(draw.uniform(-0.08, 0.08), 0.02)) for b in LOSSES])
    plain, guarded = one(data), one(replace(data, regret=regret))
    assert guarded.cause == "rate uncertain" or guarded.verdict == plain.verdict
    assert (guarded.p, guarded.interval) == (plain.p, plain.interval)
