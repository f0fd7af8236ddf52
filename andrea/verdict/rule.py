"""The part of the verdict that rests on tests: the same for an arm against the baseline and for an
effect of a factor.

docs/method.md derives it.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from andrea.verdict import paired

HARDLY = "rate hardly tuned"
VOID = ("equivalent", "absent", "inconclusive")
"""Words that a failed ruler takes away: they say that nothing was seen, by an experiment that sees
too little.
"""
RULER = (
    "ruler failed",
    "ruler failed: the baseline on half the tokens was not seen to be worse, so to have seen "
    "nothing tells nothing",
)
"""Cause and reason of what a failed ruler has made invalid."""
UNTESTED: dict[str, Any] = dict.fromkeys(
    ("p", "p_regret", "p_holm", "p_holm_regret", "tost_p", "tost_p_regret")
)
"""The p values of what is not judged by tests."""


class Tested(Protocol):
    """What the rule reads."""

    @property
    def mean(self) -> float | None: ...
    @property
    def regret(self) -> float | None: ...
    @property
    def p_holm(self) -> float | None: ...
    @property
    def p_holm_regret(self) -> float | None: ...
    @property
    def tost_p(self) -> float | None: ...
    @property
    def tost_p_regret(self) -> float | None: ...
    @property
    def tags(self) -> list[str]: ...


class Ruling(NamedTuple):
    """What the tests say."""

    says: Literal["equivalent", "better", "worse", "nothing"]
    uncertain: bool
    """The runs alone say it, and the regret is too large or unknown."""
    cause: str
    """Short qualifier, or empty."""


def p_values(differences: Sequence[float], m: float, regret: float | None) -> dict[str, Any]:
    """The p values, plain and with the regret set against the effect; an unknown regret counts as
    none here.
    """
    against = regret or 0.0
    return {
        "p": paired.p_value(differences),
        "p_regret": paired.beyond(differences, against),
        "tost_p": paired.tost(differences, m),
        "tost_p_regret": paired.tost(differences, m - against),
    }


def adjusted(
    plain: Sequence[float | None], guarded: Sequence[float | None]
) -> list[dict[str, Any]]:
    """Holm's adjustment over a family, without and with the regret; what could not be tested counts
    as p = 1.

    Dropping it would make the tests of the others easier.
    """
    both = [paired.holm([1.0 if p is None else p for p in family]) for family in (plain, guarded)]
    return [{"p_holm": p, "p_holm_regret": p_regret} for p, p_regret in zip(*both, strict=True)]


def rule(found: Tested, alpha: float, k: int) -> Ruling:
    """The word that the tests of one member of a family of k give, at a family-wise error rate of
    alpha.
    """
    assert found.mean is not None and found.p_holm is not None and found.p_holm_regret is not None
    assert found.tost_p is not None and found.tost_p_regret is not None
    hardly = HARDLY in found.tags
    known = found.regret is not None or hardly
    # With one or two rates nothing guards the verdict, so it carries its weakness in its name.
    weak = HARDLY if hardly and found.regret is None else ""
    real = known and found.p_holm_regret < alpha
    if found.tost_p < alpha / k:
        sure = known and found.tost_p_regret < alpha / k
        cause = ", ".join(part for part in ("small but real" if real else "", weak) if part)
        return Ruling("equivalent", not sure, cause if sure else "")
    if found.p_holm < alpha:
        return Ruling("better" if found.mean < 0 else "worse", not real, weak if real else "")
    return Ruling("nothing", False, "")


def control_failed(names: Sequence[str]) -> tuple[str, str]:
    """Cause and reason of what a failed repeat or A/A has made invalid."""
    return "control failed", f"control failed: {' and '.join(names)}"


def what_would_tell(m: float, n: int, needed: int | None, guarded: int | None) -> str:
    """Why nothing shows, and how many pairs would see an effect of m."""
    if needed is None:
        return f"neither a difference nor its absence shows; no sensible number of pairs would see {m:g} nats"
    if needed <= n:
        seen = f"{n} pairs see a difference of {m:g} nats four times in five"
        return f"{seen}; here neither it nor its absence shows, so the effect may be none or near that size"
    more = f" ({guarded} with the regret subtracted)" if guarded not in (None, needed) else ""
    return f"would need about {needed} pairs to see {m:g} nats{more}; this study has {n}"


def too_uncertain(regret: float | None, says: str) -> str:
    """Why a word that the runs alone would give is not given."""
    cost = "an unknown loss" if regret is None else f"up to {regret:.4f} nats"
    return f"the runs alone say {says}, but the choice of learning rates may have cost {cost}: tune with more trials"
