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
    logged = [
        r
        for r in run.store.metrics(run.run_id)
        if r.get("kind") == "train" and r.get("lr") is not None
    ]
    frame = pd.DataFrame({"tokens": [r["tokens"] for r in logged], "lr": [r["lr"] for r in logged]})
    return frame.astype({"tokens": "int64", "lr": "float64"})


def find_notable(run: RunView) -> pd.DataFrame:
    """What stands out along the training: what, tokens (where), value, told (the value in words).

    The first loss that was not finite with the last that was, the largest jump of the training loss
    from one record to the next, the largest gradient norm, the lowest evaluated loss.
    """
    train = run.curves[run.curves["kind"] == "train"].sort_values("tokens").reset_index(drop=True)
    evaluated = run.curves[run.curves["kind"] == "eval"].sort_values("tokens")
    found: list[tuple[str, Any, Any, str]] = []
    finite = np.isfinite(train["loss"].astype("float64"))
    if len(train) and not finite.all():
        first = train[~finite].iloc[0]
        found.append(
            (
                "first training loss that was not finite",
                first["tokens"],
                None,
                f"step {text.count(first['step'])}",
            )
        )
        if finite.any():
            last = train[finite & (train["tokens"] < first["tokens"])].tail(1)
            found += [
                ("the last one before it", r["tokens"], r["loss"], _format_nats(r["loss"]))
                for r in last.to_dict("records")
            ]
    jumps = train["loss"].astype("float64").diff()
    if jumps.notna().any() and jumps.max() > 0:
        at = train.iloc[int(np.nanargmax(jumps.to_numpy()))]
        found.append(
            (
                "largest jump of the training loss",
                at["tokens"],
                jumps.max(),
                f"{text.signed(jumps.max())} nats",
            )
        )
    norms = train["grad_norm"].astype("float64")
    if norms.notna().any():
        at = train.iloc[int(np.nanargmax(norms.to_numpy()))]
        median = text.short(norms.median())
        found.append(
            (
                "largest gradient norm",
                at["tokens"],
                norms.max(),
                f"{text.short(norms.max())}, median {median}",
            )
        )
    good = evaluated[np.isfinite(evaluated["loss"].astype("float64"))]
    if len(good):
        at, end = good.iloc[int(np.argmin(good["loss"].to_numpy(dtype="float64")))], good.iloc[-1]
        said = _format_nats(at["loss"])
        if end["tokens"] > at["tokens"]:
            said += f"; at the end {text.signed(end['loss'] - at['loss'])}"
        found.append(("lowest evaluated loss", at["tokens"], at["loss"], said))
    frame = pd.DataFrame(found, columns=["what", "tokens", "value", "told"])
    return frame.astype({"tokens": "Int64", "value": "float64"})


def _format_nats(value: Any) -> str:
    return f"{text.loss(value)} nats"


def curve_legend(run: RunView) -> dict[str, tuple[str, str]]:
    """The loss curves that there are, for `Figure.legend`."""
    there = set(run.curves["kind"])
    return {
        kind: (NAMES[kind], theme.css_color(color))
        for kind, color in KINDS.items()
        if kind in there
    }


def draw_losses(run: RunView) -> dict[str, Any]:
    """Training and evaluated loss over the tokens, with the levels that a loss is measured by."""
    drawn = run.curves[["kind", "run_id", "tokens", "step", "loss"]].rename(columns={"kind": "arm"})
    train = lines.thin_curves(drawn[drawn["arm"] == "train"])
    evaluated = drawn[drawn["arm"] == "eval"]
    levels = _levels(run)
    finite = drawn["loss"][np.isfinite(drawn["loss"].astype("float64"))].astype("float64")
    ends = pd.concat([finite, levels["loss"]])
    highest = max(
        float(ends.quantile(0.995)), float(levels["loss"].max()) if len(levels) else -np.inf
    )
    domain = padded_domain(float(ends.min()), min(highest, float(ends.max())), 0.05)
    x = marks.tokens_axis(drawn["tokens"])
    y = alt.Y(
        "loss:Q",
        title="loss (nats)",
        scale=alt.Scale(domain=domain, zero=False, nice=False),
        axis=alt.Axis(format=".3~f"),
    )
    color = marks.group_color(KINDS)
    words = {"arm:N": "curve", "tokens:Q|,d": "tokens", "step:Q|,d": "step", "loss:Q|.4f": "loss"}
    first = chart_of_visible(train)
    second = chart_of_visible(evaluated)
    named = alt.Chart(inline_data(levels))
    layers = [
        named.mark_rule(strokeDash=[4, 4]).encode(y=y),
        named.mark_text(
            align="right", dx=-4, dy=-6, fontSize=11, color=theme.css_color("muted")
        ).encode(y=y, x=alt.value(alt.ExprRef("width")), text="name:N"),
        first.mark_line(strokeWidth=1.1, clip=True).encode(x=x, y=y, color=color),
        first.mark_point(size=30, opacity=0, clip=True).encode(x=x, y=y, tooltip=tooltips(words)),
        second.mark_line(strokeWidth=2.2, clip=True).encode(x=x, y=y, color=color),
        second.mark_point(size=42, filled=True, opacity=1, clip=True).encode(
            x=x, y=y, color=color, tooltip=tooltips(words)
        ),
    ]
    return finish_chart(alt.layer(*layers), 320, "Training and evaluated loss over tokens trained.")


