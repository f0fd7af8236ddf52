"""Sentences of reports, made of numbers."""

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
"""Conditions of every verdict: the rate, where there is one, and what the study did not vary."""


def write_answer(study: Study) -> str:
    """Return the answer in one conditional sentence, or what is to be done before there is one."""
    rows = [row for row in study.verdicts.to_dict("records") if row["verdict"] != "baseline"]
    if all(row["verdict"] == "pending" for row in rows):
        return _progress_sentence(study)
    reasons = {row["reason"] for row in rows}
    if all(row["verdict"] == "invalid" for row in rows) and len(reasons) == 1:
        return f"This study cannot answer: {rows[0]['reason']}."
    clauses = _group_clauses(study, rows) if len(rows) > 1 else [_arm_clause(study, rows[0])]
    without_rates = all(row["cause"] == "no rate trains" for row in rows)
    conditions = REGIME if without_rates else f"{RATE}, {REGIME}"
    return f"{conditions[0].upper()}{conditions[1:]}, {'; '.join(clauses)}."


def _group_clauses(study: Study, rows: list[dict[Any, Any]]) -> list[str]:
    """Return a clause for the arms of each verdict; their numbers stand in the table below."""
    base = study.baseline_label
    words = {
        "pending": "not judged yet",
        "equivalent": f"equivalent to {base} within ±{study.m or 0:g} nats",
        "better": f"better than {base}",
        "worse": f"worse than {base}",
    }
    groups: dict[tuple[str, str], list[dict[Any, Any]]] = {}
    for row in rows:
        groups.setdefault((row["verdict"], row["cause"]), []).append(row)
    clauses = []
    for (word, cause), group in groups.items():
        arms, is_one = study.called(*(row["arm"] for row in group)), len(group) == 1
        if is_one and word in ("unstable", "invalid"):
            clauses.append(_arm_clause(study, group[0]))
        elif word == "inconclusive":
            differ = "differs" if is_one else "differ"
            clauses.append(f"whether {arms} {differ} from {base} is {text.judged(word, cause)}")
        else:
            verdict = text.judged(words.get(word, word), cause)
            clauses.append(f"{arms} {'is' if is_one else 'are'} {verdict}")
    return clauses


def _progress_sentence(study: Study) -> str:
    outcomes = study.runs["outcome"]
    done = int((~outcomes.isin(UNFINISHED)).sum())
    are = "is" if done == 1 else "are"
    parts = [f"{done} of {text.plural(len(outcomes), 'planned run')} {are} done"]
    for word in ("failed", "running"):
        count = int((outcomes == word).sum())
        if count:
            parts.append(f"{count} {word}")
    if study.replicates().empty:
        parts.append("the replicates are planned when tuning ends")
    return f"Not decided yet: {', '.join(parts)}."


def _arm_clause(study: Study, row: dict[Any, Any]) -> str:
    """Return the verdict on one arm with its numbers."""
    arm, base, word = study.called(row["arm"]), study.baseline_label, row["verdict"]
    numbers = _numbers_in_brackets(study, row)
    if word in ("better", "worse"):
        return f"{arm} is {word} than {base}{numbers}"
    if word == "equivalent":
        return f"{arm} is equivalent to {base} within ±{study.m:g} nats{numbers}"
    if word == "unstable":
        count = row["diverged"] + row["stalled"]
        reason = f"{count} of {text.plural(row['planned'], 'replicate')} diverged or stalled"
        return f"{arm} is unstable ({reason if row['planned'] else row['reason']})"
    if word == "inconclusive":
        cause = f": {row['cause']}" if row["cause"] else ""
        return f"whether {arm} differs from {base} is inconclusive{cause}{numbers}"
    if word == "pending":
        return f"{arm} is not judged yet"
    return f"{arm} cannot be judged ({row['reason']})"


