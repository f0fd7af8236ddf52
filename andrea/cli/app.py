"""The `andrea` command. Modules of commands are light: whatever is heavy is imported inside the
command.
"""

from typing import Annotated

import typer

from andrea.cli.commands import (
    ablate,
    dashboard,
    data,
    doctor,
    exchange,
    kernels,
    listing,
    model,
    report,
    schema,
    status,
    sweep,
    sync,
    trace,
    train,
)
from andrea.cli.guard import GuardedGroup, mend_streams
from andrea.cli.options import examples

app = typer.Typer(
    cls=GuardedGroup,
    help="Fair ablations for small GPT-like language models: tuned arms, paired seeds, a verdict.",
    epilog=examples(
        "andrea ablate norm-placement             is pre-norm better than post-norm?",
        "andrea ablate norm-placement --dry-run   what would run, and for how long",
        "andrea status                            what ran, what failed and why",
        "andrea model show andrea-120m            parameters, FLOPs and memory",
    ),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    invoke_without_command=True,
)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"andrea {version('andrea')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options that stand before every command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


COMMANDS = (
    ("ablate", ablate.ablate, "Answer a question: tune, replicate, judge.", ablate.EXAMPLES),
    ("sweep", sweep.sweep, "Search hyper-parameters with Optuna.", sweep.EXAMPLES),
    ("train", train.train, "Train one config.", train.EXAMPLES),
    ("report", report.report, "Build a report from the store.", report.EXAMPLES),
    ("status", status.status, "What ran, what failed and why.", status.EXAMPLES),
    ("dashboard", dashboard.dashboard, "Optuna's dashboard on a study.", dashboard.EXAMPLES),
    ("sync", sync.sync, "Publish a study to W&B.", sync.EXAMPLES),
    ("list", listing.listing, "What the catalogue holds.", listing.EXAMPLES),
    ("trace", trace.trace, "Follow one token through the blocks.", trace.EXAMPLES),
    ("doctor", doctor.doctor, "Check this machine.", doctor.EXAMPLES),
    ("schema", schema.schema, "JSON schemas of the files.", schema.EXAMPLES),
)
for name, command, short_help, epilog in COMMANDS:
    app.command(name, short_help=short_help, epilog=epilog)(command)
app.add_typer(model.app, name="model")
app.add_typer(data.app, name="data")
app.add_typer(exchange.exports, name="export")
app.add_typer(exchange.imports, name="import")
app.add_typer(kernels.app, name="kernels")


def main() -> None:
    """Entry point of `andrea` and of `python cli.py`."""
    mend_streams()
    app(prog_name="andrea")
