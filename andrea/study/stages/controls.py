"""The controls of a study: which runs they are, and what became of them. `andrea.verdict.controls`
judges them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea.config import RunConfig
from andrea.errors import UserError
from andrea.records.events import Run
from andrea.store.files import read_lines
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.stages.evidence import Record
from andrea.training import schedule
from andrea.training.metrics import VOLATILE
from andrea.verdict import controls
from andrea.verdict.controls import ControlSummary
from andrea.verdict.judge import judge_arms
from andrea.verdict.seeds import control_seed, replication_seed

FACTORS = {"half tokens": 0.5, "double tokens": 2.0}
"""Share of the baseline's tokens, by what the ruler's runs are called in runs.jsonl."""


def ruler_tokens(config: RunConfig, factor: float) -> int:
    """Tokens of a ruler, in whole batches.

    Raises:
        UserError: the baseline trains a single batch, of which there is no half.
    """
    tokens = int(schedule.steps(config) * factor) * schedule.batch_tokens(config)
    if not tokens:
        raise UserError(
            f"--controls: train.tokens {config.train.tokens} is a single batch, and the ruler "
            "trains half of it; "
            "raise train.tokens or lower train.batch_size"
        )
    return tokens


def baseline_tokens(study: FrozenStudy) -> int:
    """Tokens that the baseline trains, in whole batches."""
    config = RunConfig.model_validate(study.resolved["arms"][str(study.baseline)]["config"])
    return schedule.steps(config) * schedule.batch_tokens(config)


def planned(record: Record, generation: int) -> list[Run]:
    """The repeat, and seed by seed the A/A run and the rulers; the longer ruler only where an arm
    is an improvement.
    """
    study, lr = record.study, record.choices[record.baseline]["lr"]
    rulers = ["half tokens", *(["double tokens"] if improved(record) else [])]
    config = RunConfig.model_validate(study.resolved["arms"][record.baseline]["config"])
    row = {
        "arm": record.baseline,
        "phase": "control",
        "lr": lr,
        "trial": None,
        "generation": generation,
    }
    runs = [study.run({**row, "why": "repeat", "repeat": 1}, replication_seed(0))]
    for i in range(study.protocol.seeds):
        runs.append(
            study.run({**row, "why": "a/a", "init_seed": control_seed(i)}, replication_seed(i))
        )
        for why in rulers:
            tokens = ruler_tokens(config, FACTORS[why])
            runs.append(study.run({**row, "why": why, "tokens": tokens}, replication_seed(i)))
    return runs


def improved(record: Record) -> bool:
    """Whether the loss of some arm is below the baseline's in the mean of pairs that are all whole."""
    data = [record.data(arm) for arm in record.others]
    judged = judge_arms(record.study.protocol, record.data(record.baseline), data)
    return any(verdict.mean is not None and verdict.mean < 0 for verdict in judged)


def outcomes(record: Record) -> dict[str, Any]:
    """`controls` of verdict.json: every control with what it says, unknown where it was not or
    could not be run.
    """
    protocol, arm = record.study.protocol, record.baseline
    seeds = [replication_seed(i) for i in range(protocol.seeds)]
    own = record.replicates(arm)
    found: dict[str, Any] = {"repeat": _repeat(record)}
    found["a_a"] = controls.judge_a_a(
        own, record.replicates(arm, "control", "a/a"), seeds, protocol.margin
    ).to_dict()
    for name, why in (("ruler", "half tokens"), ("ruler_2x", "double tokens")):
        runs, factor = record.of(arm, "control", why), FACTORS[why]
        if runs or name == "ruler":
            ruled = controls.judge_positive_control(
                own, record.replicates(arm, "control", why), seeds, protocol.alpha, factor=factor
            ).to_dict()
            found[name] = {**ruled, "factor": factor, "tokens": runs[0]["tokens"] if runs else None}
        else:
            found[name] = None
    return found


def ruling(found: Mapping[str, Any] | None) -> ControlSummary | None:
    """What the judge needs of `outcomes`."""
    return (
        ControlSummary(*(found[name]["ok"] for name in ("repeat", "a_a", "ruler")))
        if found
        else None
    )


def _repeat(record: Record) -> dict[str, Any]:
    study, arm, seed = record.study, record.baseline, replication_seed(0)
    first = next(
        (run["run_id"] for run in record.of(arm, "replicate") if run["seed"] == seed), None
    )
    again = next((run["run_id"] for run in record.of(arm, "control", "repeat")), None)
    changed: list[str] = []
    if first in record.results and again in record.results and study.deterministic:
        changed = _changed(record, str(first), str(again))
    one, two = (
        record.replicates(arm).get(seed),
        record.replicates(arm, "control", "repeat").get(seed),
    )
    told = controls.check_determinism(
        one, two, study.protocol.margin, deterministic=study.deterministic, changed=changed
    )
    return {**told.to_dict(), "run_id": again, "of": first}


def _changed(record: Record, first: str, again: str) -> list[str]:
    """What a repeat has otherwise than its run, clocks aside: names in the result, or its metrics."""
    one, two = (_lasting(record.results[run_id]) for run_id in (first, again))
    differing = [key for key in one if one[key] != two.get(key)] + [
        key for key in two if key not in one
    ]
    logs = [_metrics(record.study.store.folder(run_id)) for run_id in (first, again)]
    # A record that was damaged or deleted since is no other number.
    common = logs[0].keys() & logs[1].keys()
    return differing + (
        ["metrics.jsonl"] if any(logs[0][key] != logs[1][key] for key in common) else []
    )


def _metrics(folder: Path) -> dict[tuple[Any, Any], dict[str, Any]]:
    """Records by kind and step."""
    every = read_lines(folder / "metrics.jsonl", ("kind", "step"))
    return {(str(told["kind"]), str(told["step"])): _lasting(told) for told in every}


def _lasting(told: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if key not in VOLATILE}
