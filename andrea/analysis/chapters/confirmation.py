"""The chapter of the confirmation: fresh seeds judged alone, beside the first verdict, never pooled
with it.
"""

from typing import Any

import pandas as pd

from andrea.analysis.chapters.sentences import asked_extras
from andrea.analysis.load import Study
from andrea.analysis.report import Column, Item, Table, Text, numbers
from andrea.analysis.tables.frames import with_floats
from andrea.records.verdict import Confirmation, Judged
from andrea.text import numbers as text


def chapter(study: Study) -> list[Item]:
    """Return the first verdicts and the confirmation in one table; nothing where none was asked
    for.
    """
    frame, pending = confirmation_table(study), write_sentence(study)
    if frame.empty:
        return [Text(pending)] if pending else []
    caption = (
        "Every arm's verdict and, below it, that of a new block of seeds, trained at the same "
        "rates and judged by the same rule, alone. The two are never pooled: the first may have "
        "been the reason to look again. They agree where the words are the same and disagree where "
        "both decide and otherwise; a verdict is not confirmed where the fresh seeds alone tell "
        "nothing. Intervals hold together within a block."
    )
    return [_table("confirmation", caption, frame, Column("label", "arm")), *_effects(study)]


def _table(name: str, caption: str, frame: pd.DataFrame, contrast: Column) -> Table:
    """Return a table with two rows for each arm or effect, which `contrast` names."""
    columns = [
        contrast,
        Column("block", "seeds"),
        Column("word", "verdict"),
        numbers("mean", "difference (nats)", text.signed),
        numbers(("low", "high"), "simultaneous interval", text.interval),
        numbers("n", "pairs", text.count),
        Column("agrees", "confirmed"),
    ]
    return Table(name, caption, frame, columns, sortable=False, stacked=True, mark="word")


def confirmation_table(study: Study) -> pd.DataFrame:
    """Return two rows per arm, the first verdict and the confirmation: arm, label, block (which
    seeds), word, mean, low, high (nats), n, reason, agrees (of the confirmation: `text.confirmed`,
    *not done* or *not trained*).
    """
    confirmation = study.verdict.confirmation or Confirmation()
    again = {verdict.arm: verdict for verdict in confirmation.verdicts}
    rows = []
    for arm in study.arms:
        first = study.verdict.of(arm)
        if arm in again and first is not None:
            agrees = text.confirmed(first.verdict, again[arm].verdict)
            if confirmation.agrees.get(arm) is None:
                agrees = "not trained" if _is_complete(confirmation) else "not done"
            rows += _two_rows({"arm": arm, "label": study.label(arm)}, first, again[arm], agrees)
    return _as_frame(rows)


def _is_complete(confirmation: Confirmation) -> bool:
    # Older confirmations do not say; they were written when they were complete.
    return confirmation.complete or "complete" not in confirmation.model_fields_set


def _two_rows(
    names: dict[str, Any], first: Judged, again: Judged, agrees: str
) -> list[dict[str, Any]]:
    rows = []
    for judged, block, agreement in ((first, "first", ""), (again, "confirmation", agrees)):
        word = text.judged(judged.verdict, judged.cause)
        quantities = {key: getattr(judged, key) for key in ("mean", "low", "high", "n", "reason")}
        rows.append({**names, "block": block, "word": word, **quantities, "agrees": agreement})
    return rows


def _as_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return with_floats(pd.DataFrame(rows), "mean", "low", "high")


def _effects(study: Study) -> list[Item]:
    """Return the effects of the two blocks, of a factorial design."""
    first = study.verdict.effects
    again = study.verdict.confirmation.effects if study.verdict.confirmation else []
    if not again or len(again) != len(first):
        return []
    rows = []
    for name, one, other in zip(study.effects["name"], first, again, strict=True):
        agrees = text.confirmed(one.verdict, other.verdict)
        rows += _two_rows({"name": name}, one, other, agrees)
    caption = (
        "The effects of the factors in both blocks of seeds; intervals hold together within a kind "
        "and a block."
    )
    effect = Column("name", "effect")
    return [_table("confirmation-effects", caption, _as_frame(rows), effect)]


def words_by_arm(study: Study) -> dict[str, str]:
    """Return by arm whether the confirmation supports its verdict: `agrees`, `not confirmed
    (inconclusive there)`.
    """
    words = {}
    for row in _confirmation_rows(study):
        agrees = row["agrees"]
        is_whole = agrees in ("agrees", "not done", "not trained") or agrees.endswith(" again")
        words[row["arm"]] = agrees if is_whole else f"{agrees} ({row['word']} there)"
    return words


def _confirmation_rows(study: Study) -> list[dict[Any, Any]]:
    """Return the rows of `table` that are about the second block."""
    rows = confirmation_table(study).to_dict("records")
    return [row for row in rows if row["block"] == "confirmation"]


SENTENCE = {
    "agrees": "agrees for {}",
    "not confirmed": "does not confirm the verdict on {}",
    "disagrees": "contradicts the verdict on {}",
    "not trained": "has no run of {}",
    "at first": "decides what was open for {}",
    "again": "leaves {} open again",
}
"""Clause about arms by the agreement of the two blocks, or by its last words."""


def write_sentence(study: Study) -> str:
    """Return the confirmation in a sentence, for the answer; empty where none was asked for."""
    confirmation = study.verdict.confirmation
    if confirmation is None:
        is_awaited = asked_extras(study).confirm and study.is_decided
        return "The confirmation is not there yet." if is_awaited else ""
    if all(verdict.verdict == "invalid" for verdict in study.verdict.verdicts):
        return ""
    seeds = text.plural(len(confirmation.seeds), "fresh seed")
    if not _is_complete(confirmation):
        return f"The confirmation on {seeds} is not complete yet."
    rows = _confirmation_rows(study)
    groups: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        arms_by_word = groups.setdefault(_clause_key(row["agrees"]), {})
        arms_by_word.setdefault(row["word"], []).append(row["arm"])
    if set(groups) == {"agrees"}:
        return f"A confirmation on {seeds} agrees{' for every arm' if len(rows) > 1 else ''}."
    clauses = [
        clause.format(_name_arms(study, key, groups[key]))
        for key, clause in SENTENCE.items()
        if key in groups
    ]
    return f"A confirmation on {seeds} {text.listing(clauses)}."


def _clause_key(agrees: str) -> str:
    if agrees in SENTENCE:
        return agrees
    return "again" if agrees.endswith(" again") else "at first"


def _name_arms(study: Study, key: str, arms_by_word: dict[str, list[str]]) -> str:
    """Name the arms of one clause, with the word of the second block where it is another."""
    if key in ("agrees", "not trained", "again"):
        return study.called(*(arm for arms in arms_by_word.values() for arm in arms))
    named = [f"{study.called(*arms)} ({word} there)" for word, arms in arms_by_word.items()]
    return text.listing(named)
