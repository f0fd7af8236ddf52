"""Effects of the factors of a factorial design: main, simple, and interactions, as contrasts of one
seed's cells.

At every seed all cells are trained on the same batches: a weighted sum of their losses is one
paired number per seed, as a difference of two arms is. docs/method.md, *Factorial designs*.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from andrea.verdict import paired, rule
from andrea.verdict.design import KINDS, Contrast, Factors, contrasts
from andrea.verdict.judge import (
    UNDER_TRAINED,
    digests,
    fates,
    planned_seeds,
    under_trained,
    unstable,
)
from andrea.verdict.protocol import Protocol
from andrea.verdict.records import ArmData, Controls, Difference

Word = Literal[
    "better", "worse", "equivalent", "present", "absent", "unstable", "inconclusive", "invalid"
]


@dataclass(frozen=True)
class Effect:
    """What the study says about one effect. Untested quantities are None; names are as in
    `Verdict`.
    """

    contrast: Contrast
    verdict: Word
    """better, worse, equivalent (main and simple effects); present, absent (interactions); and what
    any may be.
    """
    cause: str
    reason: str
    n: int
    """Seeds at which every cell of the contrast is good."""
    differences: list[Difference]
    """The contrast at those seeds, nats."""
    m: float
    level: float
    """Level of `interval`, 1 − alpha / family."""
    family: int
    """Effects of this kind (k): what p values are adjusted over."""
    regret: float | None
    """Regrets of the cells, each times the size of its weight; None: unknown."""
    counts: dict[str, dict[str, int]]
    """Fates of the planned runs of every cell of the contrast."""
    mean: float | None = None
    sd: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    p_regret: float | None = None
    p_holm: float | None = None
    p_holm_regret: float | None = None
    tost_p: float | None = None
    tost_p_regret: float | None = None
    pairs_needed: int | None = None
    pairs_needed_regret: int | None = None
    smallest_visible: float | None = None
    tags: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values; the contrast's own are among them."""
        values = asdict(self)
        values["interval"] = list(self.interval) if self.interval else None
        return {**values.pop("contrast"), **values}


def effects(
    protocol: Protocol,
    factors: Factors,
    baseline: str,
    arms: Mapping[str, ArmData],
    *,
    seeds: Sequence[int] | None = None,
    alpha: float | None = None,
    controls: Controls | None = None,
) -> list[Effect]:
    """Judge every effect of a factorial design, by the rule by which arms are judged.

    The effects of one kind are a family: intervals are simultaneous and p values Holm-adjusted
        within it.

    Args:
        protocol: the frozen protocol; its m is the smallest effect of interest of interactions too.
        factors: the design.
        baseline: the cell whose levels the others are compared with.
        arms: every cell by name, also those that could not be trained.
        seeds: the planned seeds; the protocol's by default.
        alpha: what this look may spend on each family; by default `protocol.alpha`.
        controls: outcomes of the controls, which void effects as they void arms' verdicts.

    Raises:
        UserError: fewer than two seeds.
        KeyError: a cell is no arm.
    """
    planned, level = planned_seeds(protocol, seeds), protocol.alpha if alpha is None else alpha
    every = contrasts(factors, baseline)
    lost = under_trained(arms[baseline], planned)
    found = []
    for kind in KINDS:
        family = [contrast for contrast in every if contrast.kind == kind]
        found += _judged(protocol, family, arms, planned, level, lost)
    return [_controlled(effect, controls) for effect in found]


def _controlled(effect: Effect, controls: Controls | None) -> Effect:
    """An effect, or that a control has voided it."""
    if controls and controls.failed:
        return _say(effect, "invalid", *rule.control_failed(controls.failed))
    if controls and controls.ruler is False and effect.verdict in rule.VOID:
        return _say(effect, "invalid", *rule.RULER)
    return effect


def _judged(
    protocol: Protocol,
    family: list[Contrast],
    arms: Mapping[str, ArmData],
    seeds: list[int],
    alpha: float,
    lost: str,
) -> list[Effect]:
    """One kind's effects; `lost` is why the baseline, and with it the experiment, is none."""
    needed = [{name: arms[name] for name in contrast.weights} for contrast in family]
    each = alpha / max(1, len(family))
    frames = [
        _frame(protocol, one, data, seeds, each, len(family))
        for one, data in zip(family, needed, strict=True)
    ]
    early = [_early(frame, data, seeds, lost) for frame, data in zip(frames, needed, strict=True)]
    tested = [
        frame
        if done
        else replace(
            frame, **rule.p_values([d.difference for d in frame.differences], frame.m, frame.regret)
        )
        for done, frame in zip(early, frames, strict=True)
    ]
    holm = rule.adjusted([frame.p for frame in tested], [frame.p_regret for frame in tested])
    adjusted = [replace(frame, **values) for frame, values in zip(tested, holm, strict=True)]
    return [done or _late(frame, alpha) for done, frame in zip(early, adjusted, strict=True)]


