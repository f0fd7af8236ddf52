"""What an effect is worth, and what else differs: tokens saved, equal budgets, what is not matched,
measured speed.
"""

from functools import partial
from typing import Any

import pandas as pd

from andrea.analysis.chapters import sentences as words
from andrea.analysis.load import Study
from andrea.analysis.report import Column, Item, Table, numbers
from andrea.analysis.tables import not_matched as notmatched
from andrea.text import numbers as text

BUDGETS = {"tokens": "equal tokens", "flops": "equal FLOPs", "time": "equal wall-clock time"}
"""What the arms may have in common at the end of their schedules."""


def tokens_saved(study: Study) -> list[Item]:
    """Every effect as a share of the baseline's tokens; nothing where no rulers were trained."""
    told = study.verdict.to_json().get("tokens_saved") or {}
    rows = []
    for arm in study.arms:
        if arm in told:
            found = told[arm]
            low, high = found.get("interval") or (None, None)
            row = {
                "arm": arm,
                "label": study.label(arm),
                "saved": found.get("saved"),
                "low": low,
                "high": high,
            }
            keys = ("level", "n", "tokens")
            rows.append(
                row | {key: found.get(key) for key in keys} | {"reason": found.get("reason") or ""}
            )
    if not rows:
        return []
    frame = _numeric(pd.DataFrame(rows), "saved", "low", "high", "level", "n", "tokens")
    columns = [
        Column("label", "arm"),
        numbers("saved", "tokens saved", text.share),
        numbers(("low", "high"), "interval", partial(text.between, show=text.share)),
        numbers("n", "pairs", text.count),
        numbers("tokens", "the baseline's tokens to that loss", text.count),
    ]
    columns += [Column("reason", "why not told")] if (frame["reason"] != "").any() else []
    caption = (
        "The effect in tokens: +20 % means that the arm ends at a loss for which the baseline "
        "needs 1 / (1 − 0.2) "
        "times its tokens; −20 %, that the arm takes 20 % more tokens than the baseline to that "
        "loss. Converted by the "
        "rulers, the baseline trained on half and on double the tokens with schedules that end "
        "there; intervals by "
        f"Fieller{_at_level(frame)}. Nothing is told beyond the budgets that were trained."
    )
    return [Table("tokens-saved", caption, frame, columns, stacked=True)]


def _at_level(frame: pd.DataFrame) -> str:
    level = frame["level"].dropna()
    return f", each at {text.percent(level.iloc[0])}" if len(level) else ""


# ---- equal budgets
# --------------------------------------------------------------------------------------------------


def equal(study: Study) -> list[Item]:
    """The comparison at equal tokens, FLOPs and time, from runs whose schedule ends at that budget;
    else n/a. Nothing where neither FLOPs nor time was asked for.
    """
    told = study.verdict.to_json().get("equal") or {}
    if not words.asked_extras(study).equal:
        return []
    rows = []
    for row in study.verdicts.to_dict("records"):
        if row["verdict"] != "baseline":
            rows.append(_at_tokens(study, row))
            rows += [
                _at_budget(study, kind, row["arm"], told.get(kind) or {})
                for kind in ("flops", "time")
            ]
    frame = _numeric(pd.DataFrame(rows), "tokens", "mean", "low", "high", "level", "n", "p")
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
        f"Final loss against {study.baseline_label} at its own budget. Equal tokens "
        "is the study's "
        "verdict; at equal FLOPs and at equal time the arm is trained again, on as many tokens as "
        "cost the same, with "
        "a schedule that ends there and at the rate that it was tuned to. n/a: not asked for, or "
        "not trained to that "
        "budget; nothing is read off the middle of a longer schedule."
    )
    return [Table("equal-budgets", caption, frame, columns, stacked=True, mark="word")]


def _at_tokens(study: Study, row: dict[Any, Any]) -> dict[str, Any]:
    runs = study.replicates()
    tokens = runs[runs["arm"] == row["arm"]]["tokens"].max()
    told = {key: row[key] for key in ("mean", "low", "high", "level", "n")} | {"p": row["p_holm"]}
    word = text.judged(row["verdict"], row["cause"])
    common = {
        "arm": row["arm"],
        "label": row["label"],
        "budget": BUDGETS["tokens"],
        "tokens": tokens,
    }
    return common | told | {"word": word, "reason": ""}


