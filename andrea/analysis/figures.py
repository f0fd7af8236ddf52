"""The figures of a comparison. Each is one Vega-Lite specification: interactive on the page, an SVG in a file."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis import curves as lines
from andrea.analysis import marks, theme
from andrea.analysis.marks import VISIBLE, color, dash, data, finish, near, near_log, tooltip

COMPRESSED = "↑ axis compressed"
"""What a learning-rate figure says where its axis bends."""


def learning_rates(trials: pd.DataFrame, choices: Mapping[str, Any], arms: Sequence[str]) -> dict[str, Any]:
    """Every trial's loss over its learning rate, the parabola and the chosen rate.

    Args:
        trials: `Study.trials` of the arms; trials without a score are not drawn.
        choices: `Study.choices`.
        arms: in the order of colours.
    """
    points = trials[trials["arm"].isin(arms)].dropna(subset=["score", "lr"]).copy()
    points["state"] = points["outcome"].where(~points["stalled"], "stalled")
    fits, chosen = _fits(choices, arms)
    good = pd.concat([points[points["ok"]]["score"], fits["score"], chosen["score"]]).dropna()
    failed = points[~points["ok"]]
    x_scale = alt.Scale(type="log", nice=False, domain=near_log(points["lr"].min(), points["lr"].max()))
    x = alt.X("lr:Q", title="peak learning rate", scale=x_scale, axis=_rates(points))
    y, bend = _loss_or_initial(good, failed["score"])
    words = {
        "arm:N": "arm",
        "lr:Q|~r": "learning rate",
        "score:Q|.4f": "loss (tune part)",
        "state:N": "outcome",
        "why:N": "why tried",
    }
    shapes = alt.Scale(domain=["completed", *marks.FAILED], range=["circle", *marks.FAILED.values()])
    layers = _bend(bend, y) if bend is not None else []
    if not fits.empty:
        curve = alt.Chart(data(fits)).transform_filter(VISIBLE).mark_line(strokeWidth=2, opacity=0.8)
        layers.append(curve.encode(x=x, y=y, color=color(arms), strokeDash=dash(arms)))
    drawn = points[["arm", "lr", "score", "state", "why"]]
    dots = alt.Chart(data(drawn)).transform_filter(VISIBLE).mark_point(size=70, strokeWidth=2, filled=False)
    layers.append(
        dots.encode(
            x=x,
            y=y,
            color=color(arms),
            shape=alt.Shape("state:N", scale=shapes, legend=None),
            tooltip=tooltip(words),
        )
    )
    if not chosen.empty:
        vertex = alt.Chart(data(chosen)).transform_filter(VISIBLE)
        words = {"arm:N": "arm", "lr:Q|~r": "chosen rate", "score:Q|.4f": "fitted loss", "method:N": "how"}
        layers.append(vertex.mark_rule(strokeDash=[3, 3], strokeWidth=1.5).encode(x=x, color=color(arms)))
        diamond = vertex.mark_point(size=330, shape="diamond", filled=True, stroke=theme.var("paper"), strokeWidth=2)
        layers.append(diamond.encode(x=x, y=y, fill=_fill(arms), tooltip=tooltip(words)))
    return finish(alt.layer(*layers), 340, "Loss on the tune part over the learning rate, for every arm.")


def _fits(choices: Mapping[str, Any], arms: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Parabolas sampled over the span of the rates they were fitted to, and the chosen rates upon them."""
    fits, chosen = [], []
    for arm in arms:
        choice = choices.get(arm) or {}
        lr, vertex = choice.get("lr"), choice.get("method") == "vertex"
        fit: Any = choice.get("fit")
        if vertex:
            x = np.linspace(np.log10(min(fit["lrs"])), np.log10(max(fit["lrs"])), 60)
            fits.append(pd.DataFrame({"arm": arm, "lr": 10**x, "score": parabola(fit["coefficients"], x)}))
        if lr is not None:
            at = [p["loss"] for p in choice.get("points") or [] if p.get("ok") and np.isclose(p["lr"], lr)]
            score = float(parabola(fit["coefficients"], np.log10(lr))) if vertex else min(at, default=np.nan)
            chosen.append({"arm": arm, "lr": lr, "score": score, "method": choice.get("method") or ""})
    empty = pd.DataFrame(columns=["arm", "lr", "score", "method"])
    return pd.concat(fits) if fits else empty, pd.DataFrame(chosen) if chosen else empty


