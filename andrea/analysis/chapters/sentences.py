"""Sentences that a report says from numbers."""

from typing import Any

import pandas as pd

from andrea.analysis.load import Study
from andrea.analysis.tables.frames import UNFINISHED
from andrea.analysis.tables.summaries import count_still_falling, untrained_runs
from andrea.records.extras import Extras
from andrea.text import numbers as text
from andrea.verdict.judgement import METHOD

RATE, REGIME = (
    "at the rate this protocol chose for each arm",
    "on this corpus, at this size and budget",
)
"""What every verdict is conditional on: the rate, where there is one, and what the study did not
vary.
"""


def write_answer(study: Study) -> str:
    """The answer in one conditional sentence, or what is still to be done before there is one."""
    rows = [row for row in study.verdicts.to_dict("records") if row["verdict"] != "baseline"]
    if not rows or all(row["verdict"] == "pending" for row in rows):
        return _progress_sentence(study)
    reasons = dict.fromkeys(row["reason"] for row in rows)
    if all(row["verdict"] == "invalid" for row in rows) and len(reasons) == 1:
        return f"This study cannot answer: {rows[0]['reason']}."
    if len(rows) > 1:
        said = _group_clauses(study, rows)
    else:
        said = _arm_clause(study, rows[0])
    given = REGIME if all(row["cause"] == "no rate trains" for row in rows) else f"{RATE}, {REGIME}"
    return f"{given[0].upper()}{given[1:]}, {said}."


def _group_clauses(study: Study, rows: list[dict[Any, Any]]) -> str:
    """The arms by verdict; their numbers stand in the table below."""
    base = study.baseline_label
    groups: dict[tuple[str, str], list[dict[Any, Any]]] = {}
    for row in rows:
        groups.setdefault((row["verdict"], row["cause"]), []).append(row)
    said = []
    for (word, cause), group in groups.items():
        if len(group) == 1 and word in ("unstable", "invalid"):
            said.append(_arm_clause(study, group[0]))
            continue
        told = {
            "pending": "not judged yet",
            "equivalent": f"equivalent to {base} within ±{study.m or 0:g} nats",
        }
        told |= {"better": f"better than {base}", "worse": f"worse than {base}"}
        who = study.called(*(row["arm"] for row in group))
        if word == "inconclusive":
            verb = "differs" if len(group) == 1 else "differ"
            said.append(f"whether {who} {verb} from {base} is {text.judged(word, cause)}")
            continue
        said.append(
            f"{who} {'is' if len(group) == 1 else 'are'} {text.judged(told.get(word, word), cause)}"
        )
    return "; ".join(said)


def _progress_sentence(study: Study) -> str:
    runs = study.runs
    done = int((~runs["outcome"].isin(UNFINISHED)).sum())
    parts = [
        f"{done} of {text.plural(len(runs), 'planned run')} {'is' if done == 1 else 'are'} done"
    ]
    parts += [
        f"{n} {word}"
        for word in ("failed", "running")
        if (n := int((runs["outcome"] == word).sum()))
    ]
    if study.replicates().empty:
        parts.append("the replicates are planned when tuning ends")
    return f"Not decided yet: {', '.join(parts)}."


def _arm_clause(study: Study, row: dict[Any, Any]) -> str:
    arm, base = study.called(row["arm"]), study.baseline_label
    numbers = ""
    if not text.absent(row["mean"]):
        within = (
            ""
            if text.absent(row["low"])
            else f", {interval_name(study)} {text.interval(row['low'], row['high'])}"
        )
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


def asked_extras(study: Study) -> Extras:
    """Return what was asked beside the question.

    What was judged was asked, whatever became of the file that says so: a failed control cannot be
    dropped with it.
    """
    return study.asked | study.verdict.asked