def _at_budget(study: Study, kind: str, arm: str, told: dict[str, Any]) -> dict[str, Any]:
    found = told.get(arm)
    row: dict[str, Any] = {"arm": arm, "label": study.label(arm), "budget": BUDGETS[kind]}
    row |= dict.fromkeys(("tokens", "mean", "low", "high", "level", "n", "p"))
    if found is None or "na" in found:
        waits = kind in words.asked_extras(study).equal
        reason = (found or {}).get("na") or (
            "not trained yet" if waits else f"not asked for (--equal {kind})"
        )
        return row | {"word": "n/a", "reason": reason}
    low, high = found.get("interval") or (None, None)
    keys = ("tokens", "mean", "level", "n", "p")
    row |= {key: found.get(key) for key in keys} | {"low": low, "high": high}
    word = str(found.get("word") or text.NOTHING)
    # The reasons of these words say the number over again.
    reason = "" if word in ("better", "worse", "equivalent") else str(found.get("reason") or "")
    return row | {"word": text.judged(word, str(found.get("cause") or "")), "reason": reason}


# ---- what is not matched
# ---------------------------------------------------------------------------------------------


def not_matched(study: Study) -> list[Item]:
    """Everything beside the factor in which an arm differs from the baseline, whatever was
    matched.
    """
    rows = notmatched.rows(study)
    if not rows:
        return []
    frame = pd.DataFrame(rows, columns=list(notmatched.ROW))
    frame.insert(1, "label", frame["arm"].map(study.label))
    frame = _numeric(frame, "deviation", "low", "high")
    columns = [
        Column("label", "arm"),
        Column("what", "quantity"),
        Column(("baseline", "unit"), "baseline", _quantity),
        Column(("arm_value", "unit"), "arm's", _quantity),
        numbers("deviation", "deviation", text.relative),
        numbers(("low", "high"), "95 % interval", partial(text.between, show=text.relative)),
        Column("note", "how it came about"),
    ]
    caption = (
        "What an arm does not have in common with the baseline, beside what was asked for: a "
        "difference in loss may be "
        "due to any of it. Counts are exact and have no interval; a speed that was not measured is "
        "listed, since it is "
        "not known to be the same."
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


def _quantity(value: Any, unit: Any) -> str:
    if text.absent(value):
        return text.NOTHING
    return _SHOW[unit](value) if unit in _SHOW else text.setting(value)


# ---- speed
# --------------------------------------------------------------------------------------------------


def speed(study: Study) -> list[Item]:
    """Warm and interleaved measurements; nothing where none were made."""
    told = study.speed.to_json().get("arms") or {}
    rows = []
    for arm in study.arms:
        if arm in told:
            ratio = (study.speed.to_json().get("ratio") or {}).get(arm) or {}
            row = {"arm": arm, "label": study.label(arm), **told[arm], "ratio": ratio.get("ratio")}
            rows.append(row | {"ratio_low": ratio.get("low"), "ratio_high": ratio.get("high")})
    if not rows:
        return []
    quantities = (
        "step_s low high rounds compile_s tokens_per_s peak_memory_bytes tokens_per_s_low "
        "tokens_per_s_high ratio ratio_low ratio_high"
    )
    frame = _numeric(pd.DataFrame(rows), *quantities.split())
    columns = [
        Column("label", "arm"),
        numbers("step_s", "step (ms)", _ms),
        numbers(("low", "high"), "interval (ms)", partial(text.between, show=_ms)),
        numbers("rounds", "rounds", text.count),
        numbers("tokens_per_s", "tokens/s", text.count),
        numbers(
            ("tokens_per_s_low", "tokens_per_s_high"),
            "interval",
            partial(text.between, show=text.count),
        ),
        numbers("ratio", "step time / baseline's", text.ratio),
        numbers(
            ("ratio_low", "ratio_high"), "its interval", partial(text.between, show=text.ratio)
        ),
    ]
    for key, header, show in (
        ("compile_s", "compilation, apart", text.seconds),
        ("peak_memory_bytes", "peak memory", text.memory),
    ):
        columns += [numbers(key, header, show)] if frame[key].notna().any() else []
    level = text.percent(study.speed.level)
    caption = (
        f"Measured on {study.speed.device or 'this machine'}, {_torch(study)}"
        f"{text.plural(int(study.speed.threads or 1), 'thread')}: all arms warm, in one "
        "process, taking turns "
        "round by round, so that what the machine does meanwhile strikes all alike. Medians over "
        "rounds with "
        f"{level} intervals; the ratio is the median of the ratios within rounds. Compilation is "
        "not in the steps."
    )
    return [Table("speed", caption, frame, columns)]


def _torch(study: Study) -> str:
    return f"torch {study.speed.torch}, " if study.speed.torch else ""


def _ms(seconds: Any) -> str:
    return text.NOTHING if text.absent(seconds) else text.number(1000 * float(seconds), 2)


def _numeric(frame: pd.DataFrame, *keys: str) -> pd.DataFrame:
    for key in keys:
        frame[key] = pd.to_numeric(
            frame[key] if key in frame else pd.Series(index=frame.index, dtype="float64")
        )
        frame[key] = frame[key].astype("float64")
    return frame