def _numbers_in_brackets(study: Study, row: dict[Any, Any]) -> str:
    if text.absent(row["mean"]):
        return ""
    interval = ""
    if not text.absent(row["low"]):
        interval = f", {interval_name(study)} {text.interval(row['low'], row['high'])}"
    pairs = text.plural(int(row["n"]), "pair")
    return f" ({text.signed(row['mean'])} nats of final loss{interval}, n = {pairs})"


def asked_extras(study: Study) -> Extras:
    """Return what was asked beside the question.

    What was judged was asked, whatever became of the file that says so: a failed control cannot be
    dropped with it.
    """
    return study.asked | study.verdict.asked


def verdict_notes(study: Study) -> list[str]:
    """Return the notes that the verdict table has no room for, a line for all arms with the same
    note.
    """
    arms_by_note: dict[str, list[str]] = {}
    for row in study.verdicts.to_dict("records"):
        # These reasons repeat the number, or are told of the runs that did not train.
        repeats = row["verdict"] in ("better", "worse", "equivalent")
        repeats |= row["cause"] == "no rate trains"
        left_out = {"", *(row["reason"].split("; ") if repeats else ())}
        if study.verdict.exploratory:
            left_out.add("exploratory")  # said of the study as a whole
        note = "; ".join(part for part in row["note"].split("; ") if part not in left_out)
        if note:
            arms_by_note.setdefault(note, []).append(row["arm"])
    return [f"{study.called(*arms)}: {note}." for note, arms in arms_by_note.items()]


def list_not_done(study: Study) -> list[str]:
    """Return what the study was not asked for, and the option that asks for it."""
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
    """Return the name of the printed intervals: `simultaneous 95 % interval`."""
    return f"simultaneous {text.percent(1 - study.rules.alpha)} interval"


STALLED = "final loss less than 1\N{NO-BREAK SPACE}% below the unigram loss"
"""Meaning of *stalled*: `andrea.training.run_ending.STALL_SHARE`."""


def describe_untrained(study: Study) -> str:
    """Return which runs diverged or stalled, the meaning of *stalled*, and the remedy where the
    budget is too small; empty where all runs trained.
    """
    sentence = "; ".join(count_untrained(study))
    stalled = study.runs[study.runs["stalled"]]
    if stalled.empty:
        return sentence and f"{sentence}."
    unigram = text.number(stalled["unigram_loss"].iloc[0], 2)
    sentence += f". Stalled: {STALLED}, {unigram} nats."
    cause = _budget_cause(study, stalled)
    if not cause:
        return sentence
    tokens = text.count(stalled["tokens"].max())
    return f"{sentence} {cause}: train longer, with more --tokens than {tokens}."


def _budget_cause(study: Study, stalled: pd.DataFrame) -> str:
    """Return why the budget may be too small for what stalled; empty where it is not."""
    if study.choice(study.baseline).untrainable:
        return "No rate trained even the baseline"
    if (stalled[stalled["phase"] == "replicate"]["arm"] == study.baseline).any():
        return "Even the baseline stalled at its best rate"
    untrainable = [arm for arm in stalled["arm"].unique() if study.choice(arm).untrainable]
    if untrainable:
        return (
            f"No rate trained {study.called(*untrainable)}, which the budget may be too short for"
        )
    if _only_low_rates_stalled(study, stalled):
        return ""
    number = stalled["run_id"].nunique()
    falling = count_still_falling(study, stalled["run_id"])
    if 2 * falling <= number:
        return ""
    counted = f"{falling} of {text.plural(number, 'stalled run')}"
    return f"The loss of {counted} was still falling, so the budget may be what is short"


def _only_low_rates_stalled(study: Study, stalled: pd.DataFrame) -> bool:
    """Return whether all that stalled were tuning runs below the chosen rate, for which no budget
    is too small.
    """
    chosen = stalled["arm"].map({arm: choice.lr for arm, choice in study.choices.items()})
    is_low = stalled["phase"].eq("tune") & (stalled["lr"] < pd.to_numeric(chosen))
    return bool(is_low.all())


