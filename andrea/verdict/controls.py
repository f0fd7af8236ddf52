"""Controls: trainings with a known outcome. One that comes out otherwise takes words away, never
adds any.

    determinism check   one baseline run trained once more: the same numbers
    A/A                 the baseline with other initial weights, on the same batches: no difference
    positive control    the baseline on half the tokens, its schedule ending there: worse

On screen and in files the first is called `repeat` and the last `ruler`. A run that diverged or
stalled is a result and is judged here; one that failed or is missing leaves its control unknown.
docs/method.md, *Controls*.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from andrea.errors import list_first
from andrea.verdict import paired
from andrea.verdict.replicates import (
    Difference,
    Replicate,
    Replicates,
    evaluated_digests,
    weighted_differences,
)

A_A_LEVEL = 0.005
"""p below which an A/A difference beyond the margin is no chance: one study in 200 fails by bad
luck, if its seeds are at all so noisy that a mean beyond the margin can come by chance.
"""
INTERVAL_LEVEL = 0.95
"""Of the intervals of paired controls: each stands by itself, in no family."""
MOST_NAMES = 4
"""Differing fields that a reason names."""


@dataclass(frozen=True)
class ControlSummary:
    """Controls that came out as they must, and those that did not; None: not run, or unknown."""

    determinism: bool | None = None
    """One run done twice agrees with itself."""
    a_a: bool | None = None
    """The baseline with other initial weights does not differ from itself."""
    positive: bool | None = None
    """The baseline comes out worse on half the tokens; where not, the study cannot see so large a
    difference.
    """

    @property
    def failed_checks(self) -> list[str]:
        """Names of the failed controls that make every verdict *invalid*; a failed positive control
        voids some only.
        """
        outcomes = {"repeat": self.determinism, "A/A": self.a_a}
        return [name for name, ok in outcomes.items() if ok is False]


@dataclass(frozen=True)
class DeterminismCheck:
    """A run that was trained twice."""

    ok: bool | None
    """The run agrees with itself; None: unknown."""
    reason: str
    """One sentence for the reader."""
    deterministic: bool
    """The route promises the same bits."""
    difference: float | None = None
    """|loss − loss of the repeat|, nats."""


@dataclass(frozen=True)
class PairedControl:
    """Runs of the baseline that were changed in one thing, paired by seed with its replicates."""

    ok: bool | None
    """The control came out as it must; None: unknown."""
    reason: str
    """One sentence for the reader."""
    n: int
    """Pairs in which both runs are good."""
    differences: list[Difference] = field(default_factory=list)
    """Changed − baseline by seed, nats."""
    mean: float | None = None
    """None, like all that is computed from the pairs, unless every planned pair is good."""
    sd: float | None = None
    p: float | None = None
    """Of the t test that decides the control: two-sided for A/A, one-sided for a positive control.
    """
    interval: tuple[float, float] | None = None
    """Of the mean, 95 %, two-sided."""


def check_determinism(
    first: Replicate | None,
    repeat: Replicate | None,
    margin: float,
    *,
    deterministic: bool,
    changed: Sequence[str] = (),
) -> DeterminismCheck:
    """Compare a run with itself, trained once more.

    Args:
        first: the run; None where it has no result.
        repeat: the same trained once more.
        margin: smallest effect of interest, nats.
        deterministic: the route promises the same bits; else the losses must be closer than the
            margin.
        changed: what differs between the two records, clocks aside; read where the route is
            deterministic.
    """
    if first is None or repeat is None:
        missing = "the run that is repeated" if first is None else "the repeat"
        return DeterminismCheck(None, f"{missing} failed or is missing", deterministic)
    end, repeat_end = _describe_end(first), _describe_end(repeat)
    if end != repeat_end:
        return DeterminismCheck(False, f"the run {end}, its repeat {repeat_end}", deterministic)
    loss, repeat_loss = _finite_loss(first), _finite_loss(repeat)
    difference = None if loss is None or repeat_loss is None else abs(loss - repeat_loss)
    # Where the same bits are promised, a difference however small is a fault of the route.
    if deterministic:
        differing = list(dict.fromkeys([*(["loss"] if loss != repeat_loss else []), *changed]))
        return _compare_bits(differing, difference)
    if difference is None or not first.good:
        reason = f"the run {end}, and so did its repeat: there is no loss to compare"
        return DeterminismCheck(None, reason, False)
    if difference < margin:
        reason = f"the repeat differs by {difference:.2g} nats, less than m"
        return DeterminismCheck(True, reason, False, difference)
    reason = f"the repeat differs by {difference:.4f} nats, m is {margin:g}"
    return DeterminismCheck(False, reason, False, difference)


def _compare_bits(differing: list[str], difference: float | None) -> DeterminismCheck:
    """Judge a repeat on a route that promises the same bits."""
    if not differing:
        return DeterminismCheck(True, "the repeat is the same to the last bit", True, difference)
    names = list_first(differing, MOST_NAMES)
    reason = f"the repeat differs in {names}, on a route that gives the same bits"
    return DeterminismCheck(False, reason, True, difference)


def _describe_end(run: Replicate) -> str:
    if run.good:
        return "completed"
    return run.fate if run.unstable else f"ended {run.outcome}"


def _finite_loss(run: Replicate) -> float | None:
    return run.loss if run.loss is not None and math.isfinite(run.loss) else None


def judge_a_a(
    baseline: Replicates, other: Replicates, seeds: Sequence[int], margin: float
) -> PairedControl:
    """Judge the baseline with other initial weights against itself: it fails at p < .005 and
    |mean| > margin.

    It also fails where one of its runs diverged or stalled, as any baseline run must train, and
    where no loss changed at all: then no other weights were drawn, and nothing was controlled.

    Args:
        baseline: replicates by seed.
        other: the same with other initial weights, by the same seeds.
        seeds: all planned pairs.
        margin: smallest effect of interest, nats.
    """
    control = _describe_pairs(baseline, other, seeds)
    if (early := _judge_before_test(control, baseline, other, seeds)) is not None:
        return early
    if instability := _explain_instability(other, seeds):
        reason = f"{instability} with other initial weights: the baseline does not train reliably"
        return _without_numbers(control, False, reason)
    values = [pair.difference for pair in control.differences]
    p, size = paired.t_test_p(values), abs(control.mean or 0.0)
    tested = replace(control, p=p)
    if not any(values):
        reason = "no loss changed: other initial weights were not drawn"
        return replace(tested, ok=False, reason=reason)
    if p < A_A_LEVEL and size > margin:
        reason = f"the baseline differs from itself by {size:.4f} nats (p = {p:.2g})"
        return replace(tested, ok=False, reason=reason)
    small = "a mean within m" if size <= margin else f"a mean that chance gives (p = {p:.2g})"
    return replace(tested, ok=True, reason=f"the baseline does not differ from itself: {small}")


def judge_positive_control(
    baseline: Replicates,
    other: Replicates,
    seeds: Sequence[int],
    alpha: float,
    *,
    factor: float = 0.5,
) -> PairedControl:
    """Judge the baseline on `factor` times the tokens: below 1 it must come out worse, above 1
    better.

    A one-sided paired t test at `alpha`; a sign test where runs diverged or stalled.

    Args:
        baseline: replicates by seed.
        other: the baseline on that share of the tokens, by the same seeds.
        seeds: all planned pairs.
        alpha: level of the test, `protocol.alpha`.
        factor: share of the baseline's tokens.
    """
    control = _describe_pairs(baseline, other, seeds)
    if (early := _judge_before_test(control, baseline, other, seeds)) is not None:
        return early
    if instability := _explain_instability(other, seeds):
        return _judge_by_signs(control, instability, factor, seeds, alpha)
    half_budget = factor < 1
    values = [pair.difference if half_budget else -pair.difference for pair in control.differences]
    p, mean = paired.t_test_p(values, 0.0, "greater"), control.mean or 0.0
    direction = "better" if mean < 0 else "worse"
    size = f"the baseline on {factor:g}× the tokens is {abs(mean):.4f} nats {direction}"
    if p < alpha:
        return replace(control, ok=True, p=p, reason=f"{size}, as it must be")
    must_be = "worse" if half_budget else "better"
    reason = f"{size}: not shown to be {must_be} (one-sided p = {p:.2g})"
    return replace(control, ok=False, p=p, reason=reason)


def _judge_by_signs(
    control: PairedControl, instability: str, factor: float, seeds: Sequence[int], alpha: float
) -> PairedControl:
    """Judge a positive control that lost runs.

    Nothing is averaged. On fewer tokens the lost runs came out worse, and the control holds if
    every other pair did too, by a sign test at the same level.
    """
    differences = [pair.difference for pair in control.differences]
    half_budget = factor < 1
    every_pair_worse = half_budget and all(difference > 0 for difference in differences)
    significant = 0.5 ** len(seeds) < alpha
    reason = f"{instability} on {factor:g}× the tokens"
    # A run that diverged on more tokens is no sign that more tokens help, so factors above 1 fail.
    if half_budget and differences:
        reason += "; the other pairs "
        reason += "are worse too" if every_pair_worse else "do not all show it"
    if every_pair_worse and not significant:
        reason += f", as chance has it in one study of {2 ** len(seeds)}"
    return _without_numbers(control, every_pair_worse and significant, reason)


def _describe_pairs(baseline: Replicates, other: Replicates, seeds: Sequence[int]) -> PairedControl:
    """Return the pairs, and what describes them where all are good; not judged yet."""
    runs, weights = {"baseline": baseline, "other": other}, {"baseline": -1.0, "other": 1.0}
    pairs = weighted_differences(runs, weights, sorted(seeds))
    control = PairedControl(None, "", len(pairs), pairs)
    if len(pairs) < max(2, len(seeds)):
        return control
    values = [pair.difference for pair in pairs]
    return replace(
        control,
        mean=paired.mean_of(values),
        sd=paired.sd_of(values),
        interval=paired.t_interval(values, 1 - INTERVAL_LEVEL),
    )


def _judge_before_test(
    control: PairedControl, baseline: Replicates, other: Replicates, seeds: Sequence[int]
) -> PairedControl | None:
    """Return a control that is unknown, or void, before any test; else None."""
    if instability := _explain_instability(baseline, seeds):
        reason = f"{instability} of the baseline: there is nothing to compare with"
        return _without_numbers(control, None, reason)
    planned = [runs.get(seed) for runs in (baseline, other) for seed in seeds]
    absent = sum(run is None or run.fate == "failed" for run in planned)
    if absent:
        reason = f"{absent} of {len(planned)} runs failed or are missing"
        return _without_numbers(control, None, reason)
    if len(evaluated_digests(baseline, seeds) | evaluated_digests(other, seeds)) > 1:
        return _without_numbers(control, False, "runs were evaluated on different tokens")
    return None


def _explain_instability(runs: Replicates, seeds: Sequence[int]) -> str:
    """Return how many of the planned runs diverged or stalled, in words; empty where none did."""
    bad = sum(runs[seed].unstable for seed in seeds if seed in runs)
    return f"{bad} of {len(seeds)} runs diverged or stalled" if bad else ""


def _without_numbers(control: PairedControl, ok: bool | None, reason: str) -> PairedControl:
    # What survived is a selection: the pairs are there to be seen, and nothing is computed from
    # them.
    return PairedControl(ok, reason, control.n, control.differences)
