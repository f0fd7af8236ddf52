"""The chapter of the confirmation: fresh seeds judged alone, beside the first verdict, never pooled
with it.
"""

from typing import Any

import pandas as pd

from andrea.analysis.chapters.sentences import asked_extras
from andrea.analysis.load import Study
from andrea.analysis.report import Column, Item, Table, Text, numbers
from andrea.text import numbers as text


def chapter(study: Study) -> list[Item]:
    """First verdict and confirmation in one table; nothing where none was asked for."""
    frame, said = table(study), sentence(study)
    if frame.empty:
        return [Text(said)] if said else []
    caption = (
        "Every arm's verdict and, below it, that of a new block of seeds, trained at the same "
        "rates and judged by the "
        "same rule, alone. The two are never pooled: the first may have been the reason to look "
        "again. They agree "
        "where the words are the same and disagree where both decide and otherwise; a verdict is "
        "not confirmed where "
        "the fresh seeds alone tell nothing. Intervals hold together within a block."
    )
    shown = Table(
        "confirmation",
        caption,
        frame,
        _columns("label", "arm"),
        sortable=False,
        stacked=True,
        mark="word",
    )
    return [shown, *_effects(study)]


def _columns(key: str, header: str) -> list[Column]:
    return [
        Column(key, header),
        Column("block", "seeds"),
        Column("word", "verdict"),
        numbers("mean", "difference (nats)", text.signed),
        numbers(("low", "high"), "simultaneous interval", text.interval),
        numbers("n", "pairs", text.count),
        Column("agrees", "confirmed"),
    ]


def table(study: Study) -> pd.DataFrame:
    """Two rows per arm, the first verdict and the confirmation: arm, label, block (which seeds),
    word, mean, low, high (nats), n, reason, agrees (of the confirmation: `text.confirmed`, *not
    done* or *not trained*).
    """
    told = study.verdict.to_json().get("confirmation") or {}
    again = {str(verdict["arm"]): verdict for verdict in told.get("verdicts") or []}
    first = {
        str(verdict["arm"]): verdict for verdict in study.verdict.to_json().get("verdicts") or []
    }
    rows = []
    for arm in study.arms:
        if arm in again and arm in first:
            rows += _both(
                {"arm": arm, "label": study.label(arm)}, first[arm], again[arm], _stands(study, arm)
            )
    return _numbers(rows)


def _stands(study: Study, arm: str) -> str:
    """What the second block makes of an arm's verdict."""
    told = study.verdict.to_json()["confirmation"]
    words = [
        v["verdict"]
        for block in (study.verdict.to_json(), told)
        for v in block["verdicts"]
        if v["arm"] == arm
    ]
    if (told.get("agrees") or {}).get(arm) is None:
        return "not trained" if told.get("complete", True) else "not done"
    return text.confirmed(*words)


def _both(
    who: dict[str, Any], first: dict[str, Any], again: dict[str, Any], agrees: str
) -> list[dict[str, Any]]:
    rows = []
    for found, block, agree in ((first, "first", ""), (again, "confirmation", agrees)):
        low, high = found.get("interval") or (None, None)
        word = text.judged(found["verdict"], found.get("cause") or "")
        row = {
            **who,
            "block": block,
            "word": word,
            "mean": found.get("mean"),
            "low": low,
            "high": high,
        }
        rows.append(
            row | {"n": found.get("n"), "reason": found.get("reason") or "", "agrees": agree}
        )
    return rows


def _numbers(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    for key in frame.columns.intersection(["mean", "low", "high"]):
        frame[key] = pd.to_numeric(frame[key]).astype("float64")
    return frame


def _effects(study: Study) -> list[Item]:
    """Of a factorial design, the effects of the two blocks."""
    told = (study.verdict.to_json().get("confirmation") or {}).get("effects") or []
    first, rows = study.verdict.to_json().get("effects") or [], []
    if not told or len(told) != len(first):
        return []
    for name, one, other in zip(study.effects["name"], first, told, strict=True):
        rows += _both({"name": name}, one, other, text.confirmed(one["verdict"], other["verdict"]))
    caption = (
        "The effects of the factors in both blocks of seeds; intervals hold together within a kind "
        "and a block."
    )
    columns = _columns("name", "effect")
    return [
        Table(
            "confirmation-effects",
            caption,
            _numbers(rows),
            columns,
            sortable=False,
            stacked=True,
            mark="word",
        )
    ]


def in_a_word(study: Study) -> dict[str, str]:
    """By arm, what the confirmation makes of its verdict: `agrees`, `not confirmed (inconclusive
    there)`.
    """
    frame = table(study)
    again = frame[frame["block"] == "confirmation"] if len(frame) else frame
    return {row["arm"]: _there(row["agrees"], row["word"]) for row in again.to_dict("records")}


def _there(stands: str, word: str) -> str:
    said = stands in ("agrees", "not done", "not trained") or stands.endswith(" again")
    return stands if said else f"{stands} ({word} there)"


SENTENCE = {
    "agrees": "agrees for {}",
    "not confirmed": "does not confirm the verdict on {}",
    "disagrees": "contradicts the verdict on {}",
    "not trained": "has no run of {}",
    "at first": "decides what was open for {}",
    "again": "leaves {} open again",
}
"""By what the second block makes of a verdict, or its last words, how it is told of the arms."""


def sentence(study: Study) -> str:
    """What the confirmation says, for the answer; nothing where none was asked for."""
    told = study.verdict.to_json().get("confirmation") or {}
    seeds = text.plural(len(told.get("seeds") or []), "fresh seed")
    if not told:
        return (
            "The confirmation is not there yet."
            if asked_extras(study).confirm and study.is_decided
            else ""
        )
    if all(
        verdict["verdict"] == "invalid" for verdict in study.verdict.to_json().get("verdicts") or []
    ):
        return ""
    if not told.get("complete", True):
        return f"The confirmation on {seeds} is not complete yet."
    frame = table(study)
    groups: dict[str, dict[str, list[str]]] = {}
    for row in frame[frame["block"] == "confirmation"].to_dict("records") if len(frame) else ():
        stands = row["agrees"]
        key = stands if stands in SENTENCE else "again" if stands.endswith(" again") else "at first"
        groups.setdefault(key, {}).setdefault(row["word"], []).append(row["arm"])
    if set(groups) == {"agrees"}:
        return f"A confirmation on {seeds} agrees{' for every arm' if len(frame) > 2 else ''}."
    parts = [
        SENTENCE[key].format(_arms(study, key, groups[key])) for key in SENTENCE if key in groups
    ]
    return f"A confirmation on {seeds} {text.listing(parts)}."


def _arms(study: Study, stands: str, by_word: dict[str, list[str]]) -> str:
    """The arms of which the same is to be said, and what the second block says where it is not the
    same.
    """
    if stands in ("agrees", "not trained", "again"):
        return study.called(*(arm for arms in by_word.values() for arm in arms))
    return text.listing([f"{study.called(*arms)} ({word} there)" for word, arms in by_word.items()])
