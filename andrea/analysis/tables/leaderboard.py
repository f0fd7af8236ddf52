"""Many studies side by side: one row per effect, with the regime it was measured in."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from andrea.analysis.chapters.common import corpus_words
from andrea.analysis.load import Study
from andrea.analysis.tables import summaries
from andrea.analysis.tables.frames import with_number_types
from andrea.store.verdict_rows import EffectRow, VerdictRow
from andrea.text import numbers as text
from andrea.verdict.paired import adjust_holm

BOARD = {
    "ablation": "str: bare name of the study",
    "study": "str: its folder",
    "kind": "str: arm, or main effect of a factorial design",
    "factor": "str: what the arms differ in",
    "effect": "str: the arm by its label, or the step of a main effect",
    "against": "str: label of the baseline",
    "arm": "str: name of the arm; empty for a main effect",
    "verdict": "str: better, worse, equivalent, unstable, inconclusive, invalid or pending",
    "cause": "str: qualifier of the verdict",
    "mean": "float, nats: mean difference to the baseline, below 0 is better; NaN where the board "
    "shows none",
    "low": "float, nats: lower end of the interval, simultaneous within the study's own family",
    "high": "float, nats: upper end",
    "level": "float: level of that interval",
    "alpha": "float: of the study's protocol: its intervals hold together with 1 − alpha",
    "n": "int: pairs",
    "p": "float: paired t-test, unadjusted; NaN where the board shows no mean",
    "p_board": "float: the same, Holm-adjusted over all rows of the board; rows without p count as "
    "1",
    "m": "float, nats: smallest effect of interest of the study",
    "regret": "float, nats: what the uncertainty of the chosen rates may have cost",
    "exploratory": "bool: runs older than the freeze of the protocol",
    "complete": "bool: every planned run is there and judged",
    "parameters": "int: of the baseline",
    "tokens": "int: trained per run",
    "corpus": "str: source and tokenizer",
    "fingerprint": "str: of the prepared data",
    "regime": "str: size, tokens and corpus: what rows must share to be compared",
    "note": "str: why there is no mean, or remarks",
}
"""Columns of the board: one row per arm of every study, and per main effect of a factorial design.
"""

WITHOUT_MEAN = ("invalid", "unstable", "pending")
"""Verdicts that are shown without a number."""


class ShownVerdict(NamedTuple):
    """What is shown of a verdict beside those of other studies."""

    verdict: str | None = None
    """None where nothing was judged."""
    cause: str | None = None
    exploratory: bool = False
    level: float | None = None
    """Of the interval."""
    n: int | None = None
    regret: float | None = None
    note: str = ""
    mean: float | None = None
    """Nats; None, as low, high and p, where no number is shown."""
    low: float | None = None
    high: float | None = None
    p: float | None = None


def distinct_studies(studies: Sequence[Study]) -> tuple[list[Study], list[str]]:
    """Return the ablations among the studies, the latest of each that asks the same, and what was
    left out in words.

    A study's digest is of what it asks. Where it is in several folders (named differently with
    --study) their runs are the same ones, and counting them twice would be twice the same evidence.
    """
    ablations = [study for study in studies if study.kind == "ablation"]
    ablations.sort(key=lambda study: study.about.created)
    latest = {question_digest(study): study for study in ablations}
    distinct, repeats = [], []
    for study in ablations:
        newest = latest[question_digest(study)]
        if newest is study:
            distinct.append(study)
        else:
            repeats.append(
                f"{study.path.name} asks the same as {newest.path.name}, whose runs it shares: "
                "left out"
            )
    return distinct, repeats


def question_digest(study: Study) -> str:
    """Return the digest of what the study asks; its folder's name where study.json has none."""
    return study.about.digest or study.path.name


class Regime(NamedTuple):
    """Under what a study measured."""

    parameters: int | None
    """Of the baseline."""
    tokens: int | None
    """Trained per run."""
    corpus: str
    fingerprint: str
    regime: str
    """Size, tokens and corpus in words."""


def study_regime(study: Study) -> Regime:
    """Return under what the study measured."""
    baseline = study.resolved_arm(study.baseline)
    parameters = sum(baseline.parameters.values()) or None
    tokens = summaries.planned_tokens(baseline.config)
    corpus = corpus_words(study)
    sizes = {"parameters": parameters, "tokens": tokens}
    parts = [f"{text.big(number)} {unit}" for unit, number in sizes.items() if number]
    words = ", ".join(filter(None, [*parts, corpus]))
    return Regime(parameters, tokens, corpus, study.resolved.fingerprint, words)


