"""`andrea report`: builds reports again from the store."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea.cli import completion
from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, argument, examples, option
from andrea.cli.show.output import print_json, stdout_kept_for_json
from andrea.errors import UserError

if TYPE_CHECKING:
    from andrea.analysis.formats.build import ReportJob

EXAMPLES = examples(
    "andrea report norm-placement                      all formats but pdf, in the study's folder",
    "andrea report norm-placement --format md,tex,pdf --out paper/",
    "andrea report norm-placement --watch              again whenever a run ends, until all are "
    "done",
    "andrea report norm-placement activation           one report each",
    "andrea report --kind leaderboard                  one report on all studies",
    "andrea report --kind run 3fa9c1                   on one run, by the beginning of its id",
)


def report(
    studies: Annotated[
        list[str] | None,
        argument(
            "STUDY...",
            "Folder names of studies, or bare names: the latest. Runs' ids for kinds that "
            "report on a run; nothing for kinds that report on all studies.",
            autocompletion=completion.study_names,
        ),
    ] = None,
    formats: Annotated[
        str | None,
        option(
            "--format LIST",
            "Of html, md, csv, parquet, json, tex and pdf, with commas; default: all but pdf.",
        ),
    ] = None,
    out: Annotated[
        Path | None, option("--out DIR", "Where to write; default: the study's report folder.")
    ] = None,
    kind: Annotated[
        str | None, option("--kind NAME", "Kind of report (andrea list reports).")
    ] = None,
    watch: Annotated[
        bool,
        option(
            "--watch", "Build again whenever something has changed, until the study is complete."
        ),
    ] = False,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Build reports again from the store, and print where they are."""
    names = None
    if formats is not None:
        names = [part.strip().lower() for part in formats.split(",") if part.strip()]
    with stdout_kept_for_json(as_json):
        jobs = report_jobs(runs, studies or [], kind, out)
        if watch:
            files = watch_until_complete(jobs, names)
        else:
            files = {name: job.make(names) for name, job in jobs.items()}
    if as_json:
        print_json({name: [str(path) for path in paths] for name, paths in files.items()})
    elif not watch:
        typer.echo("\n".join(str(paths[0]) for paths in files.values() if paths))


def report_jobs(
    runs: Path, names: Sequence[str], kind: str | None, out: Path | None
) -> "dict[str, ReportJob]":
    """Return the reports that are asked for, by the name of what each is about.

    Raises:
        UserError: there is no such study or kind of report, or the kind needs a name and none is
            given.
    """
    from andrea.analysis.formats.build import ReportJob, load_script
    from andrea.catalogue import find_file
    from andrea.cli.show.results import default_report_kind
    from andrea.cli.stores import open_store, open_study

    def target(name: str) -> Path | None:
        # Several reports in one folder would overwrite each other's report.html.
        return out / name if out is not None and len(names) > 1 else out

    script = None if kind is None else find_file("reports", kind)
    takes = "study" if script is None else load_script(script).takes
    if script is not None and takes == "run" and names:
        return {run: ReportJob(open_store(runs), script, run=run, out=target(run)) for run in names}
    folders = [open_study(runs, study)[1] for study in names]
    if script is not None and takes == "studies":
        return {script.stem: ReportJob(open_store(runs), script, tuple(folders) or None, out=out)}
    if not names:
        study = "a study (`andrea status` lists them)"
        expected = "a run by the beginning of its id" if takes == "run" else study
        raise UserError(
            f"andrea report: name {expected}; only kinds that report on all studies, as "
            "leaderboard, need none"
        )
    jobs = {}
    for folder in folders:
        name = folder.path.name
        chosen = script or find_file("reports", default_report_kind(folder))
        jobs[name] = ReportJob(open_store(runs), chosen, (folder,), out=target(name))
    return jobs


def watch_until_complete(
    jobs: "dict[str, ReportJob]", formats: list[str] | None
) -> dict[str, list[Path]]:
    """Build until everything is complete, a line per build; returns the files of the last ones."""
    from andrea.analysis.formats.watch import Watched, watch_reports

    for ending in (signal.SIGTERM, signal.SIGHUP):
        # A closed terminal ends it as Ctrl-C does, so that no page loads itself again for ever;
        # `nohup` stays in force.
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, signal.default_int_handler)
    reports = [Watched(job, name, formats) for name, job in jobs.items()]
    watch_reports(reports, typer.echo, lambda line: typer.echo(f"warning: {line}", err=True))
    return {report.name: report.written for report in reports}
