"""One run by itself: what stands out along its training, and the figures of its curves, layers and
documents.
"""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from andrea.analysis.figures import marks, theme
from andrea.analysis.figures.marks import (
    chart_of_visible,
    finish_chart,
    inline_data,
    padded_domain,
    padded_log_domain,
    tooltips,
)
from andrea.analysis.tables import curves as lines
from andrea.analysis.tables.frames import RUNS
from andrea.analysis.tables.run_view import RunView
from andrea.text import numbers as text

KINDS = {"train": "arm-1", "eval": "arm-2"}
"""What a loss curve is, with its colour."""
NAMES = {"train": "training loss", "eval": "evaluated loss"}
STEPS = 60
"""Logged steps that a map of the layers draws, about."""
QUANTITIES = {
    "grad_norm": "gradient norm",
    "attn_rms": "RMS of attention's output",
    "mlp_rms": "RMS of the MLP's output",
    "residual_rms": "RMS of the residual stream",
}
"""Quantities of the layers' table and what they are called."""


def full_row(run: RunView) -> dict[str, Any]:
    """Return the run as a row of `RUNS` with every column; None where there is no result."""
    return dict.fromkeys(RUNS) | run.row


def rate_curve(run: RunView) -> pd.DataFrame:
    """The learning rate as it was logged: tokens, lr. (`curves` has the peak rate in its column
    lr.)
    """
    logged = pd.DataFrame(run.store.metrics(run.run_id), columns=["kind", "tokens", "lr"])
    frame = logged[logged["kind"] == "train"].dropna(subset="lr").drop(columns="kind")
    return frame.astype({"tokens": "int64", "lr": "float64"}).reset_index(drop=True)


def find_notable(run: RunView) -> pd.DataFrame:
    """Return what stands out along the training: what, tokens (where), value, told (the value in
    words).

    The first loss that was not finite with the last that was, the largest jump of the training loss
    from one record to the next, the largest gradient norm, the lowest evaluated loss.
    """
    train = run.curves[run.curves["kind"] == "train"].sort_values("tokens").reset_index(drop=True)
    evaluated = run.curves[run.curves["kind"] == "eval"].sort_values("tokens")
    rows: list[tuple[str, Any, Any, str]] = _first_nonfinite_loss(train)
    jumps, norms = train["loss"].diff(), train["grad_norm"]
    if jumps.max() > 0:
        tokens = train.iloc[int(jumps.argmax())]["tokens"]
        size = f"{text.signed(jumps.max())} nats"
        rows.append(("largest jump of the training loss", tokens, jumps.max(), size))
    if norms.notna().any():
        size = f"{text.short(norms.max())}, median {text.short(norms.median())}"
        tokens = train.iloc[int(norms.argmax())]["tokens"]
        rows.append(("largest gradient norm", tokens, norms.max(), size))
    good = evaluated[np.isfinite(evaluated["loss"])]
    if len(good):
        lowest, end = good.iloc[int(good["loss"].argmin())], good.iloc[-1]
        size = text.nats(lowest["loss"])
        if end["tokens"] > lowest["tokens"]:
            size += f"; at the end {text.signed(end['loss'] - lowest['loss'])}"
        rows.append(("lowest evaluated loss", lowest["tokens"], lowest["loss"], size))
    frame = pd.DataFrame(rows, columns=["what", "tokens", "value", "told"])
    return frame.astype({"tokens": "Int64", "value": "float64"})


def _first_nonfinite_loss(train: pd.DataFrame) -> list[tuple[str, Any, Any, str]]:
    """Return the first training loss that was not finite and the last one before it, as rows of
    `find_notable`.
    """
    finite = np.isfinite(train["loss"])
    if finite.all():
        return []
    first = train[~finite].iloc[0]
    step = f"step {text.count(first['step'])}"
    rows = [("first training loss that was not finite", first["tokens"], None, step)]
    before = train[finite & (train["tokens"] < first["tokens"])]
    if len(before):
        last = before.iloc[-1]
        rows.append(
            ("the last one before it", last["tokens"], last["loss"], text.nats(last["loss"]))
        )
    return rows


