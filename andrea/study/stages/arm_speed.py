"""How fast a study's arms train on this machine (speed.json), and the budgets at which all cost the
same.

speed.json is a measurement, no projection of the store: it names the device, and a study that is
taken to another machine keeps it. Delete it to measure again.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from andrea.config import RunConfig
from andrea.errors import StudyError
from andrea.execution.executors import Job
from andrea.model.accounting import flops_per_token
from andrea.store.files import read_mapping
from andrea.store.studies import StudyFolder
from andrea.study.plan.frozen import FrozenStudy
from andrea.training import schedule

FILE, LOG = "speed.json", "speed.log"
MEASURING = "andrea.training.speed:speed_job"
BUDGET_S = 15.0
"""Seconds for the rounds; large arms take longer: nine rounds of a step each."""
FORMAT = 1
SURE = 0.05
"""Half the width of an interval, as a share of the ratio, that is not remarked upon."""
MARK = "speed: "
"""How the lines of the child's log begin that are for people."""


def measure(
    folder: StudyFolder, study: FrozenStudy, say: Callable[[str], None], budget_s: float = BUDGET_S
) -> dict[str, Any]:
    """What speed.json says, measured now where there is none: all arms warm and interleaved, in one
    child process.

    Nothing else of the study may run meanwhile. Killed at any moment it leaves no file, or a whole
    one.

    Raises:
        StudyError: it cannot be measured (the arms do not fit into memory together, say); the study
            is as it was.
        KeyboardInterrupt: Ctrl-C; the child is gone.
    """
    known = read(folder, study)
    if known is not None:
        return known
    say(f"measuring how fast the {len(study.arms)} arms train, side by side")
    ended = _run_child(_job(folder, study, budget_s), say)
    found = read(folder, study)
    if found is None:
        raise StudyError(
            f"the speed of the arms could not be measured: {ended}; the same command tries again"
        )
    say(summary(found))
    return found


def summary(speed: Mapping[str, Any]) -> str:
    """The ratios in a line, with a remark where one of them is known to less than `SURE`."""
    ratios = speed["ratio"].items()
    line = f"time of a step over {speed['baseline']}'s: {', '.join(f'{arm} {_ratio(told)}' for arm, told in ratios)}"
    if any(
        told["low"] is None or told["high"] - told["low"] > 2 * SURE * told["ratio"]
        for _, told in ratios
    ):
        line += (
            f"; uncertain by more than {SURE:.0%} (load of the machine {speed['load']:g}): on an "
            "idle one another "
            "--study measures anew"
        )
    return line


def _ratio(told: Mapping[str, Any]) -> str:
    ends = "" if told["low"] is None else f" [{told['low']:.3f}, {told['high']:.3f}]"
    return f"{told['ratio']:.3f}{ends}"


def read(folder: StudyFolder, study: FrozenStudy) -> dict[str, Any] | None:
    """speed.json where it is there, whole, and of these arms."""
    found = read_mapping(folder.path / FILE) or {}
    arms, ratio = found.get("arms"), found.get("ratio")
    if found.get("format") != FORMAT or not isinstance(arms, dict) or not isinstance(ratio, dict):
        return None
    whole = (
        arms.keys() == set(study.arms) and len(arms.keys() - ratio.keys()) == 1
    )  # the baseline's is to itself
    return found if whole and all(map(_is_ratio, ratio.values())) else None


def _is_ratio(told: Any) -> bool:
    """Whether this is a ratio of times with its interval, or without."""
    if not isinstance(told, dict):
        return False
    ends = [told[end] for end in ("low", "high") if told.get(end) is not None]
    return all(
        isinstance(value, int | float) and 0 < value < math.inf
        for value in (told.get("ratio"), *ends)
    )


def equal_tokens(
    study: FrozenStudy, speed: Mapping[str, Any] | None, kind: Literal["flops", "time"]
) -> dict[str, int]:
    """Tokens, in whole batches, at which an arm's whole training costs what the baseline's costs:
    as near as whole batches come, at least one. `time` is that of training steps alone.

    An arm whose speed is not known has no entry; the baseline has its own budget.
    """
    configs = _configs(study)
    base = configs[str(study.baseline)]
    costs = _flops_per_step(study, configs) if kind == "flops" else _time_per_step(study, speed)
    base_steps = schedule.steps(base)
    return {
        arm: max(1, round(base_steps * costs[str(study.baseline)] / costs[arm]))
        * schedule.batch_tokens(config)
        for arm, config in configs.items()
        if arm in costs
    }


def _flops_per_step(study: FrozenStudy, configs: Mapping[str, RunConfig]) -> dict[str, float]:
    told = {arm: study.resolved["arms"][arm].get("flops_per_token") for arm in configs}
    return {
        arm: float(told[arm] or flops_per_token(config.model).total) * schedule.batch_tokens(config)
        for arm, config in configs.items()
    }


def _time_per_step(study: FrozenStudy, speed: Mapping[str, Any] | None) -> dict[str, float]:
    """In steps of the baseline: a ratio within rounds is known better than either time."""
    ratios = (speed or {}).get("ratio") or {}
    return {str(study.baseline): 1.0} | {arm: float(told["ratio"]) for arm, told in ratios.items()}


def _configs(study: FrozenStudy) -> dict[str, RunConfig]:
    return {
        arm: RunConfig.model_validate(study.resolved["arms"][arm]["config"]) for arm in study.arms
    }


def _job(folder: StudyFolder, study: FrozenStudy, budget_s: float) -> Job:
    """The measurement as a job of the local executor, which knows how to end a child in every
    trouble.
    """
    arms = {arm: study.resolved["arms"][arm]["config"] for arm in study.arms}
    return Job(
        run_id="speed",
        root=str(folder.path),
        config=arms[str(study.baseline)],
        data_folder=str(study.data_folder),
        identity={"arms": arms, "budget_s": budget_s, "format": FORMAT, "mark": MARK},
        log=str(folder.path / LOG),
        variants=study.variants,
    )


def _run_child(job: Job, say: Callable[[str], None]) -> str:
    """Have the job done; returns why it failed, or nothing."""
    from andrea.execution.local import LocalExecutor, visible_devices

    log = Path(job.log)
    log.unlink(missing_ok=True)
    executor = LocalExecutor(
        1, devices=visible_devices(job.config["train"]["device"]), run=MEASURING
    )
    said = 0
    try:
        executor.submit(job)
        while True:
            ends = executor.wait(0.5)
            lines = _lines(log)
            for line in lines[said:]:
                say(line)
            said = len(lines)
            if ends:
                return ends[0].reason
    finally:
        executor.cancel()
        log.unlink(missing_ok=True)


def _lines(log: Path) -> list[str]:
    """What the child has said to people so far, whole lines."""
    with contextlib.suppress(OSError):
        whole = log.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
        return [line.removeprefix(MARK) for line in whole.splitlines() if line.startswith(MARK)]
    return []
