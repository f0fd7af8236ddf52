"""What a verdict is made from, and what it says. Plain values, as they stand in `verdict.json`."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from andrea.verdict.rates import Side

Word = Literal["better", "worse", "equivalent", "unstable", "inconclusive", "invalid"]

METHOD = 3
"""Version of the method; a report regraded with a newer one says which verdicts change.

3: the regret is that of the rate that was chosen, under curves that the noise could as well have
    given; beside a cliff
it was too small. A ruler that lost runs holds by a sign test.
2: controls void verdicts; effects of a factorial design whose baseline did not train are *invalid*.
"""


def good(outcome: str, stalled: bool | None, loss: float | None) -> bool:
    """Whether a run completed, learned something and has a finite loss: only then is its loss a
    measurement.
    """
    return outcome == "completed" and not stalled and loss is not None and math.isfinite(loss)


@dataclass(frozen=True)
class Replicate:
    """The end of one replication run."""

    loss: float | None
    """Final loss on the verdict part, in nats per token."""
    outcome: str = "completed"
    """completed, diverged, or anything else (failed, stopped, pruned): then it is no result."""
    stalled: bool = False
    digest: str | None = None
    """Of the evaluated tokens."""

    @property
    def unstable(self) -> bool:
        """Diverged or stalled: a result, and never averaged."""
        return self.outcome == "diverged" or (self.outcome == "completed" and self.stalled)

    @property
    def good(self) -> bool:
        """Completed, learned something and has a loss."""
        return good(self.outcome, self.stalled, self.loss)


@dataclass(frozen=True)
class ArmData:
    """An arm as the judge sees it."""

    name: str
    runs: Mapping[int, Replicate] = field(default_factory=dict)
    """Replicates by seed. A planned seed that is absent is a missing run."""
    edge: Side | None = None
    """The tuned rate lies at this edge of the grid."""
    regret: float | None = 0.0
    """Nats that the choice of the rate may have cost (`regret.regrets`); None: unknown."""
    hardly_tuned: bool = False
    """Fewer trials than the full design."""
    untrainable: bool = False
    """No tuning run of this arm was good: it has no rate and no replicates."""
    exploratory: bool = False
    """Some of its runs, tuning or replicate, are older than the freeze of the protocol."""


@dataclass(frozen=True)
class Controls:
    """Outcome of the controls; None where one was not run."""

    repeat: bool | None = None
    """One run done twice agrees with itself."""
    a_a: bool | None = None
    """The baseline with other initial weights does not differ from itself."""
    ruler: bool | None = None
    """The baseline comes out worse on half the tokens; where not, the study cannot see so large a
    difference.
    """

    @property
    def failed(self) -> list[str]:
        """Names of the failed controls that make every verdict *invalid*; the ruler's failure voids
        some only.
        """
        return [name for name, ok in (("repeat", self.repeat), ("A/A", self.a_a)) if ok is False]


@dataclass(frozen=True)
class Difference:
    """One pair: arm − baseline at one seed, in nats; negative is better."""

    seed: int
    difference: float


@dataclass(frozen=True)
class ArmSummary:
    """An arm by itself: its level, its noise over seeds, and what became of its runs."""

    arm: str
    n: int
    """Good runs, over which mean and sd are taken."""
    mean: float | None
    sd: float | None
    counts: dict[str, int]
    """Planned runs by fate: good, diverged, stalled, failed, missing."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Verdict:
    """What the study says about one arm against the baseline, and with what right.

    Untested quantities are None. p values that are adjusted or simultaneous are over `arms`
    declared arms.
    """

    arm: str
    verdict: Word
    cause: str
    """Short qualifier ("rate at edge", "small but real"), or empty: `inconclusive (rate at edge)`.
    """
    reason: str
    """One sentence for the reader."""
    n: int
    """Pairs in which both runs are good."""
    differences: list[Difference]
    m: float
    level: float
    """Level of `interval`, 1 − alpha / arms."""
    arms: int
    """Declared arms without the baseline (k)."""
    regret: float | None
    """Baseline's plus arm's; None: unknown."""
    counts: dict[str, int]
    """Fates of the arm's planned runs."""
    baseline_counts: dict[str, int]
    mean: float | None = None
    """Mean difference, nats; None, like all that is computed from the pairs, unless every planned
    pair is good.
    """
    sd: float | None = None
    """Standard deviation of the differences: the noise against which the mean is judged."""
    interval: tuple[float, float] | None = None
    """Simultaneous interval of the mean difference."""
    p: float | None = None
    """Paired t test, two-sided, unadjusted."""
    p_regret: float | None = None
    """The same with |mean| − regret in place of |mean|."""
    p_holm: float | None = None
    """`p`, Holm-adjusted over all declared arms; those that were not tested count as p = 1."""
    p_holm_regret: float | None = None
    """`p_regret`, Holm-adjusted: better and worse must hold here too."""
    tost_p: float | None = None
    """Two one-sided tests against ±m; equivalent where it is below alpha / arms."""
    tost_p_regret: float | None = None
    """The same against ±(m − regret)."""
    fisher_p: float | None = None
    """Fisher's exact p that arm and baseline diverge or stall equally often; where either did."""
    pairs_needed: int | None = None
    """Pairs that would see an effect of m with 80 % power at this sd; None: no sensible number."""
    pairs_needed_regret: int | None = None
    """The same with the regret subtracted: an effect of m − regret, as better and worse must hold
    beyond it.
    """
    smallest_visible: float | None = None
    """Effect in nats that these n pairs see with 80 % power: context, no gate."""
    tags: list[str] = field(default_factory=list)
    """exploratory, rate hardly tuned, regret unknown."""

    def __str__(self) -> str:
        return f"{self.verdict} ({self.cause})" if self.cause else self.verdict

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = asdict(self)
        values["interval"] = list(self.interval) if self.interval else None
        return values
