"""Quantities that are not matched between arms: all beside the factor in which an arm differs from
the baseline.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from andrea.analysis.load import Study
from andrea.config import dotted
from andrea.records.study import ResolvedArm, StudySpeed
from andrea.text.numbers import count, plural, rate

NOISE = {"cuda": 0.01, "cpu": 0.05}
"""Two trainings of the same model differ by about so much in peak memory: on a CPU it is that of
the whole process.
"""
TUNED = {"train.lr", "seed", "init_seed", "data_seed", "dropout_seed"}
"""Settings that every run sets by itself."""


class Mismatch(NamedTuple):
    """A quantity in which an arm differs from the baseline."""

    arm: str
    what: str
    """The quantity, or the dotted name of a setting."""
    unit: str
    """`parameters`, `FLOPs per token`, `bytes`, `tokens/s`, `tokens`, `rate`, `runs` or `setting`.
    """
    baseline: Any = None
    """The baseline's value: a number, of a setting whatever it is, None where it is not known."""
    arm_value: Any = None
    deviation: float | None = None
    """arm_value / baseline − 1; None where that is no number."""
    low: float | None = None
    """Lower end of the deviation's 95 % interval; of tokens/s alone."""
    high: float | None = None
    note: str = ""
    """The cause, or why the value is not known."""


class Pair(NamedTuple):
    """A quantity of the baseline and of an arm."""

    baseline: Any
    arm: Any


def not_matched_rows(study: Study) -> list[Mismatch]:
    """Return one row per arm and quantity that differs from the baseline's, arm by arm,
    without what the ablation asked to differ.

    A speed that was not measured has a row too: it is not known to be matched. A study may be in
    any state: what is not known yet is not listed.
    """
    baseline, arms = study.baseline, study.resolved.arms
    if baseline is None or baseline not in arms:
        return []
    rows: list[Mismatch] = []
    for arm in study.arms:
        if arm != baseline and arm in arms:
            rows += _counts(arm, arms[arm], arms[baseline])
            rows += _settings(study, arm, baseline)
            rows += _tuning(study, arm, baseline)
            rows += _measurements(study, arm, baseline)
    return rows


def _counts(arm: str, resolved: ResolvedArm, baseline: ResolvedArm) -> Iterator[Mismatch]:
    """Yield parameters, in all and by group, and operations."""
    of_arm, of_baseline = resolved.parameters, baseline.parameters
    if of_arm and of_baseline:
        total = Pair(sum(of_baseline.values()), sum(of_arm.values()))
        yield from _row_if_different(arm, "parameters", "parameters", total)
        for group in dict.fromkeys([*of_baseline, *of_arm]):
            quantity = f"parameters: {group.replace('_', ' ')}"
            pair = Pair(of_baseline.get(group, 0), of_arm.get(group, 0))
            yield from _row_if_different(arm, quantity, "parameters", pair)
    flops = Pair(baseline.flops_per_token, resolved.flops_per_token)
    yield from _row_if_different(arm, "FLOPs per token", "FLOPs per token", flops)


def _settings(study: Study, arm: str, baseline: str) -> Iterator[Mismatch]:
    """Yield resolved settings that neither arm was asked to have."""
    declared = study.protocol.arms
    declared_paths = {
        path for name in (arm, baseline) if name in declared for path in dotted(declared[name].set)
    }
    of_arm, of_baseline = (dotted(study.resolved.arms[name].config) for name in (arm, baseline))
    if not of_arm or not of_baseline:
        return
    solved = study.resolved.arms[arm].solved
    for path in dict.fromkeys([*of_baseline, *of_arm]):
        if path in declared_paths | TUNED:
            continue
        note = "follows from what was asked"
        if solved is not None and path == solved.setting:
            note = f"solved for by the matching rule: {count(solved.was)} → {count(solved.became)}"
        pair = Pair(of_baseline.get(path), of_arm.get(path))
        yield from _row_if_different(arm, path, "setting", pair, note)


def _tuning(study: Study, arm: str, baseline: str) -> Iterator[Mismatch]:
    """Yield the chosen rate, where it was searched, and how many rates trained."""
    lr = Pair(study.choice(baseline).lr, study.choice(arm).lr)
    if None not in lr:
        yield from _row_if_different(arm, "learning rate", "rate", lr, "tuned, by the same rule")
    common = study.rules.center
    centers = Pair(study.centers.get(baseline, common), study.centers.get(arm, common))
    note = "declared before the first run"
    yield from _row_if_different(arm, "centre of the grid", "rate", centers, note)
    tuning = study.runs[study.runs["phase"] == "tune"]
    runs = Pair(tuning[tuning["arm"] == baseline], tuning[tuning["arm"] == arm])
    if len(runs.baseline) and len(runs.arm):
        number = Pair(len(runs.baseline), len(runs.arm))
        yield from _row_if_different(arm, "tuning runs", "runs", number)
        good = Pair(int(runs.baseline["ok"].sum()), int(runs.arm["ok"].sum()))
        note = _untrained_rates(runs.arm)
        yield from _row_if_different(arm, "successful tuning runs", "runs", good, note)


