"""Effects in tokens and at equal budgets, quantities that are not matched, measured speed."""

from dataclasses import asdict
from typing import Any

import pandas as pd

from andrea.analysis.chapters import sentences as words
from andrea.analysis.chapters.common import with_labels
from andrea.analysis.load import Study
from andrea.analysis.report import Column, Item, Table, intervals, numbers
from andrea.analysis.tables import not_matched as notmatched
from andrea.analysis.tables.frames import with_floats
from andrea.records.extras import BUDGETS, Budget
from andrea.records.verdict import EqualCost
from andrea.store.verdict_rows import VerdictRow
from andrea.text import numbers as text

BUDGET_NAMES: dict[Budget, str] = {"flops": "equal FLOPs", "time": "equal wall-clock time"}
QUANTITIES = ("mean", "low", "high", "level", "n")
"""Numbers of a verdict that the table of equal budgets shows."""


def tokens_saved_table(study: Study) -> list[Item]:
    """Return every effect as a share of the baseline's tokens; nothing where no positive control
    was trained.
    """
    rows = []
    for arm in study.arms:
        if arm in study.verdict.tokens_saved:
            saved = study.verdict.tokens_saved[arm]
            row = {"arm": arm, "label": study.label(arm), **asdict(saved)}
            row["low"], row["high"] = saved.interval or (None, None)
            rows.append(row)
    if not rows:
        return []
    keys = ("saved", "low", "high", "level", "n", "tokens")
    frame = with_floats(pd.DataFrame(rows), *keys)[["arm", "label", *keys, "reason"]]
    columns = [
        Column("label", "arm"),
        numbers("saved", "tokens saved", text.share),
        numbers(("low", "high"), "interval", intervals(text.share)),
        numbers("n", "pairs", text.count),
        numbers("tokens", "the baseline's tokens to that loss", text.count),
    ]
    columns += [Column("reason", "why not told")] if (frame["reason"] != "").any() else []
    caption = (
        "The effect in tokens: +20 % means that the arm ends at a loss for which the baseline "
        "needs 1 / (1 − 0.2) times its tokens; −20 %, that the arm takes 20 % more tokens than the "
        "baseline to that loss. Converted by the rulers, the baseline trained on half and on "
        f"double the tokens with schedules that end there; intervals by Fieller{_at_level(frame)}. "
        "Nothing is told beyond the budgets that were trained."
    )
    return [Table("tokens-saved", caption, frame, columns, stacked=True)]


def _at_level(frame: pd.DataFrame) -> str:
    level = frame["level"].dropna()
    return f", each at {text.percent(level.iloc[0])}" if len(level) else ""


# ---- equal budgets
# --------------------------------------------------------------------------------------------------


def equal_budget_table(study: Study) -> list[Item]:
    """Return the comparison at equal tokens, FLOPs and time, from runs whose schedule ends at that
    budget, else n/a; nothing where neither FLOPs nor time was asked for.
    """
    if not words.asked_extras(study).equal:
        return []
    rows = []
    for row in study.judged:
        if row.verdict != "baseline":
            rows.append(_at_equal_tokens(study, row))
            rows += [_at_budget(study, budget, row.arm) for budget in BUDGETS]
    frame = with_floats(pd.DataFrame(rows), "tokens", "mean", "low", "high", "level", "n", "p")
    columns = [
        Column("label", "arm"),
        Column("budget", "compared at"),
        numbers("tokens", "tokens of the arm", text.count),
        Column("word", "verdict"),
        numbers("mean", "difference (nats)", text.signed),
        numbers(("low", "high"), "interval", text.interval),
        numbers("n", "pairs", text.count),
        Column("reason", "remark"),
    ]
    caption = (
        f"Final loss against {study.baseline_label} at its own budget. Equal tokens is the study's "
        "verdict; at equal FLOPs and at equal time the arm is trained again, on as many tokens as "
        "cost the same, with a schedule that ends there and at the rate that it was tuned to. n/a: "
        "not asked for, or not trained to that budget; nothing is read off the middle of a longer "
        "schedule."
    )
    return [Table("equal-budgets", caption, frame, columns, stacked=True, mark="word")]


def _at_equal_tokens(study: Study, row: VerdictRow) -> dict[str, Any]:
    runs = study.replicates()
    return {
        "arm": row.arm,
        "label": study.label(row.arm),
        "budget": "equal tokens",
        "tokens": runs[runs["arm"] == row.arm]["tokens"].max(),
        **{key: getattr(row, key) for key in QUANTITIES},
        "p": row.p_holm,
        "word": text.judged(row.verdict, row.cause),
        "reason": "",
    }


