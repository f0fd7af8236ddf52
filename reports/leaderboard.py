"""Many ablations: every arm's effect in one forest plot, with its regime.

Copy this file to ./reports/leaderboard.py and change it. `build_many(studies)` gets every study of
the store (`andrea.analysis.load.Study`) and returns a `Report`. Its rows are
`andrea.analysis.tables.leaderboard.board_table` (columns in `BOARD`). Losses are in nats per token;
below 0 the arm is better.
"""

import re
from typing import Any

import pandas as pd

from andrea.analysis.chapters import common as chapters
from andrea.analysis.chapters import sentences as words
from andrea.analysis.chapters import sizes as growth
from andrea.analysis.figures import forest
from andrea.analysis.figures.marks import group_legend
from andrea.analysis.load import Study
from andrea.analysis.report import (
    Bullets,
    Callout,
    Column,
    Figure,
    Item,
    Report,
    Section,
    Table,
    Text,
    numbers,
)
from andrea.analysis.tables import leaderboard as board
from andrea.analysis.tables.frames import UNFINISHED
from andrea.text import numbers as text


def build_many(studies: list[Study]) -> Report:
    """Return the board of all ablations among the studies, finished or not."""
    distinct, left_out = board.distinct_studies(studies)
    rows = board.board_table(distinct)
    sections = [
        Section("How to read it", explain_board(rows)),
        Section("Does the effect grow or fade with size?", size_items(distinct)),
        Section("Remarks", remark_table(rows)),
        Section("Studies", study_table(distinct, left_out)),
    ]
    return Report(
        title="Leaderboard",
        question="All effects in this store",
        answer=write_answer(distinct, rows),
        head=first_screen(distinct, rows),
        sections=[section for section in sections if section.items],
        frames={"board": rows},
        details=list_details(distinct, rows),
        verdicts=[
            {"study": study.path.name, **verdict.to_json()}
            for study in distinct
            for verdict in study.verdict.verdicts
        ],
    )


# ---- first screen ----


def write_answer(kept: list[Study], rows: pd.DataFrame) -> str:
    """Return the numbers of verdicts in a sentence, and the largest effects."""
    if rows.empty:
        return (
            "Nothing to show: no ablation in this store has been judged. Start one with `andrea "
            "ablate NAME`."
        )
    counts = rows["verdict"].value_counts()
    order = [word for word in _WORDS if word in counts.index]
    listed = text.listing([f"{counts[word]} {word}" for word in order])
    sentence = (
        f"Of {text.plural(len(rows), 'effect')} in {text.plural(len(kept), 'study', 'studies')}, "
        f"each against its own baseline at its own size, budget and corpus: {listed}"
    )
    exploratory = int(rows["exploratory"].sum())
    sentence += f"; {exploratory} of them exploratory, so without a number." if exploratory else "."
    decided = rows[rows["verdict"].isin(["better", "worse"]) & rows["mean"].notna()]
    for word, ascending in (("better", True), ("worse", False)):
        ranked = decided.sort_values("mean", ascending=ascending, kind="stable")
        ranked = ranked[ranked["verdict"] == word]
        if len(ranked):
            sentence += f" {_name_extreme(ranked.iloc[0], word)}"
    return sentence


_WORDS = ("better", "worse", "equivalent", "unstable", "inconclusive", "invalid", "pending")


def _name_extreme(row: Any, word: str) -> str:
    side = "Lowest" if word == "better" else "Highest"
    return (
        f"{side}: {row['effect']} in {row['ablation']}, {text.signed(row['mean'])} nats "
        f"({text.interval(row['low'], row['high'])}, n = {text.count(row['n'])})."
    )