def board_table(studies: Iterable[Study]) -> pd.DataFrame:
    """Return the board, columns as in `BOARD`.

    Ablations with the largest effect first, their studies from small to large, within a study the
    largest effect first and what has no mean last.
    """
    rows: list[dict[str, Any]] = []
    for study in studies:
        rows += _study_rows(study)
    p_values = [1.0 if text.absent(row["p"]) else row["p"] for row in rows]
    for row, adjusted in zip(rows, adjust_holm(p_values), strict=True):
        row["p_board"] = None if text.absent(row["p"]) else adjusted
    board = with_number_types(pd.DataFrame(rows, columns=list(BOARD)), BOARD)
    size = board["mean"].abs()
    order = board.assign(
        size=size,
        largest=size.groupby(board["ablation"]).transform("max").fillna(-1.0),
        scale=board["parameters"].astype("float64").fillna(0.0),
        run=board["tokens"].astype("float64").fillna(0.0),
    )
    keys = ["largest", "ablation", "scale", "run", "study", "size"]
    ascending = [False, True, True, True, True, False]
    order = order.sort_values(keys, ascending=ascending, na_position="last", kind="stable")
    return board.loc[order.index].reset_index(drop=True)


def _study_rows(study: Study) -> list[dict[str, Any]]:
    common = {
        "ablation": study.name,
        "study": study.path.name,
        "factor": study.factor,
        "against": study.baseline_label,
        "m": study.m,
        "alpha": study.rules.alpha,
        "complete": study.complete,
        **study_regime(study)._asdict(),
    }
    rows = []
    for row in study.judged:
        if row.verdict == "baseline":
            continue
        verdict = shown_verdict(row, "exploratory" in row.tags, row.note)
        arm = {"kind": "arm", "arm": row.arm, "effect": study.called(row.arm)}
        rows.append({**common, **arm, **verdict._asdict()})
    for effect in study.effect_rows:
        if effect.kind != "main":
            continue
        verdict = shown_verdict(effect, study.verdict.exploratory, effect.reason)
        others = text.listing([factor for factor in study.factors if factor != effect.factor])
        main_effect = {
            "kind": "main effect",
            "arm": "",
            "effect": effect.step,
            "factor": effect.factor.rpartition(".")[2],
            "against": f"the other level, on average over {others}",
        }
        rows.append({**common, **main_effect, **verdict._asdict()})
    return rows


def verdict_words(rows: pd.DataFrame) -> list[str]:
    """Return the verdict of every row with its qualifiers: `better (exploratory)`."""
    words = []
    for row in rows.to_dict("records"):
        qualifiers = [row["cause"], "exploratory" if row["exploratory"] else ""]
        words.append(text.judged(row["verdict"], ", ".join(filter(None, qualifiers))))
    return words


def shown_verdict(row: VerdictRow | EffectRow, exploratory: bool, note: str = "") -> ShownVerdict:
    """Return what is shown of a row of verdicts or effects.

    Invalid, unstable and exploratory ones have no number on a board: side by side with others it
    would be read as a result.
    """
    verdict = ShownVerdict(row.verdict, row.cause, exploratory, row.level, row.n, row.regret, note)
    if exploratory:
        notes = ["exploratory: its number stands in its own report", *note.split("; ")]
        return verdict._replace(note="; ".join(dict.fromkeys(notes)))
    if row.verdict in WITHOUT_MEAN:
        return verdict
    return verdict._replace(mean=row.mean, low=row.low, high=row.high, p=row.p)


def question_key(study: Study) -> tuple[Any, ...]:
    """Return what studies must share in order to be one ablation at several sizes: name, factor,
    the arms and what is set in them, corpus, tokens.
    """
    regime = study_regime(study)
    arms = study.protocol.arms
    settings = tuple(
        (arm, repr(sorted(arms[arm].set.items()))) for arm in study.arms if arm in arms
    )
    return (
        study.name,
        study.protocol.factor,
        settings,
        regime.corpus,
        regime.fingerprint,
        regime.tokens,
    )
