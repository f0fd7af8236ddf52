"""The chapter of the confirmation: fresh seeds judged alone, beside the first verdict, never pooled with it."""

from typing import Any

import pandas as pd

from andrea.analysis import text
from andrea.analysis.load import Study
from andrea.analysis.report import Column, Item, Table, Text, numbers
from andrea.analysis.words import asked

AGREES = {True: "agrees", False: "disagrees", None: "unknown"}
"""What `agrees` is called."""


def chapter(study: Study) -> list[Item]:
    """First verdict and confirmation in one table; nothing where none was asked for."""
    frame, said = table(study), sentence(study)
    if frame.empty:
        return [Text(said)] if said else []
    caption = (
        "Every arm's verdict and, below it, that of a new block of seeds, trained at the same rates and judged by the "
        "same rule, alone. The two are never pooled: the first may have been the reason to look again. They agree "
        "where the words are the same; intervals hold together within a block."
    )
    shown = Table("confirmation", caption, frame, _columns("label", "arm"), sortable=False, stacked=True, mark="word")
    return [shown, *_effects(study)]


def _columns(key: str, header: str) -> list[Column]:
    return [
        Column(key, header),
        Column("block", "seeds"),
        Column("word", "verdict"),
        numbers("mean", "difference (nats)", text.signed),
        numbers(("low", "high"), "simultaneous interval", text.interval),
        numbers("n", "pairs", text.count),
        Column("agrees", "agree"),
    ]


def table(study: Study) -> pd.DataFrame:
    """Two rows per arm, the first verdict and the confirmation: arm, label, block (which seeds), word, mean, low, high
    (nats), n, reason, agrees (of the confirmation: agrees, disagrees, unknown)."""
    told = study.verdict.get("confirmation") or {}
    again = {str(verdict["arm"]): verdict for verdict in told.get("verdicts") or []}
    first = {str(verdict["arm"]): verdict for verdict in study.verdict.get("verdicts") or []}
    rows = []
    for arm in study.arms:
        if arm in again and arm in first:
            agrees = AGREES[(told.get("agrees") or {}).get(arm)]
            rows += _both({"arm": arm, "label": study.label(arm)}, first[arm], again[arm], agrees)
    return _numbers(rows)


def _both(who: dict[str, Any], first: dict[str, Any], again: dict[str, Any], agrees: str) -> list[dict[str, Any]]:
    rows = []
    for found, block, agree in ((first, "first", ""), (again, "confirmation", agrees)):
        low, high = found.get("interval") or (None, None)
        word = text.judged(found["verdict"], found.get("cause") or "")
        row = {**who, "block": block, "word": word, "mean": found.get("mean"), "low": low, "high": high}
        rows.append(row | {"n": found.get("n"), "reason": found.get("reason") or "", "agrees": agree})
    return rows


def _numbers(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    for key in frame.columns.intersection(["mean", "low", "high"]):
        frame[key] = pd.to_numeric(frame[key]).astype("float64")
    return frame


def _effects(study: Study) -> list[Item]:
    """Of a factorial design, the effects of the two blocks."""
    told = (study.verdict.get("confirmation") or {}).get("effects") or []
    first, rows = study.verdict.get("effects") or [], []
    if not told or len(told) != len(first):
        return []
    for name, one, other in zip(study.effects["name"], first, told, strict=True):
        rows += _both({"name": name}, one, other, AGREES[one["verdict"] == other["verdict"]])
    caption = "The effects of the factors in both blocks of seeds; intervals hold together within a kind and a block."
    columns = _columns("name", "effect")
    return [Table("confirmation-effects", caption, _numbers(rows), columns, sortable=False, stacked=True, mark="word")]


def in_a_word(study: Study) -> dict[str, str]:
    """By arm, whether the confirmation agrees, and what it says where not: `disagrees: inconclusive`."""
    frame = table(study)
    again = frame[frame["block"] == "confirmation"] if len(frame) else frame
    said = {row["arm"]: (row["agrees"], row["word"]) for row in again.to_dict("records")}
    return {arm: agrees if agrees == AGREES[True] else f"{agrees}: {word}" for arm, (agrees, word) in said.items()}


def sentence(study: Study) -> str:
    """What the confirmation says, for the answer; nothing where none was asked for."""
    told = study.verdict.get("confirmation") or {}
    seeds = text.plural(len(told.get("seeds") or []), "fresh seed")
    if not told:
        return "The confirmation is not there yet." if asked(study)["confirm"] and study.verdict else ""
    if all(verdict["verdict"] == "invalid" for verdict in study.verdict.get("verdicts") or []):
        return ""
    if not told.get("complete", True):
        return f"The confirmation on {seeds} is not complete yet."
    groups: dict[bool | None, list[str]] = {}
    for arm, agrees in (told.get("agrees") or {}).items():
        groups.setdefault(agrees, []).append(arm)
    again = {str(v["arm"]): text.judged(v["verdict"], v.get("cause") or "") for v in told.get("verdicts") or []}
    if set(groups) == {True}:
        return f"A confirmation on {seeds} agrees{' for every arm' if len(groups[True]) > 1 else ''}."
    parts = [f"agrees for {study.called(*groups[True])}"] if True in groups else []
    if False in groups:
        words: dict[str, list[str]] = {}
        for arm in groups[False]:
            words.setdefault(again.get(arm, "not judged"), []).append(arm)
        said = [f"{study.called(*arms)} (there {word})" for word, arms in words.items()]
        parts.append(f"disagrees for {text.listing(said)}")
    if None in groups:
        parts.append(f"cannot tell for {study.called(*groups[None])}")
    return f"A confirmation on {seeds} {text.listing(parts)}."