def curve_legend(run: RunView) -> dict[str, tuple[str, str]]:
    """The loss curves that there are, for `Figure.legend`."""
    legend = marks.group_legend(run.curves["kind"], KINDS)
    return {kind: (NAMES[kind], color) for kind, (_, color) in legend.items()}


def draw_losses(run: RunView) -> dict[str, Any]:
    """Training and evaluated loss over the tokens, with the levels that a loss is measured by."""
    drawn = run.curves[["kind", "run_id", "tokens", "step", "loss"]].rename(columns={"kind": "arm"})
    train = lines.thin_curves(drawn[drawn["arm"] == "train"])
    evaluated = drawn[drawn["arm"] == "eval"]
    levels = _levels(run)
    ends = pd.concat([drawn["loss"][np.isfinite(drawn["loss"])], levels["loss"]])
    highest = min(max([ends.quantile(0.995), *levels["loss"]]), ends.max())
    scale = marks.linear_scale(padded_domain(float(ends.min()), float(highest), 0.05))
    x = marks.tokens_axis(drawn["tokens"])
    y = alt.Y("loss:Q", title="loss (nats)", scale=scale, axis=alt.Axis(format=".3~f"))
    color = marks.group_color(KINDS)
    titles = {"arm:N": "curve", "tokens:Q|,d": "tokens", "step:Q|,d": "step", "loss:Q|.4f": "loss"}
    first = chart_of_visible(train).encode(x=x, y=y)
    second = chart_of_visible(evaluated).encode(x=x, y=y, color=color)
    named = alt.Chart(inline_data(levels)).encode(y=y)
    name = named.mark_text(align="right", dx=-4, dy=-6, fontSize=11, color=theme.css_color("muted"))
    dots = second.mark_point(size=42, filled=True, opacity=1, clip=True)
    layers = [
        named.mark_rule(strokeDash=[4, 4]),
        name.encode(x=alt.value(alt.ExprRef("width")), text="name:N"),
        first.mark_line(strokeWidth=1.1, clip=True).encode(color=color),
        first.mark_point(size=30, opacity=0, clip=True).encode(tooltip=tooltips(titles)),
        second.mark_line(strokeWidth=2.2, clip=True),
        dots.encode(tooltip=tooltips(titles)),
    ]
    return finish_chart(alt.layer(*layers), 320, "Training and evaluated loss over tokens trained.")


def _levels(run: RunView) -> pd.DataFrame:
    row = full_row(run)
    names = {"initial_loss": "at initialisation", "unigram_loss": "token frequencies alone"}
    levels = pd.DataFrame({"name": names.values(), "loss": [row[key] for key in names]})
    return levels.astype({"loss": "float64"}).dropna()


def draw_along(
    frame: pd.DataFrame, key: str, title: str, *, log: bool = False, form: str = "~g"
) -> dict[str, Any] | None:
    """One quantity over the tokens; None where nothing of it can be drawn.

    Args:
        frame: tokens and the quantity.
        key: its column.
        title: of the vertical axis, with its unit.
        log: whether that axis is logarithmic (then only what is above 0 is drawn).
        form: how its labels are written, as d3-format has it.
    """
    drawn = frame[["tokens", key]].astype({key: "float64"}).rename(columns={key: "value"})
    drawn = drawn[np.isfinite(drawn["value"]) & ((drawn["value"] > 0) | (not log))]
    if drawn.empty:
        return None
    kept = lines.thin_curves(drawn.assign(run_id="", loss=drawn["value"]))[["tokens", "value"]]
    low, high = float(kept["value"].min()), float(kept["value"].max())
    domain = padded_log_domain(low, high) if log else [0.0, high * 1.05 or 1.0]
    scale = alt.Scale(type="log" if log else "linear", domain=domain, nice=False)
    ticks = {"values": marks.log_ticks(*domain)} if log else {"tickCount": 4}
    axis = alt.Axis(format=form, **ticks)
    x, y = marks.tokens_axis(frame["tokens"]), alt.Y("value:Q", title=title, scale=scale, axis=axis)
    base = alt.Chart(inline_data(kept)).encode(x=x, y=y)
    words = tooltips({"tokens:Q|,d": "tokens", "value:Q|.4~g": title})
    layered = alt.layer(
        base.mark_line(strokeWidth=1.6, color=theme.css_color("arm-1")),
        base.mark_point(size=30, opacity=0).encode(tooltip=words),
    )
    return finish_chart(layered, 150, f"{title} over tokens trained.")


