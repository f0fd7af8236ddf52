"""A sweep: generations of trials proposed together, each a pure function of the generations before
it.
"""

from dataclasses import dataclass

from andrea.records.base import Settings
from andrea.records.run import RunResult, RunSpec
from andrea.records.study import BestTrial, SweepTrial
from andrea.study.optuna_journal import JournalTrial, propose, sampling, score_attributes
from andrea.study.session import Generation, Session
from andrea.study.stages.evidence import Evidence
from andrea.verdict.seeds import tuning_seed


@dataclass(frozen=True)
class _Trial:
    """One suggestion: `seeds` runs. Trials with equal parameters share theirs."""

    number: int
    params: Settings
    runs: list[RunSpec]
    generation: int
    duplicate_of: int | None


class Search:
    """The one stage of a sweep: proposes and trains its trials, generation by generation."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.sweep = session.study.sweep
        self.arm = session.study.arms[0]
        self.space = self.sweep.distributions()
        self.trials: list[_Trial] = []

    def update_journal(self, session: Session) -> None:
        """Bring the Optuna journal to the trials so far."""
        session.journal.project({self.arm: self.space}, self._history())

    def next_runs(self, evidence: Evidence) -> Generation | None:
        """Propose all trials of a generation before any of them is run; None when all are done, or
        when a run failed at every try.
        """
        first = len(self.trials)
        if first == self.sweep.trials or self._session.failed:
            return None
        last = min(first + self.sweep.generation, self.sweep.trials)
        history = self._history()
        for number in range(first, last):
            trial = self._propose_trial(number, first // self.sweep.generation, history)
            self.trials.append(trial)
            history.append(self._journal_trial(trial, reveal=False))
        # Trials are numbered from 0, as Optuna does.
        name = f"trials {first} to {last - 1}" if last - first > 1 else f"trial {first}"
        note = f"{name} of 0 to {self.sweep.trials - 1}"
        runs = [run for trial in self.trials[first:] for run in trial.runs]
        return Generation("trial", note, runs)

    def _propose_trial(self, number: int, generation: int, history: list[JournalTrial]) -> _Trial:
        params = self._recorded(number) or self._propose(number, history)
        duplicate = next((t.number for t in self.trials if t.params == params), None)
        fields = {"trial": number, "generation": generation, "params": params}
        if duplicate is not None:
            fields["duplicate_of"] = duplicate
        study = self._session.study
        runs = [
            study.plan(self.arm, "trial", "trial", lr=None, seed=tuning_seed(i), **fields)
            for i in range(self.sweep.seeds)
        ]
        return _Trial(number, params, runs, generation, duplicate)

    def _recorded(self, number: int) -> Settings | None:
        """Return the parameters of a trial that an earlier command proposed: an unfinished trial is
        resumed, not replaced.
        """
        run = self._session.ledger.recorded(number * self.sweep.seeds)
        return dict(run.params or {}) if run else None

    def _propose(self, number: int, history: list[JournalTrial]) -> Settings:
        if self.sweep.sampler == "grid":
            cells = self.sweep.cells() or []
            return cells[number]
        return propose(self.space, self.sweep.tpe_arguments, self.sweep.seed, history)

    def _history(self) -> list[JournalTrial]:
        return [self._journal_trial(trial) for trial in self.trials]

    def _results(self, trial: _Trial) -> list[RunResult]:
        known = self._session.results
        return [known[run.run_id] for run in trial.runs if run.run_id in known]

    def _journal_trial(self, trial: _Trial, *, reveal: bool = True) -> JournalTrial:
        """Return a trial as Optuna knows it.

        Args:
            reveal: its value, which is there only once all of its generation's runs are.
        """
        run_id = trial.runs[0].run_id
        attributes = {
            "runs": [run.run_id for run in trial.runs],
            "duplicate_of": trial.duplicate_of,
        }
        results = self._results(trial) if reveal else []
        if len(results) < len(trial.runs):
            return JournalTrial(self.arm, trial.number, run_id, trial.params, None, attributes)
        value = sum(result.score for result in results) / len(results)
        final = score_attributes(_representative(results))
        return JournalTrial(self.arm, trial.number, run_id, trial.params, value, attributes, final)

    def conclude(self) -> BestTrial:
        """Return best.json: the best good trial, and all trials. Ties go to the earlier trial."""
        rows = [self._row(trial) for trial in self.trials]
        good = [row for row in rows if row.ok]
        best = min(good, key=lambda row: (row.loss, row.trial)) if good else None
        settings = {
            "sampler": self.sweep.sampler,
            "seed": self.sweep.seed,
            "generation": self.sweep.generation,
            "sampling": sampling(self.sweep),
        }
        return BestTrial(
            trial=best.trial if best else None,
            loss=best.loss if best else None,
            params=best.params if best else None,
            run_id=best.run_id if best else None,
            config=self._session.study.settings(str(best.run_id)) if best else None,
            trials=rows,
            search=settings,
            complete=True,
        )

    def _row(self, trial: _Trial) -> SweepTrial:
        results = self._results(trial)
        shown = _representative(results)
        return SweepTrial(
            trial=trial.number,
            generation=trial.generation,
            params=trial.params,
            loss=sum(result.score for result in results) / len(results),
            ok=all(result.is_good for result in results),
            outcome=shown.outcome,
            stalled=shown.stalled,
            run_id=trial.runs[0].run_id,
            runs=[run.run_id for run in trial.runs],
            duplicate_of=trial.duplicate_of,
        )


def _representative(results: list[RunResult]) -> RunResult:
    """Return the run that stands for a trial: the first that is not good, if there is one."""
    return next((result for result in results if not result.is_good), results[0])
