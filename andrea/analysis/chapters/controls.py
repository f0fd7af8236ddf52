"""The chapter of the controls: trainings whose outcome is known beforehand, and their effect on the
verdicts.
"""

from typing import Any

import pandas as pd

from andrea.analysis.chapters import sentences as words
from andrea.analysis.chapters.common import arm_labels
from andrea.analysis.figures import replicates as figures
from andrea.analysis.figures import theme
from andrea.analysis.load import Study
from andrea.analysis.report import Bullets, Callout, Column, Figure, Item, Table, numbers
from andrea.analysis.tables.frames import UNFINISHED, with_floats
from andrea.records.verdict import ControlOutcome
from andrea.text import numbers as text

OUTCOMES = {True: "pass", False: "fail", None: "unknown"}
"""Name of the outcome by `ok`."""
NAMES = {
    "repeat": "repeat",
    "a_a": "A/A",
    "ruler": "ruler, ½ the tokens",
    "ruler_2x": "ruler, 2× the tokens",
}
"""The controls by their keys in verdict.json."""
WHY = {"repeat": "repeat", "a_a": "a/a", "ruler": "half tokens", "ruler_2x": "double tokens"}
"""By control, the mark of its runs in runs.jsonl."""
DONE = {
    "repeat": "one baseline run, trained once more",
    "a_a": "the baseline with other initial weights, on the same batches",
    "ruler": "the baseline on half the tokens, its schedule ending there",
    "ruler_2x": "the baseline on double the tokens, its schedule ending there",
}
PASSED = {
    "repeat": "the numbers are those of the settings and the seed alone",
    "a_a": "the procedure invents no difference of m where there is none",
    "ruler": "an effect as large as half the training would have been seen: equivalent means "
    "something",
    "ruler_2x": "improvements can be told in tokens",
}
FAILED = {
    "repeat": "every verdict is invalid: the same training gives other numbers",
    "a_a": "every verdict is invalid: the baseline differs from itself",
    "ruler": "equivalent and inconclusive are invalid: not even half the training was seen",
    "ruler_2x": "improvements cannot be told in tokens; verdicts are as they are",
}
UNKNOWN = {
    "repeat": "the verdicts stand without it",
    "a_a": "the verdicts stand without it",
    "ruler": "equivalent and inconclusive stand without it",
    "ruler_2x": FAILED["ruler_2x"],
}
MEANING = {True: PASSED, False: FAILED, None: UNKNOWN}
"""Consequence for the verdicts by outcome and control."""


def chapter(study: Study) -> list[Item]:
    """Return the table of the controls, a sentence for each, and the arms on one scale with them;
    nothing where none were asked for.
    """
    frame = outcome_table(study)
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
        f"Trainings whose outcome is known beforehand, all of {study.baseline_label}: control − "
        "the run of the same seed, over n pairs. A control can take a verdict away and never gives "
        "one. A/A fails at p < .005 and a mean beyond m; a ruler must come out as it must at a "
        f"one-sided p < {study.rules.alpha:g}; the repeat must agree to the last bit where the "
        "device promises it, else to less than m. Intervals are of one control each."
    )
    sentences = [
        f"{row['control']}: {row['reason']}; so {row['meaning']}."
        for row in frame.to_dict("records")
    ]
    return [
        Table("controls", caption, frame, columns, sortable=False, stacked=True, mark="outcome"),
        Bullets(sentences),
        *scale_figure(study),
    ]


def outcome_table(study: Study) -> pd.DataFrame:
    """Return one row per control that was asked for: key, control, outcome (pass, fail, unknown,
    missing), done, mean (nats; of the repeat its distance), low, high, n, p, reason, meaning.
    """
    outcomes = study.verdict.controls
    if not words.asked_extras(study).controls:
        return pd.DataFrame()
    rows = []
    for key in NAMES:
        outcome = _outcome(study, key)
        is_expected = key != "ruler_2x" and outcomes is None
        if outcome is not None or is_expected:
            rows.append(_row(study, key, outcome))
    frame = pd.DataFrame(rows)
    for key in ("mean", "low", "high", "n", "p"):
        frame[key] = pd.to_numeric(frame[key]).astype("Int64" if key == "n" else "float64")
    return frame


def _outcome(study: Study, key: str) -> ControlOutcome | None:
    outcome: ControlOutcome | None = getattr(study.verdict.controls, key, None)
    return outcome


