"""The controls of a study: trainings whose outcome is known beforehand.

`andrea.verdict.controls` says what each must come to.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from andrea.config import RunConfig
from andrea.errors import UserError
from andrea.records.base import Settings
from andrea.records.run import Phase, RunSpec
from andrea.records.verdict import ControlOutcome, ControlOutcomes
from andrea.store.files import read_lines
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.session import Generation
from andrea.study.stages.evidence import Evidence
from andrea.study.stages.stage import Forecast, Question, Rates, Training
from andrea.training import schedule
from andrea.training.metrics import VOLATILE
from andrea.training.schedule import trained_tokens
from andrea.verdict import controls
from andrea.verdict.controls import ControlSummary
from andrea.verdict.judge import judge_arms
from andrea.verdict.seeds import control_seed, replication_seed, replication_seeds

PHASE: Phase = "control"
REPEAT, A_A, HALF, DOUBLE = "repeat", "a/a", "half tokens", "double tokens"
"""What the runs of each control are called in runs.jsonl."""
FACTORS = {HALF: 0.5, DOUBLE: 2.0}
"""Share of the baseline's tokens that a positive control trains."""


class Controls:
    """Trains a determinism check, A/A runs, and positive controls on half and double the tokens.

    The longer positive control is trained only where the mean loss of some arm is below the
    baseline's: it says what an improvement is worth.
    """

    def forecast(self, question: Question) -> list[Forecast]:
        """Return what is certain, and the longer positive control as possible.

        Raises:
            UserError: the baseline trains a single batch.
        """
        if not question.extras.controls:
            return []
        config, baseline = question.configs[question.baseline], question.baseline
        full = Training(baseline, trained_tokens(config))
        half = Training(baseline, positive_control_tokens(config, FACTORS[HALF]))
        double = Training(baseline, positive_control_tokens(config, FACTORS[DOUBLE]))
        seeds = question.rules.seeds
        certain = [full] + [full, half] * seeds
        return [Forecast("controls", certain, [double] * seeds, "if an arm is better")]

    def next_runs(self, evidence: Evidence) -> Generation | None:
        """Return the determinism check, and seed by seed the other controls."""
        study, baseline = evidence.study, evidence.baseline
        if not evidence.extras.controls or evidence.planned(PHASE):
            return None
        lr = float(evidence.choices[baseline].lr or 0.0)
        names = [HALF, DOUBLE] if _some_mean_is_lower(evidence) else [HALF]
        runs = list(_plan(study, lr, names, evidence.generation + 1))
        note = f"a repeat, A/A and rulers on {study.protocol.seeds} seeds"
        return Generation(PHASE, note, runs)

    def early_runs(self, study: FrozenStudy, rates: Rates, generation: int) -> Iterator[RunSpec]:
        """Yield the controls that do not wait for the verdict."""
        baseline = str(study.baseline)
        if study.folder.load_extras().controls and baseline in rates:
            yield from _plan(study, rates[baseline], [HALF], generation + 1)

    def conclude(self, evidence: Evidence) -> ControlOutcomes:
        """Return `controls` of verdict.json: the outcome of every control, unknown where it was not
        run.
        """
        rules, baseline = evidence.study.protocol, evidence.baseline
        replicates = evidence.replicates(baseline)
        a_a = controls.judge_a_a(
            replicates, evidence.replicates(baseline, PHASE, A_A), evidence.seeds, rules.margin
        )
        return ControlOutcomes(
            repeat=_check_determinism(evidence),
            a_a=ControlOutcome(**asdict(a_a)),
            ruler=_judge_positive_control(evidence, HALF),
            ruler_2x=_judge_positive_control(evidence, DOUBLE),
        )


def _plan(
    study: FrozenStudy, lr: float, positive_controls: list[str], generation: int
) -> Iterator[RunSpec]:
    baseline = str(study.baseline)
    config = study.config(baseline)

    def plan(why: str, seed: int, **fields: int) -> RunSpec:
        return study.plan(baseline, PHASE, why, lr=lr, seed=seed, generation=generation, **fields)

    yield plan(REPEAT, replication_seed(0), repeat=1)
    for i, seed in enumerate(replication_seeds(study.protocol.seeds)):
        yield plan(A_A, seed, init_seed=control_seed(i))
        for name in positive_controls:
            yield plan(name, seed, tokens=positive_control_tokens(config, FACTORS[name]))


