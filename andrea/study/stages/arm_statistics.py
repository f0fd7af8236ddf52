"""What describes the arms of a study beside their verdicts: how often they fail to train, how much
they depend on the learning rate, how far the effect varies over documents. None of it decides
anything.
"""

import math
from collections.abc import Mapping, Sequence

from andrea.records.run import UNTRAINED_SCORE
from andrea.records.verdict import ArmStability
from andrea.study.stages.evidence import Evidence, replicate
from andrea.verdict.documents import Documents, over_documents
from andrea.verdict.judgement import Verdict
from andrea.verdict.rates import Point
from andrea.verdict.sensitivity import Sensitivity, cap_loss, common_grid, measure_sensitivity
from andrea.verdict.stability import measure_stability


def describe_stability(evidence: Evidence) -> dict[str, ArmStability]:
    """Return by arm how often its tuning runs and its replicates did not train."""
    stability = {}
    for arm in evidence.study.arms:
        runs = evidence.planned("tune", arm=arm)
        tuned = [evidence.results[run.run_id] for run in runs if run.run_id in evidence.results]
        stability[arm] = ArmStability(
            tune=measure_stability([replicate(result) for result in tuned]),
            replicate=measure_stability(list(evidence.replicates(arm).values())),
        )
    return stability


def describe_sensitivity(evidence: Evidence) -> dict[str, Sensitivity]:
    """Return by arm how much its loss depends on its learning rate."""
    grid = common_grid([evidence.choices[arm].grid for arm in evidence.study.arms])
    return {arm: measure_sensitivity(_points(evidence, arm), grid) for arm in evidence.study.arms}


def _points(evidence: Evidence, arm: str) -> list[Point]:
    """Return the tuning runs, their losses capped at the start: a run that ends above it has
    learned nothing.
    """
    points = []
    for run in evidence.planned("tune", arm=arm):
        result = evidence.results.get(run.run_id)
        if result is not None:
            initial = UNTRAINED_SCORE if result.initial_loss is None else result.initial_loss
            loss = cap_loss(result.loss, initial)
            points.append(Point(float(run.lr or 0.0), loss, result.is_good))
    return points


def describe_documents(evidence: Evidence, judged: Sequence[Verdict]) -> dict[str, Documents]:
    """Return by arm the interval of its effect over documents.

    Only of verdicts with a mean: runs that happened to survive are a selection here too, and what
    is invalid is so for every text.
    """
    baseline = _losses(evidence, evidence.baseline)
    documents = {}
    for verdict in judged:
        arm = verdict.contrast.arm
        if verdict.mean is None:
            documents[arm] = Documents(0, None, None, reason=explain_missing_effect(verdict))
        else:
            documents[arm] = over_documents(_losses(evidence, arm), baseline)
    return documents


def explain_missing_effect(verdict: Verdict) -> str:
    """Return why there is no effect that could be expressed in other units."""
    if verdict.verdict == "invalid":
        return f"the verdict is {verdict}"
    return "some planned pair is not whole"


def _losses(evidence: Evidence, arm: str) -> dict[int, Mapping[str, tuple[int, float]]]:
    """Return tokens and loss by seed and document, of good replicates."""
    results = evidence.results_by_seed(arm, "replicate")
    losses: dict[int, Mapping[str, tuple[int, float]]] = {}
    for seed in evidence.seeds:
        if seed in results and results[seed].is_good:
            losses[seed] = {
                document.name: (
                    document.tokens,
                    math.nan if document.loss is None else document.loss,
                )
                for document in results[seed].documents
            }
    return losses