def _measurements(study: Study, arm: str, baseline: str) -> Iterator[Mismatch]:
    """Yield text, memory and speed of the replicates."""
    replicates = study.replicates()
    completed = replicates[replicates["outcome"] == "completed"]
    base_runs, arm_runs = (completed[completed["arm"] == name] for name in (baseline, arm))
    for key, quantity in (("tokens", "tokens trained"), ("unique_tokens", "unique tokens trained")):
        base, of_arm = base_runs[key].dropna(), arm_runs[key].dropna()
        if len(base) and len(of_arm):
            means = Pair(round(base.mean()), round(of_arm.mean()))
            note = f"mean of {plural(len(of_arm), 'replicate')}"
            yield from _row_if_different(arm, quantity, "tokens", means, note)
    base, of_arm = base_runs["peak_memory_bytes"].dropna(), arm_runs["peak_memory_bytes"].dropna()
    if len(base) and len(of_arm) and (base.max() < of_arm.min() or of_arm.max() < base.min()):
        train = study.resolved.arms[baseline].config.get("train", {})
        noise = NOISE.get(train.get("device", "cpu"), 0.0)
        medians = Pair(int(base.median()), int(of_arm.median()))
        note = f"median of {plural(len(of_arm), 'replicate')}; ranges do not overlap"
        yield from _row_if_different(arm, "peak memory", "bytes", medians, note, noise)
    yield from _speed(study.speed, arm, baseline)


def _speed(speed: StudySpeed, arm: str, baseline: str) -> Iterator[Mismatch]:
    """Yield tokens per second, measured side by side, where the interval excludes equality."""
    row = Mismatch(arm, "tokens per second", "tokens/s")
    ratio, of_arm, base = speed.ratio.get(arm), speed.arms.get(arm), speed.arms.get(baseline)
    is_measured = of_arm and base and of_arm.step_s and base.step_s
    if not is_measured or ratio is None or of_arm is None or base is None:
        yield row._replace(note="not measured; --controls and --equal time measure it")
        return
    # Tokens of a step may differ; the ratio within rounds is known better than that of two medians.
    arm_tokens = (of_arm.tokens_per_s or 0.0) * (of_arm.step_s or 0.0)
    base_tokens = (base.tokens_per_s or 0.0) * (base.step_s or 0.0)
    share = arm_tokens / base_tokens
    # A longer step is a lower speed: the ends change places.
    low = None if ratio.high is None else share / ratio.high - 1
    high = None if ratio.low is None else share / ratio.low - 1
    if low is not None and high is not None and low <= 0 <= high:
        return
    note = (
        f"warm, interleaved, on {speed.device}; deviation: median within "
        f"{plural(of_arm.rounds or 0, 'round')}"
    )
    yield row._replace(
        baseline=base.tokens_per_s,
        arm_value=of_arm.tokens_per_s,
        deviation=share / ratio.ratio - 1,
        low=low,
        high=high,
        note=note,
    )


def _row_if_different(
    arm: str, quantity: str, unit: str, pair: Pair, note: str = "", tolerance: float = 0.0
) -> Iterator[Mismatch]:
    """Yield the row of a quantity, if the arm's differs from the baseline's by more than the
    tolerance (a share).
    """
    if pair.baseline == pair.arm:
        return
    is_number = all(isinstance(n, int | float) and not isinstance(n, bool) for n in pair)
    deviation = float(pair.arm) / float(pair.baseline) - 1 if is_number and pair.baseline else None
    if deviation is None or abs(deviation) > tolerance:
        yield Mismatch(arm, quantity, unit, pair.baseline, pair.arm, deviation, note=note)


def _untrained_rates(tuning: pd.DataFrame) -> str:
    """Word the rates of tuning runs that did not train."""
    untrained = tuning[~tuning["ok"] & tuning["outcome"].isin(["completed", "diverged"])]
    if untrained.empty:
        return ""
    return f"diverged or stalled at {', '.join(map(rate, sorted(untrained['lr'])))}"
