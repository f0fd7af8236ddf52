"""`andrea report`: builds reports again from the store."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea.cli import complete
from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, examples

if TYPE_CHECKING:
    from andrea.analysis.formats.build import Job

EXAMPLES = examples(
    "andrea report norm-placement                      all formats but pdf, in the study's folder",
    "andrea report norm-placement --format md,tex,pdf --out paper/",
    "andrea report norm-placement --watch              again whenever a run ends, until all are "
    "done",
    "andrea report norm-placement activation           one report each",
    "andrea report --regrade norm-placement            first judge it by a newer method",
    "andrea report --kind leaderboard                  one report on all studies",
    "andrea report --kind run 3fa9c1                   on one run, by the beginning of its id",
)


def report(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STUDY...",
            autocompletion=complete.studies,
            help="Folder names of studies, or bare names: the latest. Runs' ids for kinds that "
            "report on a run; "
            "nothing for kinds that report on all studies.",
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="LIST",
            help="Of html, md, csv, parquet, json, tex and pdf, with commas; default: all but pdf.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Where to write; default: the study's report folder."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="NAME", help="Kind of report (andrea list reports)."),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Build again whenever something has changed, until the study is complete.",
        ),
    ] = False,
    regrade: Annotated[
        bool,
        typer.Option(
            "--regrade",
            help="First judge the stored runs by this andrea's method, where an older one judged "
            "them, and say which "
            "verdicts change. Nothing is trained.",
        ),
    ] = False,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Build reports again from the store, and print where they are."""
    from andrea.cli.commands.regraded import regraded
    from andrea.cli.show.output import print_json, stdout_kept_for_json

    judged = regraded(runs, studies or [], say=not as_json) if regrade else {}
    wanted = (
        None
        if formats is None
        else [part.strip().lower() for part in formats.split(",") if part.strip()]
    )
    with stdout_kept_for_json(as_json):
        made = jobs(runs, studies or [], kind, out)
        if watch:
            written = _watched(made, wanted)
        else:
            written = {name: [str(path) for path in job.make(wanted)] for name, job in made.items()}
    if as_json:
        print_json({"regraded": judged, "reports": written} if regrade else written)
    elif not watch:
        typer.echo("\n".join(paths[0] for paths in written.values() if paths))


def jobs(runs: Path, names: Sequence[str], kind: str | None, out: Path | None) -> "dict[str, Job]":
    """The reports that are asked for, by the name of what each is about.

    Raises:
        UserError: there is no such study or kind of report, or the kind needs a name and none is
            given.
    """
    from andrea.analysis.formats.build import Job, load_script
    from andrea.catalogue import find_file
    from andrea.cli.show.results import report_kind
    from andrea.cli.stores import named, reading
    from andrea.errors import UserError

    def place(name: str) -> Path | None:
        # Several reports in one folder would overwrite each other's report.html.
        return out / name if out is not None and len(names) > 1 else out

    script = None if kind is None else find_file("reports", kind)
    takes = "study" if script is None else load_script(script).takes
    if script is not None and takes == "run" and names:
        return {run: Job(reading(runs), script, run=run, out=place(run)) for run in names}
    found = [named(runs, study) for study in names]
    if takes == "studies" and script is not None:
        chosen = tuple(folder for _, folder in found) or None
        return {script.stem: Job(reading(runs), script, chosen, out=out)}
    if not names:
        what = (
            "a run by the beginning of its id"
            if takes == "run"
            else "a study (`andrea status` lists them)"
        )
        raise UserError(
            f"andrea report: name {what}; only kinds that report on all studies, as leaderboard, "
            "need none"
        )
    made = {}
    for store, folder in found:
        which = script or find_file("reports", report_kind(folder))
        made[folder.path.name] = Job(store, which, (folder,), out=place(folder.path.name))
    return made


def _watched(made: "dict[str, Job]", formats: list[str] | None) -> dict[str, list[str]]:
    """Build until everything is complete, a line per build; what lies there then."""
    from andrea.analysis.formats.watch import Watched, watch

    for ending in (signal.SIGTERM, signal.SIGHUP):
        # A closed terminal ends it as Ctrl-C does, so that no page loads itself again for ever;
        # `nohup` stays in force.
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, signal.default_int_handler)
    watched = [Watched(job, name, formats) for name, job in made.items()]
    watch(watched, typer.echo, lambda line: typer.echo(f"warning: {line}", err=True))
    return {one.name: [str(path) for path in one.written] for one in watched}
