"""From the replicates in the store to verdict.json."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from andrea.store.versions import installed
from andrea.study.events import Run
from andrea.study.frozen import FrozenStudy
from andrea.verdict.factorial import effects
from andrea.verdict.judge import judge, summarise
from andrea.verdict.records import METHOD, ArmData, Replicate
from andrea.verdict.seeds import replication_seed


def verdicts(
    study: FrozenStudy,
    choices: Mapping[str, Mapping[str, Any]],
    runs: Sequence[Run],
    results: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """The content of verdict.json, from whatever runs have a result; missing ones are the judge's business."""
    arms = {arm: _arm_data(study, arm, choices[arm], runs, results) for arm in study.arms}
    baseline = arms[str(study.baseline)]
    others = [data for arm, data in arms.items() if arm != study.baseline]
    judged = judge(study.protocol, baseline, others)
    seeds = [replication_seed(i) for i in range(study.protocol.seeds)]
    design = study.levels
    found = effects(study.protocol, design, baseline.name, arms) if design else []
    return {
        "verdicts": [verdict.to_dict() for verdict in judged],
        **({"effects": [effect.to_dict() for effect in found]} if design else {}),
        "baseline": summarise(baseline, seeds).to_dict(),
        "method": METHOD,
        "versions": _versions(),
        "complete": all(run["run_id"] in results for run in runs),
        "exploratory": any(data.exploratory for data in arms.values()),
    }


def _arm_data(
    study: FrozenStudy,
    arm: str,
    choice: Mapping[str, Any],
    runs: Sequence[Run],
    results: Mapping[str, dict[str, Any]],
) -> ArmData:
    mine = [run for run in runs if run["arm"] == arm and run["run_id"] in results]
    return ArmData(
        name=arm,
        runs={run["seed"]: _replicate(results[run["run_id"]]) for run in mine if run["phase"] == "replicate"},
        edge=choice["edge"],
        regret=choice["regret"],
        hardly_tuned=choice["hardly_tuned"],
        untrainable=choice["untrainable"],
        exploratory=any(_older(results[run["run_id"]], study.resolved["frozen_at"]) for run in mine),
    )


def _versions() -> dict[str, str | None]:
    """What a reader needs beside the method to draw the same regrets: numpy's normal stream may change with it."""
    return {name: installed(name) for name in ("andrea", "numpy", "scipy")}


def _replicate(result: Mapping[str, Any]) -> Replicate:
    return Replicate(result["loss"], result["outcome"], result["stalled"], result["eval_digest"])


def _older(result: Mapping[str, Any], frozen_at: str) -> bool:
    """Whether the run was there before the protocol was: the question may have been chosen for its answer."""
    return datetime.fromisoformat(result["finished_at"]) < datetime.fromisoformat(frozen_at)