def positive_control_tokens(config: RunConfig, factor: float) -> int:
    """Return the tokens of a positive control, in whole batches.

    Raises:
        UserError: the baseline trains a single batch, of which there is no half.
    """
    tokens = int(schedule.steps(config) * factor) * schedule.batch_tokens(config)
    if not tokens:
        raise UserError(
            f"--controls: train.tokens {config.train.tokens} is a single batch, and the ruler "
            "trains half of it; raise train.tokens or lower train.batch_size"
        )
    return tokens


def _some_mean_is_lower(evidence: Evidence) -> bool:
    """Return whether some arm's loss is below the baseline's in the mean of complete pairs."""
    arms = [evidence.arm_data(arm) for arm in evidence.others]
    judged = judge_arms(evidence.study.protocol, evidence.arm_data(evidence.baseline), arms)
    return any(verdict.mean is not None and verdict.mean < 0 for verdict in judged)


def summarise_controls(outcomes: ControlOutcomes | None) -> ControlSummary | None:
    """Return what the judge needs of the controls; None where none were asked for."""
    if outcomes is None:
        return None
    checks = (outcomes.repeat, outcomes.a_a, outcomes.ruler)
    return ControlSummary(*(check.ok if check else None for check in checks))


def _judge_positive_control(evidence: Evidence, name: str) -> ControlOutcome | None:
    """Return the outcome; None for the longer control where it was not trained."""
    baseline = evidence.baseline
    runs = evidence.planned(PHASE, name, baseline)
    if not runs and name == DOUBLE:
        return None
    judged = controls.judge_positive_control(
        evidence.replicates(baseline),
        evidence.replicates(baseline, PHASE, name),
        evidence.seeds,
        evidence.study.protocol.alpha,
        factor=FACTORS[name],
    )
    tokens = runs[0].tokens if runs else None
    return ControlOutcome(**asdict(judged), factor=FACTORS[name], tokens=tokens)


def _check_determinism(evidence: Evidence) -> ControlOutcome:
    study, baseline, seed = evidence.study, evidence.baseline, replication_seed(0)
    first = next(
        (run for run in evidence.planned("replicate", arm=baseline) if run.seed == seed), None
    )
    again = next(iter(evidence.planned(PHASE, REPEAT, baseline)), None)
    changed: list[str] = []
    if study.deterministic and first is not None and again is not None:
        changed = _differences(evidence, first.run_id, again.run_id)
    judged = controls.check_determinism(
        evidence.replicates(baseline).get(seed),
        evidence.replicates(baseline, PHASE, REPEAT).get(seed),
        study.protocol.margin,
        deterministic=study.deterministic,
        changed=changed,
    )
    return ControlOutcome(
        **asdict(judged),
        run_id=again.run_id if again else None,
        of=first.run_id if first else None,
    )


def _differences(evidence: Evidence, first: str, again: str) -> list[str]:
    """Return what two trainings of one configuration have otherwise than each other, clocks aside:
    names of fields of the result, and `metrics.jsonl`.
    """
    results = [evidence.results.get(run_id) for run_id in (first, again)]
    one, two = (_without_clocks(result.to_json()) if result else {} for result in results)
    if not one or not two:
        return []
    differing = [key for key in one if key not in two or one[key] != two[key]]
    differing += [key for key in two if key not in one]
    store = evidence.study.store
    logs = [_read_metrics(store.folder(run_id)) for run_id in (first, again)]
    # A record that was damaged or deleted since is no other number.
    common = logs[0].keys() & logs[1].keys()
    if any(logs[0][key] != logs[1][key] for key in common):
        differing.append("metrics.jsonl")
    return differing


def _read_metrics(folder: Path) -> dict[tuple[str, str], Settings]:
    """Return the records by kind and step."""
    records = read_lines(folder / "metrics.jsonl", ("kind", "step"))
    return {
        (str(record["kind"]), str(record["step"])): _without_clocks(record) for record in records
    }


def _without_clocks(values: Settings) -> Settings:
    return {key: value for key, value in values.items() if key not in VOLATILE}
