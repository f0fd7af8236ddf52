"""`andrea model`: what a model holds and costs, without building it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from andrea.cli import completion
from andrea.cli.options import Debug, Json, Settings, Variants, examples
from andrea.errors import UserError

if TYPE_CHECKING:
    from andrea.model.config import ModelConfig
    from andrea.model.size_matching import Setting

app = typer.Typer(help="Parameters, FLOPs and memory of a model.", rich_markup_mode=None)

Batch = Annotated[
    int,
    typer.Option(
        "--batch",
        min=1,
        max=10**12,
        metavar="N",
        help="Sequences per forward pass, for the memory.",
    ),
]

OptimizerName = Annotated[
    Literal["adamw", "sgd", "lion", "muon"],
    typer.Option("--optimizer", help="Whose moments count, for the memory; sgd with momentum."),
]

SHOW = examples(
    "andrea model show andrea-120m",
    "andrea model show tiny --set model.mlp_ratio=8/3 --set model.activation=swiglu",
    "andrea model show gpt2:activation=swiglu --batch 8 --json",
)
COMPARE = examples(
    "andrea model compare andrea-120m gpt2",
    "andrea model compare gpt2 gpt2:activation=swiglu --match params",
    "andrea model compare tiny tiny:positions=rope,n_kv_head=1 --set model.context=256",
)
FORM = "PRESET:FIELD=VALUE,FIELD=VALUE"

Match = Annotated[
    Literal["params", "flops"] | None,
    typer.Option(
        "--match", help="Solve for what brings the later models nearest to the first in this."
    ),
]
By = Annotated[
    Literal["mlp_width", "d_model", "n_layer"] | None,
    typer.Option("--by", help="What --match solves for; default: mlp_width."),
]


@app.command("show", epilog=SHOW)
def show(
    preset: Annotated[
        str,
        typer.Argument(
            metavar="PRESET",
            autocompletion=completion.model_expressions,
            help=f"A preset; settings may follow a colon, {FORM}.",
        ),
    ],
    settings: Settings = None,
    variants: Variants = None,
    batch: Batch = 8,
    optimizer: OptimizerName = "adamw",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Parameters by part, FLOPs per token and memory of a preset."""
    from andrea.cli.settings import load_variants
    from andrea.cli.show.output import print_json
    from andrea.model.summary import describe

    load_variants(variants)
    cfg = configured(preset, settings or [])
    sound({preset: cfg}, variants)
    described = describe(cfg, batch, preset, optimizer)
    print_json(described) if as_json else typer.echo(as_text(described))


