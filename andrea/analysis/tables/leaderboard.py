"""Many studies side by side: one row per effect, with the regime it was measured in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from andrea.analysis.chapters import common as chapters
from andrea.analysis.load import Study
from andrea.analysis.tables import summaries
from andrea.analysis.tables.frames import with_number_types
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


def distinct(studies: Sequence[Study]) -> tuple[list[Study], list[str]]:
    """The ablations among the studies, the latest of each that asks the same, and what was left out
    in words.

    A study's digest is of what it asks. Where it is in several folders (named differently with
    --study) their runs are the same ones, and counting them twice would be twice the same evidence.
    """
    ablations = sorted(
        (s for s in studies if s.kind == "ablation"),
        key=lambda s: str(s.about.get("created") or ""),
    )
    latest: dict[str, Study] = {}
    for study in ablations:
        latest[digest(study)] = study
    kept = [study for study in ablations if latest[digest(study)] is study]
    said = [
        f"{study.path.name} asks the same as {latest[digest(study)].path.name}, whose runs it "
        "shares: left out"
        for study in ablations
        if latest[digest(study)] is not study
    ]
    return kept, said


def digest(study: Study) -> str:
    """Of what the study asks; its folder's name where study.json has none."""
    return str(study.about.get("digest") or study.path.name)


def regime(study: Study) -> dict[str, Any]:
    """Under what the study measured: parameters (of the baseline), tokens (a run), corpus,
    fingerprint, regime.
    """
    arm = (study.resolved.get("arms") or {}).get(study.baseline) or {}
    parameters = sum((arm.get("parameters") or {}).values()) or None
    tokens = summaries.planned_tokens(arm.get("config") or {})
    corpus = chapters.corpus(study)
    parts = [
        f"{text.big(parameters)} parameters" if parameters else "",
        f"{text.big(tokens)} tokens" if tokens else "",
    ]
    return {
        "parameters": parameters,
        "tokens": tokens,
        "corpus": corpus,
        "fingerprint": str(study.resolved.get("fingerprint") or ""),
        "regime": ", ".join(part for part in [*parts, corpus] if part),
    }


def rows(studies: Iterable[Study]) -> pd.DataFrame:
    """The board, columns as in `BOARD`: ablations with the largest effect first, their studies from
    small to large, within a study the largest effect first and what has no mean last.
    """
    found: list[dict[str, Any]] = []
    for study in studies:
        found += _rows(study)
    for row, adjusted in zip(
        found,
        adjust_holm([1.0 if text.absent(row["p"]) else row["p"] for row in found]),
        strict=True,
    ):
        row["p_board"] = None if text.absent(row["p"]) else adjusted
    board = with_number_types(pd.DataFrame(found, columns=list(BOARD)), BOARD)
    size = board["mean"].abs()
    order = board.assign(
        size=size,
        largest=size.groupby(board["ablation"]).transform("max").fillna(-1.0),
        scale=board["parameters"].astype("float64").fillna(0.0),
        run=board["tokens"].astype("float64").fillna(0.0),
    )
    keys = ["largest", "ablation", "scale", "run", "study", "size"]
    by = order.sort_values(
        keys, ascending=[False, True, True, True, True, False], na_position="last", kind="stable"
    )
    return board.loc[by.index].reset_index(drop=True)


def _rows(study: Study) -> list[dict[str, Any]]:
    under = regime(study)
    told = {str(v.get("arm")): v for v in study.verdict.get("verdicts") or []}
    common = {
        "ablation": study.name,
        "study": study.path.name,
        "factor": study.factor,
        "against": study.called(study.baseline or ""),
        "m": study.m,
        "alpha": float(study.rules.get("alpha", 0.05)),
        "complete": study.complete,
        **under,
    }
    found = []
    for row in study.verdicts.to_dict("records"):
        if row["verdict"] == "baseline":
            continue
        early = "exploratory" in (told.get(row["arm"], {}).get("tags") or [])
        who = {"kind": "arm", "arm": row["arm"], "effect": study.called(row["arm"])}
        found.append({**common, **who, **_numbers(row, early, str(row["note"]))})
    early = bool(study.verdict.get("exploratory"))
    for row in study.effects[study.effects["kind"] == "main"].to_dict("records"):
        who = {
            "kind": "main effect",
            "arm": "",
            "effect": row["step"],
            "factor": row["factor"].rpartition(".")[2],
        }
        who["against"] = (
            "the other level, on average over "
            f"{text.listing([f for f in study.factors if f != row['factor']])}"
        )
        found.append({**common, **who, **_numbers(row, early, str(row["reason"]))})
    return found


def judged(rows: pd.DataFrame) -> list[str]:
    """The verdict of every row with its qualifiers: `better (exploratory)`."""
    told = zip(rows["verdict"], rows["cause"], rows["exploratory"], strict=True)
    return [
        text.judged(word, ", ".join(filter(None, [cause, "exploratory" * bool(e)])))
        for word, cause, e in told
    ]


def _numbers(row: Mapping[Any, Any], exploratory: bool, note: str) -> dict[str, Any]:
    """What is shown of a verdict. Invalid, unstable and exploratory ones have no number on a board:
    side by side with others it would be read as a result.
    """
    keys = ("mean", "low", "high", "p")
    shown = {key: row[key] for key in keys}
    if exploratory or row["verdict"] in WITHOUT_MEAN:
        shown = dict.fromkeys(keys)
    told = {key: row[key] for key in ("verdict", "cause", "level", "n", "regret")}
    if exploratory:
        note = "; ".join(
            dict.fromkeys(["exploratory: its number stands in its own report", *note.split("; ")])
        )
    return {**told, **shown, "exploratory": exploratory, "note": note}


def same_question(study: Study) -> tuple[Any, ...]:
    """What studies must share in order to be one ablation at several sizes: name, factor, the arms
    and what is set in them, corpus, tokens.
    """
    under, asked = regime(study), study.protocol.get("arms") or {}
    arms = tuple(
        (arm, repr(sorted(((asked.get(arm) or {}).get("set") or {}).items()))) for arm in study.arms
    )
    return (
        study.name,
        str(study.protocol.get("factor")),
        arms,
        under["corpus"],
        under["fingerprint"],
        under["tokens"],
    )
