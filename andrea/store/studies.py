"""Study folders: the question, the planned runs, the verdict.

studies/<name>-<digest>/
  study.json      kind, name, digest, key (of name and digest), created
  protocol.yaml   the protocol as asked; its digest names the study
  resolved.json   what `auto` became, arms in full, data fingerprint; reread on a resume
  runs.jsonl      one line per run that belongs to the study
  choices.json    the learning rate of every arm, and how it was found
  verdict.json    projection of the verdicts
  asked.json      what was asked beside the question: controls, a confirmation, budgets
  optuna.journal  projection of the trials
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from andrea.errors import StudyError, UserError, nearest, warn
from andrea.records.extras import BUDGETS, Extras
from andrea.records.run import RunSpec
from andrea.records.study import (
    AskedStudy,
    BestTrial,
    Choice,
    ResolvedStudy,
    StudyInfo,
    StudySpeed,
)
from andrea.records.verdict import StudyVerdict
from andrea.store.files import (
    append_line,
    cut_damaged_lines,
    is_locked,
    locked,
    read_json,
    read_lines,
    read_mapping,
    write_json,
    write_lines,
)
from andrea.store.runs import RecordT, RunStore

PROJECTIONS = ("choices.json", "verdict.json", "best.json", "asked.json")
"""Made again from the store: damaged is as good as missing."""
RUN_FIELDS = ("run_id", "arm", "phase", "why", "seed")
"""Without these a line of runs.jsonl is damaged."""


class StudyFolder:
    """One study on disk.

    What is damaged is a warning where the study's command makes it again, else a `StudyError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load_info(self) -> StudyInfo:
        """Return study.json; an empty record where there is none.

        Raises:
            StudyError: it is damaged.
        """
        return self._load(StudyInfo, "study.json") or StudyInfo()

    def load_question(self) -> AskedStudy:
        """Return protocol.yaml, the question as it was asked.

        Raises:
            StudyError: the file is missing or damaged, so this is no study.
        """
        path = self.path / "protocol.yaml"
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise self.damaged("protocol.yaml", f"cannot be read ({reason})") from error
        if not isinstance(values, dict):
            raise self.damaged("protocol.yaml", "not a mapping")
        question = AskedStudy.from_json(values, path)
        if question is None:
            raise self.damaged("protocol.yaml", "damaged")
        return question

    def load_resolved(self) -> ResolvedStudy | None:
        """Return resolved.json; None where it is missing.

        Raises:
            StudyError: it is damaged.
        """
        return self._load(ResolvedStudy, "resolved.json")

    def load_runs(self) -> list[RunSpec]:
        """Return the planned runs in order, without damaged lines."""
        path = self.path / "runs.jsonl"
        specs = (RunSpec.from_json(line, path) for line in read_lines(path, RUN_FIELDS))
        return [spec for spec in specs if spec is not None]

    def load_choices(self) -> dict[str, Choice]:
        """Return the learning rates by arm (choices.json); empty before tuning has ended."""
        path = self.path / "choices.json"
        choices = {
            arm: Choice.from_json(values, f"{path}, {arm}")
            for arm, values in (self.read_json("choices.json") or {}).items()
        }
        return {arm: choice for arm, choice in choices.items() if choice is not None}

    def load_verdict(self) -> StudyVerdict | None:
        """Return verdict.json; None where it is missing or damaged."""
        return self._load(StudyVerdict, "verdict.json")

    def load_best(self) -> BestTrial | None:
        """Return best.json of a sweep; None where it is missing or damaged."""
        return self._load(BestTrial, "best.json")

    def load_speed(self) -> StudySpeed | None:
        """Return speed.json; None where it is missing or damaged."""
        path = self.path / "speed.json"
        return StudySpeed.from_json(read_mapping(path), path)

    def load_extras(self) -> Extras:
        """Return what was asked beside the question so far.

        Where asked.json was lost, the planned runs tell.
        """
        extras = self._load(Extras, "asked.json") or Extras()
        for run in self.load_runs():
            budgets = [b for b in BUDGETS if run.phase == "budget" and run.why == f"equal {b}"]
            extras |= Extras(
                controls=run.phase == "control", confirm=run.phase == "confirm", equal=budgets
            )
        return extras

    def _load(self, record: type[RecordT], name: str) -> RecordT | None:
        return record.from_json(self.read_json(name), self.path / name)

    def save_extras(self, extras: Extras) -> None:
        """Write asked.json, unless it says the same already."""
        if extras and self.read_json("asked.json") != extras.to_json():
            self.write("asked.json", extras.to_json())

    def damaged(self, name: str, fault: str) -> StudyError:
        """Return the error for a file without which this is no study, with the remedy."""
        return StudyError(f"{self.path / name}: {fault}; {self._remedy}")

    @property
    def _remedy(self) -> str:
        return (
            f"the study has lost what it asked: delete {self.path} and give the command again; "
            "its runs stay in the store and are found again"
        )

    @property
    def complete(self) -> bool:
        """True once everything that was planned has a result and was judged (a sweep: its best
        config chosen), all that was asked beside the question included.
        """
        if self.load_info().kind == "sweep":
            best = self.load_best()
            return best is not None and best.complete
        return self.answers(self._load(Extras, "asked.json") or Extras())

    def answers(self, extras: Extras) -> bool:
        """Return whether an ablation was judged completely, with these extras."""
        verdict = self.load_verdict()
        return verdict is not None and verdict.complete and verdict.asked.covers(extras)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the object in a JSON file; None where it is missing or a damaged projection.

        Raises:
            StudyError: a file that nothing can make again is damaged.
        """
        path = self.path / name
        try:
            values: dict[str, Any] | None = read_json(path, self._remedy)
            if isinstance(values, dict) or not path.exists():
                return values
            raise self.damaged(name, "damaged, no JSON object")
        except StudyError:
            if name not in PROJECTIONS:
                raise
            warn(f"{path}: damaged, treated as missing; the study's command writes it again")
            return None

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file of the study, atomically."""
        write_json(self.path / name, value)

    def mend_runs(self) -> None:
        """Drop the planned runs from the first damaged line on; only for the controller, which
        plans them again.
        """
        number = cut_damaged_lines(self.path / "runs.jsonl", RUN_FIELDS)
        if number is not None:
            warn(
                f"{self.path / 'runs.jsonl'}: line {number} was damaged; planned again from there "
                "on"
            )

    def add_run(self, run: RunSpec) -> None:
        """Append a planned run."""
        append_line(self.path / "runs.jsonl", run.to_json())

    def write_runs(self, runs: Sequence[RunSpec]) -> None:
        """Replace the planned runs, atomically."""
        write_lines(self.path / "runs.jsonl", [run.to_json() for run in runs])

    def save_choices(self, choices: Mapping[str, Choice]) -> None:
        """Write choices.json."""
        self.write("choices.json", {arm: choice.to_json() for arm, choice in choices.items()})

    def save_verdict(self, verdict: StudyVerdict) -> None:
        """Write verdict.json."""
        self.write("verdict.json", verdict.to_json())

    def save_resolved(self, resolved: ResolvedStudy) -> None:
        """Write resolved.json."""
        self.write("resolved.json", resolved.to_json())

    def save_best(self, best: BestTrial) -> None:
        """Write best.json."""
        self.write("best.json", best.to_json())

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the one controller of this study.

        Raises:
            UserError: another controller runs it.
        """
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(locked(self.path / "lock", wait=False))
                    break
                except BlockingIOError:
                    # Held by a controller, or for a moment by a reader, which must not keep us out.
                    self.require_free()
                    time.sleep(0.001)
            # A controller that was killed while it wrote leaves these behind.
            for partial in self.path.glob(".*.partial"):
                partial.unlink(missing_ok=True)
            yield

    def require_free(self) -> None:
        """Make sure that no controller runs this study.

        Raises:
            UserError: one does.
        """
        if self.live:
            raise UserError(
                f"study {self.path.name} is being run by another command; wait for it or watch it "
                f"with `andrea status {self.path.name}`"
            )

    @property
    def live(self) -> bool:
        """True while a controller runs this study."""
        return is_locked(self.path / "lock")


def list_studies(store: RunStore) -> list[StudyFolder]:
    """Return all studies of a store, oldest first, with a warning for each damaged study.json."""
    dated = []
    for path in (store.root / "studies").glob("*/study.json"):
        study = StudyFolder(path.parent)
        try:
            dated.append((study.load_info().created, study.path.name, study))
        except StudyError as error:
            warn(str(error))
    return [study for *_, study in sorted(dated, key=lambda row: row[:2])]


def find_study(store: RunStore, name: str) -> StudyFolder:
    """Return the study of that folder name, or the latest of that bare name.

    Raises:
        UserError: there is none.
    """
    exact = StudyFolder(store.root / "studies" / name)
    if Path(name).name == name and (exact.path / "study.json").exists():
        return exact
    every = list_studies(store)
    bare_names = [study.load_info().name for study in every]
    if name in bare_names:
        return every[len(every) - 1 - bare_names[::-1].index(name)]
    folder_names = [study.path.name for study in every]
    candidates = sorted({*folder_names, *bare_names})
    raise UserError(f"no study {name!r} in {store.root}; {nearest(name, candidates)}")
