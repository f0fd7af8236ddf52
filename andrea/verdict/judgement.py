"""What a study says about one contrast, as it stands in verdict.json."""

from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from andrea.verdict.contrast import ArmContrast, Contrast, Word
from andrea.verdict.design import FactorialContrast
from andrea.verdict.replicates import Difference, Fates

METHOD = 3
"""Version of the method; a study that was judged by an older one is judged again.

3: the regret is that of the rate that was chosen, under curves that the noise could as well have
   given; beside a cliff it was too small. A positive control that lost runs holds by a sign test.
2: controls void verdicts; effects of a factorial design whose baseline did not train are *invalid*.
"""

AnyContrast = TypeVar("AnyContrast", bound=Contrast)

NOT_COMPUTED: dict[str, Any] = dict.fromkeys((
    "mean", "sd", "interval", "p", "p_regret", "p_holm", "p_holm_regret", "tost_p", "tost_p_regret",
    "pairs_needed", "pairs_needed_regret", "smallest_visible",
))  # fmt: skip
"""None for every field of a `Judgement` that is computed from the pairs."""


@dataclass(frozen=True)
class Judgement(Generic[AnyContrast]):
    """What the study says about one contrast, and with what right.

    Untested quantities are None. p values that are adjusted and intervals that are simultaneous
    are so over the family of the contrast.
    """

    contrast: AnyContrast
    verdict: Word
    """better, worse, equivalent (arms, main and simple effects); present, absent (interactions);
    and what any may be: unstable, inconclusive, invalid.
    """
    cause: str
    """Short qualifier ("rate at edge", "small but real"), or empty: `inconclusive (rate at edge)`.
    """
    reason: str
    """One sentence for the reader."""
    n: int
    """Seeds at which every arm of the contrast has a good run: pairs, of two arms."""
    differences: list[Difference]
    """The contrast at those seeds, nats."""
    margin: float
    """Smallest effect of interest, nats."""
    level: float
    """Level of `interval`, 1 − alpha / family_size."""
    family_size: int
    """Contrasts of the family (k), those that could not be tested included."""
    regret: float | None
    """Regrets of the arms, each times the size of its weight; None: unknown."""
    fates: dict[str, Fates]
    """Fates of the planned runs of every arm of the contrast."""
    mean: float | None = None
    """Mean over the seeds, nats; None, like all that is computed from the pairs, unless every
    planned pair is good.
    """
    sd: float | None = None
    """Standard deviation over the seeds: the noise against which the mean is judged."""
    interval: tuple[float, float] | None = None
    """Simultaneous interval of the mean."""
    p: float | None = None
    """Paired t test, two-sided, unadjusted."""
    p_regret: float | None = None
    """The same with |mean| − regret in place of |mean|."""
    p_holm: float | None = None
    """`p`, Holm-adjusted over the family; what was not tested counts as p = 1."""
    p_holm_regret: float | None = None
    """`p_regret`, Holm-adjusted: better and worse must hold here too."""
    tost_p: float | None = None
    """Two one-sided tests against ±margin; equivalent where it is below alpha / family_size."""
    tost_p_regret: float | None = None
    """The same against ±(margin − regret)."""
    fisher_p: float | None = None
    """Arms only: Fisher's exact p that arm and baseline diverge or stall equally often; where
    either did.
    """
    pairs_needed: int | None = None
    """Pairs that would see an effect of the margin's size with 80 % power at this sd; None: no
    sensible number.
    """
    pairs_needed_regret: int | None = None
    """The same for an effect of margin − regret: better and worse must hold beyond the regret."""
    smallest_visible: float | None = None
    """Effect in nats that these n pairs see with 80 % power: context, decides nothing."""
    tags: list[str] = field(default_factory=list)
    """exploratory, rate hardly tuned, regret unknown."""

    @property
    def values(self) -> list[float]:
        """The differences without their seeds, nats."""
        return [pair.difference for pair in self.differences]

    def __str__(self) -> str:
        return f"{self.verdict} ({self.cause})" if self.cause else self.verdict

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, in the order in which verdict.json has them."""
        # Keys of files stay: studies that were judged earlier, and programs of users, have them.
        entries_by_field: dict[str, dict[str, Any]] = {
            "margin": {"m": self.margin},
            "interval": {"interval": list(self.interval) if self.interval else None},
            **self.contrast.json_entries(self.fates, self.family_size),
        }
        entries: dict[str, Any] = {}
        for name, value in asdict(self).items():
            entries |= entries_by_field.get(name, {name: value})
        return entries


Verdict = Judgement[ArmContrast]
Effect = Judgement[FactorialContrast]