def verdict_notes(study: Study) -> list[str]:
    """What the verdict table has no room for, a line for the arms of which the same is to be
    said.
    """
    said: dict[str, list[str]] = {}
    for row in study.verdicts.to_dict("records"):
        # These reasons say the number over again, or what is told of the runs that did not train.
        again = (
            row["verdict"] in ("better", "worse", "equivalent") or row["cause"] == "no rate trains"
        )
        parts = [
            part
            for part in row["note"].split("; ")
            if not again or part not in row["reason"].split("; ")
        ]
        # That a study is exploratory is said of it as a whole.
        early = "exploratory" if study.verdict.exploratory else ""
        if note := "; ".join(part for part in parts if part and part != early):
            said.setdefault(note, []).append(row["arm"])
    return [f"{study.called(*arms)}: {note}." for note, arms in said.items()]


def list_not_done(study: Study) -> list[str]:
    """What the study was not asked for, so that a reader does not look for it, and how it is asked
    for.
    """
    lines, extras, method = [], asked_extras(study), study.verdict.method or 1
    if not extras.controls:
        lines.append(
            "Controls (--controls): one run repeated, the baseline with other initial weights, "
            "which must change nothing, and on half the tokens, which must show. Without them no "
            "effect is told in tokens."
        )
    if not extras.confirm:
        lines.append("A confirmation (--confirm): the verdict again, from fresh seeds alone.")
    if not extras.equal:
        lines.append(
            "Equal FLOPs, equal time (--equal flops,time): arms trained to budgets at which all "
            "cost the same. At equal tokens a dearer arm has had more computation."
        )
    if study.is_decided and method != METHOD:
        lines.append(
            f"Judged by method {method}, the present is {METHOD}: give the study's command again, "
            "which judges it anew without training."
        )
    return lines


def interval_name(study: Study) -> str:
    """What the printed intervals are: `simultaneous 95 % interval`."""
    return f"simultaneous {text.percent(1 - study.rules.alpha)} interval"


STALLED = "final loss less than 1\N{NO-BREAK SPACE}% below the unigram loss"
"""Meaning of *stalled*: `andrea.training.run_ending.STALL_SHARE`."""


def describe_untrained(study: Study) -> str:
    """What diverged or stalled, what stalled means, and what helps where the budget is what is
    short; else nothing.
    """
    said = "; ".join(count_untrained(study))
    stalled = study.runs[study.runs["stalled"]]
    if stalled.empty:
        return said and f"{said}."
    unigram = text.number(stalled["unigram_loss"].iloc[0], 2)
    said += f". Stalled: {STALLED}, {unigram} nats."
    more = f"train longer, with more --tokens than {text.count(stalled['tokens'].max())}."
    if study.choice(study.baseline).untrainable:
        return f"{said} No rate trained even the baseline: {more}"
    if (stalled[stalled["phase"] == "replicate"]["arm"] == study.baseline).any():
        return f"{said} Even the baseline stalled at its best rate: {more}"
    short = [arm for arm in stalled["arm"].unique() if study.choice(arm).untrainable]
    if short:
        return (
            f"{said} No rate trained {study.called(*short)}, which the budget may be too short "
            f"for: {more}"
        )
    if _only_low_rates_stalled(study, stalled):
        return said
    falling = count_still_falling(study, stalled["run_id"])
    if 2 * falling > stalled["run_id"].nunique():
        counted = f"{falling} of {text.plural(stalled['run_id'].nunique(), 'stalled run')}"
        return (
            f"{said} The loss of {counted} was still falling, so the budget may be what is short: "
            f"{more}"
        )
    return said


def _only_low_rates_stalled(study: Study, stalled: pd.DataFrame) -> bool:
    """Whether all that stalled were tuning runs below the rate that was chosen: no budget is short
    of those.
    """
    chosen = stalled["arm"].map({arm: choice.lr for arm, choice in study.choices.items()})
    return bool((stalled["phase"].eq("tune") & (stalled["lr"] < pd.to_numeric(chosen))).all())


