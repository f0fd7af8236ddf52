"""Arms at equal cost: trained again on as many tokens as cost what the baseline's training costs,
schedule and all.

Arms are compared at equal tokens; where a token of an arm costs more or less than one of the
baseline, this says what becomes of the verdict at equal FLOPs or equal training time. A curve's
loss at that cost would not do: its schedule had not ended.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from andrea.config import RunConfig
from andrea.model.accounting import flops_per_token
from andrea.records.extras import Budget
from andrea.records.run import Phase, RunSpec
from andrea.records.study import SpeedRatio, StudySpeed
from andrea.records.verdict import ArmVerdict, EqualCost
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.session import Generation
from andrea.study.stages.evidence import Evidence
from andrea.study.stages.stage import Forecast, Question, Rates, Training
from andrea.training import schedule
from andrea.training.schedule import trained_tokens
from andrea.verdict.controls import ControlSummary
from andrea.verdict.judge import judge_arms
from andrea.verdict.seeds import replication_seeds

PHASE: Phase = "budget"
TOLERANCE = 0.01
"""Share of the baseline's cost within which an arm's training costs the same: the main comparison
is at equal cost.
"""
MEASURED_LATER = (
    "its training was not seen to take another time when this budget was planned; what was "
    "measured since changes no plan, and no family"
)
"""Reason for an arm that is not trained, although it is slower or faster by now."""


@dataclass(frozen=True)
class Costs:
    """Cost of the training of every arm."""

    budget: Budget
    configs: Mapping[str, RunConfig]
    """By arm."""
    baseline: str
    speed: StudySpeed | None = None
    """For `time`."""
    known_flops: Mapping[str, float] = field(default_factory=dict)
    """FLOPs per token by arm where they were counted before."""

    def flops(self, arm: str) -> float:
        """Return the FLOPs per token, forward and backward."""
        known = self.known_flops.get(arm)
        return known or flops_per_token(self.configs[arm].model).total

    def measured(self, arm: str) -> SpeedRatio | None:
        """Return the time of a step over that of the baseline's, if it was measured."""
        return self.speed.ratio.get(arm) if self.speed else None

    def ratio(self, arm: str) -> float | None:
        """Return the cost of an arm's training over that of the baseline's; None where its speed
        is not known.
        """
        arm_config, base_config = self.configs[arm], self.configs[self.baseline]
        steps = schedule.steps(arm_config) / schedule.steps(base_config)
        if self.budget == "time":
            measured = self.measured(arm)
            return None if measured is None else measured.ratio * steps
        tokens = steps * schedule.batch_tokens(arm_config) / schedule.batch_tokens(base_config)
        return self.flops(arm) / self.flops(self.baseline) * tokens

    def ratio_interval(self, arm: str) -> tuple[float, float]:
        """Return the interval of the ratio; where too few rounds gave none, the ratio itself."""
        ratio = self.ratio(arm) or 1.0
        measured = self.measured(arm)
        if self.budget == "flops" or measured is None:
            return ratio, ratio
        steps = schedule.steps(self.configs[arm]) / schedule.steps(self.configs[self.baseline])
        low = measured.ratio if measured.low is None else measured.low
        high = measured.ratio if measured.high is None else measured.high
        return low * steps, high * steps

    def equal_tokens(self, arm: str) -> int | None:
        """Return the tokens, in whole batches, at which an arm's whole training costs what the
        baseline's costs: as near as whole batches come, at least one.

        `time` is that of training steps alone. None where the arm's speed is not known.
        """
        per_step = {name: self._cost_per_step(name) for name in (arm, self.baseline)}
        arm_cost, base_cost = per_step[arm], per_step[self.baseline]
        if arm_cost is None or base_cost is None:
            return None
        steps = round(schedule.steps(self.configs[self.baseline]) * base_cost / arm_cost)
        return max(1, steps) * schedule.batch_tokens(self.configs[arm])

    def _cost_per_step(self, arm: str) -> float | None:
        if self.budget == "flops":
            return self.flops(arm) * schedule.batch_tokens(self.configs[arm])
        # In steps of the baseline: a ratio within rounds is known better than either time.
        measured = self.measured(arm)
        if arm == self.baseline:
            return 1.0
        return measured.ratio if measured else None

    def reason_not_to_train(self, arm: str) -> str:
        """Return why an arm is not trained at equal cost; empty where it is."""
        ratio = self.ratio(arm)
        if ratio is None:
            return "the speed of the arms is not known: not measured yet, or it could not be"
        is_close = abs(ratio - 1) <= TOLERANCE
        if is_close or self.equal_tokens(arm) == trained_tokens(self.configs[arm]):
            within = "within 1 %" if is_close else "within half a batch"
            return (
                f"its training costs what the baseline's does, {within} "
                f"({_compare(ratio)}): the main comparison is at equal {self.budget}"
            )
        low, high = self.ratio_interval(arm)
        if low <= 1 <= high:
            return (
                "its training was not seen to take another time than the baseline's "
                f"(× {ratio:.3f} [{low:.3f}, {high:.3f}]): the main comparison is at equal "
                f"{self.budget} as far as was measured"
            )
        return ""