def parabola(coefficients: Sequence[float], x: Any) -> Any:
    """c₀ + c₁ x + c₂ x², x = log₁₀ of the rate."""
    return coefficients[0] + coefficients[1] * x + coefficients[2] * x**2


def _rates(points: pd.DataFrame) -> Any:
    values = sorted(set(points["lr"].round(12)))
    return alt.Axis(values=values, format="~r", labelOverlap="greedy", grid=False, labelSeparation=6)


def _fill(arms: Sequence[str]) -> Any:
    colors = theme.arm_colors(arms)
    return alt.Fill("arm:N", scale=alt.Scale(domain=list(arms), range=[colors[a] for a in arms]), legend=None)


def _loss_or_initial(good: pd.Series, failed: pd.Series) -> tuple[Any, float | None]:
    """A loss axis, and where it is bent. Trials that did not train stand at the loss of initialisation, far above the
    rest: from the bend on the axis is compressed, so that the differences between the others stay visible."""
    title = "loss on the tune part (nats)"
    if good.empty or failed.empty or failed.max() < good.max() + 2 * (good.max() - good.min()):
        both = pd.concat([good, failed])
        domain = near(both.min(), both.max()) if len(both) else [0.0, 1.0]
        return alt.Y("score:Q", title=title, scale=alt.Scale(domain=domain, nice=False, zero=False)), None
    low, bend = near(good.min(), good.max(), 0.1)
    top = near(bend, failed.max(), 0.12)[1]
    scale = alt.Scale(
        domain=[low, bend, top], range=[alt.ExprRef("height"), alt.ExprRef("0.2 * height"), 0], nice=False, zero=False
    )
    values = [*marks.ticks(low, bend), *sorted(set(failed.round(2)))]
    return alt.Y(
        "score:Q", title=title, scale=scale, axis=alt.Axis(values=values, format=".4~g", labelOverlap=False)
    ), bend


def _bend(at: float, y: Any) -> list[Any]:
    base = alt.Chart(data(pd.DataFrame({"score": [at]})))
    said = base.mark_text(align="right", baseline="bottom", dy=-4, color=theme.var("muted"), fontSize=11)
    return [
        base.mark_rule(strokeDash=[2, 3]).encode(y=y),
        said.encode(x=alt.value("width"), y=y, text=alt.value(COMPRESSED)),
    ]


def differences(pairs: pd.DataFrame, verdicts: pd.DataFrame, m: float | None, arms: Sequence[str]) -> dict[str, Any]:
    """Paired differences to the baseline: a dot per seed, the mean with its simultaneous interval, the band of ±m.

    Args:
        pairs: `Study.differences`.
        verdicts: `Study.verdicts`.
        m: smallest effect of interest, nats.
        arms: in the order of colours, the baseline first.
    """
    shown = [arm for arm in arms[1:] if arm in set(pairs["arm"]) or arm in set(verdicts["arm"])]
    dots = pairs.dropna(subset=["difference"])[["arm", "seed", "difference", "outcome", "baseline_outcome"]].copy()
    dots["state"] = dots["outcome"].where(dots["outcome"] != "completed", dots["baseline_outcome"])
    means = verdicts[verdicts["arm"].isin(shown)].dropna(subset=["mean", "low"])[
        ["arm", "mean", "low", "high", "n", "verdict"]
    ]
    x_title = f"difference of final loss to {arms[0]} (nats); left is better"
    good = dots["difference"][dots["state"] == "completed"]
    values = pd.concat([good, means["low"], means["high"], pd.Series([0.0, m or 0.0, -(m or 0.0)])])
    domain = near(values.min(), values.max())
    # A stalled run lies so far off that the rest would shrink to a dot: it stands at the edge.
    dots["drawn"] = dots["difference"].clip(*domain)
    x_scale = alt.Scale(domain=domain, nice=False)
    axis = alt.Axis(format="+.3~f", tickCount=6)
    row = alt.Y(
        "arm:N", title=None, sort=shown, scale=alt.Scale(domain=shown), axis=alt.Axis(labelLimit=160, ticks=False)
    )
    zero = pd.DataFrame({"zero": [0.0], "low": [-(m or 0.0)], "high": [m or 0.0]})
    base = alt.Chart(data(zero))
    x: dict[str, Any] = {"scale": x_scale, "title": x_title, "axis": axis}
    layers = [base.mark_rule(strokeWidth=1.5).encode(x=alt.X("zero:Q", **x))]
    if m:
        band = base.mark_rect(opacity=0.16, color=theme.var("band"))
        layers.insert(0, band.encode(x=alt.X("low:Q", **x), x2="high:Q"))
    intervals = alt.Chart(data(means)).transform_filter(VISIBLE)
    words = {"arm:N": "arm", "mean:Q|+.4f": "mean", "low:Q|+.4f": "from", "high:Q|+.4f": "to", "n:Q": "pairs"}
    thick = intervals.mark_rule(strokeWidth=7, opacity=0.45, strokeCap="round")
    layers.append(thick.encode(x=alt.X("low:Q", **x), x2="high:Q", y=row, color=color(arms), tooltip=tooltip(words)))
    tick = intervals.mark_tick(thickness=3, size=26)
    layers.append(tick.encode(x=alt.X("mean:Q", **x), y=row, color=color(arms), tooltip=tooltip(words)))
    shapes = alt.Scale(domain=["completed", *marks.FAILED], range=["circle", *marks.FAILED.values()])
    words = {"arm:N": "arm", "seed:Q": "seed", "difference:Q|+.4f": "difference", "state:N": "outcome"}
    seeds = alt.Chart(data(dots)).transform_filter(VISIBLE).mark_point(size=60, strokeWidth=1.8)
    layers.append(
        seeds.encode(
            x=alt.X("drawn:Q", **x),
            y=row,
            yOffset=alt.YOffset("seed:N", scale=alt.Scale(paddingOuter=0.6)),
            color=color(arms),
            shape=alt.Shape("state:N", scale=shapes, legend=None),
            tooltip=tooltip(words),
        )
    )
    height = 76 * max(1, len(shown)) + 10
    return finish(alt.layer(*layers), height, f"Paired differences of final loss to {arms[0]}, per seed and arm.")