@app.command("compare", epilog=COMPARE)
def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            autocompletion=completion.model_expressions,
            help=f"Presets; a model's own settings follow a colon, {FORM}.",
        ),
    ],
    settings: Settings = None,
    match: Match = None,
    by: By = None,
    variants: Variants = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Models side by side; --set holds for all of them."""
    from andrea.cli.settings import load_variants
    from andrea.cli.show.output import print_json
    from andrea.model.summary import compare as compared
    from andrea.model.summary import fits

    if by and not match:
        raise UserError(
            f"--by {by} says what is solved for: give --match params or --match flops with it"
        )
    if match and len(models) < 2:
        raise UserError(f"--match {match}: name the model to be matched, then others")
    load_variants(variants)
    if twice := [model for model in dict.fromkeys(models) if models.count(model) > 1]:
        raise UserError(f"{', '.join(twice)}: named twice; name each model once")
    asked = {model: configured(model, settings or []) for model in models}
    sound(asked, variants)
    rows = compared(asked)
    solved = fits(asked, match, by or "mlp_width") if match else []
    for row in solved:
        if row.get("became", row.get("was")) != row.get("was"):
            row["entry"] = entry(row["name"], settings or [], by or "mlp_width", row["became"])
    if as_json:
        found = {row.pop("name"): row for row in solved}
        print_json([row | ({"match": found.get(row["name"])} if match else {}) for row in rows])
    else:
        typer.echo(
            "\n\n".join([comparison(rows), *([matches(solved, models[0], match)] if match else [])])
        )


def configured(model: str, settings: Sequence[str]) -> "ModelConfig":
    """The model of a preset, or of `PRESET:FIELD=VALUE,…`, under overrides of `model.…`; its own
    settings come last.

    Raises:
        UserError: an unknown preset, or settings with faults (all of them).
    """
    from andrea.cli.settings import build_run_config, require_model_settings

    require_model_settings(settings)
    preset, colon, own = model.partition(":")
    if not colon:
        return build_run_config(preset, settings, preset_option="").model
    parts = [part.strip() for part in own.split(",")]
    given = [part.partition("=")[0].strip().removeprefix("model.") for part in parts]
    if not all("=" in part for part in parts) or not all(name.isidentifier() for name in given):
        raise UserError(
            f"{model!r} is not {FORM} with fields of the model, as in "
            "gpt2:activation=swiglu,mlp_ratio=8/3"
        )
    if twice := [name for name in dict.fromkeys(given) if given.count(name) > 1]:
        raise UserError(f"{model}: {', '.join(twice)} is given twice")
    overrides = [f"model.{part.removeprefix('model.')}" for part in parts]
    config = build_run_config(
        preset, [*settings, *overrides], preset_option=f"{model}: ", settings_option=model
    )
    return config.model


def entry(model: str, settings: Sequence[str], by: "Setting", value: int) -> str:
    """The model as it is named with the solved setting in it; a width takes the place of what it
    would follow from.
    """
    from andrea.model.size_matching import change

    preset, _, own = model.partition(":")
    changed, before = change(by, value), configured(preset, settings)
    parts = [part.strip().removeprefix("model.") for part in own.split(",") if part]
    kept = [part for part in parts if part.partition("=")[0].strip() not in changed]
    added = [
        f"{name}={set_to:g}" if isinstance(set_to, float) else f"{name}={set_to}"
        for name, set_to in changed.items()
        if getattr(before, name) != set_to
    ]
    return f"{preset}:{','.join([*kept, *added])}"


def sound(asked: Mapping[str, "ModelConfig"], variants: Path | None) -> None:
    """Try a user's own variants in one block of every model.

    Raises:
        UserError: a model cannot be counted or built, or its count is wrong.
    """
    if variants is None:
        return
    from andrea.training.rehearsal import rehearse

    for name, cfg in asked.items():
        rehearse(cfg.model_copy(update={"n_layer": 1}), name)


def as_text(described: dict[str, Any]) -> str:
    """The tables of `andrea model show`: the tree of parts, then costs, then notes."""
    from andrea.cli.show.output import size, table
    from andrea.text.numbers import big

    tree = [
        [
            "  " * row["depth"]
            + row["name"]
            + (f" × {row['times']}" if row["times"] > 1 and row["depth"] < 1 else ""),
            " × ".join(f"{n:,}" for n in row["shape"]) if row["shape"] else row["about"] or "",
            f"{row['parameters']:,}",
            f"{row['share']:.1%}",
            big(row["flops"]) if row["flops"] else "",
        ]
        for row in described["rows"]
    ]
    tree.append(
        ["total", "", f"{described['total']:,}", "", big(described["flops_per_token"]["forward"])]
    )
    tree.append(["without embeddings and head", "", f"{described['non_embedding']:,}", "", ""])
    costs = [
        [f"FLOPs per token, {kind}", big(described["flops_per_token"][kind])]
        for kind in ("forward", "backward")
    ]
    batch = described["batch_size"]
    kinds = {"optimizer": f"{described['optimizer']}'s moments"}
    memory = described["memory"].items()
    costs += [[f"memory at batch {batch}, {kinds.get(kind, kind)}", size(n)] for kind, n in memory]
    parts = [
        table(
            tree,
            (described["preset"], "shape or kind", "parameters", "share", "FLOPs/token, forward"),
            right=(1, 2, 3, 4),
        ),
        table(costs, ("cost", ""), right=(1,)),
        *described["notes"],
    ]
    return "\n\n".join(parts)


def comparison(rows: list[dict[str, Any]]) -> str:
    """Models as columns, parameters and FLOPs (forward and backward) as rows."""
    from andrea.cli.show.output import table
    from andrea.text.numbers import big

    hidden = ("name", "notes", "difference", "flops_difference", "flops_per_token")
    names = [key for key in rows[0] if key not in hidden]
    lines: list[list[str]] = [
        [name.replace("_", " "), *(f"{row[name]:,}" for row in rows)] for name in names
    ]
    lines.append(["training FLOPs per token", *(big(row["flops_per_token"]) for row in rows)])
    lines.append(
        ["parameters against the first", *("", *(against(row["difference"]) for row in rows[1:]))]
    )
    lines.append(
        ["FLOPs against the first", *("", *(against(row["flops_difference"]) for row in rows[1:]))]
    )
    text = table(lines, ("", *(row["name"] for row in rows)), right=range(1, len(rows) + 1))
    notes = [f"{row['name']}: {note}" for row in rows for note in row["notes"]]
    return "\n\n".join([text, *notes])


def matches(solved: list[dict[str, Any]], first: str, on: Literal["params", "flops"]) -> str:
    """What the later models would be solved for, and how near that comes."""
    from andrea.cli.show.output import table
    from andrea.model.size_matching import UNITS
    from andrea.text.numbers import relative

    lines = []
    for row in solved:
        if "became" in row:
            kept = row["was"] == row["became"]
            change = f"{row['was']:,} as it is" if kept else f"{row['was']:,} → {row['became']:,}"
            lines.append(
                [row["name"], change, *(relative(share) for share in row["deviation"].values())]
            )
        else:
            lines.append([row["name"], "no value changes it", "", ""])
    header = (
        f"nearest to {first} in {UNITS[on]}",
        solved[0]["setting"],
        "parameters",
        UNITS["flops"],
    )
    copied = [row["entry"] for row in solved if "entry" in row]
    shown = [f"to copy: {' '.join(copied)}"] if copied else []
    return "\n".join([table(lines, header, right=(1, 2, 3)), *shown])


def against(per_cent: float) -> str:
    """A difference to the first: in per cent, or as a factor where it is large."""
    from andrea.text.numbers import relative

    factor = 1 + per_cent / 100
    return relative(per_cent / 100) if 0.5 < factor < 2 else f"× {factor:.4g}"
