"""`andrea sync`: mirrors a study to Weights & Biases from the store."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from andrea.cli import completion
from andrea.cli import options as opt
from andrea.cli.show.output import print_json
from andrea.errors import UserError
from andrea.text.numbers import plural

if TYPE_CHECKING:
    from andrea.records.base import Settings
    from andrea.store.runs import RunStore
    from andrea.tracking.destination import Destination
    from andrea.tracking.subject import Subject

EXAMPLES = opt.examples(
    "andrea sync norm-placement --online           publishes every finished run; needs `wandb "
    "login` once",
    "andrea sync norm-placement                    the same as WANDB_MODE says; offline files by "
    "default",
    "andrea sync norm-placement --online --dry-run --json   what W&B lacks, and the dashboard as "
    "it would be saved",
    "andrea sync norm-placement --online --wandb-entity my-team --wandb-tags paper,v2 --checkpoint",
    "andrea sync 3fa9c2b1 --online                 a run of `andrea train`, by the beginning of "
    "its id",
)


def sync(
    study: Annotated[
        str,
        opt.argument(
            "STUDY",
            "Folder name of a study, or its bare name: the latest; or the beginning of a run's id.",
            autocompletion=completion.study_names,
        ),
    ],
    wandb: Annotated[
        Literal["offline", "online"] | None,
        opt.option("--wandb", "Where to; default: offline, or what WANDB_MODE says."),
    ] = None,
    online: Annotated[
        bool, opt.option("--online", "The same as --wandb online; needs a login.")
    ] = False,
    project: opt.WandbProject = None,
    entity: opt.WandbEntity = None,
    tags: opt.WandbTags = None,
    checkpoint: Annotated[
        bool, opt.option("--checkpoint", "Attach the checkpoint of the study's best run.")
    ] = False,
    runs: opt.Runs = opt.DEFAULT_RUNS,
    dry_run: Annotated[
        bool, opt.option("--dry-run", "Say what would be written; write nothing, ask no server.")
    ] = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Mirror the runs of a study, its verdicts, report and dashboard to W&B; safe to repeat."""
    from andrea.tracking.destination import missing_key, resolve_destination, resolve_mode
    from andrea.tracking.mirror import sync as write_to_wandb

    if online and wandb == "offline":
        raise UserError("--online and --wandb offline say different things; give one of them")
    mode = resolve_mode("online" if online else wandb)
    store, subject = find_subject(runs, study)
    if mode == "off":
        raise UserError("WANDB_MODE turns W&B off; give --online, or unset WANDB_MODE")
    destination = resolve_destination(mode, project, entity, tags, subject)
    if dry_run:
        if trouble := missing_key(mode):
            print(f"note: {trouble}", file=sys.stderr)
        plan = plan_sync(store, subject, destination, checkpoint)
        print_json(plan.to_json()) if as_json else typer.echo(plan_as_text(plan))
        return
    write_missing_report(store, subject)
    written = write_to_wandb(subject, store, destination, checkpoint=checkpoint)
    if as_json:
        print_json({"study": subject.path.name, "mode": mode, "written": written})
    else:
        typer.echo(f"{written_in_words(store, subject, written)} ({mode})")


def written_in_words(store: "RunStore", subject: "Subject", written: int) -> str:
    """Return what was written, and what is still to come."""
    from andrea.tracking.published import left_open

    unfinished = sum(store.load_result(run.run_id) is None for run in subject.load_runs())
    begun = left_open(subject, store)
    parts = ["every run that has ended is mirrored already"]
    if written:
        parts = [f"{plural(written, 'run')} written"]
    if unfinished:
        parts.append(f"{plural(unfinished, 'run')} without a result")
    if begun:
        parts.append(f"{plural(begun, 'run')} begun in W&B, completed by --online")
    return "; ".join(parts)


def find_subject(runs: Path, name: str) -> tuple["RunStore", "Subject"]:
    """Return the store, and the study or the run of that name.

    Raises:
        UserError: there is neither.
    """
    from andrea.cli.stores import open_store, open_study
    from andrea.tracking.subject import SingleRun

    store = open_store(runs)
    is_hexadecimal = set(name) <= set("0123456789abcdef")
    ids = store.ids(name) if len(name) >= 6 and is_hexadecimal else []
    if len(ids) > 1:
        raise UserError(f"{len(ids)} runs in {store.root} begin with {name}: give more of the id")
    if ids:
        return store, SingleRun(store, ids[0])
    return open_study(runs, name)


def write_missing_report(store: "RunStore", subject: "Subject") -> None:
    """Write the report of a study that was judged and has none, so that it can be attached."""
    from andrea.cli.show.results import write_report
    from andrea.store.studies import StudyFolder
    from andrea.tracking.study_run import is_judged

    if not isinstance(subject, StudyFolder) or (subject.path / "report").is_dir():
        return
    if is_judged(subject):
        write_report(subject, store)


@dataclass(frozen=True)
class SyncPlan:
    """What a sync would write."""

    study: str
    destination: "Destination"
    runs: list[str]
    """Ids in W&B."""
    workspace: "Settings | None"
    """The dashboard as it would be saved; None for a single run."""

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        place = asdict(self.destination)
        del place["tags"]
        workspace = {} if self.workspace is None else {"workspace": self.workspace}
        return {"study": self.study, **place, "runs": self.runs, **workspace}


def plan_sync(
    store: "RunStore", subject: "Subject", destination: "Destination", checkpoint: bool
) -> SyncPlan:
    """Return what a sync would write."""
    from andrea.store.studies import StudyFolder
    from andrea.tracking.dashboards import workspace_json
    from andrea.tracking.published import pending_runs
    from andrea.tracking.study_run import pending_study
    from andrea.tracking.subject import study_key, wandb_id

    key, pending = study_key(subject), pending_runs(subject, store, destination, failed=True)
    runs = [wandb_id(key, run.run_id) for run in pending]
    name = subject.path.name
    if not isinstance(subject, StudyFolder):
        return SyncPlan(name, destination, runs, None)
    if own_run := pending_study(subject, store, destination, checkpoint=checkpoint):
        runs.append(own_run.id)
    return SyncPlan(name, destination, runs, workspace_json(subject, destination))


def plan_as_text(plan: SyncPlan) -> str:
    """Return the number of runs, the project, the panels of the dashboard, and the runs."""
    runs, mode = plural(len(plan.runs), "run"), plan.destination.mode
    lines = [f"{runs} would be written ({mode}) to project {plan.destination.address}"]
    if plan.workspace is not None and mode == "online":
        sections = plan.workspace["spec"]["section"]["panelBankConfig"]["sections"]
        panels = ", ".join(
            f"{section['name']} ({plural(len(section['panels']), 'panel')})" for section in sections
        )
        lines.append(f"dashboard {plan.workspace['displayName']}: {panels}")
    return "\n".join([*lines, *plan.runs])
