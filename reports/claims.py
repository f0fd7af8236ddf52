"""Claims of the ANDREA description against what was measured here, with regime and verdict.

Copy this file to ./reports/claims.py and change it. `build_many(studies)` gets every study of the
store (`andrea.analysis.load.Study`) and returns a `Report`. The claims are those of the catalogue's
ablations (`claim` and `claimed` in ablations/*.yaml), and of studies that brought their own; the
rule by which a verdict supports or contradicts a claim is in `andrea.analysis.tables.claims`. What
can be counted from a configuration is counted here. Losses are in nats per token.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd

from andrea.analysis.figures import forest
from andrea.analysis.figures.marks import group_legend
from andrea.analysis.load import Study
from andrea.analysis.report import (
    Bullets,
    Column,
    Figure,
    Item,
    Report,
    Section,
    Table,
    Text,
    numbers,
)
from andrea.analysis.tables import claims, leaderboard
from andrea.analysis.tables.claims import (
    CONTRADICTED,
    NOT_SHOWN,
    NOT_TESTED,
    SUPPORTED,
    MeasuredClaim,
)
from andrea.model.accounting import count_parameters, estimate_memory, flops_per_token
from andrea.model.config import ModelConfig
from andrea.model.presets import PRESETS
from andrea.text import numbers as text

DIFFERS = "different at different sizes, budgets or corpora"
OUTCOMES = (SUPPORTED, CONTRADICTED, NOT_SHOWN, DIFFERS)
COLORS = {SUPPORTED: "arm-3", CONTRADICTED: "arm-2", NOT_SHOWN: "arm-5", NOT_TESTED: "muted"}


def build_many(studies: list[Study]) -> Report:
    """Return the report on every claim."""
    distinct, left_out = leaderboard.distinct_studies(studies)
    measured = claims.match_studies(claims.catalogued_claims(), distinct)
    rows, counted = claims.claims_table(measured), counted_claims()
    words = claims.words_by_study(rows)
    sections = [
        Section("By which rule", describe_rule(measured)),
        Section("Counted, without any training", [counted_table(counted)]),
        Section("Not measured here", unmeasured_table(measured)),
    ]
    if left_out:
        sections.append(Section("Left out", [Bullets(left_out)]))
    return Report(
        title="Claims",
        question="Which claims of the ANDREA description hold up here?",
        answer=write_answer(words, counted),
        head=measured_items(rows),
        sections=[section for section in sections if section.items],
        frames={"claims": rows, "stands": words},
        details=list_details(measured, rows),
        verdicts=_as_records(rows[rows["study"] != ""]),
    )


def _as_records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    values = rows.astype(object).where(rows.notna(), None)
    return [dict(row) for _, row in values.iterrows()]


# ---- first screen ----


def write_answer(words: pd.DataFrame, counted: pd.DataFrame) -> str:
    """Return the number of claims by outcome, measured and counted apart."""
    outcomes = words.groupby("claim", sort=False)["word"].agg(_outcome_over_studies)
    tested = outcomes[outcomes != NOT_TESTED]
    counts = [(int((tested == word).sum()), word) for word in OUTCOMES]
    listed = text.listing([f"{n} {word}" for n, word in counts if n])
    was = "was" if len(tested) == 1 else "were"
    sentence = f"Of {text.plural(len(outcomes), 'claim')} that a training can test, "
    sentence += f"{len(tested)} {was} tested in this store{': ' if listed else ''}{listed}"
    holds = int((counted["word"] == SUPPORTED).sum())
    hold = "holds" if holds == 1 else "hold"
    return f"{sentence}. Of {len(counted)} that need only counting, {holds} {hold}."


def _outcome_over_studies(words: "pd.Series[str]") -> str:
    tested = set(words) - {NOT_TESTED}
    if len(tested) > 1:
        return DIFFERS
    return tested.pop() if tested else NOT_TESTED


def list_details(measured: list[MeasuredClaim], rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the conditions of the words."""
    studies = {study.path.name for claim in measured for study in claim.studies}
    regimes = set(rows["regime"]) - {""}
    counts = {"claims": measured, "studies of them": studies, "regimes": regimes}
    return [(name, text.count(len(things))) for name, things in counts.items()]