def list_details(kept: list[Study], rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the size of the board."""
    regimes = rows["regime"].nunique()
    facts = [("studies", text.count(len(kept))), ("rows", text.count(len(rows)))]
    note = ", not comparable with each other" if regimes > 1 else ""
    facts.append(("regimes", f"{text.count(regimes)}{note}"))
    if exploratory := int(rows["exploratory"].sum()):
        facts.append(("exploratory", text.count(exploratory)))
    return facts


def first_screen(kept: list[Study], rows: pd.DataFrame) -> list[Item]:
    """Return the studies that are not finished, the forest plot and the table."""
    items: list[Item] = []
    unfinished = [study for study in kept if not study.complete]
    if unfinished:
        items.append(Callout("Half finished.", "Of these studies only what is judged is shown:"))
        lines = [f"{study.path.name}: {_describe_progress(study)}" for study in unfinished]
        items.append(Bullets(lines))
    if rows.empty:
        return items
    return [*items, draw_forest(rows), effect_table(rows)]


def _describe_progress(study: Study) -> str:
    done = int((~study.runs["outcome"].isin(UNFINISHED)).sum())
    planned = text.plural(len(study.runs), "planned run")
    return "; ".join([f"{done} of {planned} done", *words.list_missing(study)[:1]])


def draw_forest(rows: pd.DataFrame) -> Figure:
    """Return the forest plot of all effects."""
    drawn = int(rows["mean"].notna().sum())
    scale = ""
    if forest.needs_log_axis(rows):
        scale = (
            f" The axis is linear within ±{rows['m'].min():g} and logarithmic beyond: lengths of "
            "far intervals are not comparable with those of near ones."
        )
    caption = (
        f"{_count_effects(drawn)}, grouped by study under its regime; the shaded band is that "
        f"study's ±m. {_describe_families(rows)} Rows in words have no mean, and say why.{scale} "
        "Compare rows within a group: another group had another size, budget or corpus."
    )
    keys = {"●": "mean of the pairs", "▬": "simultaneous interval", "░": "±m"}
    legend = group_legend(forest.verdict_groups(rows), forest.COLORS)
    return Figure("forest", caption, forest.draw_forest(rows), legend, keys)


def _count_effects(n: int) -> str:
    if not n:
        return "Effects without a number"
    return f"{text.plural(n, 'effect')} with {'its interval' if n == 1 else 'their intervals'}"


def _describe_families(rows: pd.DataFrame) -> str:
    """Word the simultaneous level of the intervals: a family is a study, not the board."""
    families = rows.groupby(["study", "kind"]).ngroups
    held = text.listing([text.percent(1 - alpha) for alpha in sorted(rows["alpha"].unique())])
    return (
        f"Intervals hold together with {held} within their own family (a study's arms, or its main "
        f"effects), not over the board, which has {text.plural(families, 'family', 'families')}: "
        "the more there are, the more of them have an interval that misses."
    )


def effect_table(rows: pd.DataFrame) -> Table:
    """Return the table with a row per effect."""
    shown = rows.assign(judged=board.verdict_words(rows))
    columns = [
        Column("effect", "arm"),
        Column("judged", "verdict"),
        numbers("mean", "nats", text.signed),
        numbers(("low", "high"), "interval", text.interval),
        numbers("n", "pairs", text.count),
        Column("ablation", "ablation"),
        Column(("parameters", "tokens", "corpus"), "size, tokens, corpus", _format_regime),
        numbers("m", "m", _format_margin),
        numbers("p_board", "p (board)", text.probability),
    ]
    caption = (
        "Every arm of every study, and the main effects of factorial designs: "
        f"{text.plural(len(rows), 'row')}. In nats, below 0 is better. Ablations stand in the "
        "order of their largest effect, to find them by: it ranks nothing across regimes. The last "
        "p is adjusted for all rows of this board, whatever the verdicts, which are each study's "
        "own."
    )
    return Table("board", caption, shown, columns, stacked=True, mark="judged")


def _format_regime(parameters: Any, tokens: Any, corpus: str) -> str:
    return f"{text.big(parameters)}, {text.big(tokens)}, {corpus.replace(', tokenizer ', '/')}"


def _format_margin(m: Any) -> str:
    return text.NOTHING if text.absent(m) else f"{m:g}"


def remark_table(rows: pd.DataFrame) -> list[Item]:
    """Return the table of remarks on the verdicts."""
    noted = rows[rows["note"] != ""]
    columns = [
        Column("effect", "arm"),
        Column("ablation", "ablation"),
        Column("against", "against"),
        Column("study", "study"),
        numbers("regret", "regret (nats)", text.small),
        Column("note", "remark"),
    ]
    caption = (
        "What each verdict says in words, and why a row has no number. Regret: what the "
        "uncertainty of both rates may have cost; the verdicts hold with it subtracted."
    )
    return [Table("remarks", caption, noted, columns, stacked=True)] if len(noted) else []


# ---- sizes ----


def size_items(kept: list[Study]) -> list[Item]:
    """Return slopes and figures of ablations that were run at several sizes, all else equal."""
    groups, left_out = growth.group_by_question(kept)
    if not groups:
        return []
    slopes = pd.concat([growth.fit_slopes(group) for group in groups], ignore_index=True)
    items: list[Item] = [Text(_slope_sentence(row)) for row in slopes.to_dict("records")]
    columns = [
        Column("label", "arm"),
        Column("ablation", "ablation"),
        Column("word", "the effect"),
        numbers("slope", "nats per tenfold parameters", text.signed),
        numbers(("low", "high"), "interval", text.interval),
        numbers("level", "level", text.percent),
        numbers("p", "p", text.probability),
        numbers("regret", "regret (nats)", text.small),
        numbers("lack_of_fit", "p of a line", text.probability),
        numbers("sizes", "sizes", text.count),
        Column("n", "pairs by size"),
        Column("reason", "from where to where"),
    ]
    caption = (
        "Slope of the effect over log10 of the parameters, by least squares through the sizes. "
        "Intervals are simultaneous over the arms of an ablation, not over ablations. Two sizes "
        "always lie on a line: a third one tests it."
    )
    items.append(Table("slopes", caption, slopes, columns, stacked=True, mark="word"))
    items += [
        _size_figure(group, number)
        for number, group in enumerate(groups, 1)
        if len(growth.effect_points(group))
    ]
    if left_out:
        left_out_note = "A size that is there twice counts once. Left out:"
        items.append(Text(f"{left_out_note} {'; '.join(left_out)}."))
    return items


def _slope_sentence(row: dict[Any, Any]) -> str:
    name = f"{row['label']} ({row['ablation']})"
    if text.absent(row["slope"]):
        return f"{name}: not told, {row['reason']}."
    slope = (
        f"{text.signed(row['slope'])} nats per tenfold parameters "
        f"{text.interval(row['low'], row['high'])}"
    )
    clause = {
        "neither": "no slope was seen",
        "uncertain": "the learning rates leave the slope open",
        "moves": "the effect moves with size",
        "reverses": "the effect reverses with size",
    }.get(row["word"], f"the effect {row['word']} with size")
    return f"{name}: {clause}, {slope}, over {text.plural(int(row['sizes']), 'size')}."


def _size_figure(group: growth.Group, number: int) -> Figure:
    tokens = text.count(board.study_regime(group[0]).tokens)
    caption = (
        f"Effect of every arm of {group[0].name} at {len(group)} sizes, each with its study's "
        f"simultaneous interval; {tokens} tokens a run at every size, "
        f"{board.study_regime(group[0]).corpus}. A larger model is the less trained by them: size "
        "and tokens per parameter change together. Shaded: ±m."
    )
    name = re.sub(r"[^A-Za-z0-9]+", "-", group[0].name).strip("-")
    legend = chapters.arm_legend(group[0], growth.effect_points(group)["arm"])
    return Figure(f"over-size-{number}-{name}", caption, growth.draw_effects(group), legend)


# ---- the rest ----


def explain_board(rows: pd.DataFrame) -> list[Item]:
    """Return the meaning of words and numbers on the board."""
    if rows.empty:
        return []
    lines = [
        "A difference is the arm's final loss minus its own study's baseline, paired by seed, at "
        "the rate that the protocol chose for each: a row says nothing about another size, budget "
        "or corpus.",
        "Verdicts are each study's own, by its own protocol and m; nothing is judged again here.",
        "Invalid, unstable, exploratory and unfinished rows have no number: among numbers it "
        "would be read as a result.",
        f"The p of the whole board is Holm's over {text.plural(len(rows), 'row')}; rows without a "
        "test count as p = 1. Who picks the best of many rows should look at this one.",
    ]
    if (rows["kind"] == "main effect").any():
        lines.append(
            "A main effect of a factorial design averages over the other factors' levels; its "
            "cells stand as arms too."
        )
    return [Bullets(lines)]


def study_table(kept: list[Study], left_out: list[str]) -> list[Item]:
    """Return the studies on the board, and the duplicates that are left out."""
    if not kept:
        return []
    rows = [
        {
            "study": study.path.name,
            "question": study.protocol.question,
            "regime": board.study_regime(study).regime,
            "seeds": study.rules.seeds,
            "state": "done" if study.complete else "half finished",
            "method": study.verdict.method,
            "created": study.about.created[:10],
        }
        for study in kept
    ]
    columns = [
        Column("study", "study"),
        Column("question", "question"),
        Column("regime", "regime"),
        numbers("seeds", "seeds", text.count),
        Column("state", "state"),
        numbers("method", "judged by method", text.count),
        Column("created", "begun"),
    ]
    caption = "Every study on the board, in the order in which they were begun."
    items: list[Item] = [Table("studies", caption, pd.DataFrame(rows), columns)]
    if left_out:
        items.append(Text(f"Duplicates: {'; '.join(left_out)}."))
    return items
