"""Claims against what a store holds: which were measured, in what regime, and what the verdict says
about them.

The rule. An ablation says in `claimed` by which verdicts of which arm its claim would be supported.
By the verdict:

| verdict | the claim is |
|---|---|
| better, worse, equivalent or unstable, and claimed | supported |
| one of these, and not claimed | contradicted |
| inconclusive, invalid; or exploratory, whatever the word | not shown |
| none yet, or no study | not tested |

A claim about several arms is supported where all are, contradicted where one is, else not shown;
several regimes are never pooled: each study of a claim has an answer of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import yaml

from andrea import catalogue
from andrea.analysis.load import Study
from andrea.analysis.tables import leaderboard as board
from andrea.analysis.tables.frames import with_number_types
from andrea.store.verdict_rows import level_label
from andrea.text import numbers as text

SUPPORTED, CONTRADICTED, NOT_SHOWN, NOT_TESTED = (
    "supported",
    "contradicted",
    "not shown",
    "not tested",
)
DECIDED = ("better", "worse", "equivalent", "unstable")
CROSSED = " × "
"""Between the two levels of an interaction."""
INTERACTION = {"absent": "equivalent"}
"""Words of an interaction as words of an effect; *present* is worse or better by the sign of its
mean.
"""

CLAIMS = {
    "claim": "str: what is claimed",
    "ablation": "str: the ablation that asks it",
    "study": "str: folder of the study that measured it; empty where none did",
    "regime": "str: size, tokens and corpus",
    "parameters": "int: of the baseline",
    "tokens": "int: trained per run",
    "effect": "str: the arm, or the interaction, that the claim is about",
    "against": "str: the baseline",
    "claimed": "str: verdicts that would support the claim",
    "verdict": "str: what came out",
    "cause": "str: qualifier of the verdict",
    "mean": "float, nats: below 0 the arm is better; NaN where there is none to show",
    "low": "float, nats: lower end of the interval, simultaneous within the study",
    "high": "float, nats: upper end",
    "level": "float: level of that interval",
    "n": "int: pairs",
    "m": "float, nats: smallest effect of interest",
    "exploratory": "bool: runs older than the protocol",
    "word": "str: supported, contradicted, not shown or not tested",
    "why": "str: by what",
}
"""Columns of the table: one row per claim, study and arm that the claim is about."""


@dataclass(frozen=True)
class Claim:
    """A claim and how it would be supported."""

    ablation: str
    """Name of the ablation that asks it."""
    text: str
    question: str
    claimed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By arm, or interaction, the verdicts that support it; empty: no rule was written down."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """What the ablation asks: baseline, arms or factors, with labels."""


def claim_of(name: str, asked: Mapping[str, Any]) -> Claim | None:
    """The claim in what an ablation asks; None where it has none."""
    told = " ".join(str(asked.get("claim") or "").split())
    if not told:
        return None
    words = {
        str(arm): [str(word) for word in (given if isinstance(given, list) else [given])]
        for arm, given in _named(asked.get("claimed")).items()
    }
    return Claim(name, told, " ".join(str(asked.get("question") or "").split()), words, asked)


def catalogued() -> list[Claim]:
    """The claims of all ablations in the catalogue; a file that cannot be read has none (`andrea
    ablate` says why).
    """
    found = []
    for entry in catalogue.list_entries("ablations"):
        try:
            asked = yaml.safe_load(entry.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue
        if isinstance(asked, dict) and (claim := claim_of(entry.name, asked)):
            found.append(claim)
    return found


def measured(claims: Iterable[Claim], studies: Sequence[Study]) -> list[tuple[Claim, list[Study]]]:
    """Every claim with the studies of it, the catalogue's first, then those that only a study
    knows.

    A study belongs to the claim whose text it has; else to the one of its name, if it asks about
    the same arms by the same rule, or was frozen before there was one: the text may have been put
    better since.
    """
    found = [(claim, [study for study in studies if _is_about(study, claim)]) for claim in claims]
    known = {study.path for _, several in found for study in several}
    others: dict[str, tuple[Claim, list[Study]]] = {}
    for study in studies:
        own = claim_of(study.name, study.asked_yaml)
        if study.path not in known and own is not None:
            others.setdefault(own.text, (own, []))[1].append(study)
    return [*found, *others.values()]


def _is_about(study: Study, claim: Claim) -> bool:
    own = claim_of(study.name, study.asked_yaml)
    if own is not None and own.text == claim.text:
        return True
    if own is not None and own.claimed and own.claimed != claim.claimed:
        return False
    arms = {part for name in claim.claimed for part in name.split(CROSSED)}
    levels = {level for levels in study.factors.values() for level in levels}
    return study.name == claim.ablation and bool(arms) and arms <= {*study.arms, *levels}


def rows(found: Iterable[tuple[Claim, list[Study]]]) -> pd.DataFrame:
    """The table, columns as in `CLAIMS`."""
    told: list[dict[str, Any]] = []
    for claim, studies in found:
        for study in studies:
            told += _of_study(claim, study)
        if not studies:
            told += _unmeasured(claim)
    return with_number_types(pd.DataFrame(told, columns=list(CLAIMS)), CLAIMS)


def _unmeasured(claim: Claim) -> list[dict[str, Any]]:
    base = {
        "claim": claim.text,
        "ablation": claim.ablation,
        "study": "",
        "regime": "",
        "verdict": "",
        "cause": "",
    }
    told = {
        "against": _called(claim.protocol, str(claim.protocol.get("baseline") or "")),
        "exploratory": False,
    }
    done = {"word": NOT_TESTED, "why": "not measured here"}
    named = claim.claimed or {"": []}
    return [
        {**base, **told, **done, "effect": _called(claim.protocol, arm), "claimed": _either(words)}
        for arm, words in named.items()
    ]


def _of_study(claim: Claim, study: Study) -> list[dict[str, Any]]:
    """A row per arm that the claim is about. The rule that the study was frozen with comes before a
    later one.
    """
    own = claim_of(study.name, study.asked_yaml)
    frozen = own is not None and bool(own.claimed)
    claimed = own.claimed if own is not None and frozen else claim.claimed
    under = board.study_regime(study)
    base = {"claim": claim.text, "ablation": claim.ablation, "study": study.path.name, "m": study.m}
    base |= {key: getattr(under, key) for key in ("regime", "parameters", "tokens")}
    base["against"] = study.baseline_label
    judged = board.board_table([study])
    found = []
    for arm, words in claimed.items():
        row = _interaction(study, arm) if CROSSED in arm else _judged(judged, arm)
        word, why = stand(words, row)
        if not frozen and word in (SUPPORTED, CONTRADICTED):
            why += "; the rule was written after this study was frozen"
        keys = ("verdict", "cause", "mean", "low", "high", "level", "n", "exploratory")
        told = {key: row.get(key) for key in keys} | {"exploratory": bool(row.get("exploratory"))}
        effect = row.get("effect") or _label(study.asked_yaml, arm)
        found.append(
            {**base, **told, "effect": effect, "claimed": _either(words), "word": word, "why": why}
        )
    return found or [
        {**base, "effect": "", "exploratory": False, "word": NOT_SHOWN, "why": NO_RULE}
    ]


def _judged(judged: pd.DataFrame, arm: str) -> dict[str, Any]:
    """The board's row of an arm; empty where it has none."""
    rows = judged[judged["arm"] == arm].to_dict("records")
    return {str(key): value for key, value in rows[0].items()} if rows else {}


