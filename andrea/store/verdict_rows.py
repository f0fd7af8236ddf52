"""The verdicts of a study as plain rows: one per arm, read from the study's own files."""

from collections.abc import Mapping
from typing import Any

from andrea.store.studies import StudyFolder
from andrea.text.names import line

Row = dict[str, Any]

_TOLD = (
    "n mean sd level p p_holm tost_p fisher_p regret pairs_needed pairs_needed_regret "
    "smallest_visible"
)
"""What a row takes from verdict.json as it is."""


def arm_names(protocol: Mapping[str, Any], resolved: Mapping[str, Any]) -> list[str]:
    """The arms in declared order, the baseline first; a sweep has one, `sweep`'s own."""
    declared = [str(arm) for arm in (protocol.get("arms") or resolved.get("arms") or {})]
    baseline = baseline_name(protocol, resolved)
    if baseline is None:
        return declared
    return [baseline, *(arm for arm in declared if arm != baseline)]


def baseline_name(protocol: Mapping[str, Any], resolved: Mapping[str, Any]) -> str | None:
    """The arm that the others are compared with."""
    name = protocol.get("baseline") or resolved.get("baseline")
    return str(name) if name is not None else None


def verdict_rows(folder: StudyFolder) -> list[Row]:
    """One row per arm, the baseline first, raw numbers.

    Keys: arm; verdict (`baseline`, `pending`, or a verdict); cause; reason; n (pairs); mean, low,
        high, sd (nats:
    difference to the baseline, its simultaneous interval, standard deviation of the differences);
    level (of the interval); p, p_holm, tost_p, fisher_p; regret (nats); pairs_needed (to see m),
    pairs_needed_regret (to see it with the regret subtracted); smallest_visible (nats); tags;
    counts; lr, method, rate_note, edge, hardly_tuned (of the tuning).

    Where a planned pair is not whole (diverged, stalled, failed, missing) nothing is told that is
    computed from the pairs: it would be a mean over the seeds that happened to survive. The judge
    leaves it out of verdict.json already.
    """
    protocol, resolved = folder.protocol(), folder.read("resolved.json") or {}
    choices = folder.read("choices.json") or {}
    judged = {str(v["arm"]): v for v in (folder.read("verdict.json") or {}).get("verdicts", [])}
    baseline = baseline_name(protocol, resolved)
    return [
        _row(arm, judged.get(arm), choices.get(arm) or {}, arm == baseline)
        for arm in arm_names(protocol, resolved)
    ]


def _row(
    arm: str, verdict: Mapping[str, Any] | None, choice: Mapping[str, Any], baseline: bool
) -> Row:
    found = verdict or {}
    low, high = found.get("interval") or (None, None)
    row: Row = {
        "arm": arm,
        "verdict": "baseline" if baseline else found.get("verdict") or "pending",
        "cause": found.get("cause") or "",
        "reason": found.get("reason") or "",
        "low": low,
        "high": high,
        "tags": list(found.get("tags") or []),
        "counts": dict(found.get("counts") or {}),
        "lr": choice.get("lr"),
        "method": choice.get("method") or "",
        "rate_note": choice.get("note") or "",
        "edge": choice.get("edge"),
        "hardly_tuned": bool(choice.get("hardly_tuned")),
    }
    return row | {key: found.get(key) for key in _TOLD.split()}


_EFFECT = (
    "kind verdict cause reason n mean sd level p p_holm tost_p regret pairs_needed "
    "pairs_needed_regret"
)
"""What a row of an effect takes from verdict.json as it is, with `smallest_visible`."""


def effect_rows(folder: StudyFolder) -> list[Row]:
    """One row per effect of a factorial design in the order of verdict.json; none before the
    verdict.

    Keys: name (with labels); factor, step (`post-norm instead of pre-norm`), at (the other factor's
        level, of a simple
    effect or an interaction), instead_of (what that level is compared with, of an interaction);
    low, high; and as in `verdict_rows`: kind, verdict, cause, reason, n, mean, sd, level, p,
    p_holm, tost_p, regret, pairs_needed, pairs_needed_regret, smallest_visible.
    """
    factors = folder.protocol().get("factors") or {}
    found = (folder.read("verdict.json") or {}).get("effects") or []
    return [_effect_row(effect, factors) for effect in found]


def level_label(factors: Mapping[str, Any], factor: str, level: str) -> str:
    """What a level is called: its label, else its name."""
    told = (factors.get(factor) or {}).get(level) or {}
    return line(told.get("label") or "") or level


def _effect_row(effect: Mapping[str, Any], factors: Mapping[str, Any]) -> Row:
    first, *other = effect["steps"]
    new, old = (level_label(factors, first["factor"], first[key]) for key in ("level", "against"))
    at = [level_label(factors, factor, level) for factor, level in effect["at"].items()]
    at += [level_label(factors, step["factor"], step["level"]) for step in other]
    change = f"{new} instead of {old}"
    name = (
        f"{new} × {at[0]}"
        if other
        else f"{change}, with {at[0]}"
        if at
        else f"{change}, on average"
    )
    low, high = effect.get("interval") or (None, None)
    row: Row = {
        "name": name,
        "factor": first["factor"],
        "step": change,
        "at": at[0] if at else "",
        "instead_of": "".join(
            level_label(factors, step["factor"], step["against"]) for step in other
        ),
        "low": low,
        "high": high,
    }
    return row | {key: effect.get(key) for key in [*_EFFECT.split(), "smallest_visible"]}
