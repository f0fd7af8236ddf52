"""`andrea sync`: mirrors a study to Weights & Biases from the store."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from andrea.cli import completion
from andrea.cli.options import (
    DEFAULT_RUNS,
    Debug,
    Json,
    Runs,
    WandbEntity,
    WandbProject,
    WandbTags,
    examples,
)
from andrea.errors import UserError

if TYPE_CHECKING:
    from andrea.store.runs import RunStore
    from andrea.tracking.subject import Destination, Subject

EXAMPLES = examples(
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
        typer.Argument(
            metavar="STUDY",
            autocompletion=completion.study_names,
            help="Folder name of a study, or its bare name: the latest; or the beginning of a "
            "run's id.",
        ),
    ],
    wandb: Annotated[
        Literal["offline", "online"] | None,
        typer.Option("--wandb", help="Where to; default: offline, or what WANDB_MODE says."),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="The same as --wandb online; needs a login.")
    ] = False,
    project: WandbProject = None,
    entity: WandbEntity = None,
    tags: WandbTags = None,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Attach the checkpoint of the study's best run.")
    ] = False,
    runs: Runs = DEFAULT_RUNS,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be written; write nothing, ask no server."),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Mirror the runs of a study, its verdicts, report and dashboard to W&B; safe to repeat."""
    from andrea.cli.show.output import print_json
    from andrea.tracking.destination import resolve_destination, resolve_mode
    from andrea.tracking.mirror import sync as mirrored
    from andrea.tracking.subject import missing_key

    if online and wandb == "offline":
        raise UserError("--online and --wandb offline say different things; give one of them")
    mode = resolve_mode("online" if online else wandb)
    store, subject = _found(runs, study)
    if mode == "off":
        raise UserError("WANDB_MODE turns W&B off; give --online, or unset WANDB_MODE")
    to = resolve_destination(mode, project, entity, tags, subject)
    if dry_run:
        if trouble := missing_key(mode):
            print(f"note: {trouble}", file=sys.stderr)
        answer = _planned(store, subject, to, checkpoint)
        print_json(answer) if as_json else typer.echo(_as_text(answer))
        return
    _with_report(store, subject)
    written = mirrored(
        subject,
        store,
        to,
        lambda line: print(line, file=sys.stderr, flush=True),
        checkpoint=checkpoint,
    )
    if as_json:
        print_json({"study": subject.path.name, "mode": mode, "written": written})
    else:
        typer.echo(f"{_done(store, subject, written)} ({mode})")


def _done(store: "RunStore", subject: "Subject", written: int) -> str:
    from andrea.text.numbers import plural
    from andrea.tracking.published import left_open

    open_runs, begun = (
        sum(store.result(run["run_id"]) is None for run in subject.runs()),
        left_open(subject, store),
    )
    said = [
        f"{plural(written, 'run')} written"
        if written
        else "every run that has ended is mirrored already"
    ]
    if open_runs:
        said.append(f"{plural(open_runs, 'run')} without a result")
    if begun:
        said.append(f"{plural(begun, 'run')} begun in W&B, completed by --online")
    return "; ".join(said)


def _found(runs: Path, name: str) -> tuple["RunStore", "Subject"]:
    """The store, and the study or the run of that name.

    Raises:
        UserError: there is neither.
    """
    from andrea.cli.stores import open_store, open_study
    from andrea.tracking.subject import SingleRun

    store = open_store(runs)
    if len(name) >= 6 and not set(name) - set("0123456789abcdef"):
        ids = store.beginning(name)
        if len(ids) > 1:
            raise UserError(
                f"{len(ids)} runs in {store.root} begin with {name}: give more of the id"
            )
        if ids:
            return store, SingleRun(store, ids[0])
    return open_study(runs, name)


def _with_report(store: "RunStore", subject: "Subject") -> None:
    """A study that was judged gets its report before it is attached, where it has none yet."""
    from andrea.cli.show.results import write_report
    from andrea.store.studies import StudyFolder
    from andrea.tracking.study_run import is_judged

    if (
        isinstance(subject, StudyFolder)
        and is_judged(subject)
        and not (subject.path / "report").is_dir()
    ):
        write_report(subject, store)


def _planned(
    store: "RunStore", subject: "Subject", to: "Destination", checkpoint: bool
) -> dict[str, Any]:
    """What a sync would write, as JSON."""
    from andrea.store.studies import StudyFolder
    from andrea.tracking.published import pending
    from andrea.tracking.study_run import pending_study
    from andrea.tracking.subject import wandb_id

    waiting = [wandb_id(subject, run["run_id"]) for run in pending(subject, store, to, failed=True)]
    if isinstance(subject, StudyFolder) and (
        own := pending_study(subject, store, to, checkpoint=checkpoint)
    ):
        waiting.append(own.id)
    answer: dict[str, Any] = {
        "study": subject.path.name,
        "mode": to.mode,
        "project": to.project,
        "entity": to.entity,
        "runs": waiting,
    }
    if isinstance(subject, StudyFolder):
        from andrea.tracking.dashboards import as_json

        answer["workspace"] = as_json(subject, to)
    return answer


def _as_text(answer: dict[str, Any]) -> str:
    from andrea.text.numbers import plural
    from andrea.tracking.subject import server

    written, online = plural(len(answer["runs"]), "run"), answer["mode"] == "online"
    project = "/".join(filter(None, [answer["entity"], answer["project"]]))
    lines = [
        f"{written} would be written ({answer['mode']}) to project {project}"
        + f" at {server()}" * online
    ]
    if "workspace" in answer and online:
        sections = answer["workspace"]["spec"]["section"]["panelBankConfig"]["sections"]
        told = ", ".join(
            f"{section['name']} ({plural(len(section['panels']), 'panel')})" for section in sections
        )
        lines.append(f"dashboard {answer['workspace']['displayName']}: {told}")
    return "\n".join([*lines, *answer["runs"]])
