"""What is not matched between arms: everything beside the factor in which an arm differs from the
baseline.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from andrea.analysis.load import Study
from andrea.config import dotted
from andrea.text.numbers import count, plural, rate

ROW = {
    "arm": "str: name of the arm",
    "what": "str: the quantity, or the dotted name of a setting",
    "unit": "str: `parameters`, `FLOPs per token`, `bytes`, `tokens/s`, `tokens`, `rate`, `runs`, "
    "or `setting`",
    "baseline": "the baseline's value: a number, of a setting whatever it is, None where it is not "
    "known",
    "arm_value": "the arm's value",
    "deviation": "float: arm_value / baseline − 1; None where that is no number",
    "low": "float: lower end of the deviation's 95 % interval; of tokens/s alone",
    "high": "float: upper end",
    "note": "str: how it came about, or why it is not known",
}
"""What a row says."""
NOISE = {"cuda": 0.01, "cpu": 0.05}
"""Two trainings of the same model differ by about so much in peak memory: on a CPU it is that of
the whole process.
"""
TUNED = {"train.lr", "seed", "init_seed", "data_seed", "dropout_seed"}
"""Settings that every run sets by itself."""

Row = dict[str, Any]
Pair = tuple[Any, Any]
"""Of the baseline and of the arm."""


def rows(study: Study) -> list[Row]:
    """One row (ROW) per arm and quantity that differs from the baseline's, arm by arm; what the
    ablation asked to differ is left out. A speed that was not measured has a row too: it is not
    known to be matched.

    Works on studies in any state: what is not known yet is not listed.
    """
    base, arms = study.baseline, study.resolved.to_json().get("arms", {})
    if base is None or base not in arms:
        return []
    found: list[Row] = []
    for arm in study.arms:
        if arm != base and arm in arms:
            found += _counted(arm, arms[arm], arms[base])
            found += _settings(study, arm, base)
            found += _tuned(study, arm, base)
            found += _measured(study, arm, base)
    return found


def _counted(arm: str, mine: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[Row]:
    """Parameters, in all and by group, and operations."""
    own, other = mine.get("parameters") or {}, base.get("parameters") or {}
    if own and other:
        yield from _if_other(
            arm, "parameters", "parameters", (sum(other.values()), sum(own.values()))
        )
        for group in dict.fromkeys([*other, *own]):
            what = f"parameters: {group.replace('_', ' ')}"
            yield from _if_other(arm, what, "parameters", (other.get(group, 0), own.get(group, 0)))
    flops = base.get("flops_per_token"), mine.get("flops_per_token")
    yield from _if_other(arm, "FLOPs per token", "FLOPs per token", flops)


def _settings(study: Study, arm: str, base: str) -> Iterator[Row]:
    """Resolved settings that neither arm was asked to have."""
    resolved = study.resolved.to_json().get("arms", {})
    declared: Mapping[str, Any] = study.asked_yaml.get("arms") or {}
    asked = {
        path for name in (arm, base) for path in dotted((declared.get(name) or {}).get("set") or {})
    }
    own, other = (dotted(resolved[name].get("config") or {}) for name in (arm, base))
    solved = resolved[arm].get("solved") or {}
    for path in dict.fromkeys([*other, *own]) if own and other else ():
        if path in asked | TUNED:
            continue
        note = "follows from what was asked"
        if path == solved.get("setting"):
            note = (
                f"solved for by the matching rule: {count(solved['was'])} → "
                f"{count(solved['became'])}"
            )
        yield from _if_other(arm, path, "setting", (other.get(path), own.get(path)), note)


def _tuned(study: Study, arm: str, base: str) -> Iterator[Row]:
    """The chosen rate, where it was searched, and how many rates were any good."""
    lr = _both(base, arm, lambda name: study.choice(name).lr)
    if None not in lr:
        yield from _if_other(arm, "learning rate", "rate", lr, "tuned, by the same rule")
    common = study.rules.center
    centers = _both(base, arm, lambda name: study.centers.get(name, common))
    yield from _if_other(
        arm, "centre of the grid", "rate", centers, "declared before the first run"
    )
    tuning = study.runs[study.runs["phase"] == "tune"]
    tried = {name: tuning[tuning["arm"] == name] for name in (base, arm)}
    if all(len(runs) for runs in tried.values()):
        yield from _if_other(
            arm, "tuning runs", "runs", _both(base, arm, lambda name: len(tried[name]))
        )
        good = _both(base, arm, lambda name: int(tried[name]["ok"].sum()))
        yield from _if_other(arm, "tuning runs that were good", "runs", good, _bad(tried[arm]))


def _measured(study: Study, arm: str, base: str) -> Iterator[Row]:
    """Text, memory and speed of the replicates."""
    replicates = study.replicates()
    completed = replicates[replicates["outcome"] == "completed"]
    both = [completed[completed["arm"] == name] for name in (base, arm)]
    for key, what in (("tokens", "tokens trained"), ("unique_tokens", "unique tokens trained")):
        one, other = (runs[key].dropna() for runs in both)
        if len(one) and len(other):
            values = (round(one.mean()), round(other.mean()))
            yield from _if_other(
                arm, what, "tokens", values, f"mean of {plural(len(other), 'replicate')}"
            )
    one, other = (runs["peak_memory_bytes"].dropna() for runs in both)
    apart = len(one) and len(other) and (one.max() < other.min() or other.max() < one.min())
    if apart:
        config = study.resolved.to_json().get("arms", {})[base].get("config") or {}
        noise = NOISE.get((config.get("train") or {}).get("device", "cpu"), 0.0)
        note = f"median of {plural(len(other), 'replicate')}; ranges do not overlap"
        yield from _if_other(
            arm, "peak memory", "bytes", (int(one.median()), int(other.median())), note, noise
        )
    yield from _speed(study.speed.to_json(), arm, base)


def _speed(speed: Mapping[str, Any], arm: str, base: str) -> Iterator[Row]:
    """Tokens per second, side by side, where the interval excludes equality."""
    arms, told = speed.get("arms") or {}, (speed.get("ratio") or {}).get(arm)
    if told is None or arm not in arms or base not in arms:
        note = "not measured; --controls and --equal time measure it"
        yield dict.fromkeys(ROW) | {
            "arm": arm,
            "what": "tokens per second",
            "unit": "tokens/s",
            "note": note,
        }
        return
    mine, other = arms[arm], arms[base]
    # Tokens of a step may differ; the ratio within rounds is known better than that of two medians.
    share = mine["tokens_per_s"] * mine["step_s"] / (other["tokens_per_s"] * other["step_s"])
    deviation, low, high = (
        None if told[key] is None else share / told[key] - 1 for key in ("ratio", "high", "low")
    )
    if low is not None and high is not None and low <= 0 <= high:
        return
    note = (
        f"warm, interleaved, on {speed.get('device')}; deviation: median within "
        f"{plural(mine['rounds'], 'round')}"
    )
    yield {
        "arm": arm,
        "what": "tokens per second",
        "unit": "tokens/s",
        "baseline": other["tokens_per_s"],
        "arm_value": mine["tokens_per_s"],
        "deviation": deviation,
        "low": low,
        "high": high,
        "note": note,
    }


def _both(base: str, arm: str, of: Callable[[str], Any]) -> Pair:
    return of(base), of(arm)


def _if_other(
    arm: str, what: str, unit: str, values: Pair, note: str = "", tolerance: float = 0.0
) -> Iterator[Row]:
    """The row of a quantity, if the arm's differs from the baseline's by more than the tolerance (a
    share).
    """
    baseline, mine = values
    if baseline == mine:
        return
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in (baseline, mine)
    )
    deviation = float(mine) / float(baseline) - 1 if numbers and baseline else None
    if deviation is not None and abs(deviation) <= tolerance:
        return
    told = {
        "arm": arm,
        "what": what,
        "unit": unit,
        "baseline": baseline,
        "arm_value": mine,
        "deviation": deviation,
    }
    yield {**told, "low": None, "high": None, "note": note}


def _bad(tuning: pd.DataFrame) -> str:
    """The rates of tuning runs that were no good."""
    lost = tuning[~tuning["ok"] & tuning["outcome"].isin(["completed", "diverged"])]
    return (
        f"diverged or stalled at {', '.join(rate(lr) for lr in sorted(lost['lr']))}"
        if len(lost)
        else ""
    )
