"""How fast a study's arms train on this machine (speed.json).

speed.json is a measurement, not derived from the store: it names the device, and a study that is
taken to another machine keeps it. Delete it to measure again.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from andrea.errors import StudyError, UserError
from andrea.execution.local import LocalExecutor, visible_devices
from andrea.records.job import Job, JobRun
from andrea.records.run import RunSpec
from andrea.records.study import SpeedRatio, StudySpeed
from andrea.store.studies import StudyFolder
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.session import Generation
from andrea.study.stages.evidence import Evidence
from andrea.study.stages.stage import Forecast, Question, Rates

SPEED_FILE, LOG = "speed.json", "speed.log"
MEASURING = "andrea.training.speed:speed_job"
MEASURING_S = 15.0
"""Seconds for the rounds; large arms take longer: nine rounds of a step each."""
FORMAT = 1
NARROW = 0.05
"""Half the width of an interval, as a share of the ratio, up to which no remark is made."""
MARK = "speed: "
"""Beginning of the lines of the child's log that are for people."""


class MeasureSpeed:
    """Measures the speed of the arms where equal time or controls need it; trains no run."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def forecast(self, question: Question) -> list[Forecast]:
        """Return nothing: no run of the study is trained."""
        return []

    def next_runs(self, evidence: Evidence) -> Generation | None:
        """Measure, if it is needed and not known; there are never runs.

        A failure is one line, and the numbers that need the speed are left out.
        """
        extras, study = evidence.extras, evidence.study
        if not extras.controls and "time" not in extras.equal:
            return None
        if read(study.folder, study) is None:
            try:
                study.require_platform()
                measure(study.folder, study, self._say)
            except (StudyError, UserError) as error:
                self._say(str(error))
        return None

    def early_runs(self, study: FrozenStudy, rates: Rates, generation: int) -> Iterator[RunSpec]:
        """Yield nothing."""
        yield from ()


def measure(
    folder: StudyFolder,
    study: FrozenStudy,
    say: Callable[[str], None],
    budget_s: float = MEASURING_S,
) -> StudySpeed:
    """Return speed.json, measured now where there is none: all arms warm and interleaved, in one
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
    reason = _run_child(_make_job(folder, study, budget_s), say)
    speed = read(folder, study)
    if speed is None:
        raise StudyError(
            f"the speed of the arms could not be measured: {reason}; the same command tries again"
        )
    say(summarise(speed))
    return speed


def summarise(speed: StudySpeed) -> str:
    """Return the ratios in a line, with a remark where one of them is not known well."""
    ratios = ", ".join(f"{arm} {_describe_ratio(ratio)}" for arm, ratio in speed.ratio.items())
    line = f"time of a step over {speed.baseline}'s: {ratios}"
    if any(_is_uncertain(ratio) for ratio in speed.ratio.values()):
        line += (
            f"; uncertain by more than {NARROW:.0%} (load of the machine {speed.load:g}): on an "
            "idle one another --study measures anew"
        )
    return line


def _is_uncertain(ratio: SpeedRatio) -> bool:
    if ratio.low is None or ratio.high is None:
        return True
    return ratio.high - ratio.low > 2 * NARROW * ratio.ratio


def _describe_ratio(ratio: SpeedRatio) -> str:
    interval = "" if ratio.low is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"{ratio.ratio:.3f}{interval}"


def read(folder: StudyFolder, study: FrozenStudy) -> StudySpeed | None:
    """Return speed.json where it is there, whole, and of these arms."""
    speed = folder.load_speed()
    if speed is None or speed.format != FORMAT:
        return None
    others = set(study.arms) - {study.baseline}
    is_whole = speed.arms.keys() == set(study.arms) and speed.ratio.keys() == others
    return speed if is_whole and all(map(_is_positive, speed.ratio.values())) else None


def _is_positive(ratio: SpeedRatio) -> bool:
    numbers = [number for number in (ratio.ratio, ratio.low, ratio.high) if number is not None]
    return all(0 < number < math.inf for number in numbers)


def _make_job(folder: StudyFolder, study: FrozenStudy, budget_s: float) -> Job:
    """Return the measurement as a job of the local executor, which ends a child in every
    trouble.
    """
    arms = {arm: study.resolved.arms[arm].config for arm in study.arms}
    run = JobRun(
        run_id="speed",
        config=arms[str(study.baseline)],
        identity={"arms": arms, "budget_s": budget_s, "format": FORMAT, "mark": MARK},
        log=str(folder.path / LOG),
    )
    return Job((run,), str(folder.path), str(study.data_folder), study.variants)


def _run_child(job: Job, say: Callable[[str], None]) -> str:
    """Have the job done, passing on what it says; return why it failed, or nothing."""
    log = Path(job.run.log)
    log.unlink(missing_ok=True)
    devices = visible_devices(job.run.config["train"]["device"])
    executor = LocalExecutor(1, devices=devices, run=MEASURING)
    passed_on = 0
    try:
        executor.submit(job)
        while True:
            ends = executor.wait(0.5)
            lines = _read_lines(log)
            for line in lines[passed_on:]:
                say(line)
            passed_on = len(lines)
            if ends:
                return ends[0].reason
    finally:
        executor.cancel()
        log.unlink(missing_ok=True)


def _read_lines(log: Path) -> list[str]:
    """Return what the child has said to people so far, whole lines."""
    with contextlib.suppress(OSError):
        whole = log.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
        return [line.removeprefix(MARK) for line in whole.splitlines() if line.startswith(MARK)]
    return []
