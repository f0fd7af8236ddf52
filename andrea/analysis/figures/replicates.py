"""The figures of replicates. Each is one Vega-Lite specification: interactive on the page, an SVG
in a file.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks
from andrea.analysis.figures.marks import Channel, Layer, VegaSpec, chart_of_visible, tooltips
from andrea.analysis.tables import curves as curve_tables


class DifferencePlot(NamedTuple):
    """All that the figure of paired differences draws."""

    pairs: pd.DataFrame
    """arm, seed, difference, outcomes, state (how the worse of both runs ended), drawn (place)."""
    means: pd.DataFrame
    """arm, mean, low, high, n, verdict."""
    rows: list[str]
    """The arms, from the top."""
    margin: float
    domain: list[float]
    """Ends of the axis, nats."""


def draw_differences(
    pairs: pd.DataFrame,
    verdicts: pd.DataFrame,
    m: float | None,
    arms: Sequence[str],
    labels: Mapping[str, str] | None = None,
) -> VegaSpec:
    """Return paired differences to the baseline: a dot per seed, the mean with its simultaneous
    interval, the band of ±m.

    Args:
        pairs: `Study.differences`.
        verdicts: `Study.verdicts`.
        m: smallest effect of interest, nats.
        arms: in the order of colours, the baseline first.
        labels: of arms, for the axes; by default their names.
    """
    labels = labels or {}
    names = {arm: labels.get(arm, arm) for arm in arms}
    baseline = names[arms[0]]
    plot = _prepare_differences(pairs, verdicts, m or 0.0, arms)
    x = partial(
        alt.X,
        scale=alt.Scale(domain=plot.domain, nice=False),
        title=[f"difference to {baseline} (nats)", "left is better"],
        axis=alt.Axis(format="+.3~f", tickCount=marks.FEW),
    )
    axis = alt.Axis(
        labelLimit=160, ticks=False, labelExpr=marks.label_expression(names, "datum.value")
    )
    row = alt.Y("arm:N", title=None, sort=None, scale=alt.Scale(domain=plot.rows), axis=axis)
    color = marks.arm_color(arms)
    layers = [
        *_margin_layers(plot.margin, x),
        *(layer.encode(y=row, color=color) for layer in _mean_layers(plot.means, x)),
        _pair_dots(plot.pairs, x).encode(y=row, color=color),
    ]
    return marks.finish_chart(
        alt.layer(*layers),
        76 * max(1, len(plot.rows)) + 10,
        f"Paired differences of final loss to {baseline}, per seed and arm.",
    )


def _prepare_differences(
    pairs: pd.DataFrame, verdicts: pd.DataFrame, margin: float, arms: Sequence[str]
) -> DifferencePlot:
    compared = set(pairs["arm"]) | set(verdicts["arm"])
    rows = [arm for arm in arms[1:] if arm in compared]
    columns = ["arm", "seed", "difference", "outcome", "baseline_outcome"]
    dots = pairs.dropna(subset=["difference"])[columns].copy()
    dots["state"] = dots["outcome"].where(dots["outcome"] != "completed", dots["baseline_outcome"])
    means = verdicts[verdicts["arm"].isin(rows)].dropna(subset=["mean", "low"])
    good = dots["difference"][dots["state"] == "completed"]
    values = pd.concat([good, means["low"], means["high"], pd.Series([0.0, margin, -margin])])
    domain = marks.padded_domain(values.min(), values.max())
    # A stalled run lies so far off that the rest would shrink to a dot: it stands at the edge.
    dots["drawn"] = dots["difference"].clip(*domain)
    columns = ["arm", "mean", "low", "high", "n", "verdict"]
    return DifferencePlot(dots, means[columns], rows, margin, domain)


def _margin_layers(m: float, x: Channel) -> list[Layer]:
    """Return the line at 0 and, behind it, the band of ±m."""
    limits = pd.DataFrame({"zero": [0.0], "low": [-m], "high": [m]})
    base = alt.Chart(marks.inline_data(limits))
    zero = base.mark_rule(strokeWidth=1.5).encode(x=x("zero:Q"))
    band = marks.margin_band(base).encode(x=x("low:Q"), x2="high:Q")
    return [band, zero] if m else [zero]


def _mean_layers(means: pd.DataFrame, x: Channel) -> list[Layer]:
    """Return the simultaneous interval of every arm as a thick line, its mean as a tick."""
    titles = {"arm:N": "arm", **marks.EFFECT_TITLES}
    base = chart_of_visible(means).encode(tooltip=tooltips(titles))
    interval = base.mark_rule(strokeWidth=7, opacity=0.45, strokeCap="round")
    tick = base.mark_tick(thickness=3, size=26)
    return [interval.encode(x=x("low:Q"), x2="high:Q"), tick.encode(x=x("mean:Q"))]


def _pair_dots(pairs: pd.DataFrame, x: Channel) -> Layer:
    """Return a mark per seed, spread within the arm's row."""
    titles = {
        "arm:N": "arm",
        "seed:Q": "seed",
        "difference:Q|+.4f": "difference",
        "state:N": "outcome",
    }
    offset = alt.YOffset("seed:N", sort="ascending", scale=alt.Scale(paddingOuter=0.6))
    dots = chart_of_visible(pairs).mark_point(size=60, strokeWidth=1.8)
    return dots.encode(
        x=x("drawn:Q"),
        yOffset=offset,
        shape=marks.outcome_shape(),
        tooltip=tooltips(titles),
    )


