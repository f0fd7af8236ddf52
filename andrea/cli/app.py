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


app.command(
    "ablate", short_help="Answer a question: tune, replicate, judge.", epilog=ablate.EXAMPLES
)(ablate.ablate)
app.command("sweep", short_help="Search hyper-parameters with Optuna.", epilog=sweep.EXAMPLES)(
    sweep.sweep
)
app.command("train", short_help="Train one config.", epilog=train.EXAMPLES)(train.train)
app.command("report", short_help="Build a report from the store.", epilog=report.EXAMPLES)(
    report.report
)
app.command("status", short_help="What ran, what failed and why.", epilog=status.EXAMPLES)(
    status.status
)
app.command("dashboard", short_help="Optuna's dashboard on a study.", epilog=dashboard.EXAMPLES)(
    dashboard.dashboard
)
app.command("sync", short_help="Publish a study to W&B.", epilog=sync.EXAMPLES)(sync.sync)
app.command("list", short_help="What the catalogue holds.", epilog=listing.EXAMPLES)(
    listing.listing
)
app.command("trace", short_help="Follow one token through the blocks.", epilog=trace.EXAMPLES)(
    trace.trace
)
app.add_typer(model.app, name="model")
app.add_typer(data.app, name="data")
app.add_typer(exchange.exports, name="export")
app.add_typer(exchange.imports, name="import")
app.add_typer(kernels.app, name="kernels")
app.command("doctor", short_help="Check this machine.", epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("schema", short_help="JSON schemas of the files.", epilog=schema.EXAMPLES)(
    schema.schema
)


def main() -> None:
    """Entry point of `andrea` and of `python cli.py`."""
    mend_streams()
    app(prog_name="andrea")
