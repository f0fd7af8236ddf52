"""Claims and the verdicts of a store: which claims were measured, in what regime, and whether the
verdicts support them.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from andrea import catalogue
from andrea.analysis.load import Study
from andrea.analysis.tables.frames import with_number_types
from andrea.analysis.tables.leaderboard import ShownVerdict, shown_verdict, study_regime
from andrea.records.study import AskedStudy
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


CLAIM_FIELDS = ("question", "claim", "claimed", "factors", "factor", "baseline", "arms")
"""Fields of an ablation that its claim rests on."""


@dataclass(frozen=True)
class Claim:
    """A claim, and the verdicts that would support it."""

    ablation: str
    """Name of the ablation that asks it."""
    text: str
    question: AskedStudy
    """The ablation: baseline, arms or factors, with labels."""

    @property
    def rule(self) -> dict[str, list[str]]:
        """The supporting verdicts by arm or interaction; empty where no rule was written down."""
        return self.question.claimed

    @property
    def supporting(self) -> list[str]:
        """The supporting verdicts in words: `post-norm worse or unstable`."""
        return [f"{_name(self.question, arm)} {_join(words)}" for arm, words in self.rule.items()]


@dataclass(frozen=True)
class MeasuredClaim:
    """A claim with the studies that measured it."""

    claim: Claim
    studies: list[Study]


def read_claim(name: str, question: AskedStudy) -> Claim | None:
    """Return the claim of an ablation; None where it has none."""
    words = " ".join(question.claim.split())
    return Claim(name, words, question) if words else None


def catalogued_claims() -> list[Claim]:
    """Return the claims of all ablations in the catalogue, without files that cannot be read
    (`andrea ablate` says why).
    """
    claims = []
    for entry in catalogue.list_entries("ablations"):
        try:
            content = yaml.safe_load(entry.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue
        if not isinstance(content, dict):
            continue
        fields = {key: content[key] for key in CLAIM_FIELDS if key in content}
        question = AskedStudy.from_json(_with_text_names(fields), entry.path)
        claim = read_claim(entry.name, question) if question else None
        if claim:
            claims.append(claim)
    return claims


def _with_text_names(content: Any) -> Any:
    """Return the content of a YAML file with names as text: the arm `8` is not a number."""
    if not isinstance(content, dict):
        return content
    return {str(name): _with_text_names(value) for name, value in content.items()}


def match_studies(claims: Iterable[Claim], studies: Sequence[Study]) -> list[MeasuredClaim]:
    """Return every claim with its studies, the given claims first, then those that only a study
    has.

    A study belongs to the claim whose text it has; else to the one of its name, if it asks about
    the same arms by the same rule, or was frozen before there was one: the text may have been put
    better since.
    """
    matched = []
    for claim in claims:
        own_studies = [study for study in studies if _is_about(study, claim)]
        matched.append(MeasuredClaim(claim, own_studies))
    with_claim = {study.path for measured in matched for study in measured.studies}
    others: dict[str, MeasuredClaim] = {}
    for study in studies:
        study_claim = read_claim(study.name, study.protocol)
        if study.path not in with_claim and study_claim is not None:
            measured = others.setdefault(study_claim.text, MeasuredClaim(study_claim, []))
            measured.studies.append(study)
    return [*matched, *others.values()]


def _is_about(study: Study, claim: Claim) -> bool:
    study_claim = read_claim(study.name, study.protocol)
    if study_claim:
        if study_claim.text == claim.text:
            return True
        # The rule is part of what a study asked: under another one it asked something else.
        if study_claim.rule and study_claim.rule != claim.rule:
            return False
    arms = {part for name in claim.rule for part in name.split(CROSSED)}
    levels = {level for levels in study.factors.values() for level in levels}
    return study.name == claim.ablation and bool(arms) and arms <= {*study.arms, *levels}


def claims_table(measured_claims: Iterable[MeasuredClaim]) -> pd.DataFrame:
    """Return the table `CLAIMS`."""
    rows: list[dict[str, Any]] = []
    for measured in measured_claims:
        for study in measured.studies:
            rows += _study_rows(measured.claim, study)
        if not measured.studies:
            rows += _unmeasured_rows(measured.claim)
    return with_number_types(pd.DataFrame(rows, columns=list(CLAIMS)), CLAIMS)


def _unmeasured_rows(claim: Claim) -> list[dict[str, Any]]:
    common = {
        "claim": claim.text,
        "ablation": claim.ablation,
        "study": "",
        "regime": "",
        "verdict": "",
        "cause": "",
        "against": _name(claim.question, claim.question.baseline or ""),
        "exploratory": False,
        "word": NOT_TESTED,
        "why": "not measured here",
    }
    return [
        {**common, "effect": _name(claim.question, arm), "claimed": _join(words)}
        for arm, words in (claim.rule or {"": []}).items()
    ]


def _study_rows(claim: Claim, study: Study) -> list[dict[str, Any]]:
    """Return a row per arm that the claim is about, by the rule that the study was frozen with; by
    the claim's where it had none.
    """
    study_claim = read_claim(study.name, study.protocol)
    frozen_rule = study_claim.rule if study_claim else {}
    rule = frozen_rule or claim.rule
    common = {
        "claim": claim.text,
        "ablation": claim.ablation,
        "study": study.path.name,
        "m": study.m,
        "against": study.baseline_label,
        **study_regime(study)._asdict(),
    }
    rows = []
    for arm, words in rule.items():
        label = _label(study.protocol, arm)
        if CROSSED in arm:
            verdict = _interaction(study, label)
            word, reason = judge_claim(words, verdict)
        else:
            verdict = _arm_verdict(study, arm)
            word, reason = judge_claim(words, verdict, study.m)
            label = study.called(arm) if verdict.verdict else label
        if not frozen_rule and word in (SUPPORTED, CONTRADICTED):
            reason += "; the rule was written after this study was frozen"
        answer = {"effect": label, "claimed": _join(words), "word": word, "why": reason}
        rows.append({**common, **verdict._asdict(), **answer})
    undecided = {"effect": "", "exploratory": False, "word": NOT_SHOWN, "why": NO_RULE}
    return rows or [{**common, **undecided}]


NO_RULE = "the ablation does not say which verdicts would support its claim (claimed)"


def _arm_verdict(study: Study, arm: str) -> ShownVerdict:
    for row in study.judged:
        if row.arm == arm and row.verdict != "baseline":
            return shown_verdict(row, "exploratory" in row.tags)
    return ShownVerdict()


def _interaction(study: Study, label: str) -> ShownVerdict:
    """Return the verdict on an interaction; present is worse where its mean is above 0."""
    for row in study.effect_rows:
        if row.kind != "interaction" or row.name != label:
            continue
        word = INTERACTION.get(row.verdict, row.verdict)
        if word == "present":
            word = "worse" if (row.mean or 0.0) > 0 else "better"
        verdict = ShownVerdict(word, row.cause, study.verdict.exploratory, row.level, row.n)
        if verdict.exploratory:
            return verdict
        return verdict._replace(mean=row.mean, low=row.low, high=row.high)
    return ShownVerdict()


def judge_claim(
    claimed: Sequence[str], judged: ShownVerdict, margin: float | None = None
) -> tuple[str, str]:
    """Return what a verdict says about a claim, and why in words.

    Args:
        claimed: the verdicts that support it.
        judged: the verdict on the arm or the interaction.
        margin: smallest effect of interest, nats; None leaves out how large the effect is.
    """
    verdict = judged.verdict
    if not verdict or verdict == "pending":
        return NOT_TESTED, "not judged yet"
    if judged.exploratory:
        return NOT_SHOWN, "exploratory: some runs are older than the protocol"
    if verdict not in DECIDED:
        return NOT_SHOWN, text.judged(verdict, judged.cause or "")
    word = SUPPORTED if verdict in claimed else CONTRADICTED
    return word, f"{verdict}{_extent(judged, margin)}, claimed {_join(claimed)}"


def _extent(judged: ShownVerdict, margin: float | None) -> str:
    """Word whether a significant difference is known to exceed the margin."""
    low, high = judged.low, judged.high
    is_significant = judged.verdict in ("better", "worse")
    if not is_significant or low is None or high is None or margin is None:
        return ""
    nearest = min(abs(low), abs(high))
    return " by more than m" if nearest > margin else ", whether by more than m is open"


def combine_words(words: Iterable[str]) -> str:
    """Return the word for a claim about several arms in one study."""
    distinct = set(words)
    if CONTRADICTED in distinct:
        return CONTRADICTED
    return distinct.pop() if distinct in ({SUPPORTED}, {NOT_TESTED}) else NOT_SHOWN


def words_by_study(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per claim and study of it, over its arms: claim, ablation, study, regime,
    word.
    """
    groups = table.groupby(["claim", "ablation", "study"], sort=False, as_index=False)
    return groups.agg(regime=("regime", "first"), word=("word", combine_words))


def _label(question: AskedStudy, name: str) -> str:
    """Return the label of an arm, a level or a crossing of levels."""
    if CROSSED in name:
        return CROSSED.join(_label(question, level) for level in name.split(CROSSED))
    if name in question.arms and question.arms[name].label:
        return str(question.arms[name].label)
    factors = question.factors or {}
    if factors and "+" in name:
        return ", ".join(_label(question, level) for level in name.split("+"))
    factor = next((factor for factor, levels in factors.items() if name in levels), None)
    return level_label(factors, factor, name) if factor else name


def _name(question: AskedStudy, arm: str) -> str:
    """Return the label, after the factor where it is a bare number, as in `Study.called`."""
    label, factor = _label(question, arm), question.factor.rpartition(".")[2]
    return f"{factor} {label}" if factor and text.bare(label) else label


def _join(words: Sequence[str]) -> str:
    return " or ".join(words)
