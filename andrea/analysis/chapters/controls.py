"""The chapter of the controls: trainings whose outcome is known beforehand, and what they do to the
verdicts.
"""

from typing import Any

import pandas as pd

from andrea.analysis.chapters import sentences as words
from andrea.analysis.chapters.common import labels
from andrea.analysis.figures import replicates as figures
from andrea.analysis.figures import theme
from andrea.analysis.load import Study
from andrea.analysis.report import Bullets, Callout, Column, Figure, Item, Table, numbers
from andrea.analysis.tables.frames import UNFINISHED
from andrea.text import numbers as text

OUTCOMES = {True: "pass", False: "fail", None: "unknown"}
"""What a control's `ok` is called."""
NAMES = {
    "repeat": "repeat",
    "a_a": "A/A",
    "ruler": "ruler, ½ the tokens",
    "ruler_2x": "ruler, 2× the tokens",
}
"""The controls by their keys in verdict.json."""
WHY = {"repeat": "repeat", "a_a": "a/a", "ruler": "half tokens", "ruler_2x": "double tokens"}
"""By control, what its runs are called in the plan."""
DONE = {
    "repeat": "one baseline run, trained once more",
    "a_a": "the baseline with other initial weights, on the same batches",
    "ruler": "the baseline on half the tokens, its schedule ending there",
    "ruler_2x": "the baseline on double the tokens, its schedule ending there",
}
MEANING = {
    ("repeat", True): "the numbers are those of the settings and the seed alone",
    ("repeat", False): "every verdict is invalid: the same training gives other numbers",
    ("repeat", None): "the verdicts stand without it",
    ("a_a", True): "the procedure invents no difference of m where there is none",
    ("a_a", False): "every verdict is invalid: the baseline differs from itself",
    ("a_a", None): "the verdicts stand without it",
    (
        "ruler",
        True,
    ): "an effect as large as half the training would have been seen: equivalent means something",
    (
        "ruler",
        False,
    ): "equivalent and inconclusive are invalid: not even half the training was seen",
    ("ruler", None): "equivalent and inconclusive stand without it",
    ("ruler_2x", True): "improvements can be told in tokens",
    ("ruler_2x", False): "improvements cannot be told in tokens; verdicts are as they are",
    ("ruler_2x", None): "improvements cannot be told in tokens; verdicts are as they are",
}
"""By control and outcome, what follows for the verdicts."""


def chapter(study: Study) -> list[Item]:
    """The table of the controls, what each says, and the arms on one scale with them; nothing where
    none were asked.
    """
    frame = table(study)
    if frame.empty:
        return []
    columns = [
        Column("control", "control"),
        Column("outcome", "outcome"),
        numbers("mean", "difference (nats)", text.signed),
        numbers(("low", "high"), "95 % interval", text.interval),
        numbers("n", "n", text.count),
        numbers("p", "p", text.probability),
        Column("done", "what was done"),
    ]
    caption = (
        "Trainings whose outcome is known beforehand, all of "
        f"{study.baseline_label}: control − the run "
        "of the same seed, over n pairs. A control can take a verdict away and never gives one. "
        "A/A fails at p < .005 "
        "and a mean beyond m; a ruler must come out as it must at a one-sided "
        f"p < {study.rules.alpha:g}; the repeat must agree to the last bit where the "
        "device promises it, "
        "else to less than m. Intervals are of one control each."
    )
    said = [
        f"{row['control']}: {row['reason']}; so {row['meaning']}."
        for row in frame.to_dict("records")
    ]
    table_ = Table(
        "controls", caption, frame, columns, sortable=False, stacked=True, mark="outcome"
    )
    return [table_, Bullets(said), *scale(study)]


def table(study: Study) -> pd.DataFrame:
    """One row per control that was asked for: key, control, outcome (pass, fail, unknown, missing),
    done, mean (nats; of the repeat its distance), low, high, n, p, reason, meaning.
    """
    told = study.verdict.to_json().get("controls") or {}
    if not words.asked_extras(study).controls:
        return pd.DataFrame()
    rows = [
        _row(study, key, told.get(key))
        for key in NAMES
        if told.get(key) or (key != "ruler_2x" and not told)
    ]
    frame = pd.DataFrame(rows)
    for key in ("mean", "low", "high", "n", "p"):
        frame[key] = pd.to_numeric(frame[key]).astype("Int64" if key == "n" else "float64")
    return frame