def draw_heat(layers: pd.DataFrame, quantity: str) -> dict[str, Any] | None:
    """A quantity as a map: block over tokens, the darker the larger (logarithmic); None where there
    is nothing above 0.

    Args:
        layers: `RunView.layers`.
        quantity: one of `QUANTITIES`.
    """
    drawn = layers[(layers["quantity"] == quantity) & (layers["value"] > 0)]
    if drawn.empty:
        return None
    steps = np.sort(drawn["tokens"].astype("int64").unique())
    chosen_steps = steps[marks.evenly_spaced(len(steps), STEPS)]
    drawn = drawn[drawn["tokens"].isin(chosen_steps)][["layer", "tokens", "value"]]
    low, high = float(drawn["value"].min()), float(drawn["value"].max())
    domain = [low, high] if high > low else padded_log_domain(low, high)
    title = QUANTITIES[quantity]
    legend = alt.Legend(
        orient="top", title=title, gradientLength=180, format="~g", values=_few_ticks(*domain)
    )
    scale = alt.Scale(type="log", scheme="viridis", reverse=True, domain=domain)
    axis = alt.Axis(format="~s", labelAngle=0, labelOverlap=True)
    titles = {"tokens:Q|,d": "tokens", "layer:O": "block", "value:Q|.3~g": title}
    tiles = alt.Chart(inline_data(drawn)).mark_rect()
    colored = tiles.encode(
        x=alt.X("tokens:O", title="tokens trained", axis=axis),
        y=alt.Y("layer:O", title="block (0: embedding)", sort="descending"),
        color=alt.Color("value:Q", scale=scale, legend=legend),
        tooltip=tooltips(titles),
    )
    height = max(90, min(420, 22 * drawn["layer"].nunique()))
    return finish_chart(colored, height, f"{title} by block over tokens trained.")


def _few_ticks(low: float, high: float) -> list[float]:
    """A few labels of a logarithmic colour scale."""
    between = marks.log_ticks(low, high)
    if len(between) <= 6:
        return between
    return [tick for tick in between if f"{tick:e}".startswith("1")] or between[::3]


def draw_documents(frame: pd.DataFrame) -> dict[str, Any]:
    """Every document's loss, the hardest first.

    Args:
        frame: document, tokens, loss, in the order in which they are drawn.
    """
    drawn = frame[["document", "tokens", "loss"]].assign(rank=range(1, len(frame) + 1))
    domain = padded_domain(drawn["loss"].min(), drawn["loss"].max())
    y = alt.Y("loss:Q", title="loss (nats)", scale=alt.Scale(domain=domain, nice=False))
    axis = alt.Axis(format="d", tickMinStep=1, grid=False)
    x = alt.X("rank:Q", title="document, the hardest first", axis=axis)
    titles = {"document:N": "document", "tokens:Q|,d": "tokens", "loss:Q|.4f": "loss"}
    color = theme.css_color("arm-1")
    dots = alt.Chart(inline_data(drawn)).mark_point(size=36, filled=True, opacity=0.75, color=color)
    chart = dots.encode(x=x, y=y, tooltip=tooltips(titles))
    return finish_chart(chart, 220, "Loss of every evaluated document.")