def _row(study: Study, key: str, outcome: ControlOutcome | None) -> dict[str, Any]:
    row: dict[str, Any] = {"key": key, "control": NAMES[key], "done": DONE[key]}
    if outcome is None:
        runs = study.runs[(study.runs["phase"] == "control") & (study.runs["why"] == WHY[key])]
        ended = int((~runs["outcome"].isin(UNFINISHED)).sum())
        reason = "not planned yet: follows the replicates"
        if len(runs):
            are = "is" if ended == 1 else "are"
            reason = f"{ended} of {text.plural(len(runs), 'run')} {are} done"
        row |= dict.fromkeys(("mean", "low", "high", "n", "p"))
        return row | {"outcome": "missing", "reason": reason, "meaning": "nothing is known yet"}
    low, high = outcome.interval or (None, None)
    mean = outcome.mean
    n: int | None = outcome.n
    if key == "repeat":
        mean = outcome.difference
        n = None if mean is None else 1
    row |= {"outcome": OUTCOMES[outcome.ok], "reason": outcome.reason}
    row |= {"meaning": MEANING[outcome.ok][key]}
    return row | {"mean": mean, "low": low, "high": high, "n": n, "p": outcome.p}


def failed_callouts(study: Study) -> list[Item]:
    """Return a callout for every control that failed and takes verdicts away."""
    callouts: list[Item] = []
    for key in ("repeat", "a_a", "ruler"):
        outcome = _outcome(study, key)
        if outcome is not None and outcome.ok is False:
            body = f"{NAMES[key]}: {outcome.reason}; {FAILED[key]}."
            callouts.append(Callout("Control failed.", body))
    return callouts


# ---- one scale
# --------------------------------------------------------------------------------------------------


def scale_figure(study: Study) -> list[Item]:
    """Return the figure of the arms' differences beside those of the controls, on one axis."""
    pairs = control_pairs(study).assign(outcome="completed", baseline_outcome="completed")
    if pairs.empty:
        return []
    rows = [_mean_row(NAMES[key], outcome) for key, outcome in _paired(study).items()]
    means = with_floats(pd.DataFrame(rows), "mean", "low", "high")
    keys = ["arm", "seed", "difference", "outcome", "baseline_outcome"]
    both = pd.concat([study.differences[keys], pairs[keys]], ignore_index=True)
    # The other arms have no pairs to draw.
    paired = study.verdicts[study.verdicts["arm"].isin(study.differences["arm"])]
    verdicts = pd.concat([paired[list(means.columns)], means], ignore_index=True)
    arms = [*study.arms, *means["arm"]]
    colors = theme.arm_colors(arms)
    legend = {arm: (study.label(arm), colors[arm]) for arm in paired["arm"]}
    legend |= {name: (name, colors[name]) for name in means["arm"]}
    caption = (
        f"The arms and the controls on one axis, each against {study.baseline_label} of the same "
        "seed: a mark per seed, the tick their mean, the thick line its interval (simultaneous for "
        "arms, 95 % for each control). A/A should cover 0; the rulers say how large a change of "
        "the budget is, so that an effect can be compared with something that everybody knows."
    )
    spec = figures.draw_differences(both, verdicts, study.m, arms, arm_labels(study))
    marks = {"○": "one seed", "┃": "mean", "▬": "interval", "░": "±m"}
    return [Figure("controls-and-arms", caption, spec, legend, marks)]


def control_pairs(study: Study) -> pd.DataFrame:
    """Return every pair behind the controls: arm (name of the control), seed, difference (nats:
    control − baseline).
    """
    rows = [
        {"arm": NAMES[key], "seed": pair.seed, "difference": pair.difference}
        for key, outcome in _paired(study).items()
        for pair in outcome.differences
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "difference"])


def _paired(study: Study) -> dict[str, ControlOutcome]:
    """Return the controls that have pairs."""
    outcomes = {key: _outcome(study, key) for key in NAMES}
    return {key: outcome for key, outcome in outcomes.items() if outcome and outcome.differences}


def _mean_row(name: str, outcome: ControlOutcome) -> dict[str, Any]:
    low, high = outcome.interval or (None, None)
    numbers = {"mean": outcome.mean, "low": low, "high": high, "n": outcome.n}
    return {"arm": name, **numbers, "verdict": "control"}
