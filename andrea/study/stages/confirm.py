"""A confirmation: the arms at the rates that were chosen, on a second block of seeds, judged by
that block alone.

There is one per study. The first verdict's error rate is that of one look; a second block that is
judged alone has its own, but whoever goes on until some block agrees has made of five per cent as
many as it took.
"""

from typing import Any

from andrea.records.events import Run
from andrea.study.stages.evidence import Record
from andrea.verdict.controls import ControlSummary
from andrea.verdict.judge import judge_arms, judge_effects
from andrea.verdict.replicates import summarise_arm
from andrea.verdict.seeds import confirmation_seeds

WHY = "confirmation"
"""What its runs are called in runs.jsonl."""


def planned(record: Record, generation: int) -> list[Run]:
    """Seed by seed through all arms that have a rate, as the replicates were."""
    row = {"phase": "confirm", "why": WHY, "trial": None, "generation": generation}
    return [
        record.study.run({**row, "arm": arm, "lr": record.choices[arm]["lr"]}, seed)
        for seed in confirmation_seeds(record.study.protocol.seeds)
        for arm in record.study.arms
        if record.choices[arm]["lr"] is not None
    ]


def outcome(
    record: Record, first: list[dict[str, Any]], controls: ControlSummary | None
) -> dict[str, Any]:
    """`confirmation` of verdict.json.

    Args:
        first: the verdicts that it confirms, or does not.
    """
    study, seeds = record.study, confirmation_seeds(record.study.protocol.seeds)
    arms = {arm: record.data(arm, "confirm") for arm in study.arms}
    baseline = arms[record.baseline]
    judged = judge_arms(
        study.protocol,
        baseline,
        [arms[arm] for arm in record.others],
        seeds=seeds,
        controls=controls,
    )
    runs = [run for run in record.runs if run["phase"] == "confirm"]
    complete = bool(runs) and all(run["run_id"] in record.results for run in runs)
    words = {verdict["arm"]: verdict["verdict"] for verdict in first}
    told: dict[str, Any] = {
        "seeds": seeds,
        "n": len(seeds),
        "verdicts": [verdict.to_dict() for verdict in judged],
    }
    if study.levels:
        found = judge_effects(
            study.protocol, study.levels, baseline.name, arms, seeds=seeds, controls=controls
        )
        told["effects"] = [effect.to_dict() for effect in found]
    agrees = {
        v.contrast.arm: v.verdict == words[v.contrast.arm]
        if complete and arms[v.contrast.arm].runs
        else None
        for v in judged
    }
    return {
        **told,
        "baseline": summarise_arm(baseline, seeds).to_dict(),
        "complete": complete,
        "agrees": agrees,
    }