def _row(study: Study, key: str, found: dict[str, Any] | None) -> dict[str, Any]:
    row: dict[str, Any] = {"key": key, "control": NAMES[key], "done": DONE[key]}
    if found is None:
        runs = study.runs[(study.runs["phase"] == "control") & (study.runs["why"] == WHY[key])]
        ended = int((~runs["outcome"].isin(UNFINISHED)).sum())
        planned = f"{ended} of {text.plural(len(runs), 'run')} {'is' if ended == 1 else 'are'} done"
        reason = planned if len(runs) else "not planned yet: follows the replicates"
        unknown = dict.fromkeys(("mean", "low", "high", "n", "p"))
        return (
            row
            | unknown
            | {"outcome": "missing", "reason": reason, "meaning": "nothing is known yet"}
        )
    low, high = found.get("interval") or (None, None)
    told = {
        "outcome": OUTCOMES[found.get("ok")],
        "reason": found["reason"],
        "meaning": MEANING[key, found.get("ok")],
    }
    n = found.get("n", None if found.get("difference") is None else 1)
    mean = found.get("mean", found.get("difference"))
    return row | told | {"mean": mean, "low": low, "high": high, "n": n, "p": found.get("p")}


def failed(study: Study) -> list[Item]:
    """What must not be overlooked on the first screen: a control that failed."""
    told = study.verdict.to_json().get("controls") or {}
    bad = [key for key in NAMES if (told.get(key) or {}).get("ok") is False and key != "ruler_2x"]
    return [
        Callout("Control failed.", f"{NAMES[key]}: {told[key]['reason']}; {MEANING[key, False]}.")
        for key in bad
    ]


# ---- one scale
# --------------------------------------------------------------------------------------------------


def scale(study: Study) -> list[Item]:
    """The arms' differences beside those of the controls, on one axis."""
    pairs = control_pairs(study).assign(outcome="completed", baseline_outcome="completed")
    if pairs.empty:
        return []
    means = pd.DataFrame([_mean(NAMES[key], found) for key, found in _paired(study).items()])
    keys = ["arm", "seed", "difference", "outcome", "baseline_outcome"]
    both = pd.concat([study.differences[keys], pairs[keys]], ignore_index=True)
    paired = study.verdicts[
        study.verdicts["arm"].isin(study.differences["arm"])
    ]  # the others have nothing to draw
    verdicts = pd.concat([paired[list(means.columns)], means], ignore_index=True)
    arms = [*study.arms, *means["arm"]]
    colors = theme.arm_colors(arms)
    legend = {arm: (study.label(arm), colors[arm]) for arm in paired["arm"]}
    legend |= {name: (name, colors[name]) for name in means["arm"]}
    caption = (
        f"The arms and the controls on one axis, each against {study.baseline_label} "
        "of the same seed: "
        "a mark per seed, the tick their mean, the thick line its interval (simultaneous for arms, "
        "95 % for each "
        "control). A/A should cover 0; the rulers say how large a change of the budget is, so that "
        "an effect can be "
        "compared with something that everybody knows."
    )
    spec = figures.differences(both, verdicts, study.m, arms, labels(study))
    marks = {"○": "one seed", "┃": "mean", "▬": "interval", "░": "±m"}
    return [Figure("controls-and-arms", caption, spec, legend, marks)]


def control_pairs(study: Study) -> pd.DataFrame:
    """Every pair behind the controls: arm (name of the control), seed, difference (nats: control −
    baseline).
    """
    rows = [
        {"arm": NAMES[key], "seed": pair["seed"], "difference": pair["difference"]}
        for key, found in _paired(study).items()
        for pair in found["differences"]
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "difference"])


def _paired(study: Study) -> dict[str, dict[str, Any]]:
    """The controls that have pairs."""
    told = study.verdict.to_json().get("controls") or {}
    return {key: found for key in NAMES if (found := told.get(key)) and found.get("differences")}


def _mean(name: str, found: dict[str, Any]) -> dict[str, Any]:
    low, high = found.get("interval") or (None, None)
    told = {
        "arm": name,
        "mean": found.get("mean"),
        "low": low,
        "high": high,
        "n": found.get("n"),
        "verdict": "control",
    }
    return {key: float("nan") if value is None else value for key, value in told.items()}
