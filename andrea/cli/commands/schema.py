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
    from andrea.config import RunConfig
    from andrea.study.question.ablation import Ablation
    from andrea.study.question.sweep import Sweep

    makers = {"ablation": Ablation.json_schema, "sweep": Sweep.json_schema}
    make_schema = makers.get(what, RunConfig.model_json_schema)
    print_json(make_schema())