def measured_items(rows: pd.DataFrame) -> list[Item]:
    """Return the picture of the measured claims, and a row per claim, regime and arm."""
    here = rows[rows["study"] != ""].reset_index(drop=True)
    if here.empty:
        nothing = "No study in this store is about one of the claims."
        return [Text(f"{nothing} What would measure them stands below.")]
    items: list[Item] = []
    if here["mean"].notna().any():
        items.append(draw_effects(here))
    columns = [
        Column("ablation", "ablation"),
        Column("word", "here", _keep_together),
        Column(("effect", "against"), "arm", _against),
        numbers("mean", "difference (nats)", text.signed),
        numbers(("low", "high"), "simultaneous interval", text.interval),
        numbers("n", "pairs", text.count),
        Column("why", "why"),
        Column("regime", "regime"),
        Column("claim", "claim"),
    ]
    caption = (
        "A row per claim, study and arm that the claim is about; below 0 the arm is better. "
        "Intervals are simultaneous within a study. The word is about this regime alone: a claim "
        "that is contradicted at this size and budget may hold at another."
    )
    return [*items, Table("claims", caption, here, columns, stacked=True, mark="word")]


def _keep_together(word: Any) -> str:
    """Return the word in one piece, so that all of it is the badge."""
    return str(word).replace(" ", "\N{NO-BREAK SPACE}")


def _against(effect: Any, against: Any) -> str:
    return f"{effect}, against {against}" if effect else text.NOTHING


def draw_effects(here: pd.DataFrame) -> Figure:
    """Return the picture of the effects that claims are about, coloured by the word."""
    drawn = here[here["effect"] != ""].fillna({"verdict": "pending", "cause": ""})
    n = int(drawn["mean"].notna().sum())
    caption = (
        f"{text.plural(n, 'effect')} that claims are about, each with its study's simultaneous "
        "interval over the shaded band of that study's ±m, and coloured by what it says about the "
        "claim. Rows in words have no mean, and say why."
    )
    spec = forest.draw_forest(drawn, drawn["word"], COLORS)
    keys = {"●": "mean of the pairs", "▬": "simultaneous interval", "░": "±m"}
    return Figure("effects-of-claims", caption, spec, group_legend(drawn["word"], COLORS), keys)


# ---- counted ----


class Claimed(NamedTuple):
    """A number that was claimed."""

    claimed: str
    """In words."""
    low: float
    """The claim holds from here …"""
    high: float
    """… to here: the digits that it was given with, or 5 % for *about*."""


ABOUT_120M = Claimed("about 120 M", 114e6, 126e6)
BELOW_ONE = Claimed("below 1", 0.0, 1 - 1e-9)


class CountedClaim(NamedTuple):
    """A claim about a number that follows from a configuration."""

    claim: str
    claimed: Claimed
    count: Callable[[], float]
    how: str
    """A command that shows it, or what was counted."""


def preset_config(preset: str, **settings: Any) -> ModelConfig:
    """Return a preset with some settings changed."""
    return ModelConfig.model_validate({**PRESETS[preset], **settings})


def count_norms() -> float:
    """Return the LayerNorms of andrea-120m: parameters in norms over those of one."""
    config = preset_config("andrea-120m")
    return count_parameters(config).norms / (2 * config.d_model)


def count_mlp_weights() -> float:
    """Return the weights of one MLP of andrea-120m, biases left out."""
    config = preset_config("andrea-120m", bias=False)
    return count_parameters(config).mlp / config.n_layer


BARE = {"tied": False, "bias": False, "norm_affine": False}
PLAIN, GATED = {"bias": False}, {"bias": False, "activation": "swiglu", "mlp_ratio": 8 / 3}


def gated_cost() -> float:
    """Return the FLOPs per token of SwiGLU at 8/3 d over those of GELU at 4 d."""
    gated, plain = (preset_config("andrea-120m", **settings) for settings in (GATED, PLAIN))
    return flops_per_token(gated).total / flops_per_token(plain).total


def gated_memory() -> float:
    """Return the same ratio of activations kept for the backward pass (float32)."""
    gated, plain = (preset_config("andrea-120m", **settings) for settings in (GATED, PLAIN))
    return estimate_memory(gated, 1).activations / estimate_memory(plain, 1).activations


