"""A newer method applied to runs that are there: what it says now, what was said before. Nothing is
trained.

Rates are not chosen anew where that would need other runs: a replicate is judged at the rate that
it was trained at.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from andrea.errors import StudyError, UserError
from andrea.records.events import Run
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.stages import tune as tuning
from andrea.study.stages.verdict import verdicts
from andrea.verdict.judgement import METHOD

Choices = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Change:
    """One verdict, or one effect of a factorial design, by the method of then and by the present
    one.
    """

    of: str
    """Arm, or what the effect is."""
    before: str
    """Word and cause, as in `inconclusive (rate at edge)`; `none` where it was not judged."""
    after: str
    reason: str
    """Of the present verdict."""

    @property
    def changed(self) -> bool:
        """Whether the word or its cause is another."""
        return self.before != self.after


@dataclass(frozen=True)
class Regraded:
    """What became of one study."""

    study: str
    """Name of its folder."""
    method_before: int | None
    method: int
    changes: list[Change]
    """Every verdict and effect, changed or not, arms first."""
    kept: list[str] = field(default_factory=list)
    """Files of its folder that hold what was there before; empty where nothing was written."""
    notes: list[str] = field(default_factory=list)
    """What the present method would have done otherwise, but cannot without other runs."""

    @property
    def changed(self) -> list[Change]:
        """The verdicts and effects that are others now."""
        return [change for change in self.changes if change.changed]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        told = [{**asdict(change), "changed": change.changed} for change in self.changes]
        return {**asdict(self), "changes": told, "changed": len(self.changed)}


def regrade(folder: StudyFolder, store: RunStore) -> Regraded:
    """Judge a study by the present method from its stored runs, and write that where it says
    something else.

    verdict.json (and choices.json, where a regret is another) are written anew; what they were is
    kept beside them as `verdict-method1.json`. A study that this method has judged, and judges
    alike, is left as it is.

    Raises:
        UserError: a sweep, a study without a verdict, or one that a controller is at.
        StudyError: it had all of its runs, and the store has lost some: they would be judged as
            missing.
    """
    with folder.held():
        return _regrade(folder, store)


def keep_older(folder: StudyFolder) -> list[str]:
    """Keep what an older method said of a study that is about to be judged anew; names of the files
    that hold it.
    """
    before = folder.read("verdict.json")
    if not before or before.get("method") == METHOD:
        return []
    method = before.get("method")
    kept = {file: told for file in ("verdict.json", "choices.json") if (told := folder.read(file))}
    return [
        _keep(folder, file, told, method if isinstance(method, int) else None)
        for file, told in kept.items()
    ]


def _regrade(folder: StudyFolder, store: RunStore) -> Regraded:
    name, before = folder.path.name, folder.read("verdict.json")
    if folder.about.get("kind") == "sweep":
        raise UserError(
            f"study {name} is a sweep: it has no verdict that another method could change"
        )
    if not before:
        raise UserError(
            f"study {name} has no verdict yet: give its command again; what it judges is by this "
            "method"
        )
    study, runs = FrozenStudy(folder, store), folder.runs()
    results = {
        run["run_id"]: told for run in runs if (told := store.result(run["run_id"])) is not None
    }
    lost = sum(run["run_id"] not in results for run in runs)
    if lost and before.get("complete"):
        raise StudyError(
            f"study {name}: {lost} of its {len(runs)} runs are no longer in the store; "
            "its command trains them again, and judges by this method"
        )
    stored: Choices = folder.read("choices.json") or {}
    choices, notes = _choices(study, runs, results, stored)
    after = verdicts(study, choices, runs, results)
    method = before.get("method")
    found = Regraded(
        name,
        method if isinstance(method, int) else None,
        METHOD,
        _changes(before, after),
        notes=notes,
    )
    if method == METHOD and not found.changed:
        return found
    written = {"verdict.json": (before, after)}
    if choices != stored:
        written["choices.json"] = (dict(stored), dict(choices))
    for file, (old, new) in written.items():
        if old:
            found.kept.append(_keep(folder, file, old, found.method_before))
        folder.write(file, new)
    return found


def _choices(
    study: FrozenStudy, runs: list[Run], results: Mapping[str, dict[str, Any]], stored: Choices
) -> tuple[Choices, list[str]]:
    """The choices by the present method if they are at the rates of the replicates, else those of
    then.
    """
    untuned = {
        run["arm"] for run in runs if run["phase"] == "tune" and run["run_id"] not in results
    }
    decision = tuning.decide(study, runs, results, untuned)
    if decision.phase != "done":
        if not stored:
            raise study.folder.damaged(
                "choices.json", "missing, and the present method would tune at other rates"
            )
        more = sum(len(rates) for rates in decision.rates.values())
        return stored, [
            f"this method would have tuned at {more} more rates: the choices of then stand"
        ]
    fresh = tuning.choices(decision, study.arms, runs, results)
    moved = [
        f"{arm}: this method would replicate at rate {fresh[arm]['lr']}, the runs are at "
        f"{told['lr']}: "
        "the choices of then stand"
        for arm, told in stored.items()
        if arm in fresh and fresh[arm]["lr"] != told["lr"]
    ]
    return (stored, moved) if moved else (fresh, [])


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    changes = []
    for kind, name in (("verdicts", _arm), ("effects", _effect)):
        old = _old(before.get(kind), name)
        for told in after.get(kind) or []:
            changes.append(
                Change(name(told), old.get(name(told), "none"), _said(told), told["reason"])
            )
    return changes


def _old(told: Any, name: Callable[[Mapping[str, Any]], str]) -> dict[str, str]:
    """What an older verdict.json says, by name; what others have written there that says nothing is
    passed over.
    """
    found = {}
    for entry in told if isinstance(told, list) else []:
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            found[name(entry)] = _said(entry)
    return found


def _arm(verdict: Mapping[str, Any]) -> str:
    return str(verdict["arm"])


def _effect(effect: Mapping[str, Any]) -> str:
    """`main: swiglu for gelu`, `simple: swiglu for gelu at post`, `interaction: swiglu for gelu ×
    post for pre`.
    """
    steps = " × ".join(f"{step['level']} for {step['against']}" for step in effect["steps"])
    at = "".join(f" at {level}" for level in effect["at"].values())
    return f"{effect['kind']}: {steps}{at}"


def _said(verdict: Mapping[str, Any]) -> str:
    return (
        f"{verdict['verdict']} ({verdict['cause']})"
        if verdict["cause"]
        else str(verdict["verdict"])
    )


def _keep(folder: StudyFolder, file: str, content: dict[str, Any], method: int | None) -> str:
    """Keep what a file was under a name that says of which method it is; an older copy is never
    overwritten.
    """
    stem, number = (
        f"{file.removesuffix('.json')}-{'before' if method is None else f'method{method}'}",
        1,
    )
    while True:
        name = f"{stem}{f'-{number}' if number > 1 else ''}.json"
        if not (folder.path / name).exists():
            folder.write(name, content)
            return name
        if folder.read(name) == content:
            return name
        number += 1