class CurvePlot(NamedTuple):
    """All that a figure of loss curves draws."""

    seeds: pd.DataFrame
    """Rows of a selection of the logged steps, of every run."""
    means: pd.DataFrame
    """arm, tokens, mean, low, high, n: over the seeds."""
    lost: pd.DataFrame
    """The last value of runs that diverged or stalled, within the axis."""
    domain: list[float]
    """Ends of the vertical axis."""


def draw_loss_curves(
    curves: pd.DataFrame,
    runs: pd.DataFrame,
    arms: Sequence[str],
    title: str,
    *,
    difference: bool = False,
    smoothed: pd.DataFrame | None = None,
) -> VegaSpec:
    """Return mean over seeds and the range between the seeds, at logged steps only; every seed as a
    thin line.

    Args:
        curves: rows of one kind and phase of `Study.curves`, or differences from
            `curves.paired_differences`.
        runs: `Study.runs`, which say what diverged or stalled.
        arms: in the order of colours.
        title: of the vertical axis, with its unit.
        difference: the curves are differences: 0 is drawn and signs are shown.
        smoothed: the same rows from `curves.smooth_losses`: mean and range are theirs, every seed
            stays as logged.
    """
    plot = _prepare_curves(curves, runs, difference, smoothed)
    sign = "+" if difference else ""
    axis = alt.Axis(format=f"{sign}.3~f", tickCount=6)
    scale = alt.Scale(zero=False, nice=False, domain=plot.domain)
    y = alt.Y("mean:Q", title=title, scale=scale, axis=axis)
    y_seed = alt.Y("loss:Q", title=title)
    x = marks.tokens_axis(plot.seeds["tokens"])
    color = marks.arm_color(arms)
    band, *means = _mean_curves(plot.means, y, title, arms, f"{sign}.4f")
    seeds = _seed_lines(plot.seeds).encode(y=y_seed, color=color)
    layers = [layer.encode(x=x) for layer in (band, seeds, *means)]
    if difference:
        zero = alt.Chart(marks.inline_data(pd.DataFrame({"mean": [0.0]})))
        layers.insert(0, zero.mark_rule().encode(y=y))
    if not plot.lost.empty:
        layers.append(_lost_dots(plot.lost).encode(x=x, y=y_seed, color=color))
    return marks.finish_chart(
        alt.layer(*layers), 340, f"{title} over tokens trained, mean and range over seeds per arm."
    )


def _prepare_curves(
    curves: pd.DataFrame, runs: pd.DataFrame, difference: bool, smoothed: pd.DataFrame | None
) -> CurvePlot:
    seeds = curve_tables.thin_curves(curves)
    averaged = seeds
    if smoothed is not None:
        averaged = smoothed[smoothed["tokens"].isin(seeds["tokens"].unique())]
    means = curve_tables.over_seeds(averaged).drop(columns="runs")
    lost = curve_tables.last_of_lost(seeds, runs)
    domain = _curve_domain(seeds, set(lost["run_id"]), difference)
    return CurvePlot(seeds, means, lost[lost["loss"].between(domain[0], domain[1])], domain)


def _curve_domain(curves: pd.DataFrame, lost: set[str], difference: bool) -> list[float]:
    """Return the lowest loss and the highest of the runs that trained; a spike or a stalled run
    beyond is cut at the edge.
    """
    finite = curves[np.isfinite(curves["loss"])]
    trained = finite[~finite["run_id"].isin(lost)]
    loss = (finite if trained.empty else trained)["loss"]
    low, high = float(loss.min()), float(loss.max())
    if difference:
        return marks.padded_domain(min(low, 0.0), max(high, 0.0), 0.06)
    first = float(finite.loc[finite["tokens"] == finite["tokens"].min(), "loss"].max())
    without_spikes = max(float(loss.quantile(0.995)), first)
    return marks.padded_domain(low, min(without_spikes, high), 0.04)


def _seed_lines(seeds: pd.DataFrame) -> Layer:
    # A number for a run: its id at every point would be most of the page.
    numbered = seeds[["arm", "tokens", "loss"]].assign(run=pd.factorize(seeds["run_id"])[0])
    lines = chart_of_visible(numbered).mark_line(strokeWidth=0.7, opacity=0.45, clip=True)
    return lines.encode(detail="run:N")


