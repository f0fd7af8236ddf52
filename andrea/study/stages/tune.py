"""Tuning of an ablation: every arm's learning rate, from runs on one tuning seed.

The decisions themselves (grid, extension, midpoints, vertex, regret) are pure functions of
`andrea.verdict`; here results become points, and decisions become planned runs.
"""

from collections import Counter
from collections.abc import Iterator

from andrea.records.run import RunResult, RunSpec
from andrea.records.study import Choice, TuningPoint
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.session import Generation
from andrea.study.stages.evidence import Evidence
from andrea.study.stages.stage import Forecast, Question, Rates, Training
from andrea.training.schedule import trained_tokens
from andrea.verdict.rates import FULL_TRIALS, Point, choose_rate
from andrea.verdict.regret import estimate_regrets
from andrea.verdict.seeds import tuning_seed
from andrea.verdict.tuning import Decision, next_step


class Tune:
    """Trains the grid of every arm, extends it, and adds midpoints, until the learning rate of
    every arm is found.
    """

    def forecast(self, question: Question) -> list[Forecast]:
        """Return the grid and its midpoints; a grid may have to be extended."""
        one_rate = [Training(arm, trained_tokens(cfg)) for arm, cfg in question.configs.items()]
        trials = question.rules.trials
        midpoints = 2 if trials >= FULL_TRIALS else 0
        return [
            Forecast("grid", one_rate * (trials - midpoints), is_own=True),
            Forecast("midpoints", one_rate * midpoints, is_own=True),
        ]

    def next_runs(self, evidence: Evidence) -> Generation | None:
        """Return the runs of one generation, arms in turn so that equal rates end together."""
        decision = decide(evidence)
        if decision.phase == "done":
            return None
        trials = Counter(run.arm for run in evidence.planned("tune"))
        runs = []
        longest = max((len(lrs) for lrs in decision.rates.values()), default=0)
        for i in range(longest):
            for arm in evidence.study.arms:
                lrs = decision.rates.get(arm, [])
                if i < len(lrs):
                    trial = trials[arm] + i
                    runs.append(_plan_trial(evidence.study, decision, arm, lrs[i], trial))
        return Generation(decision.phase, decision.note, runs)

    def early_runs(self, study: FrozenStudy, rates: Rates, generation: int) -> Iterator[RunSpec]:
        """Yield nothing: tuning comes first."""
        yield from ()

    def conclude(self, evidence: Evidence) -> dict[str, Choice]:
        """Return choices.json: the learning rate of every arm, how it was found, and from which
        points.

        An arm that no rate could train has `lr` None and is `untrainable`; one of which a tuning
        run failed has `lr` None.
        """
        decision = decide(evidence)
        regret = estimate_regrets(decision.choices)
        choices: dict[str, Choice] = {}
        for arm in evidence.study.arms:
            finished = evidence.finished("tune", arm=arm)
            finished.sort(key=lambda run: float(run.lr or 0.0))
            choice = decision.choices.get(arm)
            if choice is not None:
                fields = choice.to_dict()
            else:
                note = decision.note
                if len(finished) < len(evidence.planned("tune", arm=arm)):
                    note = "a tuning run failed at every try"
                elif arm in decision.untrainable:
                    note = "no good trial: every rate diverged or stalled"
                fields = {"lr": None, "method": None, "note": note, "edge": None, "fit": None}
                fields |= {"hardly_tuned": False, "grid": decision.grids.get(arm, [])}
            choices[arm] = Choice(
                **fields,
                regret=regret.get(arm),
                untrainable=arm in decision.untrainable,
                points=[_tuning_point(run, evidence.results[run.run_id]) for run in finished],
            )
        return choices


def decide(evidence: Evidence) -> Decision:
    """Return what tuning does next, or what it came to, from the runs that have a result."""
    study = evidence.study
    if study.baseline in evidence.untuned:
        return Decision("done", 0, note="a tuning run of the baseline failed at every try")
    arms = [arm for arm in study.arms if arm not in evidence.untuned]
    points = {arm: _points(evidence, arm) for arm in arms}
    centers = study.question.centers
    return next_step(points, study.protocol, baseline=study.baseline, centers=centers)


def settled_rates(evidence: Evidence) -> tuple[dict[str, float], int]:
    """Return the learning rates by arm that no further result can change, and the number of the
    generation that follows tuning.

    Once the grid is settled for all arms, an arm waits for its own midpoints alone. While the
    baseline's rate is open there is nothing to be compared with, and no rate is settled.
    """
    if evidence.choices:
        return evidence.rates, evidence.generation
    decision = decide(evidence)
    rates: dict[str, float] = {}
    if decision.phase != "midpoint":
        return rates, 0
    for arm in evidence.study.arms:
        is_open = arm in decision.rates or arm in decision.untrainable
        if is_open and arm == evidence.baseline:
            break
        if arm in decision.grids and not is_open:
            grid = decision.grids[arm]
            rates[arm] = choose_rate(_points(evidence, arm), grid, hardly_tuned=False).lr
    return rates, decision.generation + 1


def _points(evidence: Evidence, arm: str) -> list[Point]:
    """Return the finished tuning runs of an arm as the judge sees them."""
    points = []
    for run in evidence.finished("tune", arm=arm):
        result = evidence.results[run.run_id]
        points.append(Point(float(run.lr or 0.0), result.score, result.is_good))
    return points


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
