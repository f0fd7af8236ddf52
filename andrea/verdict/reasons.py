"""Sentences of the verdict rule that are the same for every contrast."""

from collections.abc import Sequence

from andrea.verdict.contrast import Word
from andrea.verdict.judgement import AnyContrast, Judgement
from andrea.verdict.replicates import ArmData, count_fates, count_unstable

NO_POSITIVE_CONTROL = (
    "ruler failed: the baseline on half the tokens was not seen to be worse, so to have seen "
    "nothing tells nothing"
)


def explain_under_training(baseline: ArmData, seeds: Sequence[int]) -> str:
    """Return why there is nothing to compare with; empty where the baseline trained."""
    bad = count_unstable(count_fates(baseline, seeds))
    if baseline.untrainable:
        fact = "no tuning run of the baseline was good"
    elif bad:
        fact = f"{bad} of {len(seeds)} baseline runs diverged or stalled"
    else:
        return ""
    return (
        f"{fact}, so there is nothing to compare with; train longer (--tokens) where they "
        "stalled, tune at lower rates where they diverged"
    )


def explain_no_finding(judgement: Judgement[AnyContrast]) -> str:
    """Return how many pairs would see an effect of the margin's size."""
    n, needed, margin = judgement.n, judgement.pairs_needed, judgement.margin
    if needed is None:
        return (
            "neither a difference nor its absence shows; no sensible number of pairs would see "
            f"{margin:g} nats"
        )
    if needed <= n:
        return (
            f"{n} pairs see a difference of {margin:g} nats four times in five; here neither it "
            "nor its absence shows, so the effect may be none or near that size"
        )
    guarded = judgement.pairs_needed_regret
    more = f" ({guarded} with the regret subtracted)" if guarded not in (None, needed) else ""
    return f"would need about {needed} pairs to see {margin:g} nats{more}; this study has {n}"


def explain_regret(regret: float | None, word: Word) -> str:
    """Return why a word that the runs alone would give is not given."""
    cost = "an unknown loss" if regret is None else f"up to {regret:.4f} nats"
    return (
        f"the runs alone say {word}, but the choice of learning rates may have cost {cost}: "
        "tune with more trials"
    )
