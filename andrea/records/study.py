"""Records of a study's folder: what it asks, what that became, what was chosen and measured."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from andrea.records.base import ByName, Record, Settings, Several
from andrea.verdict.protocol import Protocol
from andrea.verdict.rates import Point, Side

Words = Annotated[
    list[str], BeforeValidator(lambda words: [words] if isinstance(words, str) else words)
]
"""A list, which a file may write as one word."""


class StudyInfo(Record):
    """study.json: what the study is."""

    kind: Literal["ablation", "sweep"] | None = None
    name: str = ""
    digest: str = ""
    """Of what is asked and of the data; the folder's name has its first ten digits."""
    key: str | None = None
    """Digest of name and digest: identifies the study elsewhere. Older studies have none."""
    created: str = ""


class AskedArm(Record):
    """One arm as the question declares it."""

    label: str | None = None
    center: float | None = None
    """Learning rate in the middle of its grid, where it has its own."""
    set: Settings = {}
    """Dotted settings in which it differs."""


class AskedLevel(Record):
    """One level of a factor of a factorial design."""

    label: str | None = None


class MatchRule(Record):
    """The common size or cost of the arms."""

    on: Literal["params", "flops", "none"] = "none"
    tolerance: float = 0.0
    by: str | None = None
    """The setting that is solved for."""


class SearchedRange(Record):
    """The values of one setting that a sweep searches: from `low` to `high`, or `choices`."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    choices: list[Any] | None = None


class AskedStudy(Record):
    """protocol.yaml: the question as it was asked, of an ablation or a sweep."""

    kind: Literal["ablation", "sweep"] | None = None
    name: str = ""
    question: str | None = ""
    preset: str | None = None
    model: Settings = {}
    data: Settings = {}
    train: Settings = {}
    claim: str = ""
    claimed: ByName[Words] = {}
    """By arm, or interaction, the verdicts that support the claim."""
    why: str = ""
    hypothesis: str | None = ""
    factors: ByName[dict[str, AskedLevel]] | None = None
    """Levels by factor, of a factorial design."""
    factor: str = ""
    baseline: str | None = None
    arms: ByName[AskedArm] = {}
    match: MatchRule = MatchRule()
    protocol: Protocol | None = None
    """The rules by which an ablation is tuned and judged."""
    space: Settings = {}
    """Ranges and choices of a sweep, by dotted setting."""
    sampler: str = ""
    """Of a sweep."""
    sampling: Settings | None = None
    """Class, version and arguments of a sweep's sampler."""
    generation: int | None = None
    """Trials of a sweep that are proposed together."""
    seed: int | None = None
    """Of a sweep's sampler."""
    trials: int = 0
    """Of a sweep."""
    seeds: int = 1
    """Tuning seeds per trial of a sweep."""

    @property
    def ranges(self) -> dict[str, SearchedRange]:
        """`space` with types, without entries that are damaged."""
        ranges = {
            name: SearchedRange.from_json(dimension, f"space.{name}")
            for name, dimension in self.space.items()
        }
        return {name: searched for name, searched in ranges.items() if searched is not None}

    @property
    def centers(self) -> dict[str, float]:
        """Learning rate in the middle of the grid of every arm that has its own."""
        return {name: arm.center for name, arm in self.arms.items() if arm.center is not None}

    @property
    def levels(self) -> dict[str, list[str]]:
        """Names of the levels by factor; empty unless the design is factorial."""
        return {factor: list(levels) for factor, levels in (self.factors or {}).items()}

    @property
    def arm_names(self) -> list[str]:
        """The declared arms, the baseline first."""
        return sorted(self.arms, key=lambda arm: arm != self.baseline)


class SolvedSetting(Record):
    """The setting of an arm that was solved for, so that its size or cost matches the
    baseline's.
    """

    setting: str
    was: int
    became: int
    before: dict[str, float] = {}
    """Deviation from the baseline before, as a share, by quantity."""


