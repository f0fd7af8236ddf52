"""A study as tidy tables, whatever state it is in."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from andrea.analysis import frames
from andrea.analysis.text import listing, note
from andrea.analysis.verdicts import arm_names, baseline_name, effect_rows, level_label, verdict_rows
from andrea.store.files import read_json
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder

VERDICTS = {
    "arm": "str: name of the arm",
    "label": "str: what the report calls it",
    "verdict": "str: baseline; better, worse, equivalent, unstable, inconclusive, invalid; or pending",
    "cause": "str: qualifier of the verdict, as in inconclusive (rate at edge)",
    "reason": "str: the verdict's reason in one sentence",
    "mean": "float, nats: mean paired difference to the baseline; below 0 is better; NaN unless every pair is whole",
    "low": "float, nats: lower end of the simultaneous interval",
    "high": "float, nats: upper end",
    "level": "float: level of that interval, 1 − alpha / arms",
    "sd": "float, nats: standard deviation of the paired differences",
    "n": "int: pairs",
    "p": "float: paired t-test",
    "p_holm": "float: the same, Holm-adjusted over the arms",
    "tost_p": "float: larger p of the two one-sided tests against ±m",
    "fisher_p": "float: Fisher's exact test of the counts of failed trainings",
    "regret": "float, nats: what the uncertainty of both chosen rates may have cost, the arm's and the baseline's",
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
    "verdict": "str: better, worse, equivalent; present, absent (interactions); unstable, inconclusive, invalid",
    "cause": "str: qualifier of the verdict",
    "reason": "str: the verdict's reason in one sentence",
    "mean": "float, nats: mean of the contrast over the seeds; NaN unless every run that it needs is good",
    "low": "float, nats: lower end of the interval, simultaneous within the kind",
    "high": "float, nats: upper end",
    "level": "float: level of that interval, 1 − alpha / effects of the kind",
    "sd": "float, nats: standard deviation of the contrast",
    "n": "int: seeds at which every run that it needs is good",
    "p": "float: t-test",
    "p_holm": "float: the same, Holm-adjusted within the kind",
    "tost_p": "float: larger p of the two one-sided tests against ±m",
    "regret": "float, nats: what the uncertainty of the chosen rates may have cost, in sum over the contrast",
    "pairs_needed": "int: seeds that would see m with 80 % power",
    "pairs_needed_regret": "int: seeds that would see m with the regret subtracted",
    "smallest_visible": "float, nats: smallest effect that these seeds can see",
}
"""Columns of `effects`: one row per effect of a factorial design."""


@dataclass(frozen=True)
class Study:
    """One study: what was asked, what came out, and tables of every number.

    The columns of the tables are documented in `andrea.analysis.frames` (RUNS, CURVES, LAYERS, DOCUMENTS) and here
    (VERDICTS, DIFFERENCES). Losses are in nats per token; curves stand at the tokens at which they were logged.
    """

    path: Path
    """The study's folder."""
    about: dict[str, Any]
    """study.json: kind, name, digest, created."""
    protocol: dict[str, Any]
    """protocol.yaml: question, hypothesis, arms, sections, `protocol`: what was asked, as asked."""
    resolved: dict[str, Any]
    """resolved.json: arms in full, data fingerprint, platform; empty before the freeze ended."""
    choices: dict[str, Any]
    """choices.json: the learning rate of every arm and how it was found; empty before tuning ended."""
    verdict: dict[str, Any]
    """verdict.json; empty before the study was judged."""
    best: dict[str, Any]
    """best.json of a sweep; empty before it ended."""
    corpus: dict[str, Any]
    """meta.json of the prepared data: source, documents, bytes, tokens per part; empty where it is not there."""
    environments: list[tuple[dict[str, Any], int]]
    """Every distinct env.json with the number of runs that have it."""
    live: bool
    """Whether a controller is at it now."""
    runs: pd.DataFrame
    curves: pd.DataFrame
    layers: pd.DataFrame
    documents: pd.DataFrame
    trials: pd.DataFrame
    """The rows of `runs` that tune, with `score`: the final loss, or the loss at initialisation where not ok."""
    verdicts: pd.DataFrame
    differences: pd.DataFrame
    effects: pd.DataFrame
    """Of a factorial design, else empty."""

    @property
    def name(self) -> str:
        """The study's bare name."""
        return str(self.about.get("name") or self.path.name)

    @property
    def kind(self) -> str:
        """`ablation` or `sweep`."""
        return str(self.about.get("kind") or "ablation")

    @cached_property
    def arms(self) -> list[str]:
        """The arms in declared order, the baseline first: the order of colours and rows everywhere."""
        named = arm_names(self.protocol, self.resolved)
        return named or [str(arm) for arm in self.runs["arm"].drop_duplicates()]

    @property
    def baseline(self) -> str | None:
        """The arm that the others are compared with."""
        return baseline_name(self.protocol, self.resolved)

    @property
    def rules(self) -> dict[str, Any]:
        """The `protocol` section: m, seeds, trials, alpha, …"""
        rules = self.protocol.get("protocol")
        return rules if isinstance(rules, dict) else {}

    @property
    def m(self) -> float | None:
        """Smallest effect of interest, nats."""
        return float(self.rules["m"]) if self.rules.get("m") is not None else None

    @property
    def complete(self) -> bool:
        """Whether every planned run has a result and the study was judged (or its best config chosen)."""
        ended = bool(self.best) if self.kind == "sweep" else bool(self.verdict.get("complete", bool(self.verdict)))
        return ended and not self.runs["outcome"].isin(["failed", "running", "missing"]).any()

    def label(self, arm: str) -> str:
        """What the arm is called: its label, else its name."""
        return arm_label(self.protocol, self.resolved, arm)

    def called(self, *arms: str) -> str:
        """Arms in a sentence: a label that is a bare number has the factor before it, as in `mlp_ratio 1 and 8/3`; the
        levels of a cell are joined by a plus sign."""
        labels = [self.label(arm).replace(", ", " + ") if self.factors else self.label(arm) for arm in arms]
        bare = [label for label in labels if re.fullmatch(r"[-+]?[\d.]+(/[\d.]+)?", label)]
        if len(bare) == len(labels) and bare:
            return f"{self.factor} {listing(bare)}"
        return listing([f"{self.factor} {label}" if label in bare else label for label in labels])

    @property
    def factor(self) -> str:
        """What the arms differ in, short."""
        named = str(self.protocol.get("factor") or "arm").split(" × ")
        return " × ".join(name.rpartition(".")[2] for name in named)

    @property
    def factors(self) -> dict[str, dict[str, str]]:
        """Of a factorial design: by factor, the labels of its levels by name; else empty."""
        told = self.protocol.get("factors") or {}
        return {f: {level: level_label(told, f, level) for level in levels} for f, levels in told.items()}

    @property
    def centers(self) -> dict[str, float]:
        """Learning rate in the middle of the grid of every arm that was given its own."""
        arms = self.protocol.get("arms") or {}
        return {arm: float(told["center"]) for arm, told in arms.items() if told.get("center") is not None}

    def replicates(self) -> pd.DataFrame:
        """The runs that verdicts compare."""
        return self.runs[self.runs["phase"] == "replicate"]

    def frames(self) -> dict[str, pd.DataFrame]:
        """Every table by name, as it is written beside a report."""
        names = ("runs", "curves", "layers", "trials", "documents")
        tables = {name: getattr(self, name) for name in names}
        if self.kind != "sweep":
            tables |= {"verdicts": self.verdicts, "differences": self.differences}
        if self.factors:
            tables["effects"] = self.effects
        return tables