def count_untrained(study: Study) -> list[str]:
    """A line for every phase and the arms of which the same runs diverged or stalled."""
    kinds = {"tune": "run in tuning", "replicate": "replicate", "trial": "trial"}
    kinds |= {
        "control": "control run",
        "confirm": "confirmation run",
        "budget": "run at an equal budget",
    }
    lines: dict[str, list[str]] = {}
    for row in untrained_runs(study).to_dict("records"):
        n, kind = int(row["runs"]), kinds.get(row["phase"], "run")
        counted = text.plural(n, kind, kind.replace("run", "runs", 1) if " " in kind else "")
        if n in (row["diverged"], row["stalled"]):
            line = f"all {counted} {'diverged' if row['diverged'] else 'stalled'}"
        else:
            counts = [f"{row[word]} {word}" for word in ("diverged", "stalled") if row[word]]
            rates = (
                f", at learning rate {text.listing([text.rate(r) for r in row['rates']])}"
                if row["rates"]
                else ""
            )
            line = f"{text.listing(counts)} of {counted}{rates}"
        lines.setdefault(line, []).append(row["arm"])
    if study.kind == "sweep":
        return list(lines)
    return [
        f"{study.called(*arms)}{', each' if len(arms) > 1 else ''}: {line}"
        for line, arms in lines.items()
    ]


def list_missing(study: Study) -> list[str]:
    """What a half-finished study lacks, in the order in which it will be done."""
    lines = []
    for (arm, phase), runs in study.runs.groupby(["arm", "phase"], sort=False):
        counts = runs["outcome"].value_counts()
        parts = [f"{int(counts[word])} {word}" for word in UNFINISHED if word in counts]
        if parts:
            lines.append(
                f"{study.called(str(arm))}, {phase}: {text.listing(parts)} of "
                f"{text.plural(len(runs), 'planned run')}"
            )
    for row in study.runs[study.runs["outcome"] == "failed"].to_dict("records"):
        lines.append(
            f"run {row['run_id'][:12]} of {study.called(row['arm'])} failed: "
            f"{text.plain(row['reason'])}"
        )
    if study.kind != "sweep":
        seeds = study.rules.seeds
        for arm in study.arms:
            mine, trials = study.trials[study.trials["arm"] == arm], study.rules.trials
            hopes = (
                mine["ok"].any() or mine["outcome"].isin(UNFINISHED).any()
            )  # else there is nothing to refine
            if arm not in study.choices and hopes and len(mine) < trials:
                left = text.plural(trials - len(mine), "run in tuning", "runs in tuning")
                lines.append(f"{study.called(arm)}: {left} not planned yet")
            planned = len(study.replicates()[study.replicates()["arm"] == arm])
            if planned < seeds and not study.choice(arm).untrainable:
                lines.append(
                    f"{study.called(arm)}: {text.plural(seeds - planned, 'replicate')} not planned "
                    "yet"
                )
        lines += _missing_extras(study)
        if not study.is_decided:
            lines.append("the verdict: judged once, when every replicate is there")
    elif not study.is_decided:
        lines.append("the best configuration: chosen when every trial is there")
    return lines


def _missing_extras(study: Study) -> list[str]:
    """Controls, confirmation and budgets that were asked for and are not planned or not judged."""
    judged, planned = study.verdict.asked, set(study.runs["phase"])
    wanted = []
    if study.asked.controls and not judged.controls:
        wanted.append(("control", "the controls"))
    if study.asked.confirm and not judged.confirm:
        wanted.append(("confirm", "the confirmation"))
    budgets = [budget for budget in study.asked.equal if budget not in judged.equal]
    if budgets:
        wanted.append(("budget", f"equal {text.listing(budgets)}"))
    states = {True: "asked for, not judged yet", False: "asked for, not planned yet"}
    return [f"{name}: {states[phase in planned]}" for phase, name in wanted]
