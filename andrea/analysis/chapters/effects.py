"""The chapter of a factorial design: the effect of each factor, and whether it depends on the
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
        row: dict[str, Any] = {"line": line, "along": at}
        row |= {"n": int(is_good.sum()), "planned": len(is_good)}
        row |= dict.fromkeys(("mean", "low", "high"), np.nan)
        if len(is_good) and is_good.all():
            row["mean"] = losses.mean()
            row["low"], row["high"] = summaries.mean_interval(losses)
        means.append(row)
    columns = ["line", "along", "seed", "loss", "state"]
    return pd.DataFrame(seeds, columns=columns), pd.DataFrame(means)


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