def loss_curves(
    curves: pd.DataFrame, runs: pd.DataFrame, arms: Sequence[str], title: str, *, difference: bool = False
) -> dict[str, Any]:
    """Mean over seeds and the range between the seeds, at logged steps only; every seed as a thin line.

    Args:
        curves: rows of one kind and phase of `Study.curves`, or differences from `curves.paired`.
        runs: `Study.runs`, which say what diverged or stalled.
        arms: in the order of colours.
        title: of the vertical axis, with its unit.
        difference: the curves are differences: 0 is drawn and signs are shown.
    """
    drawn = lines.thin(curves)
    mean = lines.over_seeds(drawn)
    last = lines.ends(drawn, runs)
    domain = _curve_domain(drawn, set(last["run_id"]), difference)
    scale = alt.Scale(zero=False, nice=False, domain=domain)
    value_format = "+.4f" if difference else ".4f"
    axis = alt.Axis(format="+.3~f" if difference else ".3~f", tickCount=6)
    y = alt.Y("mean:Q", title=title, scale=scale, axis=axis)
    x = marks.tokens_axis(drawn["tokens"])
    words = {
        "arm:N": "arm",
        "tokens:Q|,d": "tokens",
        f"mean:Q|{value_format}": "mean",
        f"low:Q|{value_format}": "lowest seed",
        f"high:Q|{value_format}": "highest seed",
        "n:Q": "seeds",
    }
    grouped = alt.Chart(data(mean.drop(columns="runs"))).transform_filter(VISIBLE)
    band = grouped.mark_area(opacity=0.2, clip=True).encode(
        x=x, y=alt.Y("low:Q", title=title), y2="high:Q", fill=_fill(arms)
    )
    line = grouped.mark_line(strokeWidth=2.2, clip=True, interpolate="linear")
    seeds = alt.Chart(data(drawn[["arm", "run_id", "tokens", "loss"]])).transform_filter(VISIBLE)
    thin = seeds.mark_line(strokeWidth=0.7, opacity=0.45, clip=True)
    few = mean["tokens"].nunique() <= 40
    dots = grouped.mark_point(size=26 if few else 60, filled=True, opacity=1 if few else 0, clip=True)
    layers = [
        band,
        thin.encode(x=x, y=alt.Y("loss:Q", title=title), color=color(arms), detail="run_id:N"),
        line.encode(x=x, y=y, color=color(arms), strokeDash=dash(arms)),
        dots.encode(x=x, y=y, color=color(arms), tooltip=tooltip(words)),
    ]
    if difference:
        layers.insert(0, alt.Chart(data(pd.DataFrame({"mean": [0.0]}))).mark_rule().encode(y=y))
    last = last[last["loss"].between(domain[0], domain[1])]
    if not last.empty:
        shapes = alt.Scale(domain=list(marks.FAILED), range=list(marks.FAILED.values()))
        lost = alt.Chart(data(last)).transform_filter(VISIBLE).mark_point(size=80, strokeWidth=2)
        words = {"arm:N": "arm", "seed:Q": "seed", "state:N": "outcome", "tokens:Q|,d": "tokens", "loss:Q|.4f": "loss"}
        shape = alt.Shape("state:N", scale=shapes, legend=None)
        layers.append(
            lost.encode(x=x, y=alt.Y("loss:Q", title=title), color=color(arms), shape=shape, tooltip=tooltip(words))
        )
    return finish(alt.layer(*layers), 340, f"{title} over tokens trained, mean and range over seeds per arm.")


