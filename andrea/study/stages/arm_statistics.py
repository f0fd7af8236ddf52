"""What describes the arms of a study beside their verdicts: how often they fail to train, how much
they depend on the rate, how far the effect strays over documents. None of it decides anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from andrea.study.stages.evidence import Record, replicate
from andrea.study.stages.tune import CAP, is_good
from andrea.verdict.documents import Documents, over_documents
from andrea.verdict.judgement import Verdict
from andrea.verdict.rates import Point
from andrea.verdict.seeds import replication_seed
from andrea.verdict.sensitivity import cap_loss, common_grid, measure_sensitivity
from andrea.verdict.stability import measure_stability


def described(record: Record, judged: Sequence[Verdict]) -> dict[str, Any]:
    """`stability`, `sensitivity` and `documents` of verdict.json, by arm.

    Args:
        judged: the verdicts on all arms but the baseline.
    """
    grid = common_grid([record.choices[arm]["grid"] for arm in record.study.arms])
    return {
        "stability": {arm: _stability(record, arm) for arm in record.study.arms},
        "sensitivity": {
            arm: measure_sensitivity(_points(record, arm), grid).to_dict()
            for arm in record.study.arms
        },
        "documents": _documents(record, judged),
    }


def _stability(record: Record, arm: str) -> dict[str, Any]:
    tuned = [
        record.results[run["run_id"]]
        for run in record.of(arm, "tune")
        if run["run_id"] in record.results
    ]
    return {
        "tune": measure_stability([replicate(result) for result in tuned]).to_dict(),
        "replicate": measure_stability(list(record.replicates(arm).values())).to_dict(),
    }


def _points(record: Record, arm: str) -> list[Point]:
    """The tuning runs with what they lost at most: a run that ends above its start has learned
    nothing.
    """
    found = []
    for run in record.of(arm, "tune"):
        if (result := record.results.get(run["run_id"])) is not None:
            initial = result.get("initial_loss")
            loss = cap_loss(result["loss"], CAP if initial is None else initial)
            found.append(Point(run["lr"], loss, is_good(result)))
    return found


def _documents(record: Record, judged: Sequence[Verdict]) -> dict[str, Any]:
    """Only of verdicts with a mean: what survived is a selection here too, and what is invalid is
    so for all texts.
    """
    baseline, found = _losses(record, record.baseline), {}
    for verdict in judged:
        if verdict.mean is None:
            told = Documents(0, None, None, reason=without_effect(verdict))
        else:
            told = over_documents(_losses(record, verdict.contrast.arm), baseline)
        found[verdict.contrast.arm] = told.to_dict()
    return found


def without_effect(verdict: Verdict) -> str:
    """Why there is no effect that could be told in other ways."""
    return (
        f"the verdict is {verdict}"
        if verdict.verdict == "invalid"
        else "some planned pair is not whole"
    )


def _losses(record: Record, arm: str) -> dict[int, Mapping[str, tuple[int, float]]]:
    """Tokens and loss by seed and document, of good replicates."""
    good = {seed: told for seed, told in record.found(arm, "replicate").items() if is_good(told)}
    seeds = [replication_seed(i) for i in range(record.study.protocol.seeds)]
    return {
        seed: {
            document["name"]: (document["tokens"], document["loss"])
            for document in good[seed].get("documents", [])
        }
        for seed in seeds
        if seed in good
    }
