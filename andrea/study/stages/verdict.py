"""From the runs in the store to verdict.json: the verdicts, and what stands beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

from andrea.records.events import Run
from andrea.records.extras import Extras
from andrea.store.versions import installed
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.stages import arm_speed as speed
from andrea.study.stages import confirm, controls
from andrea.study.stages import equal_cost as budgets
from andrea.study.stages.arm_statistics import described, without_effect
from andrea.study.stages.evidence import Record
from andrea.verdict.judge import judge_arms, judge_effects
from andrea.verdict.judgement import METHOD, Verdict
from andrea.verdict.replicates import summarise_arm
from andrea.verdict.seeds import replication_seed
from andrea.verdict.tokens_saved import TokensSaved, convert_to_tokens


def verdicts(
    study: FrozenStudy,
    choices: Mapping[str, Mapping[str, Any]],
    runs: Sequence[Run],
    results: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """The content of verdict.json, from whatever runs have a result; missing ones are the judge's
    business.

    What was asked beside the question, and the speed of the arms, are read from the study's folder.
    """
    record, asked = Record(study, choices, runs, results), study.folder.load_extras()
    controlled = controls.outcomes(record) if asked.controls else None
    ruling = controls.ruling(controlled)
    arms = {arm: record.data(arm) for arm in study.arms}
    baseline = arms[record.baseline]
    judged = judge_arms(
        study.protocol, baseline, [arms[arm] for arm in record.others], controls=ruling
    )
    first = [verdict.to_dict() for verdict in judged]
    seeds = [replication_seed(i) for i in range(study.protocol.seeds)]
    found: dict[str, Any] = {"verdicts": first}
    if study.levels:
        every = judge_effects(study.protocol, study.levels, baseline.name, arms, controls=ruling)
        found["effects"] = [effect.to_dict() for effect in every]
    found["baseline"] = summarise_arm(baseline, seeds).to_dict()
    if controlled is not None:
        found["controls"] = controlled
        found["tokens_saved"] = _tokens_saved(record, controlled, judged)
    if asked.confirm:
        found["confirmation"] = confirm.outcome(record, first, ruling)
    measured = speed.read(study.folder, study) if "time" in asked.equal else None
    found["equal"] = budgets.outcomes(record, asked, measured, ruling)
    found |= described(record, judged)
    return {
        **found,
        "method": METHOD,
        "versions": _versions(),
        "asked": asked.to_json(),
        "complete": all(run["run_id"] in results for run in runs)
        and _planned(record, asked, measured),
        "exploratory": any(data.exploratory for data in arms.values()),
    }


def _planned(record: Record, asked: Extras, measured: Mapping[str, Any] | None) -> bool:
    """Whether the runs of all that is asked are known: a study may be looked at right after it was
    asked for more.
    """
    if record.choices[record.baseline]["lr"] is None:
        return True
    for phase, wanted in (("control", asked.controls), ("confirm", asked.confirm)):
        if wanted and not record.of(record.baseline, phase):
            return False
    return all(
        record.of(arm, "budget", f"equal {kind}")
        for kind in asked.equal
        for arm in budgets.to_train(
            record, kind, measured, record.beside("budget", f"equal {kind}")
        )
    )


def _tokens_saved(
    record: Record, controlled: Mapping[str, Any], judged: Sequence[Verdict]
) -> dict[str, dict[str, Any]]:
    """Every arm's effect in tokens of the baseline, as far as the rulers reach; of a verdict
    without a mean none.
    """
    alpha = record.study.protocol.alpha / len(judged)
    half, double = _by_seed(controlled["ruler"]), _by_seed(controlled["ruler_2x"])
    budget, found = controls.baseline_tokens(record.study), {}
    for verdict in judged:
        pairs = {pair.seed: pair.difference for pair in verdict.differences}
        if verdict.mean is None:
            saved = TokensSaved(None, None, 1 - alpha, len(pairs), without_effect(verdict))
        else:
            saved = convert_to_tokens(pairs, half or {}, double, alpha, budget=budget)
        found[verdict.contrast.arm] = saved.to_dict()
    return found


def _by_seed(control: Mapping[str, Any] | None) -> dict[int, float] | None:
    return None if control is None else {d["seed"]: d["difference"] for d in control["differences"]}


def _versions() -> dict[str, str | None]:
    """What a reader needs beside the method to draw the same regrets: numpy's normal stream may
    change with it.
    """
    return {name: installed(name) for name in ("andrea", "numpy", "scipy")}
