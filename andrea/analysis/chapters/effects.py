"""The chapter of a factorial design: the effect of each factor, and whether it depends on the
others.
"""

import itertools
import re
from functools import partial
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
    """Return a sentence per factor and per interaction, the table of effects, and a figure per pair
    of factors.
    """
    if not study.factors:
        return []
    items: list[Item] = [Text(sentence) for sentence in write_sentences(study)]
    if len(study.effects):
        items += [_table(study), *_reason_list(study)]
    for lines, along in itertools.combinations(study.factors, 2):
        figure = _figure(study, lines, along)
        if figure is not None:
            items.append(figure)
    return items


def write_sentences(study: Study) -> list[str]:
    """Return one sentence per factor, then one per interaction; none before the verdict."""
    rows = study.effects.to_dict("records")
    reason = text.one_reason(rows)
    if reason:
        return [f"No effect can be judged: {reason}."]
    sentences = []
    for factor in study.factors:
        clauses: dict[str, list[str]] = {}
        for row in rows:
            if row["factor"] == factor and row["kind"] != "interaction":
                condition = f"with {row['at']}" if row["at"] else "on average"
                clauses.setdefault(row["step"], []).append(f"{condition} {_word_with_size(row)}")
        steps = "; ".join(f"{step}: {text.listing(parts)}" for step, parts in clauses.items())
        if steps:
            sentences.append(f"{factor}. {steps[0].upper()}{steps[1:]}.")
    return sentences + _interaction_sentences(study)


def _interaction_sentences(study: Study) -> list[str]:
    rows = study.effects[study.effects["kind"] == "interaction"].to_dict("records")
    return [f"{_interaction_clause(study, row)}." for row in rows]


def write_answer(study: Study) -> str:
    """Return the answer about the arms, and of a factorial design a sentence per interaction."""
    answer = words.write_answer(study)
    reason = text.one_reason(study.effects.to_dict("records"))
    if reason and reason in answer:
        return answer
    return " ".join([answer, *_interaction_sentences(study)])


def _interaction_clause(study: Study, row: dict[Any, Any]) -> str:
    """Return an interaction in words, with its interval."""
    name = f"Interaction of {row['name'].replace(' × ', ' and ')}"
    if text.absent(row["mean"]) or text.absent(row["low"]):
        return f"{name}: {_word_with_size(row)}"
    size = f"{text.loss(abs(row['mean']))} nats {'more' if row['mean'] > 0 else 'less'}"
    interval = f"{words.interval_name(study)} {text.interval(row['low'], row['high'])}"
    return (
        f"{name}: {text.judged(row['verdict'], row['cause'])}, {row['step']} adds {size} with "
        f"{row['at']} than with {row['instead_of']} ({interval})"
    )


def _word_with_size(row: dict[Any, Any]) -> str:
    """Return the word, with the number behind it or the reason why there is none."""
    word = text.judged(row["verdict"], row["cause"])
    size = row["reason"] if text.absent(row["mean"]) else f"{text.signed(row['mean'])} nats"
    return f"{word} ({size})"


_KINDS = {"main": "main effect", "simple": "simple effect", "interaction": "interaction"}


