"""The chapter of a factorial design: what each factor does, and whether what it does depends on the
others.
"""

import itertools
import re
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.chapters import sentences as words
from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import chart_of_visible, padded_domain, tooltips
from andrea.analysis.load import Study
from andrea.analysis.report import Bullets, Column, Figure, Item, Table, Text, numbers
from andrea.analysis.tables import summaries
from andrea.text import numbers as text
from andrea.verdict.cells import cells

LEVEL_APART = 0.05
"""Horizontal distance between the lines of a figure, in levels: intervals of equal cells do not
hide each other.
"""


def chapter(study: Study) -> list[Item]:
    """A sentence per factor and per interaction, the table of effects, and a figure per pair of
    factors.
    """
    if not study.factors:
        return []
    items: list[Item] = [Text(sentence) for sentence in write_sentences(study)]
    if len(study.effects):
        items.append(_table(study))
        items += _reason_list(study)
    return items + [
        figure
        for pair in itertools.combinations(study.factors, 2)
        if (figure := _figure(study, *pair))
    ]


def write_sentences(study: Study) -> list[str]:
    """One sentence per factor, then one per interaction; none before the verdict."""
    rows = study.effects.to_dict("records")
    if reason := text.one_reason(rows):
        return [f"No effect can be judged: {reason}."]
    found = []
    for factor in study.factors:
        steps: dict[str, list[str]] = {}
        for row in rows:
            if row["factor"] == factor and row["kind"] != "interaction":
                where = f"with {row['at']}" if row["at"] else "on average"
                steps.setdefault(row["step"], []).append(f"{where} {_word_with_size(row)}")
        if steps:
            told = "; ".join(f"{step}: {text.listing(clauses)}" for step, clauses in steps.items())
            found.append(f"{factor}. {told[0].upper()}{told[1:]}.")
    return [
        *found,
        *(f"{_interaction_sentence(study, row)}." for row in rows if row["kind"] == "interaction"),
    ]


def write_answer(study: Study) -> str:
    """The answer about the arms; of a factorial design a second sentence says whether factors
    depend on each other.
    """
    rows = study.effects[study.effects["kind"] == "interaction"].to_dict("records")
    said = words.write_answer(study)
    if (reason := text.one_reason(rows)) and reason in said:
        return said
    return " ".join([said, *(f"{_interaction_sentence(study, row)}." for row in rows)])


def _interaction_sentence(study: Study, row: dict[Any, Any]) -> str:
    """An interaction in words, with its interval."""
    said = f"Interaction of {row['name'].replace(' × ', ' and ')}"
    if text.absent(row["mean"]) or text.absent(row["low"]):
        return f"{said}: {_word_with_size(row)}"
    more = "more" if row["mean"] > 0 else "less"
    than = (
        f"{text.loss(abs(row['mean']))} nats {more} with {row['at']} than with {row['instead_of']}"
    )
    within = f"{words.interval_name(study)} {text.interval(row['low'], row['high'])}"
    word = text.judged(row["verdict"], row["cause"])
    return f"{said}: {word}, {row['step']} adds {than} ({within})"


def _word_with_size(row: dict[Any, Any]) -> str:
    """The word, with the number behind it or the reason why there is none."""
    word = text.judged(row["verdict"], row["cause"])
    size = row["reason"] if text.absent(row["mean"]) else f"{text.signed(row['mean'])} nats"
    return f"{word} ({size})"


_KINDS = {"main": "main effect", "simple": "simple effect", "interaction": "interaction"}