def _at_budget(study: Study, budget: Budget, arm: str) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": arm, "label": study.label(arm), "budget": BUDGET_NAMES[budget]}
    outcome = study.verdict.equal.get(budget, {}).get(arm, EqualCost())
    verdict = outcome.verdict
    if verdict is None:
        reason = "not trained yet"
        if budget not in words.asked_extras(study).equal:
            reason = f"not asked for (--equal {budget})"
        return row | {"word": "n/a", "reason": outcome.na or reason}
    row |= {key: getattr(verdict, key) for key in QUANTITIES}
    # The reasons of these words repeat the number.
    is_in_numbers = verdict.verdict in ("better", "worse", "equivalent")
    return row | {
        "tokens": outcome.tokens,
        "p": verdict.p,
        "word": text.judged(verdict.verdict, verdict.cause),
        "reason": "" if is_in_numbers else verdict.reason,
    }


# ---- what is not matched
# ---------------------------------------------------------------------------------------------


def not_matched_table(study: Study) -> list[Item]:
    """Return the table of all quantities beside the factor in which an arm differs from the
    baseline, whatever was matched.
    """
    rows = notmatched.not_matched_rows(study)
    if not rows:
        return []
    frame = with_labels(study, pd.DataFrame(rows))
    frame = with_floats(frame, "deviation", "low", "high")
    columns = [
        Column("label", "arm"),
        Column("what", "quantity"),
        Column(("baseline", "unit"), "baseline", _format_quantity),
        Column(("arm_value", "unit"), "arm's", _format_quantity),
        numbers("deviation", "deviation", text.relative),
        numbers(("low", "high"), "95 % interval", intervals(text.relative)),
        Column("note", "how it came about"),
    ]
    caption = (
        "What an arm does not have in common with the baseline, beside what was asked for: a "
        "difference in loss may be due to any of it. Counts are exact and have no interval; a "
        "speed that was not measured is listed, since it is not known to be the same."
    )
    return [Table("not-matched", caption, frame, columns, stacked=True)]


_SHOW = {
    "parameters": text.count,
    "FLOPs per token": text.big,
    "bytes": text.memory,
    "tokens/s": text.count,
    "tokens": text.count,
    "rate": text.rate,
    "runs": text.count,
}
"""How a value of a unit is written."""


def _format_quantity(value: Any, unit: Any) -> str:
    if text.absent(value):
        return text.NOTHING
    return _SHOW[unit](value) if unit in _SHOW else text.setting(value)


# ---- speed
# --------------------------------------------------------------------------------------------------


def speed_table(study: Study) -> list[Item]:
    """Return the table of warm and interleaved measurements; nothing where none were made."""
    rows = []
    for arm in study.arms:
        if arm in study.speed.arms:
            row = {"arm": arm, "label": study.label(arm), **study.speed.arms[arm].to_json()}
            ratio = study.speed.ratio.get(arm)
            if ratio is not None:
                row |= {"ratio": ratio.ratio, "ratio_low": ratio.low, "ratio_high": ratio.high}
            rows.append(row)
    if not rows:
        return []
    quantities = (
        "step_s low high rounds compile_s tokens_per_s peak_memory_bytes tokens_per_s_low "
        "tokens_per_s_high ratio ratio_low ratio_high"
    )
    frame = with_floats(pd.DataFrame(rows), *quantities.split())
    columns = [
        Column("label", "arm"),
        numbers("step_s", "step (ms)", _format_ms),
        numbers(("low", "high"), "interval (ms)", intervals(_format_ms)),
        numbers("rounds", "rounds", text.count),
        numbers("tokens_per_s", "tokens/s", text.count),
        numbers(("tokens_per_s_low", "tokens_per_s_high"), "interval", intervals(text.count)),
        numbers("ratio", "step time / baseline's", text.ratio),
        numbers(("ratio_low", "ratio_high"), "its interval", intervals(text.ratio)),
    ]
    for key, header, show in (
        ("compile_s", "compilation, apart", text.seconds),
        ("peak_memory_bytes", "peak memory", text.memory),
    ):
        columns += [numbers(key, header, show)] if frame[key].notna().any() else []
    speed = study.speed
    torch = f"torch {speed.torch}, " if speed.torch else ""
    caption = (
        f"Measured on {speed.device or 'this machine'}, "
        f"{torch}{text.plural(int(speed.threads or 1), 'thread')}: all arms warm, in one process, "
        "taking turns round by round, so that what the machine does meanwhile strikes all alike. "
        f"Medians over rounds with {text.percent(speed.level)} intervals; the ratio is the median "
        "of the ratios within rounds. Compilation is not in the steps."
    )
    return [Table("speed", caption, frame, columns)]


def _format_ms(seconds: Any) -> str:
    return text.NOTHING if text.absent(seconds) else text.number(1000 * float(seconds), 2)