def _mean_curves(
    means: pd.DataFrame, y: alt.Y, title: str, arms: Sequence[str], number_format: str
) -> list[Layer]:
    """Return the range between an arm's seeds, their mean, and a point with a tooltip at every
    logged step.
    """
    titles = {
        "arm:N": "arm",
        "tokens:Q|,d": "tokens",
        f"mean:Q|{number_format}": "mean",
        f"low:Q|{number_format}": "lowest seed",
        f"high:Q|{number_format}": "highest seed",
        "n:Q": "seeds",
    }
    base = chart_of_visible(means)
    color = marks.arm_color(arms)
    few_steps = means["tokens"].nunique() <= 40
    size, opacity = (26, 1) if few_steps else (60, 0)
    band = base.mark_area(opacity=0.2, clip=True)
    line = base.mark_line(strokeWidth=2.2, clip=True, interpolate="linear")
    dots = base.mark_point(size=size, filled=True, opacity=opacity, clip=True)
    return [
        band.encode(y=alt.Y("low:Q", title=title), y2="high:Q", fill=marks.arm_fill(arms)),
        line.encode(y=y, color=color, strokeDash=marks.arm_dash(arms)),
        dots.encode(y=y, color=color, tooltip=tooltips(titles)),
    ]


def _lost_dots(lost: pd.DataFrame) -> Layer:
    """Return marks where the curves of runs end that diverged or stalled."""
    titles = {
        "arm:N": "arm",
        "seed:Q": "seed",
        "state:N": "outcome",
        "tokens:Q|,d": "tokens",
        "loss:Q|.4f": "loss",
    }
    dots = chart_of_visible(lost).mark_point(size=80, strokeWidth=2)
    return dots.encode(shape=marks.outcome_shape(trained=False), tooltip=tooltips(titles))


def draw_layers(layers: pd.DataFrame, arms: Sequence[str], title: str) -> VegaSpec:
    """Return one quantity over the blocks, at initialisation and at the end of training: mean and
    range over seeds.

    Args:
        layers: rows of one quantity of `Study.layers`.
        arms: in the order of colours.
        title: of the vertical axis, with its unit.
    """
    means = layer_means(layers)
    # A logarithmic axis has no place for zero.
    means.loc[~(means["low"] > 0), ["mean", "low", "high"]] = np.nan
    first, last = int(layers["layer"].min()), int(layers["layer"].max())
    x = alt.X(
        "layer:Q",
        title="block (0: embedding)",
        scale=alt.Scale(domain=[first, last], nice=False),
        axis=marks.integer_axis(first, last),
    )
    domain = [0.1, 1.0]
    if means["low"].notna().any():
        domain = marks.padded_log_domain(means["low"].min(), means["high"].max())
    scale = alt.Scale(type="log", nice=False, domain=domain)
    axis = alt.Axis(values=marks.log_ticks(*domain), format="~g")
    y = alt.Y("mean:Q", title=title, scale=scale, axis=axis)
    y_low = alt.Y("low:Q", title=title, scale=scale)
    titles = {
        "arm:N": "arm",
        "moment:N": "when",
        "layer:Q": "block",
        "mean:Q|.3~g": "mean",
        "low:Q|.3~g": "lowest seed",
        "high:Q|.3~g": "highest seed",
        "n:Q": "seeds",
    }
    moments = alt.Scale(domain=["initialisation", "end"], range=[[2, 3], [1, 0]])
    dash = alt.StrokeDash("moment:N", scale=moments, legend=None)
    color = marks.arm_color(arms)
    base = chart_of_visible(means)
    band = base.transform_filter("datum.moment === 'end'").mark_area(opacity=0.18)
    line = base.mark_line(strokeWidth=2.2)
    dots = base.mark_point(size=40, filled=True)
    layered = alt.layer(
        band.encode(x=x, y=y_low, y2="high:Q", fill=marks.arm_fill(arms)),
        line.encode(x=x, y=y, color=color, strokeDash=dash),
        dots.encode(x=x, y=y, color=color, tooltip=tooltips(titles)),
    )
    return marks.finish_chart(
        layered, 300, f"{title} by block at initialisation and at the end of training, per arm."
    )


def layer_means(layers: pd.DataFrame) -> pd.DataFrame:
    """Return mean and range over runs at the first and at the last logged step: arm, moment, layer,
    mean, low, high, n.

    `end` is the last step that any run logged; runs that ended before it (diverged, unfinished) are
    not in it.
    """
    moments = {"initialisation": layers["tokens"].min(), "end": layers["tokens"].max()}
    parts: list[pd.DataFrame] = []
    for moment, tokens in moments.items():
        grouped = layers[layers["tokens"] == tokens].groupby(["arm", "layer"], sort=False)["value"]
        means = grouped.agg(mean="mean", low="min", high="max", n="count").reset_index()
        means.insert(1, "moment", moment)
        parts.append(means)
    table: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return table
