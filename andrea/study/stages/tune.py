"""Tuning of an ablation: every arm's learning rate, from runs on one tuning seed.

The decisions themselves (grid, extension, midpoints, vertex, regret) are pure functions of
`andrea.verdict`; here results become points, and decisions become planned runs.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from andrea.records.run import RunResult, RunSpec
from andrea.records.study import Choice, TuningPoint
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.session import Generation
from andrea.verdict import rates
from andrea.verdict.rates import Point
from andrea.verdict.regret import estimate_regrets
from andrea.verdict.seeds import tuning_seed
from andrea.verdict.tuning import Decision, next_step

Results = Mapping[str, RunResult]


def decide(
    study: FrozenStudy,
    runs: Sequence[RunSpec],
    results: Results,
    untuned: Collection[str] = (),
) -> Decision:
    """Return what tuning does next, or what it came to, from the runs that have a result.

    Args:
        untuned: arms of which a tuning run failed at every try: the others go on without them.
    """
    if study.baseline in untuned:
        return Decision("done", 0, note="a tuning run of the baseline failed at every try")
    points: dict[str, list[Point]] = {arm: [] for arm in study.arms if arm not in untuned}
    for run in runs:
        if run.phase == "tune" and run.run_id in results and run.arm in points:
            result = results[run.run_id]
            points[run.arm].append(Point(float(run.lr or 0.0), result.score, result.is_good))
    centers = study.question.centers
    return next_step(points, study.protocol, baseline=study.baseline, centers=centers)


def plan_generation(
    study: FrozenStudy, decision: Decision, planned: Sequence[RunSpec]
) -> Generation:
    """Return the runs of one generation, arms in turn so that equal rates end together.

    Args:
        planned: the tuning runs so far: they number the trials.
    """
    trials = Counter(run.arm for run in planned)
    runs = []
    longest = max((len(lrs) for lrs in decision.rates.values()), default=0)
    for i in range(longest):
        for arm in study.arms:
            lrs = decision.rates.get(arm, [])
            if i < len(lrs):
                runs.append(_plan_trial(study, decision, arm, lrs[i], trials[arm] + i))
    return Generation(decision.phase, decision.note, runs)


def _plan_trial(study: FrozenStudy, decision: Decision, arm: str, lr: float, trial: int) -> RunSpec:
    return study.plan(
        arm,
        "tune",
        decision.phase,
        lr=lr,
        seed=tuning_seed(0),
        trial=trial,
        generation=decision.generation,
    )


def settled_rates(
    study: FrozenStudy, decision: Decision, runs: Sequence[RunSpec], results: Results
) -> Iterator[tuple[str, float]]:
    """Yield every arm whose learning rate no further result can change, with its rate.

    Once the grid is settled for all arms, an arm waits for its own midpoints alone. The baseline
    comes first; while its rate is open there is nothing to be compared with, and none is yielded.
    """
    if decision.phase != "midpoint":
        return
    for arm in (arm for arm in study.arms if arm in decision.grids):
        points = [
            Point(float(run.lr or 0.0), results[run.run_id].score, results[run.run_id].is_good)
            for run in runs
            if run.phase == "tune" and run.arm == arm and run.run_id in results
        ]
        is_settled = arm not in decision.rates and arm not in decision.untrainable
        if is_settled:
            yield arm, rates.choose_rate(points, decision.grids[arm], hardly_tuned=False).lr
        elif arm == study.baseline:
            return


def choose(
    decision: Decision, arms: Sequence[str], runs: Sequence[RunSpec], results: Results
) -> dict[str, Choice]:
    """Return the learning rate of every arm, how it was found, and the points it was found from.

    An arm that no rate could train has `lr` None and is `untrainable`; one of which a tuning run
    failed has `lr` None.
    """
    regret = estimate_regrets(decision.choices)
    choices: dict[str, Choice] = {}
    for arm in arms:
        trials = [run for run in runs if run.phase == "tune" and run.arm == arm]
        trials.sort(key=lambda run: float(run.lr or 0.0))
        finished = [run for run in trials if run.run_id in results]
        found = decision.choices.get(arm)
        if found is not None:
            fields = found.to_dict()
        else:
            note = decision.note
            if len(finished) < len(trials):
                note = "a tuning run failed at every try"
            elif arm in decision.untrainable:
                note = "no good trial: every rate diverged or stalled"
            fields = {"lr": None, "method": None, "note": note, "edge": None, "fit": None}
            fields |= {"hardly_tuned": False, "grid": decision.grids.get(arm, [])}
        choices[arm] = Choice(
            **fields,
            regret=regret.get(arm),
            untrainable=arm in decision.untrainable,
            points=[_tuning_point(run, results[run.run_id]) for run in finished],
        )
    return choices


def _tuning_point(run: RunSpec, result: RunResult) -> TuningPoint:
    return TuningPoint(
        lr=float(run.lr or 0.0),
        loss=result.score,
        ok=result.is_good,
        outcome=result.outcome,
        stalled=result.stalled,
        run_id=run.run_id,
        why=run.why,
    )
