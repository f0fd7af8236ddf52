"""The figures of replicates. Each is one Vega-Lite specification: interactive on the page, an SVG
in a file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import (
    VISIBLE,
    color,
    dash,
    data,
    fill,
    finish,
    near,
    near_log,
    tooltip,
)
from andrea.analysis.tables import curves as lines


def differences(
    pairs: pd.DataFrame,
    verdicts: pd.DataFrame,
    m: float | None,
    arms: Sequence[str],
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Paired differences to the baseline: a dot per seed, the mean with its simultaneous interval,
    the band of ±m.

    Args:
        pairs: `Study.differences`.
        verdicts: `Study.verdicts`.
        m: smallest effect of interest, nats.
        arms: in the order of colours, the baseline first.
        labels: what the axes call them; by default their names.
    """
    called = {arm: (labels or {}).get(arm, arm) for arm in arms}
    shown = [arm for arm in arms[1:] if arm in set(pairs["arm"]) or arm in set(verdicts["arm"])]
    dots = pairs.dropna(subset=["difference"])[
        ["arm", "seed", "difference", "outcome", "baseline_outcome"]
    ].copy()
    dots["state"] = dots["outcome"].where(dots["outcome"] != "completed", dots["baseline_outcome"])
    means = verdicts[verdicts["arm"].isin(shown)].dropna(subset=["mean", "low"])[
        ["arm", "mean", "low", "high", "n", "verdict"]
    ]
    margin = m or 0.0
    good = dots["difference"][dots["state"] == "completed"]
    values = pd.concat([good, means["low"], means["high"], pd.Series([0.0, margin, -margin])])
    domain = near(values.min(), values.max())
    # A stalled run lies so far off that the rest would shrink to a dot: it stands at the edge.
    dots["drawn"] = dots["difference"].clip(*domain)
    x: dict[str, Any] = {
        "scale": alt.Scale(domain=domain, nice=False),
        "title": [f"difference to {called[arms[0]]} (nats)", "left is better"],
        "axis": alt.Axis(format="+.3~f", tickCount=marks.FEW),
    }
    axis = alt.Axis(labelLimit=160, ticks=False, labelExpr=marks.spelled(called, "datum.value"))
    row = alt.Y("arm:N", title=None, sort=None, scale=alt.Scale(domain=shown), axis=axis)
    layers = [*_margin(margin, x), *_means(means, x, row, arms), _pairs(dots, x, row, arms)]
    height = 76 * max(1, len(shown)) + 10
    told = f"Paired differences of final loss to {called[arms[0]]}, per seed and arm."
    return finish(alt.layer(*layers), height, told)


def _margin(m: float, x: dict[str, Any]) -> list[Any]:
    """The line at 0 and, behind it, the band of ±m."""
    base = alt.Chart(data(pd.DataFrame({"zero": [0.0], "low": [-m], "high": [m]})))
    zero = base.mark_rule(strokeWidth=1.5).encode(x=alt.X("zero:Q", **x))
    band = base.mark_rect(opacity=0.16, color=theme.var("band")).encode(
        x=alt.X("low:Q", **x), x2="high:Q"
    )
    return [band, zero] if m else [zero]


def _means(means: pd.DataFrame, x: dict[str, Any], row: Any, arms: Sequence[str]) -> list[Any]:
    """The simultaneous interval of every arm as a thick line, its mean as a tick."""
    words = {
        "arm:N": "arm",
        "mean:Q|+.4f": "mean",
        "low:Q|+.4f": "from",
        "high:Q|+.4f": "to",
        "n:Q": "pairs",
    }
    base = (
        alt.Chart(data(means))
        .transform_filter(VISIBLE)
        .encode(y=row, color=color(arms), tooltip=tooltip(words))
    )
    thick = base.mark_rule(strokeWidth=7, opacity=0.45, strokeCap="round")
    tick = base.mark_tick(thickness=3, size=26)
    return [thick.encode(x=alt.X("low:Q", **x), x2="high:Q"), tick.encode(x=alt.X("mean:Q", **x))]


