"""One ablation at several sizes: the effect of every arm over the parameters, its slope, and the
figure of both.
"""

from collections.abc import Sequence
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
    found = []
    for study in group:
        rows = board.board_table([study])
        rows = rows[(rows["kind"] == "arm") & rows["mean"].notna()]
        keys = ["arm", "parameters", "mean", "low", "high", "n", "verdict", "study"]
        found.append(rows[keys].assign(label=rows["effect"]))
    return pd.concat(found, ignore_index=True)[list(POINTS)]


def fit_slopes(group: Group) -> pd.DataFrame:
    """How the effect of every arm moves with size, columns as in `SLOPES`."""
    told, arms = effect_points(group), [arm for arm in group[0].arms if arm != group[0].baseline]
    alpha = group[0].rules.alpha / max(1, len(arms))
    found = []
    for arm in arms:
        there = set(told[told["arm"] == arm]["study"])
        found.append(
            _slope_row(
                group[0], arm, _fit_arm([s for s in group if s.path.name in there], arm, alpha)
            )
        )
    return pd.DataFrame(found, columns=list(SLOPES))


def _fit_arm(group: Group, arm: str, alpha: float) -> Slope:
    effects, regrets = [], []
    for study in group:
        pairs = study.differences[(study.differences["arm"] == arm) & study.differences["ok"]]
        effects.append(
            {
                int(seed): float(d)
                for seed, d in zip(pairs["seed"], pairs["difference"], strict=True)
            }
        )
        regret = study.verdicts.set_index("arm")["regret"].get(arm)
        regrets.append(None if text.absent(regret) else float(str(regret)))
    if len(group) < 2:
        return Slope(
            "refused", f"{'one size has' if group else 'no size has'} a mean that can be compared"
        )
    return fit_slope([baseline_parameters(study) for study in group], effects, regrets, alpha)


def _slope_row(study: Study, arm: str, found: Slope) -> dict[str, Any]:
    low, high = found.interval or (None, None)
    told = {"slope": found.slope, "low": low, "high": high, "level": found.level, "p": found.p}
    row = {
        "ablation": study.name,
        "label": study.called(arm),
        "word": found.word,
        **told,
        "regret": found.regret,
    }
    row["lack_of_fit"] = found.lack_of_fit
    return {**row, "sizes": len(found.n), "n": ", ".join(map(str, found.n)), "reason": found.reason}


def draw_effects(group: Group) -> dict[str, Any]:
    """Effect over parameters (logarithmic): a point with its interval per size, joined where an arm
    has several.
    """
    told, study = effect_points(group), group[0]
    m = max(s.m or 0.0 for s in group)
    ends = pd.concat([told["low"], told["high"], told["mean"], pd.Series([0.0, m, -m])]).dropna()
    domain = marks.padded_log_domain(
        float(told["parameters"].min()), float(told["parameters"].max())
    )
    axis = alt.Axis(values=marks.log_ticks(*domain), format="~s", grid=False)
    x = alt.X(
        "parameters:Q",
        title="parameters of the baseline",
        axis=axis,
        scale=alt.Scale(type="log", domain=domain, nice=False),
    )
    scale = alt.Scale(domain=padded_domain(float(ends.min()), float(ends.max())), nice=False)
    title = f"difference to {study.label(study.baseline or '')} (nats)"
    y = alt.Y("mean:Q", title=title, scale=scale, axis=alt.Axis(format="+.3~f"))
    words = {
        "arm:N": "arm",
        "parameters:Q|,d": "parameters",
        "mean:Q|+.4f": "mean",
        "low:Q|+.4f": "from",
        "high:Q|+.4f": "to",
        "n:Q": "pairs",
        "verdict:N": "verdict",
    }
    base = chart_of_visible(told).encode(x=x, color=marks.arm_color(study.arms))
    band = alt.Chart(inline_data(pd.DataFrame({"low": [-m], "high": [m], "zero": [0.0]})))
    layers = [
        marks.margin_band(band).encode(y=alt.Y("low:Q", title=title, scale=scale), y2="high:Q"),
        band.mark_rule(strokeWidth=1.5).encode(y=alt.Y("zero:Q", title=title, scale=scale)),
        base.mark_line(strokeWidth=2).encode(y=y, strokeDash=marks.arm_dash(study.arms)),
        base.mark_rule(strokeWidth=5, opacity=0.45, strokeCap="round").encode(
            y=alt.Y("low:Q", title=title, scale=scale), y2="high:Q"
        ),
        base.mark_point(size=60, filled=True, opacity=1).encode(y=y, tooltip=tooltips(words)),
    ]
    return marks.finish_chart(
        alt.layer(*layers),
        300,
        f"Effect of every arm of {study.name} over the number of parameters.",
    )
