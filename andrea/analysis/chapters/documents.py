"""The chapter over documents: the effect on other texts of the same kind."""

import re
from functools import partial
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.chapters.common import arm_legend
from andrea.analysis.figures import marks
from andrea.analysis.figures.marks import (
    arm_color,
    chart_of_visible,
    finish_chart,
    inline_data,
    padded_domain,
    tooltips,
)
from andrea.analysis.load import Study
from andrea.analysis.report import Column, Figure, Item, Table, numbers
from andrea.text import numbers as text

DRAWN = 150
"""Documents that the figure draws per arm, about."""
_YEAR = re.compile(r"(?<!\d)(1[5-9]\d\d|20\d\d)(?!\d)")


def chapter(study: Study) -> list[Item]:
    """Return the interval over documents beside the one over seeds, and the effect document by
    document.
    """
    items = _interval_table(study)
    effects = by_document(study)
    if effects["document"].nunique() > 2:
        items.append(_figure(study, effects))
    return items


def by_document(study: Study) -> pd.DataFrame:
    """Return one row per arm and document: arm, document, tokens, difference (nats: mean over
    seeds of arm − baseline), low, high (least and greatest seed), n (seeds). Only where every
    planned pair is whole.
    """
    pairs = study.differences
    whole = [arm for arm, of_arm in pairs.groupby("arm", sort=False) if of_arm["ok"].all()]
    columns = ["arm", "seed", "document", "tokens", "loss"]
    losses = study.part("documents", columns, phase="replicate").dropna(subset="loss")
    base = losses[losses["arm"] == study.baseline][["seed", "document", "loss"]]
    both = losses[losses["arm"].isin(whole)].merge(
        base, on=["seed", "document"], suffixes=("", "_baseline")
    )
    both["difference"] = both["loss"] - both["loss_baseline"]
    grouped = both.groupby(["arm", "document"], sort=False)
    frame = grouped.agg(
        tokens=("tokens", "first"),
        difference=("difference", "mean"),
        low=("difference", "min"),
        high=("difference", "max"),
        n=("seed", "nunique"),
    )
    table: pd.DataFrame = frame.reset_index()
    return table


def _interval_table(study: Study) -> list[Item]:
    rows = []
    judged = {row.arm: row for row in study.judged}
    for arm in study.arms:
        if arm in study.verdict.documents:
            documents, seeds = study.verdict.documents[arm], judged[arm]
            low, high = documents.interval or (np.nan, np.nan)
            row: dict[str, Any] = {"arm": arm, "label": study.label(arm)}
            row |= {"mean": documents.mean, "low": low, "high": high}
            row |= {"n_documents": documents.n_documents, "freedom": documents.freedom}
            row |= {"seeds_low": seeds.low, "seeds_high": seeds.high, "n": seeds.n}
            rows.append(row | {"reason": documents.reason})
    if not rows:
        return []
    quantities = ("mean", "low", "high", "freedom", "seeds_low", "seeds_high")
    frame = pd.DataFrame(rows).astype(dict.fromkeys(quantities, "float64"))
    columns = [
        Column("label", "arm"),
        numbers("mean", "difference (nats)", text.signed),
        numbers(("low", "high"), "95 % interval over documents", text.interval),
        numbers("n_documents", "documents", text.count),
        numbers(("seeds_low", "seeds_high"), "simultaneous interval over seeds", text.interval),
        numbers("n", "pairs", text.count),
    ]
    columns += [numbers("freedom", "degrees of freedom", lambda df: text.number(df, 1))]
    columns += [Column("reason", "why not told")] if (frame["reason"] != "").any() else []
    caption = (
        "Two questions with an interval each. Over seeds: would training again have said the same "
        "of this text? Over documents, weighted by their tokens: would another text of this kind "
        "have said the same of these trainings? Neither contains the other's chance, and the "
        "verdict is by seeds. Where a few long documents decide, the degrees of freedom are fewer "
        "than the documents."
    )
    return [Table("over-documents", caption, frame, columns, stacked=True)]


