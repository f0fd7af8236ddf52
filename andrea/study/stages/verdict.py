"""From the runs in the store to verdict.json: the verdicts, and the conclusions of all stages."""

from collections.abc import Mapping, Sequence

from andrea.records.extras import BUDGETS
from andrea.records.verdict import (
    ArmVerdict,
    ControlOutcome,
    ControlOutcomes,
    EffectVerdict,
    StudyVerdict,
)
from andrea.store.versions import installed
from andrea.study.stages.arm_statistics import (
    describe_documents,
    describe_sensitivity,
    describe_stability,
    explain_missing_effect,
)
from andrea.study.stages.confirm import Confirm
from andrea.study.stages.controls import Controls, summarise_controls
from andrea.study.stages.equal_cost import TrainAtEqualCost, tokens_to_train
from andrea.study.stages.evidence import Evidence
from andrea.verdict.judge import judge_arms, judge_effects
from andrea.verdict.judgement import METHOD, Verdict
from andrea.verdict.replicates import summarise_arm
from andrea.verdict.tokens_saved import TokensSaved, convert_to_tokens


def judge_study(evidence: Evidence) -> StudyVerdict:
    """Return verdict.json, from whatever runs have a result; missing ones are the judge's business.

    What was asked beside the question, and the speed of the arms, are read from the study's folder.
    """
    study, extras = evidence.study, evidence.extras
    controls = Controls().conclude(evidence) if extras.controls else None
    summary = summarise_controls(controls)
    arms = {arm: evidence.arm_data(arm) for arm in study.arms}
    baseline = arms[evidence.baseline]
    others = [arms[arm] for arm in evidence.others]
    judged = judge_arms(study.protocol, baseline, others, controls=summary)
    verdicts = [ArmVerdict(**verdict.to_dict()) for verdict in judged]
    optional: dict[str, object] = {}
    if study.question.levels:
        effects = judge_effects(
            study.protocol, study.question.levels, baseline.name, arms, controls=summary
        )
        optional["effects"] = [EffectVerdict(**effect.to_dict()) for effect in effects]
    if controls is not None:
        optional["controls"] = controls
        optional["tokens_saved"] = _convert_to_tokens(evidence, controls, judged)
    if extras.confirm:
        optional["confirmation"] = Confirm().conclude(evidence, verdicts, summary)
    has_results = all(run.run_id in evidence.results for run in evidence.runs)
    return StudyVerdict(
        verdicts=verdicts,
        **optional,
        baseline=summarise_arm(baseline, evidence.seeds),
        equal={b: TrainAtEqualCost(b).conclude(evidence, summary) for b in BUDGETS},
        stability=describe_stability(evidence),
        sensitivity=describe_sensitivity(evidence),
        documents=describe_documents(evidence, judged),
        method=METHOD,
        versions=_versions(),
        asked=extras,
        complete=has_results and _is_planned(evidence),
        exploratory=any(arm.exploratory for arm in arms.values()),
    )


def _is_planned(evidence: Evidence) -> bool:
    """Return whether the runs of all that is asked are known: a study may be looked at right after
    it was asked for more.
    """
    if not evidence.has_rate(evidence.baseline):
        return True
    extras, baseline = evidence.extras, evidence.baseline
    if extras.controls and not evidence.planned("control", arm=baseline):
        return False
    if extras.confirm and not evidence.planned("confirm", arm=baseline):
        return False
    for budget in extras.equal:
        why = f"equal {budget}"
        recorded = evidence.planned("budget", why)
        arms = tokens_to_train(evidence, budget, recorded)
        if not all(evidence.planned("budget", why, arm) for arm in arms):
            return False
    return True


def _convert_to_tokens(
    evidence: Evidence, controls: ControlOutcomes, judged: Sequence[Verdict]
) -> Mapping[str, TokensSaved]:
    """Return every arm's effect in tokens of the baseline, as far as the positive controls reach;
    of a verdict without a mean none.
    """
    study = evidence.study
    alpha = study.protocol.alpha / len(judged)
    half, double = _by_seed(controls.ruler), _by_seed(controls.ruler_2x)
    budget = study.tokens(evidence.baseline)
    saved = {}
    for verdict in judged:
        pairs = {pair.seed: pair.difference for pair in verdict.differences}
        if verdict.mean is None:
            reason = explain_missing_effect(verdict)
            tokens = TokensSaved(None, None, 1 - alpha, len(pairs), reason)
        else:
            tokens = convert_to_tokens(pairs, half or {}, double, alpha, budget=budget)
        saved[verdict.contrast.arm] = tokens
    return saved


def _by_seed(control: ControlOutcome | None) -> dict[int, float] | None:
    if control is None:
        return None
    return {pair.seed: pair.difference for pair in control.differences}


def _versions() -> dict[str, str | None]:
    """Return what a reader needs beside the method to draw the same regrets: numpy's normal stream
    may change with its version.
    """
    return {name: installed(name) for name in ("andrea", "numpy", "scipy")}
