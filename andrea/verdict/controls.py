"""Controls: trainings whose outcome is known beforehand. One that comes out otherwise takes words
away, never adds any.

    repeat   one baseline run trained once more: the same numbers
    A/A      the baseline with other initial weights, on the same batches: no difference
    ruler    the baseline on half the tokens, its schedule ending there: worse

A run that diverged or stalled is a result and is judged here; one that failed or is missing leaves
its control unknown. docs/method.md, *Controls*.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from andrea.verdict import paired
from andrea.verdict.records import Difference, Replicate

A_A_LEVEL = 0.005
"""p below which an A/A difference larger than m is no chance: one study in 200 fails by bad luck,
if its seeds are at all so noisy that a mean beyond m can come by chance.
"""
INTERVAL = 0.95
"""Level of the intervals of paired controls: each stands by itself, in no family."""


@dataclass(frozen=True)
class Repeat:
    """A run that was trained twice."""

    ok: bool | None
    """Whether it agrees with itself; None: unknown."""
    reason: str
    """One sentence for the reader."""
    deterministic: bool
    """Whether it had to agree to the last bit."""
    difference: float | None = None
    """|loss − loss of the repeat|, nats."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Paired:
    """Runs of the baseline that were changed in one thing, paired by seed with its replicates."""

    ok: bool | None
    """Whether it came out as it must; None: unknown."""
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
    """Of the t test that the control is decided by: two-sided for A/A, one-sided for a ruler."""
    interval: tuple[float, float] | None = None
    """Of the mean, 95 %, two-sided."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "interval": list(self.interval) if self.interval else None}


def repeat(
    first: Replicate | None,
    again: Replicate | None,
    m: float,
    *,
    deterministic: bool,
    changed: Sequence[str] = (),
) -> Repeat:
    """Judge a run and its repeat.

    Args:
        first: the run; None where it has no result.
        again: the same trained once more.
        m: smallest effect of interest, nats.
        deterministic: the route promises the same bits; else the losses must be closer than m.
        changed: what differs between the two records, clocks aside; read where the route is
            deterministic.
    """
    if first is None or again is None:
        missing = "the run that is repeated" if first is None else "the repeat"
        return Repeat(None, f"{missing} failed or is missing", deterministic)
    fates = [_fate(first), _fate(again)]
    if fates[0] != fates[1]:
        return Repeat(False, f"the run {fates[0]}, its repeat {fates[1]}", deterministic)
    losses = [
        run.loss if run.loss is not None and math.isfinite(run.loss) else None
        for run in (first, again)
    ]
    difference = None if losses[0] is None or losses[1] is None else abs(losses[0] - losses[1])
    if deterministic:
        if differing := dict.fromkeys([*(["loss"] if losses[0] != losses[1] else []), *changed]):
            said = f"the repeat differs in {_listed(list(differing))}, on a route that gives the same bits"
            return Repeat(False, said, True, difference)
        return Repeat(True, "the repeat is the same to the last bit", True, difference)
    if difference is None or not first.good:
        return Repeat(
            None, f"the run {fates[0]}, and so did its repeat: there is no loss to compare", False
        )
    if difference < m:
        return Repeat(
            True, f"the repeat differs by {difference:.2g} nats, less than m", False, difference
        )
    return Repeat(
        False, f"the repeat differs by {difference:.4f} nats, m is {m:g}", False, difference
    )


def a_a(
    baseline: Mapping[int, Replicate],
    other: Mapping[int, Replicate],
    seeds: Sequence[int],
    m: float,
) -> Paired:
    """Judge the baseline with other initial weights against itself: fails at p < .005 and |mean| >
    m.

    It also fails where one of its runs diverged or stalled, as any baseline run must train, and
    where no loss changed at all: then no other weights were drawn, and nothing was controlled.

    Args:
        baseline: replicates by seed.
        other: the same with other initial weights, by the same seeds.
        seeds: all planned pairs.
        m: smallest effect of interest, nats.
    """
    found = _paired(baseline, other, seeds)
    if (early := _early(found, baseline, other, seeds)) is not None:
        return early
    if lost := _unstable(other, seeds):
        said = f"{lost} with other initial weights: the baseline does not train reliably"
        return _without_numbers(found, False, said)
    values = [d.difference for d in found.differences]
    p, mean = paired.p_value(values), float(found.mean or 0.0)
    tested = replace(found, p=p)
    if not any(values):
        return replace(
            tested, ok=False, reason="no loss changed: other initial weights were not drawn"
        )
    if p < A_A_LEVEL and abs(mean) > m:
        return replace(
            tested,
            ok=False,
            reason=f"the baseline differs from itself by {abs(mean):.4f} nats (p = {p:.2g})",
        )
    small = "a mean within m" if abs(mean) <= m else f"a mean that chance gives (p = {p:.2g})"
    return replace(tested, ok=True, reason=f"the baseline does not differ from itself: {small}")


def ruler(
    baseline: Mapping[int, Replicate],
    other: Mapping[int, Replicate],
    seeds: Sequence[int],
    alpha: float,
    *,
    factor: float = 0.5,
) -> Paired:
    """Judge the baseline on `factor` times the tokens: below 1 it must come out worse, above 1
    better.

    A one-sided paired t test at `alpha`. Where runs on fewer tokens diverged or stalled nothing is
    averaged: those came out worse, and the ruler holds if every other pair did too, by a sign test
    at the same level (2^-n < alpha).

    Args:
        baseline: replicates by seed.
        other: the baseline on that share of the tokens, by the same seeds.
        seeds: all planned pairs.
        alpha: level of the test, `protocol.alpha`.
        factor: share of the baseline's tokens.
    """
    found = _paired(baseline, other, seeds)
    if (early := _early(found, baseline, other, seeds)) is not None:
        return early
    budget, must = f"{factor:g}× the tokens", "worse" if factor < 1 else "better"
    values = [d.difference if factor < 1 else -d.difference for d in found.differences]
    if lost := _unstable(other, seeds):
        told, seen = factor < 1 and all(value > 0 for value in values), 0.5 ** len(seeds) < alpha
        ok = told and seen
        rest = "the other pairs are worse too" if told else "the other pairs do not all show it"
        said = f"{lost} on {budget}" + (f"; {rest}" if factor < 1 and values else "")
        said += f", as chance has it in one study of {2 ** len(seeds)}" if told and not seen else ""
        return _without_numbers(found, ok, said)
    p = paired.p_value(values, 0.0, "greater")
    mean = float(found.mean or 0.0)
    shown = f"the baseline on {budget} is {abs(mean):.4f} nats {'better' if mean < 0 else 'worse'}"
    if p < alpha:
        return replace(found, ok=True, p=p, reason=f"{shown}, as it must be")
    return replace(
        found, ok=False, p=p, reason=f"{shown}: not shown to be {must} (one-sided p = {p:.2g})"
    )


def _paired(
    baseline: Mapping[int, Replicate], other: Mapping[int, Replicate], seeds: Sequence[int]
) -> Paired:
    """The pairs, and what describes them where all are whole; no word yet."""
    pairs = []
    for seed in sorted(seeds):
        ours, theirs = other.get(seed), baseline.get(seed)
        if (
            ours
            and theirs
            and ours.good
            and theirs.good
            and ours.loss is not None
            and theirs.loss is not None
        ):
            pairs.append(Difference(seed, ours.loss - theirs.loss))
    values = [d.difference for d in pairs]
    if len(values) < max(2, len(seeds)):
        return Paired(None, "", len(pairs), pairs)
    mean, sd = paired.mean_of(values), paired.sd_of(values)
    return Paired(
        None, "", len(pairs), pairs, mean, sd, interval=paired.interval(values, 1 - INTERVAL)
    )


def _early(
    found: Paired,
    baseline: Mapping[int, Replicate],
    other: Mapping[int, Replicate],
    seeds: Sequence[int],
) -> Paired | None:
    """What leaves a control unknown, or void, before any test."""
    if lost := _unstable(baseline, seeds):
        return _without_numbers(
            found, None, f"{lost} of the baseline: there is nothing to compare with"
        )
    absent = sum(not _is_result(runs.get(seed)) for runs in (baseline, other) for seed in seeds)
    if absent:
        return _without_numbers(
            found, None, f"{absent} of {2 * len(seeds)} runs failed or are missing"
        )
    digests = {
        run.digest for runs in (baseline, other) for seed in seeds if (run := runs[seed]).good
    }
    if len(digests) > 1:
        return _without_numbers(found, False, "runs were evaluated on different tokens")
    return None


def _unstable(runs: Mapping[int, Replicate], seeds: Sequence[int]) -> str:
    """How many of the planned runs diverged or stalled, in words; empty where none did."""
    bad = [run for seed in seeds if (run := runs.get(seed)) and run.unstable]
    return f"{len(bad)} of {len(seeds)} runs diverged or stalled" if bad else ""


def _is_result(run: Replicate | None) -> bool:
    return run is not None and (run.good or run.unstable)


def _without_numbers(found: Paired, ok: bool | None, reason: str) -> Paired:
    """What survived is a selection: the pairs are there to be seen, and nothing is computed from
    them.
    """
    return Paired(ok, reason, found.n, found.differences)


def _fate(run: Replicate) -> str:
    if run.unstable:
        return "diverged" if run.outcome == "diverged" else "stalled"
    return "completed" if run.good else f"ended {run.outcome}"


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
