"""The verdicts and effects of a study as text for the terminal."""

from andrea.records.verdict import ArmVerdict
from andrea.store.studies import StudyFolder
from andrea.store.verdict_rows import EffectRow, VerdictRow, effect_rows, verdict_rows
from andrea.text.numbers import count, interval, judged, rate, signed


def verdict_table(folder: StudyFolder) -> list[dict[str, str]]:
    """Return the verdicts of a study, baseline first.

    Each row has, as text: arm, verdict (`pending` where an arm is not judged yet), difference
    (nats), interval (simultaneous, nats), n (pairs), lr (chosen rate), note.
    """
    return [
        {"arm": row.arm, **contrast_cells(row), "lr": rate(row.lr), "note": row.note}
        for row in verdict_rows(folder)
    ]


def effect_table(folder: StudyFolder) -> list[dict[str, str]]:
    """Return the effects of a factorial design; none of another study.

    Each row has, as text: effect, verdict, difference (nats), interval (simultaneous within its
    kind, nats), n (seeds), note.
    """
    return [
        {"effect": row.name, **contrast_cells(row), "note": row.reason}
        for row in effect_rows(folder)
    ]


def contrast_cells(row: VerdictRow | EffectRow | ArmVerdict) -> dict[str, str]:
    """Return the verdict on a contrast, its difference and interval, and the number of pairs."""
    return {
        "verdict": judged(row.verdict, row.cause),
        "difference": signed(row.mean),
        "interval": interval(row.low, row.high),
        "n": count(row.n),
    }