NO_RULE = "the ablation does not say which verdicts would support its claim (claimed)"


def _interaction(study: Study, name: str) -> dict[str, Any]:
    """An interaction as a row of the board: present is worse where its mean is above 0."""
    label = CROSSED.join(_label(study.asked_yaml, level) for level in name.split(CROSSED))
    rows = study.effects[
        (study.effects["kind"] == "interaction") & (study.effects["name"] == label)
    ]
    if rows.empty:
        return {"effect": label}
    row: dict[str, Any] = {str(key): value for key, value in rows.iloc[0].to_dict().items()}
    word = str(row["verdict"])
    if word == "present":
        word = "worse" if row["mean"] > 0 else "better"
    early = study.verdict.exploratory
    shown = {key: None if early else row[key] for key in ("mean", "low", "high")}
    return {
        **row,
        **shown,
        "effect": label,
        "verdict": INTERACTION.get(word, word),
        "exploratory": early,
    }


def stand(claimed: Sequence[str], row: Mapping[str, Any]) -> tuple[str, str]:
    """How a claim stands by a verdict, and why in words.

    Args:
        claimed: the verdicts that support it.
        row: verdict, cause, exploratory, mean, low, high, m and n of the arm; empty where it is not
            judged.
    """
    verdict = row.get("verdict")
    if not verdict or verdict == "pending":
        return NOT_TESTED, "not judged yet"
    if row.get("exploratory"):
        return NOT_SHOWN, "exploratory: some runs are older than the protocol"
    if verdict not in DECIDED:
        return NOT_SHOWN, text.judged(str(verdict), str(row.get("cause") or ""))
    word = SUPPORTED if verdict in claimed else CONTRADICTED
    return word, f"{verdict}{_reach(row)}, claimed {_either(claimed)}"


