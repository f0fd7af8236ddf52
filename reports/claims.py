"""Claims of the ANDREA description against what was measured here, with regime and verdict.

Copy this file to ./reports/claims.py and change it. `build_many(studies)` gets every study of the
store (`andrea.analysis.load.Study`) and returns a `Report`. The claims are those of the catalogue's
ablations (`claim` and `claimed` in ablations/*.yaml), and of studies that brought their own; the
rule by which a verdict supports or contradicts a claim is in `andrea.analysis.tables.claims`. What
can be counted from a configuration is counted here. Losses are in nats per token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from andrea.analysis.figures import forest
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
from andrea.analysis.tables import claims
from andrea.analysis.tables import leaderboard as board
from andrea.analysis.tables.claims import CONTRADICTED, NOT_SHOWN, NOT_TESTED, SUPPORTED
from andrea.model.accounting import count_parameters, estimate_memory, flops_per_token
from andrea.model.config import ModelConfig
from andrea.model.presets import PRESETS
from andrea.text import numbers as text

DIFFERS = "different at different sizes, budgets or corpora"
COLORS = {SUPPORTED: "arm-3", CONTRADICTED: "arm-2", NOT_SHOWN: "arm-5", NOT_TESTED: "muted"}


def build_many(studies: list[Study]) -> Report:
    """What the store says about every claim."""
    kept, twice = board.distinct_studies(studies)
    found = claims.measured(claims.catalogued(), kept)
    rows, exact = claims.rows(found), counted()
    stands = claims.by_claim(rows)
    sections = [
        Section("By which rule", rule(found)),
        Section("Counted, without any training", [counted_table(exact)]),
        Section("Not measured here", not_measured(found)),
    ]
    if twice:
        sections.append(Section("Left out", [Bullets(twice)]))
    return Report(
        title="Claims",
        question="Which claims of the ANDREA description hold up here?",
        answer=answer(stands, exact),
        head=head(rows),
        sections=[section for section in sections if section.items],
        frames={"claims": rows, "stands": stands},
        details=details(found, rows),
        verdicts=_plain(rows[rows["study"] != ""]),
    )


def _plain(rows: pd.DataFrame) -> list[dict[str, Any]]:
    records = rows.to_dict("records")
    return [
        {str(key): None if text.absent(value) else value for key, value in row.items()}
        for row in records
    ]


# ---- first screen
# --------------------------------------------------------------------------------------------------


def answer(stands: pd.DataFrame, exact: pd.DataFrame) -> str:
    """How many claims came out how, measured and counted apart."""
    words = {
        claim: set(part["word"]) - {NOT_TESTED}
        for claim, part in stands.groupby("claim", sort=False)
    }
    outcomes = [
        NOT_TESTED if not found else next(iter(found)) if len(found) == 1 else DIFFERS
        for found in words.values()
    ]
    tested = [word for word in outcomes if word != NOT_TESTED]
    told = [
        f"{n} {word}"
        for word in (SUPPORTED, CONTRADICTED, NOT_SHOWN, DIFFERS)
        if (n := tested.count(word))
    ]
    here = f"{len(tested)} {'was' if len(tested) == 1 else 'were'} tested in this store"
    said = f"Of {text.plural(len(words), 'claim')} that a training can test, {here}"
    said += f": {text.listing(told)}" if told else ""
    holds = int((exact["word"] == SUPPORTED).sum())
    return (
        f"{said}. Of {len(exact)} that need only counting, {holds} "
        f"{'holds' if holds == 1 else 'hold'}."
    )


def details(
    found: list[tuple[claims.Claim, list[Study]]], rows: pd.DataFrame
) -> list[tuple[str, str]]:
    """What the words are conditional on."""
    several = {study.path.name for _, studies in found for study in studies}
    regimes = len(set(rows["regime"]) - {""})
    told = [("claims", text.count(len(found))), ("studies of them", text.count(len(several)))]
    return [*told, ("regimes", text.count(regimes))]


def head(rows: pd.DataFrame) -> list[Item]:
    """The measured claims: the picture, and a row per claim, regime and arm."""
    here = rows[rows["study"] != ""].reset_index(drop=True)
    if here.empty:
        return [
            Text(
                "No study in this store is about one of the claims. What would measure them stands "
                "below."
            )
        ]
    items: list[Item] = []
    if here["mean"].notna().any():
        items.append(picture(here))
    columns = [
        Column("ablation", "ablation"),
        Column("word", "here", _whole),
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
        "Intervals are "
        "simultaneous within a study. The word is about this regime alone: a claim that is "
        "contradicted at this "
        "size and budget may hold at another."
    )
    return [*items, Table("claims", caption, here, columns, stacked=True, mark="word")]


def _whole(word: Any) -> str:
    """The word as one, so that all of it is the badge."""
    return str(word).replace(" ", "\N{NO-BREAK SPACE}")


def _against(effect: Any, against: Any) -> str:
    return f"{effect}, against {against}" if effect else text.NOTHING


def picture(here: pd.DataFrame) -> Figure:
    """The effects that the claims are about, coloured by how the claim stands."""
    drawn = here[here["effect"] != ""]
    drawn = drawn.assign(
        verdict=drawn["verdict"].fillna("pending"), cause=drawn["cause"].fillna("")
    )
    n = int(drawn["mean"].notna().sum())
    caption = (
        f"{text.plural(n, 'effect')} that claims are about, each with its study's simultaneous "
        "interval over the "
        "shaded band of that study's ±m, and coloured by what it says about the claim. Rows in "
        "words have no mean, "
        "and say why."
    )
    spec = forest.forest(drawn, drawn["word"], COLORS)
    keys = {"●": "mean of the pairs", "▬": "simultaneous interval", "░": "±m"}
    return Figure("effects-of-claims", caption, spec, forest.legend(drawn["word"], COLORS), keys)


# ---- counted
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """A claim about a number that follows from a configuration."""

    claim: str
    claimed: str
    low: float
    """The claim holds from here …"""
    high: float
    """… to here: the digits that it was given with, or 5 % for *about*."""
    number: Callable[[], float]
    how: str
    """A command that shows it, or what was counted."""


def model(preset: str, **settings: Any) -> ModelConfig:
    """A preset with some settings changed."""
    return ModelConfig.model_validate({**PRESETS[preset], **settings})


def norms() -> float:
    """LayerNorms of andrea-120m: parameters in norms over those of one, a gain and a bias."""
    config = model("andrea-120m")
    return count_parameters(config).norms / (2 * config.d_model)


def mlp_weights() -> float:
    """Weights of one MLP of andrea-120m, biases left out."""
    config = model("andrea-120m", bias=False)
    return count_parameters(config).mlp / config.n_layer


BARE = {"tied": False, "bias": False, "norm_affine": False}
PLAIN, GATED = {"bias": False}, {"bias": False, "activation": "swiglu", "mlp_ratio": 8 / 3}


def gated_cost() -> float:
    """FLOPs per token of SwiGLU at 8/3 d over those of GELU at 4 d."""
    return (
        flops_per_token(model("andrea-120m", **GATED)).total
        / flops_per_token(model("andrea-120m", **PLAIN)).total
    )


def gated_memory() -> float:
    """Activations kept for the backward pass (float32), the same ratio."""
    sizes = [estimate_memory(model("andrea-120m", **how), 1).activations for how in (GATED, PLAIN)]
    return sizes[0] / sizes[1]


EXACT = [
    Counted(
        "The model of 12 blocks and width 768 has about 120M parameters",
        "about 120 M",
        114e6,
        126e6,
        lambda: count_parameters(model("andrea-120m")).total,
        "andrea model show andrea-120m (the tied table counts once)",
    ),
    Counted(
        "The same, were the table of tokens counted twice, as if the head were not tied",
        "about 120 M",
        114e6,
        126e6,
        lambda: count_parameters(model("andrea-120m", tied=False)).total,
        "andrea model show andrea-120m --set model.tied=false",
    ),
    Counted(
        "The released model of that shape has 98.7M parameters (its card)",
        "98.7 M",
        98.65e6,
        98.75e6,
        lambda: count_parameters(model("andrea-120m", **BARE)).total,
        "andrea model show andrea-120m, untied, without biases, norms without parameters",
    ),
    Counted(
        "The released small model has 12.8M parameters (its card)",
        "12.8 M",
        12.75e6,
        12.85e6,
        lambda: count_parameters(model("andrea-12m", vocab_size=2305, **BARE)).total,
        "andrea model show andrea-12m, vocabulary 2305, untied, without biases, norms without "
        "parameters",
    ),
    Counted(
        "It has 25 LayerNorms: two in each of 12 blocks and a final one",
        "25",
        25,
        25,
        norms,
        "parameters of the group norms over those of one",
    ),
    Counted(
        "One MLP has 2.36M + 2.36M weights",
        "4.72 M",
        4.71e6,
        4.73e6,
        mlp_weights,
        "andrea model show andrea-120m --set model.bias=false: mlp over 12",
    ),
    Counted(
        "SwiGLU at 8/3 d costs fewer operations than GELU at 4 d",
        "below 1",
        0.0,
        1 - 1e-9,
        gated_cost,
        "FLOPs per token over those of GELU, andrea-120m without biases",
    ),
    Counted(
        "SwiGLU at 8/3 d needs less memory in training than GELU at 4 d",
        "below 1",
        0.0,
        1 - 1e-9,
        gated_memory,
        "activations kept for the backward pass over those of GELU, float32",
    ),
]


def counted() -> pd.DataFrame:
    """The exact claims: claim, claimed, low, high, counted, word, how."""
    found = []
    for one in EXACT:
        number = float(one.number())
        word = SUPPORTED if one.low <= number <= one.high else CONTRADICTED
        told = {"claim": one.claim, "claimed": one.claimed, "low": one.low, "high": one.high}
        found.append({**told, "counted": number, "word": word, "how": one.how})
    return pd.DataFrame(found)


def _number(value: Any) -> str:
    return text.count(value) if float(value) >= 10 else text.number(value, 3)


def counted_table(exact: pd.DataFrame) -> Table:
    """Claims about numbers, with the number."""
    columns = [
        Column("claim", "claim"),
        Column("word", "by count"),
        Column("claimed", "claimed"),
        numbers("counted", "counted", _number),
        Column("how", "counted how"),
    ]
    caption = (
        "Counted from the configuration, nothing was trained: exact, without n or interval. A "
        "number holds where it "
        "rounds to the digits that were claimed; 'about' allows 5\N{NO-BREAK SPACE}%."
    )
    return Table("counted", caption, exact, columns, stacked=True, mark="word")


# ---- the rest
# --------------------------------------------------------------------------------------------------


def not_measured(found: list[tuple[claims.Claim, list[Study]]]) -> list[Item]:
    """Claims without a study, with the command that would measure them."""
    rest = [
        {
            "claim": claim.text,
            "question": claim.question,
            "claimed": "; ".join(claims.wanted(claim)) or text.NOTHING,
            "command": f"andrea ablate {claim.ablation}",
        }
        for claim, studies in found
        if not studies
    ]
    if not rest:
        return []
    columns = [
        Column("claim", "claim"),
        Column("question", "asked as"),
        Column("claimed", "supported by"),
        Column("command", "what would measure it"),
    ]
    said = (
        f"{text.plural(len(rest), 'claim')} without a study in this store. --dry-run tells what a "
        "command would take."
    )
    return [Table("not-measured", said, pd.DataFrame(rest), columns, stacked=True)]


def rule(found: list[tuple[claims.Claim, list[Study]]]) -> list[Item]:
    """The rule in words, and what it does not see."""
    lines = [
        "An ablation names, before anything is run, the verdicts of its arms that would support "
        "its claim "
        "(claimed). Such a verdict: supported. Another of better, worse, equivalent, unstable: "
        "contradicted.",
        (
            "Inconclusive, invalid and exploratory verdicts show nothing either way: not shown. "
            "That is not "
            "evidence against."
        ),
        "A claim about several arms is supported where all of them say so, contradicted where one "
        "speaks against it.",
        "Each study answers for its own size, budget and corpus. Studies are not pooled.",
        "Better and worse are about direction; whether the difference exceeds m is said beside it.",
        "Claims about amounts (half of the training, diminishing returns, lower cost) are tested "
        "in their "
        "direction only: read the study's own report.",
    ]
    silent = [claim.ablation for claim, _ in found if not claim.claimed]
    if silent:
        lines.append(f"Without a rule, so never decided: {text.listing(silent)}.")
    return [Bullets(lines)]
