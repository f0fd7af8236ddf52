"""Stability of the arms in training, and their sensitivity to the learning rate."""

from dataclasses import asdict
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.chapters.common import arm_legend
from andrea.analysis.figures import marks
from andrea.analysis.figures.marks import (
    arm_color,
    arm_dash,
    chart_of_visible,
    finish_chart,
    padded_domain,
    tooltips,
)
from andrea.analysis.load import Study
from andrea.analysis.report import Column, Figure, Item, Table, intervals, numbers
from andrea.analysis.tables.frames import with_floats
from andrea.text import numbers as text
from andrea.verdict.replicates import Replicate
from andrea.verdict.sensitivity import Sensitivity
from andrea.verdict.stability import measure_stability

PHASES = {"tune": "tuning", "replicate": "replicates"}
"""Phases in which runs are counted."""


def stability_table(study: Study) -> pd.DataFrame:
    """Runs that diverged or stalled, as far as they are done: arm, label, phase, n, diverged,
    stalled, rate, low, high (Wilson 95 %).
    """
    rows = []
    for arm in study.arms:
        for phase in PHASES:
            runs = study.runs[(study.runs["arm"] == arm) & (study.runs["phase"] == phase)]
            if len(runs):
                counted = measure_stability([_ended(run) for run in runs.to_dict("records")])
                about = {"arm": arm, "label": study.label(arm), "phase": phase}
                rows.append(about | asdict(counted))
    columns = ["arm", "label", "phase", "n", "diverged", "stalled", "rate", "low", "high"]
    return with_floats(pd.DataFrame(rows, columns=columns), "rate", "low", "high")


def _ended(run: dict[Any, Any]) -> Replicate:
    loss = None if text.absent(run["loss"]) else float(run["loss"])
    return Replicate(loss, str(run["outcome"]), bool(run["stalled"]))


def chapter(study: Study) -> list[Item]:
    """Divergence and stall rates per arm and phase."""
    frame = stability_table(study)
    if not frame["n"].any():
        return []
    columns = [
        Column("label", "arm"),
        Column("phase", "phase", lambda phase: PHASES[phase]),
        numbers("n", "runs that ended", text.count),
        numbers("diverged", "diverged", text.count),
        numbers("stalled", "stalled", text.count),
        numbers("rate", "share", text.percent),
        numbers(("low", "high"), "95 % interval", intervals(text.percent)),
    ]
    caption = (
        "Runs that diverged or stalled, by arm and phase, with Wilson's interval: 0 of n is not "
        "never. Tuning tries every rate on one seed, so that its share tells how wide the usable "
        "range is; the replicates', on every seed at the chosen rate, how often training fails."
    )
    return [Table("stability", caption, frame, columns, stacked=True)]


# ---- learning-rate sensitivity
# ---------------------------------------------------------------------------------------


def sensitivity_items(study: Study) -> list[Item]:
    """Return the sensitivity of every arm, and the curve behind it; nothing before the verdict."""
    rows = []
    for arm in study.arms:
        if arm in study.verdict.sensitivity:
            rows.append(_sensitivity_row(study, arm, study.verdict.sensitivity[arm]))
    if not rows:
        return []
    frame = pd.DataFrame(rows)
    columns = [
        Column("label", "arm"),
        numbers("value", "sensitivity (nats)"),
        numbers("best", "best on the grid (nats)"),
        numbers("n", "rates", text.count),
        numbers(("from_rate", "to_rate"), "rates from, to", _format_rates),
    ]
    columns += [Column("reason", "why not told")] if (frame["reason"] != "").any() else []
    caption = (
        "Learning-rate sensitivity (Wortsman et al. 2023): the mean of min(loss, loss at "
        "initialisation) over the grid that all arms share, less the least of them. 0: every rate "
        "is as good as the best. n rates of one run each on one tuning seed, so it has no "
        "interval, and it depends on the grid."
    )
    items: list[Item] = [Table("sensitivity", caption, frame, columns)]
    return items + _figure(study, sensitivity_curve(study))


def _format_rates(low: Any, high: Any) -> str:
    return f"{text.rate(low)}, {text.rate(high)}"


def _sensitivity_row(study: Study, arm: str, measured: Sensitivity) -> dict[str, Any]:
    numbers = {"value": measured.value, "best": measured.best, "n": measured.n}
    row: dict[str, Any] = {
        "arm": arm,
        "label": study.label(arm),
        "from_rate": min(measured.rates, default=np.nan),
        "to_rate": max(measured.rates, default=np.nan),
        **{key: np.nan if number is None else number for key, number in numbers.items()},
        "reason": measured.reason,
    }
    has_trained = study.trials[study.trials["arm"] == arm]["ok"].any()
    if measured.value is not None and not has_trained:
        # A curve that is bad at every rate is flat, which is no sign of a wide valley.
        row |= {"value": np.nan, "reason": "trained at none of these rates"}
    return row


def sensitivity_curve(study: Study) -> pd.DataFrame:
    """Return min(loss, loss at initialisation) over the common grid: arm, lr, loss (nats)."""
    rows = [
        {"arm": arm, "lr": lr, "loss": loss}
        for arm in study.arms
        if (measured := study.verdict.sensitivity.get(arm))
        for lr, loss in zip(measured.rates, measured.losses, strict=False)
    ]
    frame = pd.DataFrame(rows, columns=["arm", "lr", "loss"])
    return frame.astype({"lr": "float64", "loss": "float64"})


def _figure(study: Study, points: pd.DataFrame) -> list[Item]:
    if points["loss"].notna().sum() < 2:
        return []
    title = "peak learning rate (grid that all arms share)"
    x = marks.rate_axis(points["lr"].round(12), points["lr"], title)
    domain = padded_domain(float(points["loss"].min()), float(points["loss"].max()))
    axis = alt.Axis(values=marks.round_ticks(domain[0], domain[1]), format=".3~f")
    scale = marks.linear_scale(domain)
    y = alt.Y("loss:Q", title="min(loss, loss at init) (nats)", scale=scale, axis=axis)
    titles = {"arm:N": "arm", "lr:Q|~r": "learning rate", "loss:Q|.4f": "min(loss, loss at init)"}
    base = chart_of_visible(points).encode(x=x, y=y, color=arm_color(study.arms))
    line = base.mark_line(strokeWidth=2).encode(strokeDash=arm_dash(study.arms))
    dots = base.mark_point(size=55, filled=True, opacity=1).encode(tooltip=tooltips(titles))
    caption = (
        "The curve behind the number: what an arm loses, on the whole scale, at rates that are not "
        "its own. A flat curve forgives a wrong rate; one that climbs to the loss at "
        "initialisation has a cliff. One run per rate."
    )
    description = "Loss, at most that at initialisation, over the common learning rates."
    spec = finish_chart(alt.layer(line, dots), 280, description)
    return [Figure("sensitivity-curve", caption, spec, arm_legend(study, points["arm"]))]
