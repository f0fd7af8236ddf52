"""Records of one run: its line in runs.jsonl, and the files of its folder."""

import math
from typing import Literal

from andrea.records.base import Record, Settings, Several
from andrea.verdict.replicates import is_good_run

Phase = Literal["tune", "trial", "replicate", "control", "budget", "confirm", "train"]
"""Purpose of a run. The first three are the study's own, the next three stand beside it; `train` is
a run of `andrea train`, which belongs to no study.
"""
OWN_PHASES: tuple[Phase, ...] = ("tune", "trial", "replicate")

UNTRAINED_SCORE = 100.0
"""Score in nats of a run that has not even a finite loss at initialisation."""


class RunSpec(Record):
    """A planned run: one line of runs.jsonl."""

    run_id: str
    arm: str
    phase: Phase
    why: str
    """Within the phase: grid, extension, midpoint; repeat, a/a, half tokens, …; equal flops, …"""
    lr: float | None = None
    seed: int
    trial: int | None = None
    """Number of the trial within its arm; None but in tuning and sweeps."""
    generation: int | None = None
    params: Settings | None = None
    """Dotted settings of a sweep's trial."""
    duplicate_of: int | None = None
    """Trial with the same parameters, whose runs this one shares."""
    repeat: int = 0
    """1 for the determinism check, which trains a run a second time under an id of its own."""
    tokens: int | None = None
    """Tokens to train where they differ from the arm's."""
    init_seed: int | None = None
    """Seed of the initial weights where it differs from `seed`."""
    without: list[str] | None = None
    """Arms that this plan had to leave out, since their tuning failed; such lines are provisional.
    """

    @property
    def sequence(self) -> str:
        """Name of the sequence of runs.jsonl that the line belongs to; empty for the study's
        own.
        """
        return "" if self.phase in OWN_PHASES else f"{self.phase} {self.why}"


class DocumentLoss(Record):
    """The loss on one evaluated document."""

    name: str
    tokens: int
    loss: float | None = None
    """Nats per token."""


class RunResult(Record):
    """result.json: how a run ended. Losses are in nats per token; one that is not finite is
    None.
    """

    outcome: str
    """completed or diverged; other words are not good runs."""
    stalled: bool = False
    """Completed, but the model learned no more than the frequencies of the tokens."""
    reason: str | None = None
    loss: float | None = None
    """On all evaluated tokens at the end."""
    bpb: float | None = None
    """Bits per byte of the evaluated text."""
    initial_loss: float | None = None
    unigram_loss: float | None = None
    """Loss of predicting the train part's token frequencies."""
    train_loss: float | None = None
    """Mean training loss over the last tenth of the steps."""
    eval_digest: str | None = None
    eval_tokens: int | None = None
    eval_part: str | None = None
    documents: Several[DocumentLoss] = []
    steps: int | None = None
    tokens: int | None = None
    unique_tokens: int | None = None
    epochs: float | None = None
    seconds: float | None = None
    """Of training alone."""
    wall_seconds: float | None = None
    tokens_per_s: float | None = None
    parameters: dict[str, int] = {}
    """By group."""
    flops: float | None = None
    peak_memory_bytes: int | None = None
    attempts: int | None = None
    finished_at: str | None = None
    """UTC, ISO 8601."""

    @property
    def is_good(self) -> bool:
        """Whether the run completed and learned: neither diverged nor stalled nor without a
        loss.
        """
        return is_good_run(self.outcome, self.stalled, self.loss)

    @property
    def score(self) -> float:
        """The final loss, or the loss at initialisation of a run that is not good; always finite.

        A sampler ignores a NaN, and would go on to propose settings that diverge.
        """
        candidates = [self.loss] if self.is_good else [self.initial_loss, self.unigram_loss]
        finite = (loss for loss in candidates if loss is not None and math.isfinite(loss))
        return next(finite, UNTRAINED_SCORE)


class Failure(Record):
    """failure.json: why the latest attempt at a run ended without a result."""

    reason: str = ""
    log: str = ""
    """The last lines that the worker printed."""


class GitState(Record):
    """The commit of the code that trained a run."""

    hash: str | None = None
    dirty: bool | None = None


class Environment(Record):
    """env.json: what trained a run. Versions of further packages are extra fields."""

    andrea: str | None = None
    python: str | None = None
    torch: str | None = None
    numpy: str | None = None
    pydantic: str | None = None
    tokenizers: str | None = None
    cuda: str | None = None
    git: GitState | None = None


class RunSettings(Record):
    """config.json of a run: its resolved configuration, and the identity that its id digests."""

    config: Settings = {}
    identity: Settings = {}


class MetricRecord(Record):
    """One line of metrics.jsonl; which fields it has depends on its kind."""

    kind: str
    """train, eval or layers."""
    step: int = 0
    """Optimizer steps done."""
    tokens: int = 0
    """Tokens trained."""
    loss: float | None = None
    bpb: float | None = None
    full_loss: float | None = None
    """On all evaluated tokens; at both ends of the training."""
    full_bpb: float | None = None
    lr: float | None = None
    grad_norm: float | list[float | None] | None = None
    """Before clipping; a list by layer in a `layers` record."""
    tokens_per_s: float | None = None
    seconds: float | None = None
    embedding_grad_norm: float | None = None
    attn_rms: list[float | None] | None = None
    """By layer, as the next two; `training.diagnostics.LayerStatistics` says what they are."""
    mlp_rms: list[float | None] | None = None
    residual_rms: list[float | None] | None = None
    """One more than there are layers."""
