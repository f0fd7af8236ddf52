"""Sentences that a report says from numbers."""

from typing import Any

from andrea.analysis import text
from andrea.analysis.load import Study
from andrea.analysis.summaries import UNFINISHED, lost

CONDITION = "at the rate this protocol chose for each arm, on this corpus, at this size"


def answer(study: Study) -> str:
    """The answer in one conditional sentence, or what is still to be done before there is one."""
    rows = [row for row in study.verdicts.to_dict("records") if row["verdict"] != "baseline"]
    if not rows or all(row["verdict"] == "pending" for row in rows):
        return _not_yet(study)
    reasons = dict.fromkeys(row["reason"] for row in rows)
    if all(row["verdict"] == "invalid" for row in rows) and len(reasons) == 1:
        return f"This study cannot answer: {rows[0]['reason']}."
    said = "; ".join(_clause(study, row) for row in rows)
    return f"{CONDITION[0].upper()}{CONDITION[1:]}, {said}."


def _not_yet(study: Study) -> str:
    runs = study.runs
    done = int((~runs["outcome"].isin(UNFINISHED)).sum())
    parts = [f"{done} of {text.plural(len(runs), 'planned run')} {'is' if done == 1 else 'are'} done"]
    parts += [f"{n} {word}" for word in ("failed", "running") if (n := int((runs["outcome"] == word).sum()))]
    if study.replicates().empty:
        parts.append("the replicates are planned when tuning ends")
    return f"Not decided yet: {', '.join(parts)}."


def _clause(study: Study, row: dict[Any, Any]) -> str:
    arm, base = study.label(row["arm"]), study.label(study.baseline or "")
    numbers = ""
    if not text.absent(row["mean"]):
        within = "" if text.absent(row["low"]) else f", {simultaneous(study)} {text.interval(row['low'], row['high'])}"
        pairs = text.plural(int(row["n"]), "pair")
        numbers = f" ({text.signed(row['mean'])} nats of final loss{within}, n = {pairs})"
    word = row["verdict"]
    if word in ("better", "worse"):
        return f"{arm} is {word} than {base}{numbers}"
    if word == "equivalent":
        return f"{arm} is equivalent to {base} within ±{study.m:g} nats{numbers}"
    if word == "unstable":
        lost_ = row["diverged"] + row["stalled"]
        counted = f"{lost_} of {text.plural(row['planned'], 'replicate')} diverged or stalled"
        return f"{arm} is unstable ({counted if row['planned'] else row['reason']})"
    if word == "inconclusive":
        why = f": {row['cause']}" if row["cause"] else ""
        return f"whether {arm} differs from {base} is inconclusive{why}{numbers}"
    if word == "pending":
        return f"{arm} is not judged yet"
    return f"{arm} cannot be judged ({row['reason']})"


def simultaneous(study: Study) -> str:
    """What the printed intervals are: `simultaneous 95 % interval`."""
    return f"simultaneous {text.percent(1 - float(study.rules.get('alpha', 0.05)))} interval"


def what_was_lost(study: Study) -> list[str]:
    """A line for every arm and phase of which runs diverged or stalled."""
    phases = {"tune": "tuning run", "replicate": "replicate", "trial": "trial"}
    lines = []
    for row in lost(study).to_dict("records"):
        n, kind = int(row["runs"]), phases.get(row["phase"], "run")
        who = f"{study.label(row['arm'])}: " if study.kind != "sweep" else ""
        if n in (row["diverged"], row["stalled"]):
            fate = "diverged" if row["diverged"] else "stalled"
            lines.append(f"{who}all {text.plural(n, kind)} {fate}")
            continue
        counts = [f"{row[word]} {word}" for word in ("diverged", "stalled") if row[word]]
        rates = f" at learning rate {text.listing([text.rate(r) for r in row['rates']])}" if row["rates"] else ""
        lines.append(f"{who}{text.listing(counts)} of {text.plural(n, kind)}{rates}")
    return lines


def what_is_missing(study: Study) -> list[str]:
    """What a half-finished study lacks, in the order in which it will be done."""
    lines = []
    for (arm, phase), runs in study.runs.groupby(["arm", "phase"], sort=False):
        counts = runs["outcome"].value_counts()
        parts = [f"{int(counts[word])} {word}" for word in UNFINISHED if word in counts]
        if parts:
            lines.append(
                f"{study.label(str(arm))}, {phase}: {text.listing(parts)} of {text.plural(len(runs), 'planned run')}"
            )
    for row in study.runs[study.runs["outcome"] == "failed"].to_dict("records"):
        lines.append(f"run {row['run_id'][:12]} of {study.label(row['arm'])} failed: {text.plain(row['reason'])}")
    if study.kind != "sweep":
        seeds = int(study.rules.get("seeds", 0))
        for arm in study.arms:
            planned = len(study.replicates()[study.replicates()["arm"] == arm])
            if planned < seeds and not (study.choices.get(arm) or {}).get("untrainable"):
                lines.append(f"{study.label(arm)}: {text.plural(seeds - planned, 'replicate')} not planned yet")
        if not study.verdict:
            lines.append("the verdict: judged once, when every replicate is there")
    elif not study.best:
        lines.append("the best configuration: chosen when every trial is there")
    return lines