def arm_label(protocol: dict[str, Any], resolved: dict[str, Any], arm: str) -> str:
    """The label that the ablation gives an arm, else its name."""
    for arms in (protocol.get("arms"), resolved.get("arms")):
        told = arms.get(arm) if isinstance(arms, dict) else None
        if isinstance(told, dict) and told.get("label"):
            return str(told["label"])
    return arm


def load(folder: StudyFolder, store: RunStore) -> Study:
    """Read a study, finished or not, from its folder and the run store.

    Raises:
        StudyError: the folder has no readable protocol.yaml.
    """
    protocol, resolved = folder.protocol(), folder.read("resolved.json") or {}
    rows = frames.run_rows(store, folder.runs())
    runs = frames.runs_frame(rows)
    curves, layers = frames.metric_frames(store, rows)
    differences = _differences(runs, arm_names(protocol, resolved), baseline_name(protocol, resolved))
    return Study(
        path=folder.path,
        about=folder.about,
        protocol=protocol,
        resolved=resolved,
        choices=folder.read("choices.json") or {},
        verdict=folder.read("verdict.json") or {},
        best=folder.read("best.json") or {},
        corpus=_corpus(store, resolved),
        environments=_environments(store, rows),
        live=folder.live,
        runs=runs,
        curves=curves,
        layers=layers,
        documents=frames.documents_frame(store, rows),
        trials=_trials(runs),
        verdicts=_verdicts(folder, runs, protocol, resolved),
        differences=differences,
        effects=_typed(pd.DataFrame(effect_rows(folder), columns=list(EFFECTS)), EFFECTS),
    )