def _table(study: Study) -> Table:
    frame = study.effects.assign(
        what=study.effects["kind"].map(_KINDS),
        judged=[
            text.judged(*pair)
            for pair in zip(study.effects["verdict"], study.effects["cause"], strict=True)
        ],
    )
    families = study.effects.groupby("kind", sort=False)["level"].agg(["size", "first"])
    each = [
        f"{text.plural(int(n), _KINDS[str(kind)])} at {text.percent(at)}"
        for kind, (n, at) in families.iterrows()
    ]
    caption = (
        "Contrasts of the final losses of one seed, over n seeds; below 0 is better. A main effect "
        "is averaged over the levels of the other factors, an interaction is the difference of two "
        "differences: what the first level does with the second, less what it does without. "
        f"Intervals hold together within a kind ({text.listing(each)}). m = {study.m or 0:g} nats "
        "for every kind."
    )
    if (study.effects["kind"] == "simple").any():
        caption += (
            " A simple effect that starts at the baseline is the same contrast as an arm's line in "
            "the verdict table. Its interval and its p differ from those there, as another number "
            "of statements must hold together: "
            f"{text.plural(int((study.effects['kind'] == 'simple').sum()), 'simple effect')} here, "
            f"{text.plural(len(study.arms) - 1, 'arm')} there."
        )
    columns = [
        Column("name", "effect"),
        Column("what", "kind"),
        Column("judged", "verdict"),
        numbers("mean", "nats", text.signed),
        numbers(("low", "high"), "simultaneous interval", text.interval),
        numbers("n", "seeds", text.count),
        numbers("p_holm", "p (Holm)", text.probability),
        numbers("regret", "regret (nats)", text.small),
    ]
    return Table("effects", caption, frame, columns, stacked=True, mark="judged")


def _reason_list(study: Study) -> list[Item]:
    """Why an effect could not be told, a line for all of which the same is to be said."""
    rows = study.effects.to_dict("records")
    if text.one_reason(rows):
        return []
    said: dict[str, list[str]] = {}
    for row in rows:
        if row["verdict"] in ("unstable", "inconclusive", "invalid"):
            said.setdefault(row["reason"], []).append(row["name"])
    return (
        [Bullets([f"{'; '.join(names)}: {reason}." for reason, names in said.items()])]
        if said
        else []
    )


