"""`andrea model`: what a model holds and costs, without building it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli import complete
from andrea.cli.options import Debug, Json, Settings, Variants, examples

if TYPE_CHECKING:
    from andrea.model.config import ModelConfig

app = typer.Typer(help="Parameters, FLOPs and memory of a model.", rich_markup_mode=None)

Batch = Annotated[int, typer.Option("--batch", min=1, metavar="N", help="Sequences per forward pass, for the memory.")]

SHOW = examples(
    "andrea model show andrea-120m",
    "andrea model show tiny --set model.mlp_ratio=8/3 --set model.activation=swiglu",
    "andrea model show gpt2 --batch 8 --json",
)
COMPARE = examples(
    "andrea model compare andrea-120m gpt2", "andrea model compare tiny gpt2 --set model.activation=swiglu"
)


@app.command("show", epilog=SHOW)
def show(
    preset: Annotated[str, typer.Argument(metavar="PRESET", autocompletion=complete.presets, help="Name of a preset.")],
    settings: Settings = None,
    variants: Variants = None,
    batch: Batch = 8,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Parameters by part, FLOPs per token and memory of a preset."""
    from andrea.cli.output import print_json
    from andrea.cli.settings import know_variants
    from andrea.model.describe import describe

    know_variants(variants)
    described = describe(configured(preset, settings or []), batch, preset)
    print_json(described) if as_json else typer.echo(as_text(described))


@app.command("compare", epilog=COMPARE)
def compare(
    presets: Annotated[
        list[str], typer.Argument(metavar="PRESET...", autocompletion=complete.presets, help="Names of presets.")
    ],
    settings: Settings = None,
    variants: Variants = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Presets side by side, under the same overrides."""
    from andrea.cli.output import print_json
    from andrea.cli.settings import know_variants
    from andrea.model.describe import compare as compared

    know_variants(variants)
    rows = compared({preset: configured(preset, settings or []) for preset in presets})
    print_json(rows) if as_json else typer.echo(comparison(rows))


def configured(preset: str, settings: Sequence[str]) -> "ModelConfig":
    """The model of a preset under overrides of `model.…`.

    Raises:
        UserError: an unknown preset, or overrides with faults (all of them).
    """
    from andrea.cli.settings import run_config

    return run_config(preset, settings, where="").model


def as_text(described: dict[str, Any]) -> str:
    """The tables of `andrea model show`: the tree of parts, then costs, then notes."""
    from andrea.analysis.text import big
    from andrea.cli.output import size, table

    tree = [
        [
            "  " * row["depth"] + row["name"] + (f" × {row['times']}" if row["times"] > 1 and row["depth"] < 1 else ""),
            " × ".join(f"{n:,}" for n in row["shape"]) if row["shape"] else "",
            f"{row['parameters']:,}",
            f"{row['share']:.1%}",
            big(row["flops"]) if row["flops"] else "",
        ]
        for row in described["rows"]
    ]
    tree.append(["total", "", f"{described['total']:,}", "", big(described["flops_per_token"]["forward"])])
    tree.append(["without embeddings and head", "", f"{described['non_embedding']:,}", "", ""])
    costs = [[f"FLOPs per token, {kind}", big(described["flops_per_token"][kind])] for kind in ("forward", "backward")]
    batch = described["batch_size"]
    costs += [[f"memory at batch {batch}, {kind}", size(n)] for kind, n in described["memory"].items()]
    parts = [
        table(tree, (described["preset"], "shape", "parameters", "share", "FLOPs/token"), right=(1, 2, 3, 4)),
        table(costs, ("cost", ""), right=(1,)),
        *described["notes"],
    ]
    return "\n\n".join(parts)


def comparison(rows: list[dict[str, Any]]) -> str:
    """Models as columns, parameters and FLOPs as rows."""
    from andrea.analysis.text import big
    from andrea.cli.output import table

    names = [key for key in rows[0] if key not in ("name", "notes", "difference", "flops_per_token")]
    lines: list[list[str]] = [[name.replace("_", " "), *(f"{row[name]:,}" for row in rows)] for name in names]
    lines.append(["FLOPs per token", *(big(row["flops_per_token"]) for row in rows)])
    first = rows[0]["total"]
    lines.append(["parameters against the first", *(f"× {row['total'] / first:.4g}" for row in rows)])
    text = table(lines, ("", *(row["name"] for row in rows)), right=range(1, len(rows) + 1))
    notes = [f"{row['name']}: {note}" for row in rows for note in row["notes"]]
    return "\n\n".join([text, *notes])
