"""One ablation at several sizes: the effect of every arm over the parameters, its slope, and the
figure of both.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import altair as alt
import pandas as pd

from andrea.analysis.figures import marks
from andrea.analysis.figures.marks import chart_of_visible, inline_data, padded_domain, tooltips
from andrea.analysis.load import Study
from andrea.analysis.tables import leaderboard as board
from andrea.text import numbers as text
from andrea.verdict.scaling import Slope, fit_slope

Group = list[Study]
"""Studies of one ablation, from the smallest to the largest, no size twice."""

POINTS = {
    "arm": "str: name of the arm",
    "label": "str: what it is called",
    "parameters": "int: of the baseline",
    "mean": "float, nats: difference to the baseline of that size",
    "low": "float, nats: lower end of its study's simultaneous interval",
    "high": "float, nats: upper end",
    "n": "int: pairs",
    "verdict": "str: at that size",
    "study": "str: folder",
}
SLOPES = {
    "ablation": "str: bare name of the studies",
    "label": "str: the arm",
    "word": "str: grows, fades, reverses, moves, neither, uncertain or refused",
    "slope": "float, nats per tenfold number of parameters; NaN where it was refused",
    "low": "float, nats: lower end of its interval, simultaneous over the ablation's arms",
    "high": "float, nats: upper end",
    "level": "float: level of that interval",
    "p": "float: that the slope is 0",
    "regret": "float, nats: what the rates may have moved the slope by",
    "lack_of_fit": "float: p that the effects lie on a line; NaN below three sizes",
    "sizes": "int: studies",
    "n": "str: pairs by size",
    "reason": "str: why the word",
}


def group_by_question(studies: Sequence[Study]) -> tuple[list[Group], list[str]]:
    """Return the ablations that were judged at several sizes (`board.question_key`), and a line for
    each study that is left out, since a later one has its size.
    """
    by_question: dict[Any, Group] = {}
    for study in sorted(studies, key=lambda study: study.about.created):
        if study.verdict.verdicts and board.study_regime(study).parameters:
            by_question.setdefault(board.question_key(study), []).append(study)
    groups, left_out = [], []
    for candidates in by_question.values():
        latest = {baseline_parameters(study): study for study in candidates}
        if len(latest) < 2:
            continue
        groups.append([latest[parameters] for parameters in sorted(latest)])
        for study in candidates:
            later = latest[baseline_parameters(study)]
            if later is not study:
                line = f"{study.path.name}: {later.path.name} is of the same size and later"
                left_out.append(line)
    return groups, left_out


def baseline_parameters(study: Study) -> int:
    """Parameters of the baseline."""
    return int(board.study_regime(study).parameters or 0)


def effect_points(group: Group) -> pd.DataFrame:
    """Effects by size, columns as in `POINTS`; only those that the board shows with a mean."""
    rows = pd.concat([board.board_table([study]) for study in group], ignore_index=True)
    rows = rows[(rows["kind"] == "arm") & rows["mean"].notna()].assign(label=rows["effect"])
    return rows[list(POINTS)].reset_index(drop=True)


def fit_slopes(group: Group) -> pd.DataFrame:
    """How the effect of every arm moves with size, columns as in `SLOPES`."""
    points, study = effect_points(group), group[0]
    arms = [arm for arm in study.arms if arm != study.baseline]
    alpha = study.rules.alpha / max(1, len(arms))
    rows = []
    for arm in arms:
        names = set(points[points["arm"] == arm]["study"])
        slope = _fit_arm([study for study in group if study.path.name in names], arm, alpha)
        rows.append(_slope_row(study, arm, slope))
    return pd.DataFrame(rows, columns=list(SLOPES))


def _fit_arm(group: Group, arm: str, alpha: float) -> Slope:
    effects, regrets = [], []
    for study in group:
        pairs = study.differences[(study.differences["arm"] == arm) & study.differences["ok"]]
        seeds, differences = pairs["seed"].tolist(), pairs["difference"].tolist()
        effects.append(dict(zip(seeds, differences, strict=True)))
        regret = study.verdicts.set_index("arm")["regret"].get(arm)
        regrets.append(None if text.absent(regret) else float(str(regret)))
    if len(group) < 2:
        number = "one" if group else "no"
        return Slope("refused", f"{number} size has a mean that can be compared")
    return fit_slope([baseline_parameters(study) for study in group], effects, regrets, alpha)


def _slope_row(study: Study, arm: str, slope: Slope) -> dict[str, Any]:
    low, high = slope.interval or (None, None)
    names = {"ablation": study.name, "label": study.called(arm)}
    counts = {"sizes": len(slope.n), "n": ", ".join(map(str, slope.n))}
    return asdict(slope) | names | counts | {"low": low, "high": high}


def draw_effects(group: Group) -> dict[str, Any]:
    """Effect over parameters (logarithmic): a point with its interval per size, joined where an arm
    has several.
    """
    points, study = effect_points(group), group[0]
    m = max(study.m or 0.0 for study in group)
    ends = pd.concat([points["low"], points["high"], points["mean"], pd.Series([0.0, m, -m])])
    parameters = points["parameters"].astype("float64")
    x_scale = marks.log_scale(parameters.min(), parameters.max())
    ticks = marks.log_ticks(*marks.padded_log_domain(parameters.min(), parameters.max()))
    axis = alt.Axis(values=ticks, format="~s", grid=False)
    x = alt.X("parameters:Q", title="parameters of the baseline", axis=axis, scale=x_scale)
    y = partial(
        alt.Y,
        title=f"difference to {study.label(study.baseline or '')} (nats)",
        scale=alt.Scale(domain=padded_domain(float(ends.min()), float(ends.max())), nice=False),
        axis=alt.Axis(format="+.3~f"),
    )
    titles = {"arm:N": "arm", "parameters:Q|,d": "parameters", **marks.EFFECT_TITLES}
    titles["verdict:N"] = "verdict"
    base = chart_of_visible(points).encode(x=x, color=marks.arm_color(study.arms))
    line = base.mark_line(strokeWidth=2)
    interval = base.mark_rule(strokeWidth=5, opacity=0.45, strokeCap="round")
    mean = base.mark_point(size=60, filled=True, opacity=1)
    band = alt.Chart(inline_data(pd.DataFrame({"low": [-m], "high": [m], "zero": [0.0]})))
    layered = alt.layer(
        marks.margin_band(band).encode(y=y("low:Q"), y2="high:Q"),
        band.mark_rule(strokeWidth=1.5).encode(y=y("zero:Q")),
        line.encode(y=y("mean:Q"), strokeDash=marks.arm_dash(study.arms)),
        interval.encode(y=y("low:Q"), y2="high:Q"),
        mean.encode(y=y("mean:Q"), tooltip=tooltips(titles)),
    )
    description = f"Effect of every arm of {study.name} over the number of parameters."
    return marks.finish_chart(layered, 300, description)
