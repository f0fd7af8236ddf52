"""Interval of an effect over documents, beside the one over seeds.

It says how far the effect may be that of the evaluated texts. Random here are the documents, as if
drawn from a population of documents like these; the trained models, and with them the seeds, are
fixed. The interval over seeds is the other half: there the seeds are random and the texts fixed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used: most commands judge nothing
from numpy.typing import NDArray

LEVEL = 0.95

Array = NDArray[np.float64]
Losses = Mapping[int, Mapping[str, tuple[int, float]]]
"""By seed and document: evaluated tokens, and the loss on them in nats per token."""


@dataclass(frozen=True)
class Documents:
    """The mean difference over all evaluated tokens, and its interval over documents."""

    n_documents: int
    mean: float | None
    """Mean over tokens, and over seeds, of arm − baseline, nats."""
    interval: tuple[float, float] | None
    level: float = LEVEL
    freedom: float | None = None
    """Degrees of freedom: documents − 1 where all are equally long, fewer where a few long ones
    decide.
    """
    reason: str = ""
    """Why there is no interval."""


def over_documents(arm: Losses, baseline: Losses) -> Documents:
    """Return the interval over documents of the mean paired difference.

    Every document has one value, δ: the mean over the seeds of arm − baseline. The estimate is the
    mean of δ weighted by tokens, which is the difference of the final losses: a ratio estimator,
    whose variance is robust to documents that scatter differently (the sandwich of a weighted least
    squares with one coefficient, HC2), with the degrees of freedom of Bell & McCaffrey (2002).
    Documents of equal length give the t interval of δ.

    Refused, with the reason: fewer than two documents; seeds without their pair; runs that were
    evaluated on other documents or on other tokens of them; a loss that is not finite.
    """
    if reason := _explain_not_paired(arm, baseline):
        return Documents(0, None, None, reason=reason)
    # Averaged over seeds first: the models are fixed here, and the documents are the sample.
    seeds = sorted(arm)
    names = sorted(arm[seeds[0]])
    n = len(names)
    tokens = np.array([arm[seeds[0]][name][0] for name in names], dtype=float)
    differences = np.empty((len(seeds), n))
    for row, seed in enumerate(seeds):
        differences[row] = [arm[seed][name][1] - baseline[seed][name][1] for name in names]
    delta, share = differences.mean(axis=0), tokens / tokens.sum()
    mean = float(share @ delta)
    if not math.isfinite(mean):
        return Documents(n, None, None, reason="a loss is not finite")
    if n < 2:
        return Documents(n, mean, None, reason="one document says nothing about others")
    error, freedom = _sandwich(delta - mean, tokens)
    half = error * float(-scipy.special.stdtrit(freedom, (1 - LEVEL) / 2))
    return Documents(n, mean, (mean - half, mean + half), LEVEL, freedom)


def _explain_not_paired(arm: Losses, baseline: Losses) -> str:
    """Return why these runs cannot be compared document by document; empty where they can."""
    if not arm or arm.keys() != baseline.keys():
        return "some planned pair is not whole"
    lengths = [_tokens_by_document(run) for run in (*arm.values(), *baseline.values())]
    if any(other != lengths[0] for other in lengths):
        return "runs were evaluated on different documents"
    if not lengths[0] or not all(tokens > 0 for tokens in lengths[0].values()):
        return "the evaluated text has no documents"
    return ""


def _tokens_by_document(run: Mapping[str, tuple[int, float]]) -> dict[str, int]:
    return {name: tokens for name, (tokens, _) in run.items()}


def _sandwich(residuals: Array, tokens: Array) -> tuple[float, float]:
    """Return the standard error of the mean weighted by tokens, and its degrees of freedom.

    V = Σ p² e² / (1 − p) is unbiased where documents scatter as their length says (variance ∝
    1/tokens), and robust where not; it is a quadratic form δ'Aδ, so matching two moments gives
    (tr)² / tr² of A under that model. There the residuals have the covariance [i = j] / p_i − 1, so
    that with d = p² / (1 − p) the trace is Σ d (1/p − 1) = 1, and that of the square Σ p² + Σ_{i≠j}
    d_i d_j: no matrix of documents × documents is needed.
    """
    total = tokens.sum()
    share, rest = tokens / total, (total - tokens) / total
    weight = share**2 / rest
    ascending = np.sort(weight)
    # Not as a difference of squares: one of them may be huge, and digits would be lost.
    pairs = 2 * float(ascending[1:] @ np.cumsum(ascending)[:-1])
    return math.sqrt(float(weight @ residuals**2)), 1 / (float(share @ share) + pairs)
