"""verdict.json: what a study says, and what stands beside it."""

from collections.abc import Mapping
from typing import Any

from pydantic import model_serializer, model_validator

from andrea.records.base import ByName, Record, Several
from andrea.records.extras import Extras
from andrea.verdict.contrast import Word
from andrea.verdict.documents import Documents
from andrea.verdict.replicates import ArmSummary, Difference
from andrea.verdict.sensitivity import Sensitivity
from andrea.verdict.stability import Stability
from andrea.verdict.tokens_saved import TokensSaved


class Judged(Record):
    """The verdict on one contrast, with its numbers. Quantities that were not tested are None.

    `andrea.verdict.judgement.Judgement` says what each field means. Fields stand in the order of
    the file, also those that only arms or only effects have.
    """

    kind: str = ""
    steps: Several[dict[str, str]] = []
    at: dict[str, str] = {}
    weights: dict[str, float] = {}
    arm: str = ""
    verdict: Word
    cause: str = ""
    reason: str = ""
    n: int = 0
    differences: Several[Difference] = []
    m: float | None = None
    level: float | None = None
    arms: int | None = None
    """Declared arms without the baseline: p values are adjusted over so many."""
    family: int | None = None
    """Effects of the kind: p values are adjusted over so many."""
    regret: float | None = None
    counts: dict[str, int] | dict[str, dict[str, int]] = {}
    baseline_counts: dict[str, int] = {}
    mean: float | None = None
    sd: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    p_regret: float | None = None
    p_holm: float | None = None
    p_holm_regret: float | None = None
    tost_p: float | None = None
    tost_p_regret: float | None = None
    fisher_p: float | None = None
    pairs_needed: int | None = None
    pairs_needed_regret: int | None = None
    smallest_visible: float | None = None
    tags: list[str] = []

    @property
    def low(self) -> float | None:
        """Lower end of the simultaneous interval, nats."""
        return self.interval[0] if self.interval else None

    @property
    def high(self) -> float | None:
        """Upper end of the simultaneous interval, nats."""
        return self.interval[1] if self.interval else None


class ArmVerdict(Judged):
    """An arm against the baseline."""

    arm: str
    counts: dict[str, int] = {}


class EffectVerdict(Judged):
    """An effect of a factorial design."""

    kind: str
    counts: dict[str, dict[str, int]] = {}


class ControlOutcome(Record):
    """A training whose outcome is known beforehand, and how it came out."""

    ok: bool | None = None
    """Whether it came out as it must; None: unknown."""
    reason: str = ""
    deterministic: bool | None = None
    """Of the determinism check: whether the runs had to agree to the last bit."""
    difference: float | None = None
    """Of the determinism check: absolute difference of the losses, nats."""
    run_id: str | None = None
    of: str | None = None
    """Of the determinism check: the run that was trained a second time."""
    n: int = 0
    differences: Several[Difference] = []
    mean: float | None = None
    sd: float | None = None
    p: float | None = None
    interval: tuple[float, float] | None = None
    factor: float | None = None
    """Of a positive control: its tokens over the baseline's."""
    tokens: int | None = None


class ControlOutcomes(Record):
    """The controls of a study."""

    repeat: ControlOutcome | None = None
    """The determinism check: one run trained twice."""
    a_a: ControlOutcome | None = None
    """The baseline against itself with other initial weights."""
    ruler: ControlOutcome | None = None
    """The positive control on half the tokens."""
    ruler_2x: ControlOutcome | None = None
    """The positive control on double the tokens."""


class Confirmation(Record):
    """A second block of seeds, judged alone."""

    seeds: list[int] = []
    n: int = 0
    verdicts: Several[ArmVerdict] = []
    effects: Several[EffectVerdict] = []
    baseline: ArmSummary | None = None
    complete: bool = False
    agrees: dict[str, bool | None] = {}
    """By arm: whether the word is that of the first verdict; None: not known."""


class EqualCost(Record):
    """An arm at equal cost: its verdict there, or why there is none."""

    na: str = ""
    """Why there is no verdict of its own."""
    tokens: int | None = None
    """Tokens on which the arm was trained again."""
    verdict: ArmVerdict | None = None

    @model_validator(mode="before")
    @classmethod
    def _gather_verdict(cls, values: Any) -> Any:
        # The file has the fields of the verdict beside `tokens` and `word`.
        if not isinstance(values, Mapping) or "arm" not in values:
            return values
        fields = {key: value for key, value in values.items() if key not in ("tokens", "word")}
        return {"tokens": values.get("tokens"), "verdict": fields}

    @model_serializer
    def _lay_out(self) -> dict[str, Any]:
        if self.verdict is None:
            return {"na": self.na}
        word = self.verdict.verdict
        return {"tokens": self.tokens, "word": word, **self.verdict.to_json()}


class ArmStability(Record):
    """How often an arm did not train: in tuning, and among its replicates."""

    tune: Stability | None = None
    replicate: Stability | None = None


class StudyVerdict(Record):
    """verdict.json."""

    verdicts: Several[ArmVerdict] = []
    effects: Several[EffectVerdict] = []
    baseline: ArmSummary | None = None
    controls: ControlOutcomes | None = None
    tokens_saved: ByName[TokensSaved] = {}
    confirmation: Confirmation | None = None
    equal: ByName[ByName[EqualCost]] = {}
    """By budget (`flops`, `time`) and arm."""
    stability: ByName[ArmStability] = {}
    sensitivity: ByName[Sensitivity] = {}
    documents: ByName[Documents] = {}
    method: int | None = None
    versions: dict[str, str | None] = {}
    asked: Extras = Extras()
    """What was asked beside the question when this was written."""
    complete: bool = False
    exploratory: bool = False

    def of(self, arm: str) -> ArmVerdict | None:
        """Return the verdict on an arm; None for the baseline and for what is not judged yet."""
        return next((verdict for verdict in self.verdicts if verdict.arm == arm), None)
