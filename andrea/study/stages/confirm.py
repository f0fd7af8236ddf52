"""A confirmation: the arms at the rates that were chosen, on a second block of seeds, judged by
that block alone.

There is one per study. The first verdict's error rate is that of one look; a second block that is
judged alone has its own. Who goes on until some block agrees has an error rate that grows with
every block.
"""

from collections.abc import Callable, Iterator, Sequence

from andrea.records.run import Phase, RunSpec
from andrea.records.verdict import ArmVerdict, Confirmation, EffectVerdict
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.session import Generation
from andrea.study.stages.evidence import Evidence
from andrea.study.stages.stage import Forecast, Question, Rates, Training
from andrea.training.schedule import trained_tokens
from andrea.verdict.controls import ControlSummary
from andrea.verdict.judge import judge_arms, judge_effects
from andrea.verdict.replicates import summarise_arm
from andrea.verdict.seeds import confirmation_seeds

PHASE: Phase = "confirm"
WHY = "confirmation"
"""How its runs are marked in runs.jsonl."""


class Confirm:
    """Trains the second block once the first has its verdict.

    Args:
        say: tells the user why nothing is trained.
    """

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self._say = say

    def forecast(self, question: Question) -> list[Forecast]:
        """Return a run of every arm for every seed of the second block."""
        if not question.extras.confirm:
            return []
        one_seed = [Training(arm, trained_tokens(cfg)) for arm, cfg in question.configs.items()]
        return [Forecast("confirmation", one_seed * question.rules.seeds)]

    def next_runs(self, evidence: Evidence) -> Generation | None:
        """Return all runs of the second block at once."""
        is_begun = bool(evidence.planned(PHASE))
        if not evidence.extras.confirm or is_begun:
            return None
        recorded = evidence.study.folder.load_runs()
        was_begun = any(run.phase == PHASE for run in recorded)
        if not was_begun and any(run.run_id not in evidence.results for run in evidence.runs):
            # A second block is not looked at before the first has its verdict.
            self._say("the confirmation waits for the first verdict, which failed runs leave open")
            return None
        study = evidence.study
        runs = [
            study.plan(arm, PHASE, WHY, lr=lr, seed=seed, generation=evidence.generation + 1)
            for seed in confirmation_seeds(study.protocol.seeds)
            for arm, lr in evidence.rates.items()
        ]
        note = f"{study.protocol.seeds} seeds that no run of this study has seen"
        return Generation(PHASE, note, runs)

    def early_runs(self, study: FrozenStudy, rates: Rates, generation: int) -> Iterator[RunSpec]:
        """Yield nothing: the first verdict decides."""
        yield from ()

    def conclude(
        self, evidence: Evidence, first: Sequence[ArmVerdict], controls: ControlSummary | None
    ) -> Confirmation:
        """Return `confirmation` of verdict.json.

        Args:
            first: the verdicts that it confirms, or does not.
        """
        study = evidence.study
        seeds = confirmation_seeds(study.protocol.seeds)
        arms = {arm: evidence.arm_data(arm, PHASE) for arm in study.arms}
        baseline = arms[evidence.baseline]
        others = [arms[arm] for arm in evidence.others]
        judged = judge_arms(study.protocol, baseline, others, seeds=seeds, controls=controls)
        verdicts = [ArmVerdict(**verdict.to_dict()) for verdict in judged]
        effects = {}
        if study.question.levels:
            judged_effects = judge_effects(
                study.protocol,
                study.question.levels,
                baseline.name,
                arms,
                seeds=seeds,
                controls=controls,
            )
            effects = {"effects": [EffectVerdict(**effect.to_dict()) for effect in judged_effects]}
        runs = evidence.planned(PHASE)
        complete = bool(runs) and all(run.run_id in evidence.results for run in runs)
        words = {verdict.arm: verdict.verdict for verdict in first}
        agrees: dict[str, bool | None] = {}
        for verdict in verdicts:
            is_known = complete and bool(arms[verdict.arm].runs)
            agrees[verdict.arm] = verdict.verdict == words[verdict.arm] if is_known else None
        return Confirmation(
            seeds=seeds,
            n=len(seeds),
            verdicts=verdicts,
            **effects,
            baseline=summarise_arm(baseline, seeds),
            complete=complete,
            agrees=agrees,
        )