class ResolvedArm(Record):
    """One arm with nothing left to choose, but for learning rate, seed and evaluated part."""

    label: str | None = None
    config: Settings = {}
    """The resolved configuration of its runs."""
    asked: Settings = {}
    """The configuration with `auto` where nobody chose."""
    parameters: dict[str, int] = {}
    """By group."""
    flops_per_token: float | None = None
    """Forward and backward."""
    deviation: dict[str, float] = {}
    """Of `params` and `flops` from the baseline's, as a share."""
    solved: SolvedSetting | None = None


class ResolvedStudy(Record):
    """resolved.json: what the question became when it was frozen."""

    fingerprint: str = ""
    """Of the prepared data."""
    data_folder: str = ""
    arms: ByName[ResolvedArm] = {}
    baseline: str | None = None
    """None for a sweep."""
    differences: dict[str, dict[str, int]] = {}
    """Parameters by which an arm differs from the baseline, by group."""
    platform: dict[str, str] = {}
    frozen_at: str = ""
    exploratory: bool = False
    """Some run is older than the freeze: the question may have been chosen for its answer."""
    variants: str | None = None
    """File name of the study's copy of the user's own variants."""
    versions: Settings = {}

    @property
    def arm_names(self) -> list[str]:
        """All arms in declared order, the baseline first; a sweep has one."""
        return sorted(self.arms, key=lambda arm: arm != self.baseline)


class RateFit(Record):
    """The parabola c0 + c1 x + c2 x² in x = log10 of the learning rate."""

    coefficients: tuple[float, float, float]
    lrs: list[float] = []
    losses: list[float] = []


class TuningPoint(Record):
    """One finished tuning run of an arm."""

    lr: float
    loss: float
    ok: bool = True
    outcome: str = ""
    stalled: bool = False
    run_id: str = ""
    why: str = ""


class Choice(Record):
    """The learning rate of an arm, how it was found, and from which runs: an entry of
    choices.json.
    """

    lr: float | None = None
    """None: no rate trained the arm, or a tuning run failed."""
    method: Literal["vertex", "argmin"] | None = None
    note: str = ""
    edge: Side | None = None
    """Side of the grid at which the best rate still lies."""
    fit: RateFit | None = None
    hardly_tuned: bool = False
    grid: list[float] = []
    window: Several[Point] = []
    """Good points from which the choice was made."""
    reach: tuple[float, float] | None = None
    """Rates between which the best may lie."""
    regret: float | None = None
    """Nats that the choice of the rate may have cost; None: unknown."""
    untrainable: bool = False
    points: Several[TuningPoint] = []


class ArmSpeed(Record):
    """The time of a training step of an arm, in seconds, with its interval."""

    step_s: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int | None = None
    tokens_per_s: float | None = None
    tokens_per_s_low: float | None = None
    tokens_per_s_high: float | None = None
    compile_s: float | None = None
    peak_memory_bytes: int | None = None


class SpeedRatio(Record):
    """Time of an arm's step over that of the baseline's, with its interval."""

    tolerant = False  # A ratio without its interval would decide what is trained.

    ratio: float
    low: float | None = None
    high: float | None = None


class StudySpeed(Record):
    """speed.json: how fast the arms train on one machine. A measurement: nothing makes it again."""

    format: int = 0
    measured_at: str = ""
    device: str = ""
    threads: int | None = None
    torch: str = ""
    load: float = 0.0
    """Load average of the machine when it was measured."""
    baseline: str = ""
    level: float = 0.95
    steps_per_visit: int | None = None
    arms: ByName[ArmSpeed] = {}
    ratio: ByName[SpeedRatio] = {}
    """By arm but the baseline."""


class SweepTrial(Record):
    """One trial of a sweep: its mean over seeds."""

    trial: int
    generation: int | None = None
    params: Settings = {}
    loss: float | None = None
    ok: bool = False
    outcome: str | None = None
    stalled: bool | None = None
    run_id: str | None = None
    runs: list[str] = []
    duplicate_of: int | None = None


class BestTrial(Record):
    """best.json: the best good trial of a sweep, and all trials."""

    trial: int | None = None
    loss: float | None = None
    params: Settings | None = None
    run_id: str | None = None
    config: Settings | None = None
    trials: Several[SweepTrial] = []
    search: Settings = {}
    """Sampler, its seed and arguments."""
    complete: bool = False
