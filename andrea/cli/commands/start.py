"""What `ablate` and `sweep` share: plan, say, freeze, run, show. The rooms do the work."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from andrea.cli import complete
from andrea.cli.options import (
    DEFAULT_RUNS,
    Confirm,
    Controls,
    Debug,
    Device,
    DryRun,
    Equal,
    ExecutorName,
    Json,
    Preset,
    Runs,
    Seeds,
    Settings,
    Slots,
    StudyName,
    Tokens,
    Trials,
    Wandb,
    WandbEntity,
    WandbProject,
    WandbTags,
)
from andrea.errors import StudyError

if TYPE_CHECKING:
    from andrea.cli.mirrored import MirrorOptions
    from andrea.store.runs import RunStore
    from andrea.store.studies import StudyFolder
    from andrea.study.plan.plan import Plan, Request
    from andrea.study.question.ablation import Ablation
    from andrea.study.question.sweep import Sweep

Kind = Literal["ablation", "sweep"]


@dataclass(frozen=True)
class How:
    """How a study is run; none of it changes a number."""

    runs: Path
    slots: int | None
    executor: str
    wandb: "MirrorOptions"
    dry_run: bool
    as_json: bool

    @property
    def stream(self) -> IO[str]:
        """Where people read: stdout, or stderr when stdout carries JSON."""
        return sys.stderr if self.as_json else sys.stdout

    def say(self, text: str = "") -> None:
        """Print for people, at once."""
        print(text, file=self.stream, flush=True)


ABLATION_ALONE = ("controls", "confirm", "equal")
"""Options that ask for something beside verdicts, which a sweep has none of."""


def starter(kind: Kind, doc: str) -> Callable[..., None]:
    """The function behind `andrea ablate` or `andrea sweep`; both take the same options, but for
    `ABLATION_ALONE`.
    """
    completion = complete.ablations if kind == "ablation" else complete.sweeps

    def command(
        name: Annotated[
            str,
            typer.Argument(
                metavar="NAME", autocompletion=completion, help="Of the catalogue, or a YAML file."
            ),
        ],
        preset: Preset = None,
        settings: Settings = None,
        tokens: Tokens = None,
        trials: Trials = None,
        seeds: Seeds = None,
        study: StudyName = None,
        controls: Controls = False,
        confirm: Confirm = False,
        equal: Equal = None,
        slots: Slots = None,
        executor: ExecutorName = "local",
        device: Device = "auto",
        wandb: Wandb = None,
        project: WandbProject = None,
        entity: WandbEntity = None,
        tags: WandbTags = None,
        runs: Runs = DEFAULT_RUNS,
        dry_run: DryRun = False,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        from andrea.cli.mirrored import asked
        from andrea.cli.settings import known_preset
        from andrea.cli.show.output import print_json, stdout_kept_for_json
        from andrea.config import parse_overrides
        from andrea.records.extras import Extras, parse_budgets
        from andrea.study.plan.plan import Request

        how = How(runs, slots, executor, asked(wandb, project, entity, tags), dry_run, as_json)
        base, overrides = preset and known_preset(preset), parse_overrides(settings or [])
        words = [part.strip() for given in equal or [] for part in given.split(",")]
        beside = Extras(
            controls=controls,
            confirm=confirm,
            equal=parse_budgets([word for word in words if word] or words),
        )
        with stdout_kept_for_json(as_json):
            spec = load(kind, name)
            answer = start(
                Request(spec, base, overrides, tokens, trials, seeds, study, device, beside), how
            )
        if as_json:
            print_json(answer)
        failed = answer.get("failed_runs")
        if failed:
            raise StudyError(
                f"{len(failed)} of the runs failed (andrea status {answer['study']} says why); "
                "the same command given again tries them once more"
            )

    command.__doc__ = doc
    if kind == "sweep":
        signature = inspect.signature(command)
        kept = [given for name, given in signature.parameters.items() if name not in ABLATION_ALONE]
        command.__dict__["__signature__"] = signature.replace(parameters=kept)
    return command


def load(kind: Kind, name: str) -> "Ablation | Sweep":
    """The YAML of that name or path; the user's own variants beside it are known from then on.

    Raises:
        UserError: there is none, or its faults, each with its line.
    """
    from andrea.catalogue import find_file

    if kind == "ablation":
        from andrea.study.question.ablation import Ablation

        return Ablation.load(find_file("ablations", name))
    from andrea.study.question.sweep import Sweep

    return Sweep.load(find_file("sweeps", name))


def start(asked: "Request", how: How) -> dict[str, Any]:
    """Run a study to its verdicts (or its best config), or only plan it; returns what `--json`
    prints.

    Raises:
        UserError: nothing was started, and nothing written but the cache of prepared data.
    """
    from andrea.cli.mirrored import mirrored
    from andrea.cli.show.plan import as_json, as_text, device_of, slots_for
    from andrea.cli.stores import starting
    from andrea.execution.executors import make_executor
    from andrea.study.controller import run_study
    from andrea.study.plan.freeze import freeze, plan
    from andrea.tracking.subject import missing_key

    with starting(how.runs) as store:
        planned = plan(asked, store, how.say)
        slots = slots_for(planned, how)
        executor = make_executor(how.executor, slots, device_of(planned))
        earlier = _earlier(store, planned)
        how.say(as_text(planned, slots))
        if how.dry_run:
            if trouble := missing_key(how.wandb.mode):
                how.say(f"note: {trouble}")
            return as_json(planned, slots)
        folder = freeze(planned, store)
    if earlier is not None:
        total = max(planned.run_count, len(folder.runs()))
        how.say(f"resuming {folder.path.name}: {earlier} of {total} runs are in the store already")
    how.say(f"folder: {folder.path}")
    display = _display(folder, planned, slots, how, earlier or 0)
    with mirrored(
        folder, store, how.wandb, display.say
    ) as mirror:  # until the report is there, which it sends along
        observers: list[Any] = [display] if mirror is None else [display, mirror]
        with display:
            summary = run_study(folder, store, executor, observers, asked.beside)
        return _show(folder, store, how, summary)


def _earlier(store: "RunStore", planned: "Plan") -> int | None:
    """Runs with a result when this study exists already, else None.

    Raises:
        UserError: another command is at it.
    """
    from andrea.store.studies import StudyFolder

    folder = StudyFolder(store.root / "studies" / planned.folder_name)
    if not folder.about:
        return None
    folder.require_free()
    return sum(store.result(run["run_id"]) is not None for run in folder.runs())


def _display(folder: "StudyFolder", planned: "Plan", slots: int, how: How, known: int) -> Any:
    from andrea.cli.show.display import make_display
    from andrea.cli.show.progress import Board
    from andrea.cli.show.results import labels

    board = Board(planned.run_count, planned.tokens, planned.estimate_s(slots))
    return make_display(board, how.stream, labels(folder), known)


def _show(folder: "StudyFolder", store: "RunStore", how: How, summary: Any) -> dict[str, Any]:
    """Print the outcome and write the report."""
    from andrea.cli.show.results import outcome, outcome_text, write_report

    failed = [str(run) for run in summary.failed]
    answer = {**outcome(folder, store), "complete": summary.complete, "failed_runs": failed}
    how.say()
    how.say(outcome_text(folder, store))
    report = write_report(folder, store)
    answer["report"] = None if report is None else str(report)
    if report is not None:
        how.say(f"\nreport: {report}")
    return answer