def _reach(row: Mapping[str, Any]) -> str:
    """How far a difference is known to go: significant is not yet large."""
    low, high, m = row.get("low"), row.get("high"), row.get("m")
    if row["verdict"] not in ("better", "worse") or text.absent(low) or text.absent(m):
        return ""
    nearest = min(abs(float(low or 0)), abs(float(high or 0)))
    return " by more than m" if nearest > float(m or 0) else ", whether by more than m is open"


def overall(words: Sequence[str]) -> str:
    """How a claim about several arms stands in one study."""
    if CONTRADICTED in words:
        return CONTRADICTED
    for word in (SUPPORTED, NOT_TESTED):
        if words and all(one == word for one in words):
            return word
    return NOT_SHOWN


def by_claim(table: pd.DataFrame) -> pd.DataFrame:
    """One row per claim and study of it: claim, ablation, study, regime, word, counted over its
    arms.
    """
    found = [
        {
            **dict(zip(("claim", "ablation", "study"), key, strict=True)),
            "regime": part["regime"].iloc[0],
            "word": overall(list(part["word"])),
        }
        for key, part in table.groupby(["claim", "ablation", "study"], sort=False)
        if isinstance(key, tuple)
    ]
    return pd.DataFrame(found, columns=["claim", "ablation", "study", "regime", "word"])


def _label(asked: Mapping[str, Any], arm: str) -> str:
    """What an arm, a level or a crossing of levels is called."""
    if CROSSED in arm:
        return CROSSED.join(_label(asked, level) for level in arm.split(CROSSED))
    told = _named(asked.get("arms")).get(arm)
    if isinstance(told, dict) and told.get("label"):
        return str(told["label"])
    factors = {factor: _named(levels) for factor, levels in _named(asked.get("factors")).items()}
    if factors and "+" in arm:
        return ", ".join(_label(asked, level) for level in arm.split("+"))
    factor = next((factor for factor, levels in factors.items() if arm in levels), None)
    return level_label(factors, factor, arm) if factor else arm


def _called(asked: Mapping[str, Any], arm: str) -> str:
    """The label, after the factor where it is a bare number, as a study has it (`Study.called`)."""
    label, factor = _label(asked, arm), str(asked.get("factor") or "").rpartition(".")[2]
    return f"{factor} {label}" if factor and text.bare(label) else label


def _named(given: Any) -> dict[str, Any]:
    """A mapping of a YAML file, its names as they were written; what is none has no names."""
    return {str(name): value for name, value in given.items()} if isinstance(given, dict) else {}


def _either(words: Sequence[str]) -> str:
    return " or ".join(words)


def wanted(claim: Claim) -> list[str]:
    """What would support a claim, in words: `post-norm worse or unstable`."""
    return [
        f"{_called(claim.protocol, arm)} {_either(words)}" for arm, words in claim.claimed.items()
    ]