def _pairs(dots: pd.DataFrame, x: dict[str, Any], row: Any, arms: Sequence[str]) -> Any:
    """A mark per seed, spread within the arm's row."""
    words = {
        "arm:N": "arm",
        "seed:Q": "seed",
        "difference:Q|+.4f": "difference",
        "state:N": "outcome",
    }
    seeds = alt.Chart(data(dots)).transform_filter(VISIBLE).mark_point(size=60, strokeWidth=1.8)
    return seeds.encode(
        x=alt.X("drawn:Q", **x),
        y=row,
        yOffset=alt.YOffset("seed:N", sort="ascending", scale=alt.Scale(paddingOuter=0.6)),
        color=color(arms),
        shape=marks.states(),
        tooltip=tooltip(words),
    )


def loss_curves(
    curves: pd.DataFrame,
    runs: pd.DataFrame,
    arms: Sequence[str],
    title: str,
    *,
    difference: bool = False,
    smoothed: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Mean over seeds and the range between the seeds, at logged steps only; every seed as a thin
    line.

    Args:
        curves: rows of one kind and phase of `Study.curves`, or differences from `curves.paired`.
        runs: `Study.runs`, which say what diverged or stalled.
        arms: in the order of colours.
        title: of the vertical axis, with its unit.
        difference: the curves are differences: 0 is drawn and signs are shown.
        smoothed: the same rows from `curves.smooth`: mean and range are theirs, every seed stays as
            logged.
    """
    drawn = lines.thin(curves)
    last = lines.ends(drawn, runs)
    domain = _curve_domain(drawn, set(last["run_id"]), difference)
    axis = alt.Axis(format="+.3~f" if difference else ".3~f", tickCount=6)
    scale = alt.Scale(zero=False, nice=False, domain=domain)
    y = alt.Y("mean:Q", title=title, scale=scale, axis=axis)
    x = marks.tokens_axis(drawn["tokens"])
    # A number for a run: its id at every point would be most of the page.
    numbered = drawn[["arm", "tokens", "loss"]].assign(run=pd.factorize(drawn["run_id"])[0])
    seeds = alt.Chart(data(numbered)).transform_filter(VISIBLE)
    thin = seeds.mark_line(strokeWidth=0.7, opacity=0.45, clip=True)
    averaged = (
        drawn if smoothed is None else smoothed[smoothed["tokens"].isin(drawn["tokens"].unique())]
    )
    band, *line = _over_seeds(
        lines.over_seeds(averaged), x, y, title, arms, "+.4f" if difference else ".4f"
    )
    layers = [
        band,
        thin.encode(x=x, y=alt.Y("loss:Q", title=title), color=color(arms), detail="run:N"),
        *line,
    ]
    if difference:
        layers.insert(0, alt.Chart(data(pd.DataFrame({"mean": [0.0]}))).mark_rule().encode(y=y))
    last = last[last["loss"].between(domain[0], domain[1])]
    if not last.empty:
        layers.append(_lost(last, arms).encode(x=x, y=alt.Y("loss:Q", title=title)))
    return finish(
        alt.layer(*layers), 340, f"{title} over tokens trained, mean and range over seeds per arm."
    )


def _over_seeds(
    mean: pd.DataFrame, x: Any, y: Any, title: str, arms: Sequence[str], form: str
) -> list[Any]:
    """The range between an arm's seeds, their mean, and a point with a tooltip at every logged
    step.
    """
    words = {
        "arm:N": "arm",
        "tokens:Q|,d": "tokens",
        f"mean:Q|{form}": "mean",
        f"low:Q|{form}": "lowest seed",
        f"high:Q|{form}": "highest seed",
        "n:Q": "seeds",
    }
    grouped = alt.Chart(data(mean.drop(columns="runs"))).transform_filter(VISIBLE)
    few = mean["tokens"].nunique() <= 40
    band = grouped.mark_area(opacity=0.2, clip=True)
    line = grouped.mark_line(strokeWidth=2.2, clip=True, interpolate="linear")
    dots = grouped.mark_point(
        size=26 if few else 60, filled=True, opacity=1 if few else 0, clip=True
    )
    return [
        band.encode(x=x, y=alt.Y("low:Q", title=title), y2="high:Q", fill=fill(arms)),
        line.encode(x=x, y=y, color=color(arms), strokeDash=dash(arms)),
        dots.encode(x=x, y=y, color=color(arms), tooltip=tooltip(words)),
    ]


def _lost(last: pd.DataFrame, arms: Sequence[str]) -> Any:
    """Where the curves of runs end that diverged or stalled."""
    words = {
        "arm:N": "arm",
        "seed:Q": "seed",
        "state:N": "outcome",
        "tokens:Q|,d": "tokens",
        "loss:Q|.4f": "loss",
    }
    marked = alt.Chart(data(last)).transform_filter(VISIBLE).mark_point(size=80, strokeWidth=2)
    return marked.encode(
        color=color(arms), shape=marks.states(trained=False), tooltip=tooltip(words)
    )


def _curve_domain(curves: pd.DataFrame, lost: set[str], difference: bool) -> list[float]:
    """From the lowest loss to the highest of the runs that trained; what spikes or stalls beyond is
    cut at the edge.
    """
    finite = curves[np.isfinite(curves["loss"])]
    trained = finite[~finite["run_id"].isin(lost)]
    loss = (finite if trained.empty else trained)["loss"]
    if difference:
        return near(min(float(loss.min()), 0.0), max(float(loss.max()), 0.0), 0.06)
    first = finite.loc[finite["tokens"] == finite["tokens"].min(), "loss"].max()
    return near(
        float(loss.min()),
        min(max(float(loss.quantile(0.995)), float(first)), float(loss.max())),
        0.04,
    )


def by_layer(layers: pd.DataFrame, arms: Sequence[str], title: str) -> dict[str, Any]:
    """One quantity over the blocks, at initialisation and at the end of training: mean and range
    over seeds.

    Args:
        layers: rows of one quantity of `Study.layers`.
        arms: in the order of colours.
        title: of the vertical axis, with its unit.
    """
    grouped = layer_table(layers)
    # A logarithmic axis has no place for zero.
    grouped.loc[~(grouped["low"] > 0), ["mean", "low", "high"]] = np.nan
    blocks = alt.Scale(domain=[int(layers["layer"].min()), int(layers["layer"].max())], nice=False)
    axis = marks.counted(int(layers["layer"].min()), int(layers["layer"].max()))
    x = alt.X("layer:Q", title="block (0: embedding)", scale=blocks, axis=axis)
    drawable = grouped["low"].notna().any()
    domain = near_log(grouped["low"].min(), grouped["high"].max()) if drawable else [0.1, 1.0]
    scale = alt.Scale(type="log", nice=False, domain=domain)
    y = alt.Y(
        "mean:Q",
        title=title,
        scale=scale,
        axis=alt.Axis(values=marks.ticks_log(*domain), format="~g"),
    )
    words = {
        "arm:N": "arm",
        "moment:N": "when",
        "layer:Q": "block",
        "mean:Q|.3~g": "mean",
        "low:Q|.3~g": "lowest seed",
        "high:Q|.3~g": "highest seed",
        "n:Q": "seeds",
    }
    style = alt.StrokeDash(
        "moment:N",
        scale=alt.Scale(domain=["initialisation", "end"], range=[[2, 3], [1, 0]]),
        legend=None,
    )
    base = alt.Chart(data(grouped)).transform_filter(VISIBLE)
    end = base.transform_filter("datum.moment === 'end'").mark_area(opacity=0.18)
    line = base.mark_line(strokeWidth=2.2)
    dots = base.mark_point(size=40, filled=True)
    layered = alt.layer(
        end.encode(x=x, y=alt.Y("low:Q", title=title, scale=scale), y2="high:Q", fill=fill(arms)),
        line.encode(x=x, y=y, color=color(arms), strokeDash=style),
        dots.encode(x=x, y=y, color=color(arms), tooltip=tooltip(words)),
    )
    return finish(
        layered, 300, f"{title} by block at initialisation and at the end of training, per arm."
    )


def layer_table(layers: pd.DataFrame) -> pd.DataFrame:
    """Mean and range over runs at the first and at the last logged step: arm, moment, layer, mean,
    low, high, n.

    `end` is the last step that any run logged; runs that ended before it (diverged, unfinished) are
    not in it.
    """
    moments = {"initialisation": layers["tokens"].min(), "end": layers["tokens"].max()}
    parts = []
    for moment, tokens in moments.items():
        at = layers[layers["tokens"] == tokens]
        grouped = (
            at.groupby(["arm", "layer"], sort=False)["value"]
            .agg(["mean", "min", "max", "count"])
            .reset_index()
        )
        grouped.columns = pd.Index(["arm", "layer", "mean", "low", "high", "n"])
        grouped.insert(1, "moment", moment)
        parts.append(grouped)
    table: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return table
