"""Tuning of an ablation: results of the store become points, the decision becomes lines of
runs.jsonl.

The decisions themselves (grid, extension, midpoints, vertex, regret) are pure functions of
`andrea.verdict`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from andrea.records.events import Run
from andrea.study.plan.frozen import FrozenStudy
from andrea.verdict.rates import Point
from andrea.verdict.regret import estimate_regrets
from andrea.verdict.replicates import is_good_run
from andrea.verdict.tuning import Decision, next_step

Result = dict[str, Any]

CAP = 100.0
"""Score in nats of a run that has not even a finite loss at initialisation."""


def is_good(result: Mapping[str, Any]) -> bool:
    """Whether the run completed and learned: neither diverged, nor stalled, nor without a final
    loss.
    """
    return is_good_run(result["outcome"], result["stalled"], result.get("loss"))


def attributes(result: Mapping[str, Any]) -> dict[str, Any]:
    """What Optuna's journal says beside the score: one that is no final loss is never without a
    reason.
    """
    told = {"outcome": result["outcome"], "stalled": result["stalled"]}
    return (
        told
        if is_good(result)
        else {**told, "scored_as": "loss at initialisation", "reason": result.get("reason")}
    )


def score(result: Mapping[str, Any]) -> float:
    """What tuning is told, always finite: the final loss, or the loss at initialisation of a run
    that is not good.

    NaN would be a failed trial, which a sampler ignores and so samples the diverging region again
    and again.
    """
    told = (
        [result["loss"]]
        if is_good(result)
        else [result.get("initial_loss"), result.get("unigram_loss")]
    )
    return next((float(value) for value in told if value is not None and _finite(value)), CAP)


def points(
    arms: Sequence[str], runs: Sequence[Run], results: Mapping[str, Result]
) -> dict[str, list[Point]]:
    """The finished tuning runs of every arm, as the decision wants them."""
    found: dict[str, list[Point]] = {arm: [] for arm in arms}
    for run in runs:
        if run["phase"] == "tune" and run["run_id"] in results:
            result = results[run["run_id"]]
            found[run["arm"]].append(Point(run["lr"], score(result), is_good(result)))
    return found


def decide(
    study: FrozenStudy,
    runs: Sequence[Run],
    results: Mapping[str, Result],
    untuned: Collection[str] = (),
) -> Decision:
    """What tuning does next, or what it came to, from the runs that have a result.

    Args:
        untuned: arms of which a tuning run failed at every try: the others go on without them.
    """
    if study.baseline in untuned:
        return Decision("done", 0, note="a tuning run of the baseline failed at every try")
    found = points(study.arms, runs, results)
    tuned = {arm: tried for arm, tried in found.items() if arm not in untuned}
    return next_step(tuned, study.protocol, baseline=study.baseline, centers=study.centers)


def generation(
    decision: Decision, arms: Sequence[str], trials: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The runs of one generation, arms in turn so that equal rates end together; run ids are not
    known here.

    Args:
        trials: how many trials each arm has already.
    """
    rows = []
    longest = max((len(rates) for rates in decision.rates.values()), default=0)
    for i in range(longest):
        for arm in arms:
            rates = decision.rates.get(arm, [])
            if i < len(rates):
                row = {"arm": arm, "phase": "tune", "why": decision.phase, "lr": rates[i]}
                rows.append({**row, "trial": trials[arm] + i, "generation": decision.generation})
    return rows


def choices(
    decision: Decision, arms: Sequence[str], runs: Sequence[Run], results: Mapping[str, Result]
) -> dict[str, dict[str, Any]]:
    """choices.json: the rate of every arm, how it was found, and the points it was found from.

    An arm that no rate could train has `lr` None and is `untrainable`; one of which a tuning run
    failed has `lr` None.
    """
    regret = estimate_regrets(decision.choices)
    found: dict[str, dict[str, Any]] = {}
    for arm in arms:
        choice = decision.choices.get(arm)
        tried = sorted(
            (r for r in runs if r["phase"] == "tune" and r["arm"] == arm),
            key=lambda r: float(r["lr"]),
        )
        if choice is None:
            why = (
                "no good trial: every rate diverged or stalled"
                if arm in decision.untrainable
                else decision.note
            )
            if any(run["run_id"] not in results for run in tried):
                why = "a tuning run failed at every try"
            told: dict[str, Any] = {
                "lr": None,
                "method": None,
                "note": why,
                "edge": None,
                "fit": None,
            }
            told |= {"grid": decision.grids.get(arm, []), "hardly_tuned": False}
        else:
            told = choice.to_dict()
        told |= {"regret": regret.get(arm), "untrainable": arm in decision.untrainable}
        told["points"] = [
            _told_point(run, results[run["run_id"]]) for run in tried if run["run_id"] in results
        ]
        found[arm] = told
    return found


def _told_point(run: Run, result: Result) -> dict[str, Any]:
    told = {
        "lr": run["lr"],
        "loss": score(result),
        "ok": is_good(result),
        "outcome": result["outcome"],
    }
    return {**told, "stalled": result["stalled"], "run_id": run["run_id"], "why": run["why"]}


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