def _trials(runs: pd.DataFrame) -> pd.DataFrame:
    trials = runs[runs["phase"].isin(["tune", "trial"])].reset_index(drop=True)
    trials["score"] = trials["loss"].where(trials["ok"], trials["initial_loss"].fillna(trials["unigram_loss"]))
    return trials


def _verdicts(
    folder: StudyFolder, runs: pd.DataFrame, protocol: dict[str, Any], resolved: dict[str, Any]
) -> pd.DataFrame:
    replicates = runs[runs["phase"] == "replicate"]
    rows = []
    for row in verdict_rows(folder):
        mine = replicates[replicates["arm"] == row["arm"]]
        counted = {
            "planned": len(mine),
            "completed": int(mine["ok"].sum()),
            "diverged": int((mine["outcome"] == "diverged").sum()),
            "stalled": int(mine["stalled"].sum()),
            "unfinished": int(mine["outcome"].isin(["failed", "running", "missing"]).sum()),
        }
        label = arm_label(protocol, resolved, row["arm"])
        rows.append({**row, **counted, "label": label, "note": note(row)})
    return _typed(pd.DataFrame(rows, columns=list(VERDICTS)), VERDICTS)


def _typed(frame: pd.DataFrame, meanings: dict[str, str]) -> pd.DataFrame:
    """Numbers as numbers, by what the columns are documented to be."""
    for key, meaning in meanings.items():
        if not meaning.startswith("str"):
            frame[key] = pd.to_numeric(frame[key]).astype("Int64" if meaning.startswith("int") else "float64")
    return frame


def _differences(runs: pd.DataFrame, arms: list[str], baseline: str | None) -> pd.DataFrame:
    """Pairs by seed. A seed whose run diverged or is missing keeps its row, without a difference."""
    replicates = runs[runs["phase"] == "replicate"].copy()
    replicates["outcome"] = replicates["outcome"].where(~replicates["stalled"], "stalled")
    told = replicates[["arm", "seed", "loss", "outcome", "ok"]]
    base = told[told["arm"] == baseline].drop(columns="arm").add_prefix("baseline_")
    parts = []
    for arm in arms:
        mine = told[told["arm"] == arm]
        if arm == baseline or mine.empty:
            continue
        pairs = mine.merge(base, left_on="seed", right_on="baseline_seed", how="left")
        # A baseline that is missing is not ok.
        pairs["ok"] = pairs["ok"] & pairs["baseline_ok"].eq(True)
        pairs["difference"] = pairs["loss"] - pairs["baseline_loss"]
        parts.append(pairs.sort_values("seed")[list(DIFFERENCES)])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(DIFFERENCES))


def _environments(store: RunStore, rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    found: list[tuple[dict[str, Any], int]] = []
    for row in rows:
        env = store.env(row["run_id"])
        if env is None:
            continue
        known = next((i for i, (other, _) in enumerate(found) if other == env), None)
        if known is None:
            found.append((env, 1))
        else:
            found[known] = (env, found[known][1] + 1)
    return found


def _corpus(store: RunStore, resolved: dict[str, Any]) -> dict[str, Any]:
    fingerprint = resolved.get("fingerprint")
    found = read_json(store.root / "data" / str(fingerprint) / "meta.json") if fingerprint else None
    return found if isinstance(found, dict) else {}