def costs_of(study: FrozenStudy, budget: Budget, speed: StudySpeed | None) -> Costs:
    """Return the costs of a frozen study's arms."""
    configs = {arm: study.config(arm) for arm in study.arms}
    counted = {arm: resolved.flops_per_token for arm, resolved in study.resolved.arms.items()}
    flops = {arm: number for arm, number in counted.items() if number}
    return Costs(budget, configs, str(study.baseline), speed, flops)


def _compare(ratio: float) -> str:
    if ratio == 1:
        return "the same"
    share = f"{abs(ratio - 1):.1%}".replace("%", " %")
    return f"{share} {'more' if ratio > 1 else 'less'}"


class TrainAtEqualCost:
    """Trains the arms that cost other than the baseline at one budget.

    Their rates are those of the main comparison, not tuned anew.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.why = f"equal {budget}"

    def forecast(self, question: Question) -> list[Forecast]:
        """Return the arms whose FLOPs differ; in time any arm may."""
        if self.budget not in question.extras.equal:
            return []
        others = {arm: cfg for arm, cfg in question.configs.items() if arm != question.baseline}
        seeds = question.rules.seeds
        if self.budget == "time":
            possible = [Training(arm, trained_tokens(cfg)) for arm, cfg in others.items()] * seeds
            return [Forecast(self.why, [], possible, "where arms are faster or slower")]
        costs = Costs(self.budget, question.configs, question.baseline)
        certain = []
        for arm in others:
            ratio = costs.ratio(arm) or 1.0
            steps = max(1, round(schedule.steps(others[arm]) / ratio))
            if abs(ratio - 1) > TOLERANCE and steps != schedule.steps(others[arm]):
                certain.append(Training(arm, steps * schedule.batch_tokens(others[arm])))
        return [Forecast(self.why, certain * seeds)]

    def next_runs(self, evidence: Evidence) -> Generation | None:
        """Return seed by seed the arms that are trained at this budget."""
        if self.budget not in evidence.extras.equal or evidence.planned(PHASE, self.why):
            return None
        study = evidence.study
        recorded = [run for run in study.folder.load_runs() if run.phase == PHASE]
        recorded = [run for run in recorded if run.why == self.why]
        tokens = tokens_to_train(evidence, self.budget, recorded)
        runs = list(self._plan(study, evidence.rates, tokens, evidence.generation + 1))
        note = f"arms on as many tokens as make equal {self.budget}"
        return Generation(PHASE, note, runs) if runs else None

    def early_runs(self, study: FrozenStudy, rates: Rates, generation: int) -> Iterator[RunSpec]:
        """Yield the runs whose tokens follow from the configurations alone.

        None while the speed of the arms is still to be measured: nothing else may run meanwhile.
        """
        extras = study.folder.load_extras()
        must_measure = extras.controls or "time" in extras.equal
        if self.budget != "flops" or "flops" not in extras.equal or must_measure:
            return
        costs = costs_of(study, self.budget, None)
        tokens = {}
        for arm in rates:
            count = costs.equal_tokens(arm)
            if arm != study.baseline and count and not costs.reason_not_to_train(arm):
                tokens[arm] = count
        yield from self._plan(study, rates, tokens, generation + 1)

    def _plan(
        self, study: FrozenStudy, rates: Rates, tokens: Mapping[str, int], generation: int
    ) -> Iterator[RunSpec]:
        for seed in replication_seeds(study.protocol.seeds):
            for arm, count in tokens.items():
                yield study.plan(
                    arm,
                    PHASE,
                    self.why,
                    lr=rates[arm],
                    seed=seed,
                    generation=generation,
                    tokens=count,
                )

    def conclude(self, evidence: Evidence, controls: ControlSummary | None) -> dict[str, EqualCost]:
        """Return this budget's part of `equal` in verdict.json: by arm the verdict against the
        baseline's replicates, or why there is none.

        The arms of a budget are a family of their own.
        """
        if self.budget not in evidence.extras.equal:
            reason = f"not asked for: --equal {self.budget} trains at this budget"
            return {arm: EqualCost(na=reason) for arm in evidence.others}
        runs = {arm: evidence.planned(PHASE, self.why, arm) for arm in evidence.others}
        reasons = _reasons_not_to_train(evidence, self.budget, runs)
        outcomes = {arm: EqualCost(na=reason) for arm, reason in reasons.items()}
        family = [arm for arm in evidence.others if not reasons[arm]]
        if not family:
            return outcomes
        arms = [evidence.arm_data(arm, PHASE, self.why) for arm in family]
        baseline = evidence.arm_data(evidence.baseline)
        for verdict in judge_arms(evidence.study.protocol, baseline, arms, controls=controls):
            arm = verdict.contrast.arm
            tokens = runs[arm][0].tokens if runs[arm] else None
            outcomes[arm] = EqualCost(tokens=tokens, verdict=ArmVerdict(**verdict.to_dict()))
        return outcomes


def tokens_to_train(evidence: Evidence, budget: Budget, recorded: list[RunSpec]) -> dict[str, int]:
    """Return the tokens by arm that has a rate and costs other than the baseline.

    Args:
        recorded: what earlier commands planned: its tokens stay, whatever a later measurement says.
    """
    tokens = {run.arm: int(run.tokens or 0) for run in recorded}
    # Fewer lines than whole seeds: a kill came while they were written, and arms may be missing.
    if not recorded or len(recorded) < len(tokens) * evidence.study.protocol.seeds:
        known, tokens = tokens, {}
        costs = costs_of(evidence.study, budget, evidence.speed)
        for arm in evidence.others:
            if arm in known or not costs.reason_not_to_train(arm):
                tokens[arm] = known.get(arm) or costs.equal_tokens(arm) or 0
    return {arm: count for arm, count in tokens.items() if evidence.has_rate(arm)}


def _reasons_not_to_train(
    evidence: Evidence, budget: Budget, runs: Mapping[str, list[RunSpec]]
) -> dict[str, str]:
    """Return by arm why it has no verdict of its own at this budget; empty where it has one."""
    costs = costs_of(evidence.study, budget, evidence.speed)
    trained = tokens_to_train(evidence, budget, [run for arm in runs for run in runs[arm]])
    reasons = {}
    for arm in evidence.others:
        reasons[arm] = "" if runs[arm] else costs.reason_not_to_train(arm)
        if not reasons[arm] and arm not in trained and evidence.has_rate(arm):
            reasons[arm] = MEASURED_LATER
    return reasons