def _frame(
    protocol: Protocol,
    contrast: Contrast,
    arms: Mapping[str, ArmData],
    seeds: list[int],
    each: float,
    k: int,
) -> Effect:
    """The description that every effect carries, before it has a word."""
    differences = [
        Difference(seed, value)
        for seed in seeds
        if (value := _at(contrast, arms, seed)) is not None
    ]
    values = [d.difference for d in differences]
    regret = _regret(contrast, arms)
    sd = paired.sd_of(values)
    tags = ["exploratory"] if any(arm.exploratory for arm in arms.values()) else []
    tags += [rule.HARDLY] if any(arm.hardly_tuned for arm in arms.values()) else []
    tags += ["regret unknown"] if regret is None else []
    return Effect(
        contrast=contrast,
        verdict="inconclusive",
        cause="",
        reason="",
        n=len(values),
        differences=differences,
        m=protocol.m,
        level=1 - each,
        family=k,
        regret=regret,
        counts={name: fates(arm, seeds) for name, arm in arms.items()},
        mean=paired.mean_of(values),
        sd=sd,
        interval=None if sd is None else paired.interval(values, each),
        pairs_needed=None if sd is None else paired.pairs_needed(protocol.m, sd, each),
        pairs_needed_regret=None
        if sd is None
        else paired.pairs_needed(protocol.m - (regret or 0.0), sd, each),
        smallest_visible=None if sd is None else sd * paired.visible(len(values), each),
        tags=tags,
    )


def _regret(contrast: Contrast, arms: Mapping[str, ArmData]) -> float | None:
    """What the rates may have cost at most: no cell's regret is let to cancel another's."""
    total = 0.0
    for name, weight in contrast.weights.items():
        regret = arms[name].regret
        if regret is None:
            return None
        total += abs(weight) * regret
    return total


def _at(contrast: Contrast, arms: Mapping[str, ArmData], seed: int) -> float | None:
    """The contrast at one seed, if every cell of it is good there."""
    value = 0.0
    for name, weight in contrast.weights.items():
        run = arms[name].runs.get(seed)
        if run is None or not run.good or run.loss is None:
            return None
        value += weight * run.loss
    return value


def _early(
    frame: Effect, arms: Mapping[str, ArmData], seeds: list[int], no_baseline: str
) -> Effect | None:
    """What comes before any test of means, or None: a contrast of the cells that survived would be
    a selection.
    """
    if len(set().union(*(digests(arm, seeds) for arm in arms.values()))) > 1:
        return _say(
            frame, "invalid", "evaluation differs", "runs were evaluated on different tokens"
        )
    if no_baseline:
        return _say(frame, "invalid", UNDER_TRAINED, no_baseline)
    if lost := [
        _lost(name, arm, frame.counts[name])
        for name, arm in arms.items()
        if _is_lost(arm, frame, name)
    ]:
        return _say(
            frame,
            "unstable",
            "",
            f"{'; '.join(lost)}; so there is nothing to take the difference of",
        )
    if at_edge := [f"{name} at the {arm.edge} end" for name, arm in arms.items() if arm.edge]:
        where = " and ".join(at_edge)
        return _say(
            frame,
            "inconclusive",
            "rate at edge",
            f"the best learning rate is outside the grid: {where}",
        )
    absent = {name: sum(counts.values()) - counts["good"] for name, counts in frame.counts.items()}
    if any(absent.values()):
        said = [f"{n} of {len(seeds)} runs of {name}" for name, n in absent.items() if n]
        return _say(
            frame,
            "inconclusive",
            "failed or missing run",
            f"{' and '.join(said)} failed or are missing",
        )
    return None


def _is_lost(arm: ArmData, frame: Effect, name: str) -> bool:
    return arm.untrainable or unstable(frame.counts[name]) > 0


def _lost(name: str, arm: ArmData, counts: Mapping[str, int]) -> str:
    if arm.untrainable:
        return f"{name}: every tuning run diverged or stalled"
    told = [f"{counts[word]} {word}" for word in ("diverged", "stalled") if counts[word]]
    return f"{name}: {' and '.join(told)} of {sum(counts.values())} runs"


def _late(frame: Effect, alpha: float) -> Effect:
    """The words that rest on the tests."""
    assert frame.mean is not None
    ruling = rule.rule(frame, alpha, frame.family)
    interaction = frame.contrast.kind == "interaction"
    if ruling.says == "nothing":
        told = rule.what_would_tell(frame.m, frame.n, frame.pairs_needed, frame.pairs_needed_regret)
        return _say(frame, "inconclusive", "", told)
    same = ruling.says == "equivalent"
    word: Word = ruling.says if not interaction else "absent" if same else "present"
    if ruling.uncertain:
        return _say(frame, "inconclusive", "rate uncertain", rule.too_uncertain(frame.regret, word))
    first, last = frame.contrast.steps[0], frame.contrast.steps[-1]
    size, than = f"{abs(frame.mean):.4f} nats", "lower" if frame.mean < 0 else "higher"
    if interaction:
        what = f"the effect of {first.level} on the loss"
        if same:
            said = (
                f"{what} with {last.level} is that with {last.against} to within {frame.m:g} nats"
            )
        else:
            said = f"{what} is {size} {than} with {last.level} than with {last.against}"
    elif same:
        said = f"the difference is smaller than {frame.m:g} nats either way"
    else:
        said = f"the loss is {size} {than} with {first.level} than with {first.against}"
    return _say(frame, word, ruling.cause, said)


def _say(frame: Effect, word: Word, cause: str, reason: str) -> Effect:
    said = replace(frame, verdict=word, cause=cause, reason=reason)
    whole = all(counts["good"] == sum(counts.values()) for counts in frame.counts.values())
    if word != "invalid" and whole:
        return said
    blank = replace(said, mean=None, sd=None, interval=None, **rule.UNTESTED)
    return replace(blank, pairs_needed=None, pairs_needed_regret=None, smallest_visible=None)