def _table(study: Study) -> Table:
    frame = study.effects.assign(what=study.effects["kind"].map(_KINDS))
    frame["judged"] = list(map(text.judged, frame["verdict"], frame["cause"]))
    families = frame.groupby("kind", sort=False)["level"].agg(["size", "first"])
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
    n_simple = int((frame["kind"] == "simple").sum())
    if n_simple:
        caption += (
            " A simple effect that starts at the baseline is the same contrast as an arm's line in "
            "the verdict table. Its interval and its p differ from those there, as another number "
            f"of statements must hold together: {text.plural(n_simple, 'simple effect')} here, "
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
    """Return why effects were not decided, a line for all effects with the same reason."""
    rows = study.effects.to_dict("records")
    if text.one_reason(rows):
        return []
    names_by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row["verdict"] in ("unstable", "inconclusive", "invalid"):
            names_by_reason.setdefault(row["reason"], []).append(row["name"])
    lines = [f"{'; '.join(names)}: {reason}." for reason, names in names_by_reason.items()]
    return [Bullets(lines)] if lines else []


def cell_means(study: Study, lines: str, along: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells of two factors, averaged over the levels of the others at every seed.

    Returns:
        seeds: line, along (levels), seed, loss, state (completed, or stalled); seeds that have no
            loss are not in it.
        means: line, along, n, planned, mean, low, high (95 % interval); NaN unless every seed is
            good.
    """
    replicates = study.replicates()
    levels_by_factor = {factor: list(levels) for factor, levels in study.factors.items()}
    members: dict[tuple[str, str], list[str]] = {}
    for name, levels in cells(levels_by_factor).items():
        members.setdefault((levels[lines], levels[along]), []).append(name)
    seeds, means = [], []
    for (line, at), arms in members.items():
        by_seed = replicates[replicates["arm"].isin(arms)].groupby("seed")
        is_good = by_seed["ok"].sum() == len(arms)
        good_seeds = set(is_good[is_good].index)
        losses = by_seed["loss"].mean().dropna()
        for seed, loss in losses.items():
            state = "completed" if seed in good_seeds else "stalled"
            seeds.append((line, at, seed, loss, state))
        mean, low, high = np.nan, np.nan, np.nan
        if len(is_good) and is_good.all():
            mean, (low, high) = float(losses.mean()), summaries.mean_interval(losses)
        means.append((line, at, int(is_good.sum()), len(is_good), mean, low, high))
    columns = ["line", "along", "seed", "loss", "state"]
    mean_columns = ["line", "along", "n", "planned", "mean", "low", "high"]
    return pd.DataFrame(seeds, columns=columns), pd.DataFrame(means, columns=mean_columns)


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
    keys = {"┃": "95 % interval", "○": "one seed"}
    if (seeds["state"] == "stalled").any():
        keys["▽"] = "stalled"
    name = re.sub(r"[^\w-]+", "-", f"interaction-{lines}-{along}")
    return Figure(name, caption, _spec(study, lines, along), legend, keys)


def _spec(study: Study, lines: str, along: str) -> dict[str, Any]:
    seeds, means = cell_means(study, lines, along)
    order, places = list(study.factors[lines]), list(study.factors[along])
    middle = (len(order) - 1) / 2
    for frame in (seeds, means):
        shift = LEVEL_APART * (frame["line"].map(order.index) - middle)
        frame["x"] = frame["along"].map(places.index) + shift
        frame["arm"] = frame["line"]  # what the legend's buttons hide
        frame["at"] = frame["along"].map(study.factors[along])
    good = seeds[seeds["state"] == "completed"]["loss"]
    shown = pd.concat([good if len(good) else seeds["loss"], means["low"], means["high"]]).dropna()
    domain = padded_domain(float(shown.min()), float(shown.max()))
    # What stalled lies so far off that the rest would shrink to a dot: it stands at the edge.
    seeds["drawn"] = seeds["loss"].clip(*domain)
    labels = marks.label_expression(list(study.factors[along].values()), "round(datum.value)")
    ticks = list(range(len(places)))
    x_axis = alt.Axis(values=ticks, labelExpr=labels, grid=False, tickSize=0, labelPadding=8)
    x_scale = alt.Scale(domain=[-0.4, len(places) - 0.6], nice=False)
    x = alt.X("x:Q", title=along, axis=x_axis, scale=x_scale)
    y = partial(alt.Y, title="final loss (nats)", scale=marks.linear_scale(domain))
    y_mean = y("mean:Q", axis=alt.Axis(format=".3~f", tickCount=6))
    levels = {"arm:N": lines, "at:N": along}
    numbers = {"mean:Q|.4f": "mean", "low:Q|.4f": "from", "high:Q|.4f": "to", "n:Q": "seeds"}
    single = {"seed:Q": "seed", "loss:Q|.4f": "final loss", "state:N": "outcome"}
    color = marks.arm_color(order)
    base = chart_of_visible(means.dropna(subset=["mean"])).encode(x=x, color=color)
    interval = base.mark_rule(strokeWidth=4, opacity=0.5)
    mean = base.mark_point(size=70, filled=True, opacity=1)
    dots = chart_of_visible(seeds).mark_point(size=34, strokeWidth=1.3, opacity=0.7)
    shaped = dots.encode(x=x, color=color, shape=marks.outcome_shape())
    layered = alt.layer(
        shaped.encode(y=y("drawn:Q"), tooltip=tooltips(levels | single)),
        base.mark_line(strokeWidth=2).encode(y=y_mean),
        interval.encode(y=y("low:Q"), y2="high:Q"),
        mean.encode(y=y_mean, tooltip=tooltips(levels | numbers)),
    )
    description = f"Final loss over {along}, a line per level of {lines}."
    return marks.finish_chart(layered, 300, description)
