"""`andrea report`: builds reports again from the store."""

from pathlib import Path
from typing import Annotated

import typer

from andrea.cli import complete
from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, examples

EXAMPLES = examples(
    "andrea report norm-placement                      all formats, in the study's folder",
    "andrea report norm-placement --format md --out paper/",
    "andrea report norm-placement activation",
)


def report(
    studies: Annotated[
        list[str],
        typer.Argument(
            metavar="STUDY...",
            autocompletion=complete.studies,
            help="Folder names of studies, or bare names: the latest.",
        ),
    ],
    formats: Annotated[
        str | None,
        typer.Option("--format", metavar="LIST", help="Of html, md, csv and parquet, with commas; default: all."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; default: the study's report folder.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="NAME", help="Kind of report (andrea list reports).")
    ] = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Build the report of a study again from the store, and print where it is."""
    from andrea.cli.outcome import make, report_kind
    from andrea.cli.output import print_json, stdout_kept_for_json
    from andrea.cli.stores import named

    wanted = None if formats is None else [part.strip().lower() for part in formats.split(",") if part.strip()]
    found = [named(runs, study) for study in studies]
    written: dict[str, list[str]] = {}
    for store, folder in found:
        # Several studies in one folder would overwrite each other's report.html.
        target = out / folder.path.name if out is not None and len(found) > 1 else out
        with stdout_kept_for_json(as_json):
            paths = make(store, folder, wanted, target, kind or report_kind(folder))
        written[folder.path.name] = [str(path) for path in paths]
    if as_json:
        print_json(written)
    else:
        typer.echo("\n".join(paths[0] for paths in written.values() if paths))