EXACT = [
    CountedClaim(
        "The model of 12 blocks and width 768 has about 120M parameters",
        ABOUT_120M,
        lambda: count_parameters(preset_config("andrea-120m")).total,
        "andrea model show andrea-120m (the tied table counts once)",
    ),
    CountedClaim(
        "The same, were the table of tokens counted twice, as if the head were not tied",
        ABOUT_120M,
        lambda: count_parameters(preset_config("andrea-120m", tied=False)).total,
        "andrea model show andrea-120m --set model.tied=false",
    ),
    CountedClaim(
        "The released model of that shape has 98.7M parameters (its card)",
        Claimed("98.7 M", 98.65e6, 98.75e6),
        lambda: count_parameters(preset_config("andrea-120m", **BARE)).total,
        "andrea model show andrea-120m, untied, without biases, norms without parameters",
    ),
    CountedClaim(
        "The released small model has 12.8M parameters (its card)",
        Claimed("12.8 M", 12.75e6, 12.85e6),
        lambda: count_parameters(preset_config("andrea-12m", vocab_size=2305, **BARE)).total,
        "andrea model show andrea-12m, vocabulary 2305, untied, without biases, norms without "
        "parameters",
    ),
    CountedClaim(
        "It has 25 LayerNorms: two in each of 12 blocks and a final one",
        Claimed("25", 25, 25),
        count_norms,
        "parameters of the group norms over those of one",
    ),
    CountedClaim(
        "One MLP has 2.36M + 2.36M weights",
        Claimed("4.72 M", 4.71e6, 4.73e6),
        count_mlp_weights,
        "andrea model show andrea-120m --set model.bias=false: mlp over 12",
    ),
    CountedClaim(
        "SwiGLU at 8/3 d costs fewer operations than GELU at 4 d",
        BELOW_ONE,
        gated_cost,
        "FLOPs per token over those of GELU, andrea-120m without biases",
    ),
    CountedClaim(
        "SwiGLU at 8/3 d needs less memory in training than GELU at 4 d",
        BELOW_ONE,
        gated_memory,
        "activations kept for the backward pass over those of GELU, float32",
    ),
]


def counted_claims() -> pd.DataFrame:
    """Return the exact claims: claim, claimed, low, high, counted, word, how."""
    rows = []
    for claim in EXACT:
        claimed, number = claim.claimed, float(claim.count())
        word = SUPPORTED if claimed.low <= number <= claimed.high else CONTRADICTED
        row = {"claim": claim.claim, **claimed._asdict()}
        rows.append({**row, "counted": number, "word": word, "how": claim.how})
    return pd.DataFrame(rows)


def _format_number(value: Any) -> str:
    return text.count(value) if float(value) >= 10 else text.number(value, 3)


def counted_table(counted: pd.DataFrame) -> Table:
    """Return the table of claims about numbers."""
    columns = [
        Column("claim", "claim"),
        Column("word", "by count"),
        Column("claimed", "claimed"),
        numbers("counted", "counted", _format_number),
        Column("how", "counted how"),
    ]
    caption = (
        "Counted from the configuration, nothing was trained: exact, without n or interval. A "
        "number holds where it rounds to the digits that were claimed; 'about' allows "
        "5\N{NO-BREAK SPACE}%."
    )
    return Table("counted", caption, counted, columns, stacked=True, mark="word")


# ---- the rest ----


def unmeasured_table(measured: list[MeasuredClaim]) -> list[Item]:
    """Return the claims without a study, with the command that would measure them."""
    claims_left = [claim.claim for claim in measured if not claim.studies]
    if not claims_left:
        return []
    rows = [
        {
            "claim": claim.text,
            "question": " ".join((claim.question.question or "").split()),
            "claimed": "; ".join(claim.supporting) or text.NOTHING,
            "command": f"andrea ablate {claim.ablation}",
        }
        for claim in claims_left
    ]
    columns = [
        Column("claim", "claim"),
        Column("question", "asked as"),
        Column("claimed", "supported by"),
        Column("command", "what would measure it"),
    ]
    caption = (
        f"{text.plural(len(rows), 'claim')} without a study in this store. --dry-run tells what a "
        "command would take."
    )
    return [Table("not-measured", caption, pd.DataFrame(rows), columns, stacked=True)]


def describe_rule(measured: list[MeasuredClaim]) -> list[Item]:
    """Return the rule in words, with its limits."""
    lines = [
        "An ablation names, before anything is run, the verdicts of its arms that would support "
        "its claim (claimed). Such a verdict: supported. Another of better, worse, equivalent, "
        "unstable: contradicted.",
        "Inconclusive, invalid and exploratory verdicts show nothing either way: not shown. "
        "That is not evidence against.",
        "A claim about several arms is supported where all of them say so, contradicted where one "
        "speaks against it.",
        "Each study answers for its own size, budget and corpus. Studies are not pooled.",
        "Better and worse are about direction; whether the difference exceeds m is said beside it.",
        "Claims about amounts (half of the training, diminishing returns, lower cost) are tested "
        "in their direction only: read the study's own report.",
    ]
    without_rule = [claim.claim.ablation for claim in measured if not claim.claim.rule]
    if without_rule:
        lines.append(f"Without a rule, so never decided: {text.listing(without_rule)}.")
    return [Bullets(lines)]
