"""The verdict rule: first match wins, the same for every arm, decided before the first run.

    invalid, unstable, inconclusive (rate at edge; failed or missing run), equivalent, better /
    worse, inconclusive

docs/method.md derives each step; benchmarks/simulate_verdicts.py measures how often this file is
wrong.
"""

from collections.abc import Sequence
from dataclasses import replace

from andrea.errors import UserError
from andrea.verdict import paired, rule
from andrea.verdict.protocol import Protocol
from andrea.verdict.records import ArmData, ArmSummary, Controls, Difference, Verdict, Word
from andrea.verdict.seeds import replication_seed

UNDER_TRAINED = "under-trained"
"""Cause of an invalid verdict: the baseline did not train."""


def judge(
    protocol: Protocol,
    baseline: ArmData,
    arms: Sequence[ArmData],
    *,
    seeds: Sequence[int] | None = None,
    alpha: float | None = None,
    controls: Controls | None = None,
) -> list[Verdict]:
    """Judge every arm against the baseline, in the order given.

    Args:
        protocol: the frozen protocol.
        baseline: the arm to compare with.
        arms: *all* declared arms without the baseline, also those that could not be trained: they
            count in k.
        seeds: the planned seeds, one pair each; the protocol's replication seeds by default. A
            *confirmation* passes its own new block and is judged by that alone.
        alpha: what this *look* may spend; by default all of `protocol.alpha`, as there is one look.
        controls: outcomes of the controls; a failed repeat or A/A makes every verdict *invalid*, a
            failed ruler those that saw nothing. By default none were run.

    Raises:
        UserError: fewer than two seeds, or names that are not distinct.
    """
    planned = planned_seeds(protocol, seeds)
    names = [baseline.name, *(arm.name for arm in arms)]
    if len(set(names)) < len(names):
        raise UserError(f"arms must have distinct names, not {', '.join(names)}")
    level = protocol.alpha if alpha is None else alpha
    frames = [_frame(protocol, baseline, arm, planned, level, len(arms)) for arm in arms]
    early = [
        _early(frame, baseline, arm, planned, controls)
        for frame, arm in zip(frames, arms, strict=True)
    ]
    tested = [frame if done else _test(frame) for done, frame in zip(early, frames, strict=True)]
    holm = rule.adjusted([frame.p for frame in tested], [frame.p_regret for frame in tested])
    adjusted = [replace(frame, **values) for frame, values in zip(tested, holm, strict=True)]
    judged = [done or _late(frame, level) for done, frame in zip(early, adjusted, strict=True)]
    void = controls is not None and controls.ruler is False
    return [
        _say(v, "invalid", *rule.RULER) if void and v.verdict in rule.VOID else v for v in judged
    ]


def planned_seeds(protocol: Protocol, seeds: Sequence[int] | None = None) -> list[int]:
    """The seeds to judge by, ascending: the protocol's, or a block of their own.

    Raises:
        UserError: fewer than two.
    """
    planned = (
        [replication_seed(i) for i in range(protocol.seeds)]
        if seeds is None
        else sorted(set(seeds))
    )
    if len(planned) < 2:
        raise UserError(
            "a verdict needs at least 2 seeds: without a second pair there is no noise to judge by"
        )
    return planned


def summarise(arm: ArmData, seeds: Sequence[int]) -> ArmSummary:
    """An arm by itself over the planned seeds; the baseline's sd is the noise that the report
    states.
    """
    losses = [
        run.loss
        for seed in seeds
        if (run := arm.runs.get(seed)) and run.good and run.loss is not None
    ]
    return ArmSummary(
        arm.name, len(losses), paired.mean_of(losses), paired.sd_of(losses), fates(arm, seeds)
    )


def fates(arm: ArmData, seeds: Sequence[int]) -> dict[str, int]:
    """Planned runs of an arm by fate; every run is in exactly one."""
    counts = {"good": 0, "diverged": 0, "stalled": 0, "failed": 0, "missing": 0}
    for seed in seeds:
        run = arm.runs.get(seed)
        if run is None:
            counts["missing"] += 1
        elif run.unstable:
            counts["diverged" if run.outcome == "diverged" else "stalled"] += 1
        else:
            counts["good" if run.good else "failed"] += 1
    return counts


def _frame(
    protocol: Protocol, baseline: ArmData, arm: ArmData, seeds: Sequence[int], level: float, k: int
) -> Verdict:
    """The description that every verdict carries, before it has a word: pairs, noise, regret, what
    n could see.
    """
    alpha = level / k
    differences = _pairs(baseline, arm, seeds)
    values = [d.difference for d in differences]
    sd = paired.sd_of(values)
    regret = None if arm.regret is None or baseline.regret is None else arm.regret + baseline.regret
    counts, theirs = fates(arm, seeds), fates(baseline, seeds)
    bad, other = unstable(counts), unstable(theirs)
    tags = ["exploratory"] if arm.exploratory or baseline.exploratory else []
    if arm.hardly_tuned or baseline.hardly_tuned:
        tags.append(rule.HARDLY)
    if regret is None:
        tags.append("regret unknown")
    return Verdict(
        arm=arm.name,
        verdict="inconclusive",
        cause="",
        reason="",
        n=len(values),
        differences=differences,
        m=protocol.m,
        level=1 - alpha,
        arms=k,
        regret=regret,
        counts=counts,
        baseline_counts=theirs,
        mean=paired.mean_of(values),
        sd=sd,
        interval=None if sd is None else paired.interval(values, alpha),
        fisher_p=paired.fisher(bad, counts["good"], other, theirs["good"])
        if bad or other
        else None,
        pairs_needed=None if sd is None else paired.pairs_needed(protocol.m, sd, alpha),
        pairs_needed_regret=None
        if sd is None
        else paired.pairs_needed(protocol.m - (regret or 0.0), sd, alpha),
        smallest_visible=None if sd is None else sd * paired.visible(len(values), alpha),
        tags=tags,
    )