def _levels(run: RunView) -> pd.DataFrame:
    row = full_row(run)
    told = {
        "at initialisation": row["initial_loss"],
        "token frequencies alone": row["unigram_loss"],
    }
    rows = [
        {"name": name, "loss": float(str(value))}
        for name, value in told.items()
        if not text.absent(value)
    ]
    return pd.DataFrame(rows, columns=["name", "loss"])


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
    axis = (
        alt.Axis(values=marks.log_ticks(*domain), format=form)
        if log
        else alt.Axis(format=form, tickCount=4)
    )
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
    kept = steps[
        np.unique(np.linspace(0, len(steps) - 1, min(STEPS, len(steps))).round().astype(int))
    ]
    drawn = drawn[drawn["tokens"].isin(kept)][["layer", "tokens", "value"]]
    low, high = float(drawn["value"].min()), float(drawn["value"].max())
    domain = [low, high] if high > low else padded_log_domain(low, high)
    shown = alt.Legend(
        orient="top",
        title=QUANTITIES[quantity],
        gradientLength=180,
        format="~g",
        values=_few_ticks(*domain),
    )
    color = alt.Color(
        "value:Q",
        scale=alt.Scale(type="log", scheme="viridis", reverse=True, domain=domain),
        legend=shown,
    )
    axis = alt.Axis(format="~s", labelAngle=0, labelOverlap=True)
    words = {"tokens:Q|,d": "tokens", "layer:O": "block", "value:Q|.3~g": QUANTITIES[quantity]}
    tiles = (
        alt.Chart(inline_data(drawn))
        .mark_rect()
        .encode(
            x=alt.X("tokens:O", title="tokens trained", axis=axis),
            y=alt.Y("layer:O", title="block (0: embedding)", sort="descending"),
            color=color,
            tooltip=tooltips(words),
        )
    )
    rows = drawn["layer"].nunique()
    return finish_chart(
        tiles, max(90, min(420, 22 * rows)), f"{QUANTITIES[quantity]} by block over tokens trained."
    )


def _few_ticks(low: float, high: float) -> list[float]:
    """A few labels of a logarithmic colour scale."""
    between = marks.log_ticks(low, high)
    return (
        between
        if len(between) <= 6
        else [tick for tick in between if f"{tick:e}".startswith("1")] or between[::3]
    )


def draw_documents(frame: pd.DataFrame) -> dict[str, Any]:
    """Every document's loss, the hardest first.

    Args:
        frame: document, tokens, loss, in the order in which they are drawn.
    """
    drawn = frame[["document", "tokens", "loss"]].assign(rank=range(1, len(frame) + 1))
    loss = drawn["loss"].astype("float64")
    y = alt.Y(
        "loss:Q",
        title="loss (nats)",
        scale=alt.Scale(domain=padded_domain(loss.min(), loss.max()), nice=False),
    )
    x = alt.X(
        "rank:Q",
        title="document, the hardest first",
        axis=alt.Axis(format="d", tickMinStep=1, grid=False),
    )
    words = {"document:N": "document", "tokens:Q|,d": "tokens", "loss:Q|.4f": "loss"}
    dots = alt.Chart(inline_data(drawn)).mark_point(
        size=36, filled=True, opacity=0.75, color=theme.css_color("arm-1")
    )
    return finish_chart(
        dots.encode(x=x, y=y, tooltip=tooltips(words)), 220, "Loss of every evaluated document."
    )
