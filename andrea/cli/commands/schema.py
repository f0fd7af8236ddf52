"""`andrea schema`: the JSON schema of what may be written."""

from typing import Annotated, Literal

import typer

from andrea.cli.options import Debug, examples
from andrea.cli.show.output import print_json

EXAMPLES = examples(
    "andrea schema run                          every setting of model, data and train",
    "andrea schema ablation > ablation.json     for an editor that checks YAML",
)


def schema(
    what: Annotated[
        Literal["ablation", "sweep", "run"], typer.Argument(help="Which file or config.")
    ] = "run",
    debug: Debug = False,
) -> None:
    """Print the JSON schema of an ablation, a sweep, or the settings of a run."""
    if what == "ablation":
        from andrea.study.question.ablation import Ablation

        print_json(Ablation.json_schema())
    elif what == "sweep":
        from andrea.study.question.sweep import Sweep

        print_json(Sweep.json_schema())
    else:
        from andrea.config import RunConfig

        print_json(RunConfig.model_json_schema())