def cell_means(study: Study, lines: str, along: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells of two factors, averaged over the levels of the others at every seed.

    Returns:
        seeds: line, along (levels), seed, loss, state (completed, or stalled); seeds that have no
            loss are not in it.
        means: line, along, n, planned, mean, low, high (95 % interval); NaN unless every seed is
            good.
    """
    runs = study.replicates()
    members: dict[tuple[str, str], list[str]] = {}
    for name, levels in cells(
        {factor: list(levels) for factor, levels in study.factors.items()}
    ).items():
        members.setdefault((levels[lines], levels[along]), []).append(name)
    seeds, means = [], []
    for (line, at), arms in members.items():
        mine = runs[runs["arm"].isin(arms)]
        good = mine.groupby("seed")["ok"].sum() == len(arms)
        whole = {int(str(seed)): bool(ok) for seed, ok in good.items()}
        losses = mine.groupby("seed")["loss"].mean()
        for seed, loss in ((int(str(seed)), loss) for seed, loss in losses[losses.notna()].items()):
            seeds.append((line, at, seed, loss, "completed" if whole[seed] else "stalled"))
        row: dict[str, Any] = {
            "line": line,
            "along": at,
            "n": int(good.sum()),
            "planned": len(good),
        }
        row |= {"mean": np.nan, "low": np.nan, "high": np.nan}
        if len(good) and good.all():
            low, high = summaries.mean_interval(losses)
            row |= {"mean": losses.mean(), "low": low, "high": high}
        means.append(row)
    return pd.DataFrame(seeds, columns=["line", "along", "seed", "loss", "state"]), pd.DataFrame(
        means
    )


def _figure(study: Study, lines: str, along: str) -> Figure | None:
    """Loss over the levels of one factor, a line per level of the other."""
    seeds, means = cell_means(study, lines, along)
    if not len(seeds):
        return None
    rest = [factor for factor in study.factors if factor not in (lines, along)]
    averaged = f", averaged over {text.listing(rest)}" if rest else ""
    lost = means[means["n"] < means["planned"]]
    caption = (
        f"Final loss of every combination of {lines} and {along}{averaged}: mean over the seeds, "
        "its 95 % interval, and every seed as a small mark. Parallel lines: no interaction. The "
        "intervals hold what seeds do to all cells alike, which cancels in the effects above."
    )
    if len(lost):
        caption += (
            " A cell of which a run did not train has no mean: it would be one over the survivors."
        )
    labels, colors = study.factors[lines], theme.arm_colors(list(study.factors[lines]))
    legend = {level: (labels[level], colors[level]) for level in labels}
    keys = {"┃": "95 % interval", "○": "one seed"} | (
        {"▽": "stalled"} if (seeds["state"] == "stalled").any() else {}
    )
    return Figure(
        re.sub(r"[^\w-]+", "-", f"interaction-{lines}-{along}"),
        caption,
        _spec(study, lines, along),
        legend,
        keys,
    )


def _spec(study: Study, lines: str, along: str) -> dict[str, Any]:
    seeds, means = cell_means(study, lines, along)
    order, places = list(study.factors[lines]), list(study.factors[along])
    for frame in (seeds, means):
        middle = (len(order) - 1) / 2
        frame["x"] = frame["along"].map(places.index) + LEVEL_APART * (
            frame["line"].map(order.index) - middle
        )
        frame["arm"] = frame["line"]  # what the legend's buttons hide
        frame["at"] = frame["along"].map(study.factors[along])
    good = seeds[seeds["state"] == "completed"]["loss"]
    shown = pd.concat([good if len(good) else seeds["loss"], means["low"], means["high"]]).dropna()
    domain = padded_domain(float(shown.min()), float(shown.max()))
    # What stalled lies so far off that the rest would shrink to a dot: it stands at the edge.
    seeds["drawn"] = seeds["loss"].clip(*domain)
    labels = marks.label_expression(
        [study.factors[along][place] for place in places], "round(datum.value)"
    )
    axis = alt.Axis(
        values=list(range(len(places))), labelExpr=labels, grid=False, tickSize=0, labelPadding=8
    )
    x = alt.X(
        "x:Q", title=along, axis=axis, scale=alt.Scale(domain=[-0.4, len(places) - 0.6], nice=False)
    )
    scale = alt.Scale(domain=domain, zero=False, nice=False)
    y = alt.Y(
        "mean:Q", title="final loss (nats)", scale=scale, axis=alt.Axis(format=".3~f", tickCount=6)
    )
    told = {
        "arm:N": lines,
        "at:N": along,
        "mean:Q|.4f": "mean",
        "low:Q|.4f": "from",
        "high:Q|.4f": "to",
        "n:Q": "seeds",
    }
    base = chart_of_visible(means.dropna(subset=["mean"])).encode(color=marks.arm_color(order))
    dots = chart_of_visible(seeds).mark_point(size=34, strokeWidth=1.3, opacity=0.7)
    single = {
        "arm:N": lines,
        "at:N": along,
        "seed:Q": "seed",
        "loss:Q|.4f": "final loss",
        "state:N": "outcome",
    }
    layers = [
        dots.encode(
            x=x,
            y=alt.Y("drawn:Q", title="final loss (nats)", scale=scale),
            color=marks.arm_color(order),
            shape=marks.outcome_shape(),
            tooltip=tooltips(single),
        ),
        base.mark_line(strokeWidth=2).encode(x=x, y=y),
        base.mark_rule(strokeWidth=4, opacity=0.5).encode(
            x=x, y=alt.Y("low:Q", scale=scale, title="final loss (nats)"), y2="high:Q"
        ),
        base.mark_point(size=70, filled=True, opacity=1).encode(x=x, y=y, tooltip=tooltips(told)),
    ]
    return marks.finish_chart(
        alt.layer(*layers), 300, f"Final loss over {along}, a line per level of {lines}."
    )
