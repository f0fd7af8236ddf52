"""`andrea sync`: mirrors a study to Weights & Biases from the store."""

import sys
from typing import Annotated

import typer

from andrea.cli.options import DEFAULT_RUNS, Debug, Runs, Study, examples
from andrea.errors import UserError

EXAMPLES = examples(
    "andrea sync norm-placement --online   publishes every finished run",
    "andrea sync norm-placement            the same as WANDB_MODE says; offline files by default",
)


def sync(
    study: Study,
    online: Annotated[bool, typer.Option("--online", help="Publish to the server; needs a login.")] = False,
    runs: Runs = DEFAULT_RUNS,
    debug: Debug = False,
) -> None:
    """Mirror the finished runs of a study to W&B; safe to repeat."""
    from andrea.cli.stores import named
    from andrea.tracking.mirror import resolve_mode
    from andrea.tracking.mirror import sync as mirrored

    mode = resolve_mode("online" if online else None)
    if mode == "off":
        raise UserError("WANDB_MODE turns W&B off; give --online, or unset WANDB_MODE")
    store, folder = named(runs, study)
    written = mirrored(folder, store, mode=mode, progress=lambda line: print(line, file=sys.stderr, flush=True))
    typer.echo(f"{written} runs written ({mode})" if written else f"every finished run is there already ({mode})")