def _figure(study: Study, effects: pd.DataFrame) -> Figure:
    names = pd.Series(effects["document"].unique())
    years = names.map(find_year)
    dated = bool(years.notna().all() and years.nunique() > 1)
    drawn = choose_documents(effects, dict(zip(names, years, strict=True)) if dated else {})
    count = drawn["document"].nunique()
    some = text.selection_note(count, len(names), "documents", "the file has")
    along = "over the years that their names tell" if dated else "from the least to the greatest"
    # In the order of the differences there is always a slope.
    far = "a slope over the years or a few far marks" if dated else "a few far marks"
    n = int(effects["n"].max())
    caption = (
        f"The difference to {study.baseline_label} on every evaluated document, {along}: mean over "
        f"n = {n} seeds, the thin line from the least to the greatest seed, larger marks for more "
        f"tokens. All on one side of 0: the effect does not hang on which text was taken; {far}: "
        f"it does.{some}"
    )
    spec = _spec(drawn, study.arms, dated, study.baseline_label)
    return Figure("effect-by-document", caption, spec, arm_legend(study, drawn["arm"]))


def find_year(name: str) -> float:
    """Return the year in a document's name; NaN where there is none, or several."""
    years = set(_YEAR.findall(str(name)))
    return float(years.pop()) if len(years) == 1 else float("nan")


def choose_documents(effects: pd.DataFrame, years: dict[str, float]) -> pd.DataFrame:
    """Return the documents that are drawn, with `x`: their year, else their rank by difference
    within the arm.

    Thinned by selection: evenly spaced ranks with both ends.
    """
    parts = []
    for _, of_arm in effects.sort_values("difference", kind="stable").groupby("arm", sort=False):
        ranked = of_arm.assign(rank=np.arange(1.0, len(of_arm) + 1))
        parts.append(ranked.iloc[marks.evenly_spaced(len(of_arm), DRAWN)])
    drawn = pd.concat(parts, ignore_index=True)
    drawn["x"] = drawn["document"].map(years) if years else drawn["rank"]
    return drawn


def _spec(drawn: pd.DataFrame, arms: Any, dated: bool, baseline: str) -> dict[str, Any]:
    low, high = float(drawn["low"].min()), float(drawn["high"].max())
    scale = marks.linear_scale(padded_domain(min(low, 0.0), max(high, 0.0)))
    # Every layer has the title: one without it takes it from all that share the axis.
    title = f"difference to {baseline} (nats)"
    y = partial(alt.Y, title=title, scale=scale, axis=alt.Axis(format="+.3~f"))
    first, last = float(drawn["x"].min()), float(drawn["x"].max())
    x = alt.X(
        "x:Q",
        title="year in the document's name" if dated else "documents, by their difference",
        scale=marks.linear_scale(padded_domain(first, last, 0.03)),
        axis=marks.integer_axis(int(first), int(last)),
    )
    size = alt.Size("tokens:Q", scale=alt.Scale(range=[25, 220]), legend=None)
    titles = {
        "arm:N": "arm",
        "document:N": "document",
        "tokens:Q|,d": "tokens",
        "difference:Q|+.4f": "difference",
        "low:Q|+.4f": "least seed",
        "high:Q|+.4f": "greatest seed",
        "n:Q": "seeds",
    }
    columns = ["arm", "document", "tokens", "x", "difference", "low", "high", "n"]
    base = chart_of_visible(drawn[columns]).encode(x=x, color=arm_color(arms))
    zero = alt.Chart(inline_data(pd.DataFrame({"difference": [0.0]}))).mark_rule(strokeWidth=1.5)
    rule = base.mark_rule(strokeWidth=1, opacity=0.45)
    dots = base.mark_point(filled=True, opacity=0.85)
    layered = alt.layer(
        zero.encode(y=y("difference:Q")),
        rule.encode(y=y("low:Q"), y2="high:Q"),
        dots.encode(y=y("difference:Q"), size=size, tooltip=tooltips(titles)),
    )
    description = f"Difference to {baseline} on every evaluated document, per arm."
    return finish_chart(layered, 300, description)
