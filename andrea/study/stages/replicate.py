"""Replication: every arm at its learning rate, on the same fresh seeds."""

from collections.abc import Iterator

from andrea.records.run import RunSpec
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.session import Generation
from andrea.study.stages.evidence import Evidence
from andrea.study.stages.stage import Forecast, Question, Rates, Training
from andrea.training.schedule import trained_tokens
from andrea.verdict.seeds import replication_seeds


class Replicate:
    """Trains every arm that has a rate, if the baseline has one."""

    def forecast(self, question: Question) -> list[Forecast]:
        """Return a run of every arm for every seed."""
        one_seed = [Training(arm, trained_tokens(cfg)) for arm, cfg in question.configs.items()]
        return [Forecast("replicates", one_seed * question.rules.seeds, is_own=True)]

    def next_runs(self, evidence: Evidence) -> Generation | None:
        """Return all replicates at once."""
        study = evidence.study
        if evidence.planned("replicate") or not evidence.has_rate(evidence.baseline):
            return None
        note = f"{study.protocol.seeds} fresh seeds, the same in every arm"
        runs = list(self.early_runs(study, evidence.rates, evidence.generation))
        return Generation("replicate", note, runs)

    def early_runs(self, study: FrozenStudy, rates: Rates, generation: int) -> Iterator[RunSpec]:
        """Yield the replicates seed by seed through all arms, so that pairs end together."""
        for seed in replication_seeds(study.protocol.seeds):
            for arm in study.arms:
                if arm in rates:
                    yield study.plan(
                        arm,
                        "replicate",
                        "replicate",
                        lr=rates[arm],
                        seed=seed,
                        generation=generation,
                    )
