"""The verdicts of a study as plain rows, read from the study's own files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from andrea.records.study import AskedLevel, Choice
from andrea.records.verdict import ArmVerdict, EffectVerdict, Judged
from andrea.store.studies import StudyFolder
from andrea.text.names import one_line

Levels = Mapping[str, Mapping[str, AskedLevel]]
"""By factor and name."""


@dataclass(frozen=True, kw_only=True)
class Quantities:
    """Numbers of a judged contrast; None where nothing was computed.

    Where a planned pair is not whole (diverged, stalled, failed, missing) nothing is computed from
    the pairs: it would be a mean over the seeds that happened to survive.
    """

    n: int | None = None
    """Pairs."""
    mean: float | None = None
    """Difference to the baseline, nats."""
    sd: float | None = None
    """Standard deviation of the differences, nats."""
    low: float | None = None
    """Lower end of the simultaneous interval of the mean, nats."""
    high: float | None = None
    level: float | None = None
    """Of the interval."""
    p: float | None = None
    p_holm: float | None = None
    tost_p: float | None = None
    regret: float | None = None
    """Nats."""
    pairs_needed: int | None = None
    """To see the margin."""
    pairs_needed_regret: int | None = None
    """To see the margin with the regret subtracted."""
    smallest_visible: float | None = None
    """Nats."""


@dataclass(frozen=True, kw_only=True)
class VerdictRow(Quantities):
    """An arm with its verdict and its learning rate."""

    arm: str
    verdict: str
    """A verdict, or `baseline`, or `pending`."""
    cause: str = ""
    reason: str = ""
    fisher_p: float | None = None
    tags: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    lr: float | None = None
    """The chosen learning rate."""
    method: str = ""
    """Of the choice."""
    rate_note: str = ""
    edge: str | None = None
    """Of the grid, at which the best rate still lies."""
    hardly_tuned: bool = False

    @property
    def note(self) -> str:
        """The reason, the tags, and how the rate was found, in words."""
        # An arm without a rate was never tested: its tags would qualify nothing.
        if self.lr is None and self.reason:
            was_lost = self.cause == "failed or missing run"
            return f"{self.reason}; {self.rate_note}" if was_lost else self.reason
        parts = [self.reason, *self.tags]
        if self.hardly_tuned:
            parts.append("rate hardly tuned")
        if self.edge and self.cause != "rate at edge":
            parts.append(f"rate at the {self.edge} edge of the grid")
        elif not self.edge and not self.hardly_tuned:
            parts.append(self.rate_note)
        return "; ".join(dict.fromkeys(filter(None, parts)))


@dataclass(frozen=True, kw_only=True)
class EffectRow(Quantities):
    """An effect of a factorial design, with the labels of its levels."""

    name: str
    kind: str
    factor: str
    step: str
    """The change of level: `post-norm instead of pre-norm`."""
    at: str = ""
    """Level of the other factor, of a simple effect or an interaction."""
    instead_of: str = ""
    """Level that `at` is compared with, of an interaction."""
    verdict: str
    cause: str = ""
    reason: str = ""


def verdict_rows(folder: StudyFolder) -> list[VerdictRow]:
    """Return a row for every arm, the baseline first."""
    question, resolved = folder.load_question(), folder.load_resolved()
    verdict, choices = folder.load_verdict(), folder.load_choices()
    baseline = question.baseline or (resolved.baseline if resolved else None)
    arms = question.arm_names or (resolved.arm_names if resolved else [])
    rows = []
    for arm in arms:
        word = "baseline" if arm == baseline else "pending"
        rows.append(_verdict_row(arm, word, verdict.of(arm) if verdict else None, choices.get(arm)))
    return rows


def effect_rows(folder: StudyFolder) -> list[EffectRow]:
    """Return a row for every effect of a factorial design, in the order of verdict.json; none
    before the verdict.
    """
    verdict = folder.load_verdict()
    factors = folder.load_question().factors or {}
    return [_effect_row(effect, factors) for effect in verdict.effects] if verdict else []


def level_label(factors: Levels, factor: str, level: str) -> str:
    """Return the label of a level, else its name."""
    levels = factors.get(factor, {})
    return (one_line(levels[level].label or "") if level in levels else "") or level


def _verdict_row(
    arm: str, word: str, verdict: ArmVerdict | None, choice: Choice | None
) -> VerdictRow:
    row: dict[str, Any] = {"arm": arm, "verdict": word}
    if choice is not None:
        row |= {
            "lr": choice.lr,
            "method": choice.method or "",
            "rate_note": choice.note,
            "edge": choice.edge,
            "hardly_tuned": choice.hardly_tuned,
        }
    if verdict is not None:
        judged = ("cause", "reason", "fisher_p", "tags", "counts")
        row |= {name: getattr(verdict, name) for name in judged} | _quantities(verdict)
        if word != "baseline":
            row["verdict"] = verdict.verdict
    return VerdictRow(**row)


def _effect_row(effect: EffectVerdict, factors: Levels) -> EffectRow:
    first, *others = effect.steps
    new = level_label(factors, first["factor"], first["level"])
    old = level_label(factors, first["factor"], first["against"])
    step = f"{new} instead of {old}"
    at = [level_label(factors, factor, level) for factor, level in effect.at.items()]
    at += [level_label(factors, other["factor"], other["level"]) for other in others]
    if others:
        name = f"{new} × {at[0]}"
    elif at:
        name = f"{step}, with {at[0]}"
    else:
        name = f"{step}, on average"
    against = [level_label(factors, other["factor"], other["against"]) for other in others]
    return EffectRow(
        name=name,
        kind=effect.kind,
        factor=first["factor"],
        step=step,
        at=at[0] if at else "",
        instead_of="".join(against),
        verdict=effect.verdict,
        cause=effect.cause,
        reason=effect.reason,
        **_quantities(effect),
    )


def _quantities(judged: Judged) -> dict[str, Any]:
    return {quantity.name: getattr(judged, quantity.name) for quantity in fields(Quantities)}
