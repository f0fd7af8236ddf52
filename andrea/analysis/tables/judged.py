"""What was judged, as tables: verdicts, paired differences, effects of factors, trials with their
scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import pandas as pd

from andrea.analysis.tables.frames import UNFINISHED, with_number_types
from andrea.store.verdict_rows import EffectRow, VerdictRow

VERDICTS = {
    "arm": "str: name of the arm",
    "label": "str: what the report calls it",
    "verdict": "str: baseline; better, worse, equivalent, unstable, inconclusive, invalid; or "
    "pending",
    "cause": "str: qualifier of the verdict, as in inconclusive (rate at edge)",
    "reason": "str: the verdict's reason in one sentence",
    "mean": "float, nats: mean paired difference to the baseline; below 0 is better; NaN unless "
    "every pair is whole",
    "low": "float, nats: lower end of the simultaneous interval",
    "high": "float, nats: upper end",
    "level": "float: level of that interval, 1 − alpha / arms",
    "sd": "float, nats: standard deviation of the paired differences",
    "n": "int: pairs",
    "p": "float: paired t-test",
    "p_holm": "float: the same, Holm-adjusted over the arms",
    "tost_p": "float: larger p of the two one-sided tests against ±m",
    "fisher_p": "float: Fisher's exact test of the counts of failed trainings",
    "regret": "float, nats: what the uncertainty of both chosen rates may have cost, the arm's and "
    "the baseline's",
    "pairs_needed": "int: pairs that would see m with 80 % power",
    "pairs_needed_regret": "int: pairs that would see m with the regret subtracted",
    "smallest_visible": "float, nats: smallest effect that these pairs can see",
    "lr": "float: chosen learning rate",
    "method": "str: vertex or argmin",
    "planned": "int: replicates planned",
    "completed": "int: replicates that completed and did not stall",
    "diverged": "int: replicates that diverged",
    "stalled": "int: replicates that completed without learning",
    "unfinished": "int: replicates that failed, run or wait",
    "note": "str: reason, tags and remarks",
}
"""Columns of `verdicts`: one row per arm, baseline first."""

DIFFERENCES = {
    "arm": "str: name of the arm",
    "seed": "int: replicate",
    "baseline_loss": "float, nats: the baseline's final loss at that seed",
    "loss": "float, nats: the arm's",
    "difference": "float, nats: loss − baseline_loss; NaN where either run has no final loss",
    "outcome": "str: the arm's outcome, with `stalled` where it stalled",
    "baseline_outcome": "str: the baseline's",
    "ok": "bool: both runs completed and learned",
}
"""Columns of `differences`: one row per arm and replicate seed."""

EFFECTS = {
    "name": "str: what the report calls it",
    "kind": "str: main, simple or interaction",
    "factor": "str: the factor whose levels are compared",
    "step": "str: `level instead of level`, by their labels",
    "at": "str: level of the other factor, of a simple effect or an interaction",
    "instead_of": "str: level that `at` is compared with, of an interaction",
    "verdict": "str: better, worse, equivalent; present, absent (interactions); unstable, "
    "inconclusive, invalid",
    "cause": "str: qualifier of the verdict",
    "reason": "str: the verdict's reason in one sentence",
    "mean": "float, nats: mean of the contrast over the seeds; NaN unless every run that it needs "
    "is good",
    "low": "float, nats: lower end of the interval, simultaneous within the kind",
    "high": "float, nats: upper end",
    "level": "float: level of that interval, 1 − alpha / effects of the kind",
    "sd": "float, nats: standard deviation of the contrast",
    "n": "int: seeds at which every run that it needs is good",
    "p": "float: t-test",
    "p_holm": "float: the same, Holm-adjusted within the kind",
    "tost_p": "float: larger p of the two one-sided tests against ±m",
    "regret": "float, nats: what the uncertainty of the chosen rates may have cost, in sum over "
    "the contrast",
    "pairs_needed": "int: seeds that would see m with 80 % power",
    "pairs_needed_regret": "int: seeds that would see m with the regret subtracted",
    "smallest_visible": "float, nats: smallest effect that these seeds can see",
}
"""Columns of `effects`: one row per effect of a factorial design."""


def tuning_trials(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `runs` that tune, with `score`: the final loss, or the loss at
    initialisation where not ok.
    """
    trials = runs[runs["phase"].isin(["tune", "trial"])].reset_index(drop=True)
    untrained_loss = trials["initial_loss"].fillna(trials["unigram_loss"])
    trials["score"] = trials["loss"].where(trials["ok"], untrained_loss)
    return trials


def verdict_table(
    rows: Sequence[VerdictRow], runs: pd.DataFrame, label: Callable[[str], str]
) -> pd.DataFrame:
    """Return `VERDICTS`.

    Args:
        rows: of `verdict_rows`.
        runs: the table of runs.
        label: what an arm is called.
    """
    replicates = runs[runs["phase"] == "replicate"]
    table = []
    for row in rows:
        of_arm = replicates[replicates["arm"] == row.arm]
        counts = {
            "planned": len(of_arm),
            "completed": int(of_arm["ok"].sum()),
            "diverged": int((of_arm["outcome"] == "diverged").sum()),
            "stalled": int(of_arm["stalled"].sum()),
            "unfinished": int(of_arm["outcome"].isin(UNFINISHED).sum()),
        }
        words = {"label": label(row.arm), "note": row.note}
        table.append({**asdict(row), **counts, **words})
    return with_number_types(pd.DataFrame(table, columns=list(VERDICTS)), VERDICTS)


def effect_table(rows: Sequence[EffectRow]) -> pd.DataFrame:
    """Return `EFFECTS` from rows of `effect_rows`."""
    return with_number_types(pd.DataFrame(map(asdict, rows), columns=list(EFFECTS)), EFFECTS)


def paired_differences(
    runs: pd.DataFrame, arms: Sequence[str], baseline: str | None
) -> pd.DataFrame:
    """Return pairs by seed (`DIFFERENCES`).

    A seed whose run diverged or is missing keeps its row, without a difference.
    """
    replicates = runs[runs["phase"] == "replicate"].copy()
    replicates["outcome"] = replicates["outcome"].where(~replicates["stalled"], "stalled")
    ends = replicates[["arm", "seed", "loss", "outcome", "ok"]]
    base = ends[ends["arm"] == baseline].drop(columns="arm").add_prefix("baseline_")
    of_arms = ends[ends["arm"].isin(set(arms) - {baseline})]
    if of_arms.empty:
        return pd.DataFrame(columns=list(DIFFERENCES))
    pairs = of_arms.merge(base, left_on="seed", right_on="baseline_seed", how="left")
    # A baseline that is missing is not ok.
    pairs["ok"] = pairs["ok"] & pairs["baseline_ok"].eq(True)
    pairs["difference"] = pairs["loss"] - pairs["baseline_loss"]
    pairs["place"] = pairs["arm"].map(list(arms).index)
    return pairs.sort_values(["place", "seed"], ignore_index=True)[list(DIFFERENCES)]