def _pairs(baseline: ArmData, arm: ArmData, seeds: Sequence[int]) -> list[Difference]:
    pairs = []
    for seed in sorted(seeds):
        ours, theirs = arm.runs.get(seed), baseline.runs.get(seed)
        if ours and theirs and ours.good and theirs.good:
            assert ours.loss is not None and theirs.loss is not None
            pairs.append(Difference(seed, ours.loss - theirs.loss))
    return pairs


def unstable(counts: dict[str, int]) -> int:
    """Planned runs that diverged or stalled."""
    return counts["diverged"] + counts["stalled"]


def _early(
    frame: Verdict, baseline: ArmData, arm: ArmData, seeds: Sequence[int], controls: Controls | None
) -> Verdict | None:
    """The verdicts that come before any test of means, or None."""
    if controls and controls.failed:
        return _say(frame, "invalid", *rule.control_failed(controls.failed))
    if len(digests(baseline, seeds) | digests(arm, seeds)) > 1:
        return _say(
            frame, "invalid", "evaluation differs", "runs were evaluated on different tokens"
        )
    if lost := under_trained(baseline, seeds):
        return _say(frame, "invalid", UNDER_TRAINED, lost)
    if arm.untrainable:
        return _say(frame, "unstable", "no rate trains", "every tuning run diverged or stalled")
    if bad := unstable(frame.counts):
        said = f"{bad} of {len(seeds)} runs diverged or stalled, {frame.baseline_counts['good']} baseline runs did not"
        return _say(frame, "unstable", "", f"{said}; the surviving pairs are shown and not tested")
    at_edge = [(data.name, data.edge) for data in (baseline, arm) if data.edge]
    if at_edge:
        where = " and ".join(f"{name} at the {side} end" for name, side in at_edge)
        return _say(
            frame,
            "inconclusive",
            "rate at edge",
            f"the best learning rate is outside the grid: {where}",
        )
    absent = [len(seeds) - counts["good"] for counts in (frame.counts, frame.baseline_counts)]
    if any(absent):
        said = f"{absent[0]} of the arm's and {absent[1]} of the baseline's {len(seeds)} runs failed or are missing"
        return _say(frame, "inconclusive", "failed or missing run", said)
    return None


def under_trained(baseline: ArmData, seeds: Sequence[int]) -> str:
    """Why there is nothing to compare with; empty where the baseline trained."""
    bad = unstable(fates(baseline, seeds))
    if not (baseline.untrainable or bad):
        return ""
    what = f"{bad} of {len(seeds)} baseline runs diverged or stalled"
    what = "no tuning run of the baseline was good" if baseline.untrainable else what
    said = (
        f"{what}, so there is nothing to compare with; train longer (--tokens) where they stalled"
    )
    return f"{said}, tune at lower rates where they diverged"


def digests(arm: ArmData, seeds: Sequence[int]) -> set[str | None]:
    """Of the tokens that the good runs were evaluated on."""
    return {run.digest for seed in seeds if (run := arm.runs.get(seed)) and run.good}


def _test(frame: Verdict) -> Verdict:
    """The tests, plain and with the regret set against the effect."""
    return replace(
        frame, **rule.p_values([d.difference for d in frame.differences], frame.m, frame.regret)
    )


def _late(frame: Verdict, alpha: float) -> Verdict:
    """The verdicts that rest on the tests."""
    assert frame.mean is not None
    ruling = rule.rule(frame, alpha, frame.arms)
    if ruling.says == "nothing":
        told = rule.what_would_tell(frame.m, frame.n, frame.pairs_needed, frame.pairs_needed_regret)
        return _say(frame, "inconclusive", "", told)
    if ruling.uncertain:
        return _say(
            frame, "inconclusive", "rate uncertain", rule.too_uncertain(frame.regret, ruling.says)
        )
    if ruling.says == "equivalent":
        said = f"the difference is smaller than {frame.m:g} nats either way"
        return _say(frame, "equivalent", ruling.cause, said)
    than = "lower" if frame.mean < 0 else "higher"
    said = f"the loss is {abs(frame.mean):.4f} nats {than} than the baseline's"
    return _say(frame, ruling.says, ruling.cause, said)


def _say(frame: Verdict, word: Word, cause: str, reason: str) -> Verdict:
    said = replace(frame, verdict=word, cause=cause, reason=reason)
    if word != "invalid" and frame.n == sum(frame.counts.values()):
        return said
    # What survived a divergence, a crash or a kill is a selection, and what was measured
    # differently is no difference: the pairs are there to be seen, and nothing is computed from
    # them.
    blank = replace(said, mean=None, sd=None, interval=None, **rule.UNTESTED)
    return replace(blank, pairs_needed=None, pairs_needed_regret=None, smallest_visible=None)
