"""The verdict rule: the first match decides, the same for every contrast, fixed before the first
run.

    invalid, unstable, inconclusive (rate at edge; failed or missing run), equivalent,
    better / worse (present), inconclusive

docs/method.md derives each step; benchmarks/simulate_verdicts.py measures how often the rule is
wrong.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from andrea.errors import UserError
from andrea.verdict import paired, reasons
from andrea.verdict.cells import Factors
from andrea.verdict.contrast import ArmContrast, Finding, Word
from andrea.verdict.controls import ControlSummary
from andrea.verdict.design import factorial_contrasts
from andrea.verdict.judgement import NOT_COMPUTED, AnyContrast, Effect, Judgement, Verdict
from andrea.verdict.protocol import Protocol
from andrea.verdict.replicates import (
    ArmData,
    count_fates,
    count_unstable,
    evaluated_digests,
    weighted_differences,
)
from andrea.verdict.seeds import replication_seeds

HARDLY_TUNED = "rate hardly tuned"
NOTHING_SEEN: tuple[Word, ...] = ("equivalent", "absent", "inconclusive")
"""Words that a failed positive control takes away: they say that nothing was seen, by an experiment
that sees too little.
"""


class Ruling(NamedTuple):
    """A word, its qualifier, and its sentence."""

    word: Word
    cause: str
    reason: str


@dataclass(frozen=True)
class _Look:
    """One look at a study: what its contrasts are judged by."""

    arms: Mapping[str, ArmData]
    seeds: list[int]
    margin: float
    alpha: float
    controls: ControlSummary
    under_trained: str
    """Sentence on a baseline that did not train; empty where it did."""


def judge_arms(
    protocol: Protocol,
    baseline: ArmData,
    arms: Sequence[ArmData],
    *,
    seeds: Sequence[int] | None = None,
    alpha: float | None = None,
    controls: ControlSummary | None = None,
) -> list[Verdict]:
    """Judge every arm against the baseline, in the order given.

    Args:
        protocol: the frozen protocol.
        baseline: the arm to compare with.
        arms: *all* declared arms without the baseline, also those that could not be trained: they
            count in the size of the family.
        seeds: as for `judge_contrasts`.
        alpha: as for `judge_contrasts`.
        controls: as for `judge_contrasts`.

    Raises:
        UserError: fewer than two seeds, or names that are not distinct.
    """
    data = {arm.name: arm for arm in (baseline, *arms)}
    if len(data) <= len(arms):
        names = [baseline.name, *(arm.name for arm in arms)]
        raise UserError(f"arms must have distinct names, not {', '.join(names)}")
    contrasts = [ArmContrast.between(arm.name, baseline.name) for arm in arms]
    verdicts = judge_contrasts(
        protocol, contrasts, data, baseline.name, seeds=seeds, alpha=alpha, controls=controls
    )
    return [_compare_instability(verdict) for verdict in verdicts]


def judge_effects(
    protocol: Protocol,
    factors: Factors,
    baseline: str,
    arms: Mapping[str, ArmData],
    *,
    seeds: Sequence[int] | None = None,
    controls: ControlSummary | None = None,
) -> list[Effect]:
    """Judge every effect of a factorial design, by the rule by which arms are judged.

    The effects of one kind are a family: intervals are simultaneous and p values Holm-adjusted
    within it. The margin of the protocol is that of interactions too.

    Args:
        protocol: the frozen protocol.
        factors: the design.
        baseline: the cell whose levels the others are compared with.
        arms: every cell by name, also those that could not be trained.
        seeds: as for `judge_contrasts`.
        controls: as for `judge_contrasts`.

    Raises:
        UserError: fewer than two seeds.
        KeyError: a cell is no arm.
    """
    contrasts = factorial_contrasts(factors, baseline)
    return judge_contrasts(protocol, contrasts, arms, baseline, seeds=seeds, controls=controls)


def judge_contrasts(
    protocol: Protocol,
    contrasts: Sequence[AnyContrast],
    arms: Mapping[str, ArmData],
    baseline: str,
    *,
    seeds: Sequence[int] | None = None,
    alpha: float | None = None,
    controls: ControlSummary | None = None,
) -> list[Judgement[AnyContrast]]:
    """Judge contrasts between the arms of a study, family by family.

    Args:
        protocol: the frozen protocol.
        contrasts: *all* contrasts of their families, also of arms that could not be trained.
        arms: by name, at least those that have a weight, and the baseline.
        baseline: the arm without which there is nothing to compare with.
        seeds: the planned seeds, one pair each; the protocol's replication seeds by default. A
            *confirmation* passes its own new block and is judged by that alone.
        alpha: what this *look* may spend on each family; by default all of `protocol.alpha`, as
            there is one look.
        controls: outcomes of the controls; a failed determinism check or A/A makes everything
            *invalid*, a failed positive control what saw nothing. By default none were run.

    Raises:
        UserError: fewer than two seeds.
    """
    planned = planned_seeds(protocol, seeds)
    # Where the baseline did not train the whole experiment has failed, so it counts for effects
    # between other cells too.
    look = _Look(
        arms=arms,
        seeds=planned,
        margin=protocol.margin,
        alpha=protocol.alpha if alpha is None else alpha,
        controls=controls or ControlSummary(),
        under_trained=reasons.explain_under_training(arms[baseline], planned),
    )
    families: dict[str, list[AnyContrast]] = {}
    for contrast in contrasts:
        families.setdefault(contrast.family, []).append(contrast)
    judged = []
    for family in families.values():
        judged += _judge_family(look, family)
    return judged


def planned_seeds(protocol: Protocol, seeds: Sequence[int] | None = None) -> list[int]:
    """Return the seeds to judge by, ascending: the protocol's, or a block of their own.

    Raises:
        UserError: fewer than two.
    """
    planned = replication_seeds(protocol.seeds) if seeds is None else sorted(set(seeds))
    if len(planned) < 2:
        raise UserError(
            "a verdict needs at least 2 seeds: without a second pair there is no noise to judge by"
        )
    return planned


def _judge_family(look: _Look, family: list[AnyContrast]) -> list[Judgement[AnyContrast]]:
    tested, early = [], []
    for contrast in family:
        described = _describe(look, contrast, len(family))
        ruling = _rule_before_tests(look, described)
        tested.append(described if ruling else _test(described))
        early.append(ruling)
    judged = []
    for judgement, ruling in zip(_adjust_for_family(tested), early, strict=True):
        ruling = ruling or _rule_by_tests(judgement, look.alpha)
        judged.append(_pronounce(judgement, _apply_controls(ruling, look.controls)))
    return judged


def _describe(look: _Look, contrast: AnyContrast, family_size: int) -> Judgement[AnyContrast]:
    """Describe a contrast before it has a word: pairs, noise, regret, what n pairs could see."""
    alpha = look.alpha / family_size
    arms = {name: look.arms[name] for name in contrast.weights}
    runs = {name: arm.runs for name, arm in arms.items()}
    differences = weighted_differences(runs, contrast.weights, look.seeds)
    regret = _total_regret(look, contrast.weights)
    judgement = Judgement(
        contrast=contrast,
        verdict="inconclusive",
        cause="",
        reason="",
        n=len(differences),
        differences=differences,
        margin=look.margin,
        level=1 - alpha,
        family_size=family_size,
        regret=regret,
        fates={name: count_fates(arm, look.seeds) for name, arm in arms.items()},
        tags=_tags(arms.values(), regret),
    )
    values = judgement.values
    sd = paired.sd_of(values)
    if sd is None:
        return replace(judgement, mean=paired.mean_of(values))
    return replace(
        judgement,
        mean=paired.mean_of(values),
        sd=sd,
        interval=paired.t_interval(values, alpha),
        pairs_needed=paired.pairs_needed(look.margin, sd, alpha),
        pairs_needed_regret=paired.pairs_needed(look.margin - (regret or 0.0), sd, alpha),
        smallest_visible=sd * paired.visible_effect(len(values), alpha),
    )


def _total_regret(look: _Look, weights: Mapping[str, float]) -> float | None:
    """Return what the rates may have cost at most; None if unknown.

    Regrets are added whatever the signs of the weights: one must not cancel another.
    """
    total = 0.0
    for name, weight in weights.items():
        regret = look.arms[name].regret
        if regret is None:
            return None
        total += abs(weight) * regret
    return total


def _tags(arms: Collection[ArmData], regret: float | None) -> list[str]:
    tags = []
    if any(arm.exploratory for arm in arms):
        tags.append("exploratory")
    if any(arm.hardly_tuned for arm in arms):
        tags.append(HARDLY_TUNED)
    if regret is None:
        tags.append("regret unknown")
    return tags


def _rule_before_tests(look: _Look, judgement: Judgement[AnyContrast]) -> Ruling | None:
    """Return the ruling that needs no test of means, or None.

    What survived a divergence or a crash is a selection, so nothing is tested there.
    """
    contrast, fates = judgement.contrast, judgement.fates
    # The order is part of the rule: what makes numbers meaningless comes before what makes them
    # few.
    arms = {name: look.arms[name] for name in contrast.weights}
    digests = [evaluated_digests(arm.runs, look.seeds) for arm in arms.values()]
    if len(set().union(*digests)) > 1:
        return Ruling("invalid", "evaluation differs", "runs were evaluated on different tokens")
    if look.under_trained:
        return Ruling("invalid", "under-trained", look.under_trained)
    unstable = {
        name: arm for name, arm in arms.items() if arm.untrainable or count_unstable(fates[name])
    }
    if unstable:
        return Ruling("unstable", *contrast.explain_instability(unstable, fates))
    at_edge = [f"{name} at the {arm.edge} end" for name, arm in arms.items() if arm.edge]
    if at_edge:
        reason = f"the best learning rate is outside the grid: {' and '.join(at_edge)}"
        return Ruling("inconclusive", "rate at edge", reason)
    planned = len(look.seeds)
    absent = {name: planned - counts["good"] for name, counts in fates.items()}
    if any(absent.values()):
        reason = contrast.explain_absence(absent, planned)
        return Ruling("inconclusive", "failed or missing run", reason)
    return None


def _test(judgement: Judgement[AnyContrast]) -> Judgement[AnyContrast]:
    """Test the mean, plainly and with the regret set against it; an unknown regret counts as none
    here.
    """
    values, margin, regret = judgement.values, judgement.margin, judgement.regret or 0.0
    return replace(
        judgement,
        p=paired.t_test_p(values),
        p_regret=paired.p_beyond_regret(values, regret),
        tost_p=paired.tost_p(values, margin),
        tost_p_regret=paired.tost_p(values, margin - regret),
    )


def _adjust_for_family(family: list[Judgement[AnyContrast]]) -> list[Judgement[AnyContrast]]:
    """Add the p values that are adjusted over the family (Holm 1979)."""
    # What could not be tested counts as p = 1: dropping it would make the other tests easier.
    plain = paired.adjust_holm([_p_or_1(judgement.p) for judgement in family])
    guarded = paired.adjust_holm([_p_or_1(judgement.p_regret) for judgement in family])
    adjusted = []
    for judgement, p_holm, p_holm_regret in zip(family, plain, guarded, strict=True):
        if judgement.p is not None:
            judgement = replace(judgement, p_holm=p_holm, p_holm_regret=p_holm_regret)
        adjusted.append(judgement)
    return adjusted


def _p_or_1(p: float | None) -> float:
    return 1.0 if p is None else p


def _rule_by_tests(judgement: Judgement[AnyContrast], alpha: float) -> Ruling:
    """Return the ruling of the tests, at a family-wise error rate of alpha."""
    contrast, mean = judgement.contrast, judgement.mean
    assert mean is not None
    outcome = _decide(judgement, alpha)
    if outcome is None:
        return Ruling("inconclusive", "", reasons.explain_no_finding(judgement))
    word = contrast.word_for(outcome.finding)
    if not outcome.certain:
        reason = reasons.explain_regret(judgement.regret, word)
        return Ruling("inconclusive", "rate uncertain", reason)
    if outcome.finding == "equivalent":
        return Ruling(word, outcome.cause, contrast.describe_equivalence(judgement.margin))
    return Ruling(word, outcome.cause, contrast.describe_difference(mean))


class _Outcome(NamedTuple):
    """Outcome of the tests of one contrast."""

    finding: Finding
    certain: bool
    """The finding holds with the regret set against it; else the runs alone say it."""
    cause: str


def _decide(judgement: Judgement[AnyContrast], alpha: float) -> _Outcome | None:
    """Return what the tests decide, or None where they see neither a difference nor its absence."""
    mean, p_holm, p_holm_regret = judgement.mean, judgement.p_holm, judgement.p_holm_regret
    tost_p, tost_p_regret = judgement.tost_p, judgement.tost_p_regret
    assert mean is not None and p_holm is not None and p_holm_regret is not None
    assert tost_p is not None and tost_p_regret is not None
    hardly_tuned = HARDLY_TUNED in judgement.tags
    guarded = judgement.regret is not None or hardly_tuned
    # With one or two rates nothing guards the verdict, so it carries its weakness in its name.
    weakness = [HARDLY_TUNED] if hardly_tuned and judgement.regret is None else []
    real = guarded and p_holm_regret < alpha
    share = alpha / judgement.family_size
    # Equivalence comes first: an effect may be both real and too small to matter.
    if tost_p < share:
        certain = guarded and tost_p_regret < share
        causes = ["small but real", *weakness] if real else weakness
        return _Outcome("equivalent", certain, ", ".join(causes))
    if p_holm < alpha:
        return _Outcome("better" if mean < 0 else "worse", real, ", ".join(weakness))
    return None


def _apply_controls(ruling: Ruling, controls: ControlSummary) -> Ruling:
    """Return the ruling, or *invalid* where a failed control takes its word away."""
    if failed := controls.failed_checks:
        return Ruling("invalid", "control failed", f"control failed: {' and '.join(failed)}")
    if controls.positive is False and ruling.word in NOTHING_SEEN:
        return Ruling("invalid", "ruler failed", reasons.NO_POSITIVE_CONTROL)
    return ruling


def _pronounce(judgement: Judgement[AnyContrast], ruling: Ruling) -> Judgement[AnyContrast]:
    """Add the ruling, and take away what must not be computed."""
    pronounced = replace(judgement, verdict=ruling.word, cause=ruling.cause, reason=ruling.reason)
    complete = all(fates["good"] == sum(fates.values()) for fates in judgement.fates.values())
    if ruling.word != "invalid" and complete:
        return pronounced
    # What survived a divergence, a crash or a kill is a selection, and what was measured
    # differently is no difference: the pairs are there to be seen, and nothing is computed from
    # them.
    return replace(pronounced, **NOT_COMPUTED)


def _compare_instability(verdict: Verdict) -> Verdict:
    """Add Fisher's p to the verdict on an arm where it or the baseline lost a run."""
    arm, baseline = verdict.fates[verdict.contrast.arm], verdict.fates[verdict.contrast.baseline]
    bad, baseline_bad = count_unstable(arm), count_unstable(baseline)
    if not (bad or baseline_bad):
        return verdict
    p = paired.fisher_p(bad, arm["good"], baseline_bad, baseline["good"])
    return replace(verdict, fisher_p=p)
