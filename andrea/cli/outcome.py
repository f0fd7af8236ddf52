"""What came out of a study: the verdict table or the best config, and the report."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea.analysis.text import loss, setting
from andrea.cli.output import table

if TYPE_CHECKING:
    from andrea.store.runs import RunStore
    from andrea.store.studies import StudyFolder

COLUMNS = ("arm", "verdict", "difference", "interval", "n", "lr")


def outcome(folder: "StudyFolder", store: "RunStore") -> dict[str, Any]:
    """The outcome as JSON: verdict.json and the chosen rates, or the trials and the best config."""
    about = folder.about
    head = {"study": folder.path.name, "folder": str(folder.path), "kind": about.get("kind")}
    if about.get("kind") == "sweep":
        best = {key: value for key, value in (folder.read("best.json") or {}).items() if key != "trials"}
        return {**head, "best": best or None, "trials": trials(folder, store)}
    return {**head, **(folder.read("verdict.json") or {}), "choices": folder.read("choices.json")}


def outcome_text(folder: "StudyFolder", store: "RunStore") -> str:
    """The outcome for people."""
    if folder.about.get("kind") == "sweep":
        return sweep_text(folder, store)
    from andrea.analysis.text import verdict_table

    verdicts = verdict_table(folder)
    rows = [[row[column] for column in COLUMNS] for row in verdicts]
    # Notes are sentences: beside the table they would wrap in the middle of it.
    notes = [f"{row['arm']}: {row['note']}" for row in verdicts if row["note"]]
    return "\n".join([table(rows, COLUMNS, right=(2, 4)), *([""] if notes else []), *notes])


def trials(folder: "StudyFolder", store: "RunStore") -> list[dict[str, Any]]:
    """The trials of a sweep in order: best.json's, or what the store has of them so far."""
    best = folder.read("best.json")
    if best:
        found: list[dict[str, Any]] = best["trials"]
        return found
    rows = []
    for run in folder.runs():
        result = store.result(run["run_id"]) or {}
        row = {key: run.get(key) for key in ("trial", "params", "run_id")}
        rows.append(row | {key: result.get(key) for key in ("loss", "outcome", "stalled")})
    return rows


def sweep_text(folder: "StudyFolder", store: "RunStore") -> str:
    """A table of trials, best first, and the best config as options to copy."""
    from andrea.verdict.records import good

    every = trials(folder, store)
    every.sort(key=lambda t: (not good(t["outcome"], t["stalled"], t["loss"]), t["loss"] is None, t["loss"] or 0.0))
    names = list(dict.fromkeys(name for trial in every for name in trial["params"]))
    rows = [[t["trial"], *(setting(t["params"].get(n)) for n in names), loss(t["loss"]), _ending(t)] for t in every]
    text = table(rows, ("trial", *names, "objective", "ending"), right=range(len(names) + 2))
    params = (folder.read("best.json") or {}).get("params")
    if params:
        text += "\n\nbest: " + " ".join(f"--set {name}={json.dumps(value)}" for name, value in params.items())
    return text


def _ending(trial: dict[str, Any]) -> str:
    return "stalled" if trial["stalled"] else str(trial["outcome"] or "open")


def report_kind(folder: "StudyFolder") -> str:
    """The report that a study gets when nobody names one."""
    return "sweep" if folder.about.get("kind") == "sweep" else "comparison"


def make(
    store: "RunStore", folder: "StudyFolder", formats: Sequence[str] | None, out: Path | None, kind: str
) -> list[Path]:
    """Build a report from the store, in all formats where none are named; the first path is the page."""
    from andrea.analysis.build import make_report
    from andrea.catalogue import find

    return list(make_report(store, folder, formats, find("reports", kind), out))


def write_report(folder: "StudyFolder", store: "RunStore") -> Path | None:
    """The page that a study ends with. A report that fails costs a warning: the runs are in the store."""
    try:
        paths = make(store, folder, None, None, report_kind(folder))
    except Exception as error:
        line = " ".join(f"warning: no report ({type(error).__name__}: {error})".split())
        print(f"{line}; `andrea report {folder.path.name}` builds it from the store", file=sys.stderr)
        return None
    return paths[0] if paths else None