def _curve_domain(curves: pd.DataFrame, lost: set[str], difference: bool) -> list[float]:
    """From the lowest loss to the highest of the runs that trained; what spikes or stalls beyond is cut at the edge."""
    finite = curves[np.isfinite(curves["loss"])]
    trained = finite[~finite["run_id"].isin(lost)]
    loss = (finite if trained.empty else trained)["loss"]
    if difference:
        return near(min(float(loss.min()), 0.0), max(float(loss.max()), 0.0), 0.06)
    first = finite.loc[finite["tokens"] == finite["tokens"].min(), "loss"].max()
    return near(float(loss.min()), min(max(float(loss.quantile(0.995)), float(first)), float(loss.max())), 0.04)


def by_layer(layers: pd.DataFrame, arms: Sequence[str], title: str) -> dict[str, Any]:
    """One quantity over the blocks, at initialisation and at the end of training: mean and range over seeds.

    Args:
        layers: rows of one quantity of `Study.layers`.
        arms: in the order of colours.
        title: of the vertical axis, with its unit.
    """
    grouped = layer_table(layers)
    # A logarithmic axis has no place for zero.
    grouped.loc[~(grouped["low"] > 0), ["mean", "low", "high"]] = np.nan
    blocks = alt.Scale(domain=[int(layers["layer"].min()), int(layers["layer"].max())], nice=False)
    x = alt.X(
        "layer:Q", title="block (0: embedding)", scale=blocks, axis=alt.Axis(format="d", tickMinStep=1, grid=False)
    )
    drawable = grouped["low"].notna().any()
    domain = near_log(grouped["low"].min(), grouped["high"].max()) if drawable else [0.1, 1.0]
    scale = alt.Scale(type="log", nice=False, domain=domain)
    y = alt.Y("mean:Q", title=title, scale=scale, axis=alt.Axis(values=marks.ticks_log(*domain), format="~g"))
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
        "moment:N", scale=alt.Scale(domain=["initialisation", "end"], range=[[2, 3], [1, 0]]), legend=None
    )
    base = alt.Chart(data(grouped)).transform_filter(VISIBLE)
    end = base.transform_filter("datum.moment === 'end'").mark_area(opacity=0.18)
    line = base.mark_line(strokeWidth=2.2)
    dots = base.mark_point(size=40, filled=True)
    layered = alt.layer(
        end.encode(x=x, y=alt.Y("low:Q", title=title, scale=scale), y2="high:Q", fill=_fill(arms)),
        line.encode(x=x, y=y, color=color(arms), strokeDash=style),
        dots.encode(x=x, y=y, color=color(arms), tooltip=tooltip(words)),
    )
    return finish(layered, 300, f"{title} by block at initialisation and at the end of training, per arm.")


def layer_table(layers: pd.DataFrame) -> pd.DataFrame:
    """Mean and range over runs at the first and at the last logged step: arm, moment, layer, mean, low, high, n.

    `end` is the last step that any run logged; runs that ended before it (diverged, unfinished) are not in it.
    """
    moments = {"initialisation": layers["tokens"].min(), "end": layers["tokens"].max()}
    parts = []
    for moment, tokens in moments.items():
        at = layers[layers["tokens"] == tokens]
        grouped = at.groupby(["arm", "layer"], sort=False)["value"].agg(["mean", "min", "max", "count"]).reset_index()
        grouped.columns = pd.Index(["arm", "layer", "mean", "low", "high", "n"])
        grouped.insert(1, "moment", moment)
        parts.append(grouped)
    table: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return table