RUN_NAMES = {
    "tune": ("run in tuning", "runs in tuning"),
    "replicate": ("replicate", "replicates"),
    "trial": ("trial", "trials"),
    "control": ("control run", "control runs"),
    "confirm": ("confirmation run", "confirmation runs"),
    "budget": ("run at an equal budget", "runs at an equal budget"),
}
"""One run of a phase, and several."""


def count_untrained(study: Study) -> list[str]:
    """Return a line for every phase and the arms of which the same runs diverged or stalled."""
    arms_by_line: dict[str, list[str]] = {}
    for row in untrained_runs(study).to_dict("records"):
        n = int(row["runs"])
        runs = text.plural(n, *RUN_NAMES.get(row["phase"], ("run", "runs")))
        if n in (row["diverged"], row["stalled"]):
            line = f"all {runs} {'diverged' if row['diverged'] else 'stalled'}"
        else:
            counts = [f"{row[word]} {word}" for word in ("diverged", "stalled") if row[word]]
            line = f"{text.listing(counts)} of {runs}"
            if row["rates"]:
                line += f", at learning rate {text.listing(list(map(text.rate, row['rates'])))}"
        arms_by_line.setdefault(line, []).append(row["arm"])
    if study.kind == "sweep":
        return list(arms_by_line)
    return [
        f"{study.called(*arms)}{', each' if len(arms) > 1 else ''}: {line}"
        for line, arms in arms_by_line.items()
    ]


def list_missing(study: Study) -> list[str]:
    """Return what a half-finished study lacks, in the order in which it will be done."""
    lines = []
    for (arm, phase), runs in study.runs.groupby(["arm", "phase"], sort=False):
        counts = runs["outcome"].value_counts()
        parts = [f"{int(counts[word])} {word}" for word in UNFINISHED if word in counts]
        if parts:
            planned = text.plural(len(runs), "planned run")
            lines.append(f"{study.called(str(arm))}, {phase}: {text.listing(parts)} of {planned}")
    for row in study.runs[study.runs["outcome"] == "failed"].to_dict("records"):
        reason = text.plain(row["reason"])
        lines.append(f"run {row['run_id'][:12]} of {study.called(row['arm'])} failed: {reason}")
    if study.kind == "sweep":
        if not study.is_decided:
            lines.append("the best configuration: chosen when every trial is there")
        return lines
    for arm in study.arms:
        lines += _missing_runs(study, arm)
    lines += _missing_extras(study)
    if not study.is_decided:
        lines.append("the verdict: judged once, when every replicate is there")
    return lines


def _missing_runs(study: Study, arm: str) -> list[str]:
    """Return the tuning runs and replicates of an arm that are not planned yet."""
    lines = []
    tuning = study.trials[study.trials["arm"] == arm]
    missing = study.rules.trials - len(tuning)
    # Where no run trained and none is open, there is nothing to refine.
    may_train = tuning["ok"].any() or tuning["outcome"].isin(UNFINISHED).any()
    if arm not in study.choices and may_train and missing > 0:
        runs = text.plural(missing, *RUN_NAMES["tune"])
        lines.append(f"{study.called(arm)}: {runs} not planned yet")
    missing = study.rules.seeds - int((study.replicates()["arm"] == arm).sum())
    if missing > 0 and not study.choice(arm).untrainable:
        runs = text.plural(missing, "replicate")
        lines.append(f"{study.called(arm)}: {runs} not planned yet")
    return lines


def _missing_extras(study: Study) -> list[str]:
    """Return the controls, confirmation and budgets that were asked for and are not judged."""
    asked, judged = study.asked, study.verdict.asked
    budgets = [budget for budget in asked.equal if budget not in judged.equal]
    missing = {
        "control": "the controls" if asked.controls and not judged.controls else "",
        "confirm": "the confirmation" if asked.confirm and not judged.confirm else "",
        "budget": f"equal {text.listing(budgets)}" if budgets else "",
    }
    planned = set(study.runs["phase"])
    return [
        f"{name}: asked for, not {'judged' if phase in planned else 'planned'} yet"
        for phase, name in missing.items()
        if name
    ]
