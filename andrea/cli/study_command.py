"""The course of `andrea ablate` and `andrea sweep`: plan, print, freeze, run, show the results."""

from typing import NamedTuple

from andrea.catalogue import find_file
from andrea.cli.settings import default_slots, require_preset
from andrea.cli.show.display import make_display
from andrea.cli.show.output import print_json, stdout_kept_for_json
from andrea.cli.show.plan import device_of, plan_as_json, plan_as_text
from andrea.cli.show.progress import StudyProgress
from andrea.cli.show.results import arm_labels, results_as_json, results_as_text, write_report
from andrea.cli.stores import starting_store
from andrea.cli.study_options import AblateOptions, StudyOptions
from andrea.cli.wandb_mirror import open_mirror
from andrea.config import parse_overrides
from andrea.errors import StudyError
from andrea.execution.executors import Executor
from andrea.execution.make import make_executor
from andrea.records.events import Observer
from andrea.records.extras import Extras, parse_budgets
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.controller import run_study
from andrea.study.plan.freeze import freeze
from andrea.study.plan.plan import Plan, Request
from andrea.study.plan.resolve import make_plan
from andrea.study.question.ablation import Ablation
from andrea.study.question.sweep import Sweep
from andrea.study.session import Summary
from andrea.tracking.destination import missing_key


class PlannedStudy(NamedTuple):
    """A study that is planned and can start."""

    plan: Plan
    slots: int
    """Runs at once."""
    executor: Executor
    results_before: int | None
    """Results that an earlier command left; None where this study is new."""


def run_study_command(options: StudyOptions) -> None:
    """Run a study to its verdicts (or its best config), or only plan it, and print what came out.

    Raises:
        UserError: nothing was started, and nothing written but the cache of prepared data.
        StudyError: runs failed; the same command tries them again.
    """
    options.mirror.require_valid()
    with stdout_kept_for_json(options.as_json):
        request = build_request(options)
        with starting_store(options.runs) as store:
            planned = plan_study(request, store, options)
            folder = None if options.dry_run else freeze(planned.plan, store)
        if folder is None:
            answer, failed_runs = plan_as_json(planned.plan, planned.slots), 0
        else:
            answer, failed_runs = train_study(folder, store, planned, options)
    if options.as_json:
        print_json(answer)
    if failed_runs and folder is not None:
        raise StudyError(
            f"{failed_runs} of the runs failed (andrea status {folder.path.name} says why); "
            "the same command given again tries them once more"
        )


def build_request(options: StudyOptions) -> Request:
    """Return what the command line asks for.

    Raises:
        UserError: an unknown preset, budget or name, or faults of the settings or the YAML.
    """
    return Request(
        preset=options.preset and require_preset(options.preset),
        overrides=parse_overrides(options.settings or []),
        extras=parse_extras(options),
        spec=load_question(options),
        tokens=options.tokens,
        trials=options.trials,
        seeds=options.seeds,
        name=options.study,
        device=options.device,
    )


def parse_extras(options: StudyOptions) -> Extras:
    """Return what is asked beside the question.

    Raises:
        UserError: `--equal` names no budget.
    """
    if not isinstance(options, AblateOptions):
        return Extras()
    words = [word.strip() for listed in options.equal or [] for word in listed.split(",")]
    # Where there is nothing but empty words, they are the mistake to be named.
    budgets = parse_budgets([word for word in words if word] or words)
    return Extras(controls=options.controls, confirm=options.confirm, equal=budgets)


def load_question(options: StudyOptions) -> Ablation | Sweep:
    """Return the YAML of that name or path; the user's own variants beside it are known from then
    on.

    Raises:
        UserError: there is none, or its faults, each with its line.
    """
    if isinstance(options, AblateOptions):
        return Ablation.load(find_file("ablations", options.name))
    return Sweep.load(find_file("sweeps", options.name))


def plan_study(request: Request, store: RunStore, options: StudyOptions) -> PlannedStudy:
    """Plan the study and print the plan.

    Raises:
        UserError: the request cannot be planned, or another command is at this study.
    """
    plan = make_plan(request, store, options.say)
    slots = choose_slots(plan, options)
    executor = make_executor(options.executor, slots, device_of(plan))
    results_before = count_results(store, plan)
    options.say(plan_as_text(plan, slots))
    if options.dry_run and (trouble := missing_key(options.mirror.mode)):
        options.say(f"note: {trouble}")
    return PlannedStudy(plan, slots, executor, results_before)


def choose_slots(plan: Plan, options: StudyOptions) -> int:
    """Return the number of runs at once: as asked, else what the cores or the GPUs carry."""
    if options.slots is not None:
        return options.slots
    if options.executor == "inline":
        return 1
    train = next(iter(plan.arms.values())).config.train
    return default_slots(train.device, train.threads)


def count_results(store: RunStore, plan: Plan) -> int | None:
    """Return how many runs of the study have a result; None where the study does not exist yet.

    Raises:
        UserError: another command is at it.
    """
    folder = plan.folder
    if folder is None or not folder.load_info().model_fields_set:
        return None
    folder.require_free()
    return sum(store.load_result(run.run_id) is not None for run in folder.load_runs())


def train_study(
    folder: StudyFolder, store: RunStore, planned: PlannedStudy, options: StudyOptions
) -> tuple[dict[str, object], int]:
    """Run the study to its end, print what came out and write the report.

    Returns:
        What `--json` prints, and the number of runs that failed.
    """
    if planned.results_before is not None:
        total = max(planned.plan.run_count, len(folder.load_runs()))
        options.say(
            f"resuming {folder.path.name}: {planned.results_before} of {total} runs are in the "
            "store already"
        )
    options.say(f"folder: {folder.path}")
    plan = planned.plan
    progress = StudyProgress(plan.run_count, plan.tokens, plan.estimate_s(planned.slots))
    labels, results_before = arm_labels(folder), planned.results_before or 0
    display = make_display(progress, options.stream, labels, results_before)
    # The mirror stays open until the report is written, since it sends that along.
    with open_mirror(folder, store, options.mirror, display.on_message) as mirror:
        observers: list[Observer] = [display]
        if mirror is not None:
            observers.append(mirror)
        with display:
            summary = run_study(folder, store, planned.executor, observers, parse_extras(options))
        return show_results(folder, store, summary, options), len(summary.failed)


def show_results(
    folder: StudyFolder, store: RunStore, summary: Summary, options: StudyOptions
) -> dict[str, object]:
    """Print what came out and write the report; returns what `--json` prints."""
    answer = results_as_json(folder, store)
    answer["complete"] = summary.complete
    answer["failed_runs"] = [str(run) for run in summary.failed]
    options.say()
    options.say(results_as_text(folder, store))
    report = write_report(folder, store)
    answer["report"] = None if report is None else str(report)
    if report is not None:
        options.say(f"\nreport: {report}")
    return answer
