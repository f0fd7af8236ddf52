"""`andrea model`: what a model holds and costs, without building it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from andrea.cli import completion
from andrea.cli.options import Debug, Json, Settings, Variants, argument, examples, option
from andrea.cli.settings import (
    build_run_config,
    load_variants,
    rehearse_variants,
    require_model_settings,
)
from andrea.cli.show.output import print_json, size, table
from andrea.errors import UserError
from andrea.text.numbers import big, relative

if TYPE_CHECKING:
    from andrea.model.config import ModelConfig
    from andrea.model.size_matching import Fitted
    from andrea.model.summary import ComparedModel, MatchedModel, ModelSummary

app = typer.Typer(help="Parameters, FLOPs and memory of a model.", rich_markup_mode=None)

Batch = Annotated[
    int, option("--batch N", "Sequences per forward pass, for the memory.", min=1, max=10**12)
]

OptimizerName = Annotated[
    Literal["adamw", "sgd", "lion", "muon"],
    option("--optimizer", "Whose moments count, for the memory; sgd with momentum."),
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
    option("--match", "Solve for what brings the later models nearest to the first in this."),
]
By = Annotated[
    Literal["mlp_width", "d_model", "n_layer"] | None,
    option("--by", "What --match solves for; default: mlp_width."),
]


def model_argument(metavar: str, help: str) -> Any:
    """Return an argument that completes to presets with settings."""
    return argument(metavar, help, autocompletion=completion.model_expressions)


@app.command("show", epilog=SHOW)
def show(
    preset: Annotated[
        str, model_argument("PRESET", f"A preset; settings may follow a colon, {FORM}.")
    ],
    settings: Settings = None,
    variants: Variants = None,
    batch: Batch = 8,
    optimizer: OptimizerName = "adamw",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Parameters by part, FLOPs per token and memory of a preset."""
    from andrea.model.summary import describe

    load_variants(variants)
    cfg = parse_model(preset, settings or [])
    rehearse_variants({preset: one_block(cfg)}, variants)
    summary = describe(cfg, batch, preset, optimizer)
    print_json(summary.to_json()) if as_json else typer.echo(summary_as_text(summary))


@app.command("compare", epilog=COMPARE)
def compare(
    models: Annotated[
        list[str],
        model_argument("MODEL...", f"Presets; a model's own settings follow a colon, {FORM}."),
    ],
    settings: Settings = None,
    match: Match = None,
    by: By = None,
    variants: Variants = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Models side by side; --set holds for all of them."""
    from andrea.model.summary import compare_models, match_models

    if by and not match:
        raise UserError(
            f"--by {by} says what is solved for: give --match params or --match flops with it"
        )
    if match and len(models) < 2:
        raise UserError(f"--match {match}: name the model to be matched, then others")
    load_variants(variants)
    if twice := [model for model in dict.fromkeys(models) if models.count(model) > 1]:
        raise UserError(f"{', '.join(twice)}: named twice; name each model once")
    cfgs = {model: parse_model(model, settings or []) for model in models}
    rehearse_variants({model: one_block(cfg) for model, cfg in cfgs.items()}, variants)
    compared = compare_models(cfgs)
    matched = match_models(cfgs, match, by or "mlp_width") if match else []
    entries = {
        model.name: entry_to_copy(model.name, settings or [], model.fitted)
        for model in matched
        if model.fitted and model.fitted.became != model.fitted.was
    }
    if as_json:
        print_json(comparison_as_json(compared, matched, entries))
        return
    parts = [comparison_as_text(compared)]
    if match:
        parts.append(matches_as_text(matched, entries, models[0], match))
    typer.echo("\n\n".join(parts))


def comparison_as_json(
    compared: "Sequence[ComparedModel]",
    matched: "Sequence[MatchedModel]",
    entries: Mapping[str, str],
) -> list[dict[str, object]]:
    """Return one object per model; with `--match` each says what it would be solved for, the first
    null.
    """
    rows = {model.name: model.to_json() for model in compared}
    if matched:
        rows[compared[0].name]["match"] = None
    for model in matched:
        copied = {"entry": entries[model.name]} if model.name in entries else {}
        rows[model.name]["match"] = model.to_json() | copied
    return list(rows.values())


def parse_model(model: str, settings: Sequence[str]) -> "ModelConfig":
    """Return the model of a preset, or of `PRESET:FIELD=VALUE,…`, under overrides of `model.…`.

    The model's own settings, after the colon, come last.

    Raises:
        UserError: an unknown preset, or settings with faults (all of them).
    """
    require_model_settings(settings)
    preset, colon, own = model.partition(":")
    if not colon:
        return build_run_config(preset, settings, preset_option="").model
    parts = [part.strip() for part in own.split(",")]
    fields = [part.partition("=")[0].strip().removeprefix("model.") for part in parts]
    if not all("=" in part for part in parts) or not all(map(str.isidentifier, fields)):
        raise UserError(
            f"{model!r} is not {FORM} with fields of the model, as in "
            "gpt2:activation=swiglu,mlp_ratio=8/3"
        )
    if twice := [name for name in dict.fromkeys(fields) if fields.count(name) > 1]:
        raise UserError(f"{model}: {', '.join(twice)} is given twice")
    overrides = [f"model.{part.removeprefix('model.')}" for part in parts]
    config = build_run_config(
        preset, [*settings, *overrides], preset_option=f"{model}: ", settings_option=model
    )
    return config.model


def entry_to_copy(model: str, settings: Sequence[str], fitted: "Fitted") -> str:
    """Return the name of the model with the solved setting in it.

    A width takes the place of the setting that it would follow from.
    """
    from andrea.model.size_matching import changed_settings

    preset, _, own = model.partition(":")
    changed = changed_settings(fitted.setting, fitted.became)
    before = parse_model(preset, settings)
    parts = [part.strip().removeprefix("model.") for part in own.split(",") if part]
    settings_of_name = [part for part in parts if part.partition("=")[0].strip() not in changed]
    for name, new in changed.items():
        if getattr(before, name) != new:
            text = f"{new:g}" if isinstance(new, float) else str(new)
            settings_of_name.append(f"{name}={text}")
    return f"{preset}:{','.join(settings_of_name)}"


def one_block(cfg: "ModelConfig") -> "ModelConfig":
    """Return the model with one block: enough to try a user's own variants."""
    return cfg.model_copy(update={"n_layer": 1})


def summary_as_text(summary: "ModelSummary") -> str:
    """Return the tables of `andrea model show`: the tree of parts, then costs, then notes."""
    tree = []
    for row in summary.rows:
        times = f" × {row.times}" if row.times > 1 and row.depth < 1 else ""
        shape = " × ".join(f"{n:,}" for n in row.shape) if row.shape else row.about or ""
        flops = big(row.flops) if row.flops else ""
        name = f"{'  ' * row.depth}{row.name}{times}"
        tree.append([name, shape, f"{row.parameters:,}", f"{row.share:.1%}", flops])
    counts, flops_per_token = summary.parameters, summary.flops_per_token
    tree.append(["total", "", f"{counts.total:,}", "", big(flops_per_token.forward)])
    tree.append(["without embeddings and head", "", f"{counts.non_embedding:,}", "", ""])
    costs = [
        ["FLOPs per token, forward", big(flops_per_token.forward)],
        ["FLOPs per token, backward", big(flops_per_token.backward)],
    ]
    memory = summary.memory._asdict() | {"total": summary.memory.total}
    for kind, n_bytes in memory.items():
        name = f"{summary.optimizer}'s moments" if kind == "optimizer" else kind
        costs.append([f"memory at batch {summary.batch_size}, {name}", size(n_bytes)])
    header = (summary.preset or "", "shape or kind", "parameters", "share", "FLOPs/token, forward")
    tables = [table(tree, header, right=(1, 2, 3, 4)), table(costs, ("cost", ""), right=(1,))]
    return "\n\n".join([*tables, *summary.notes])


def comparison_as_text(models: "Sequence[ComparedModel]") -> str:
    """Return models as columns, parameters and FLOPs (forward and backward) as rows."""
    lines: list[list[str]] = []
    for group in models[0].parameters._fields:
        counts = [getattr(model.parameters, group) for model in models]
        lines.append([group.replace("_", " "), *(f"{count:,}" for count in counts)])
    parameters = [difference_to_first(model.difference) for model in models[1:]]
    flops = [difference_to_first(model.flops_difference) for model in models[1:]]
    lines += [
        ["total", *(f"{model.parameters.total:,}" for model in models)],
        ["non embedding", *(f"{model.parameters.non_embedding:,}" for model in models)],
        ["training FLOPs per token", *(big(model.flops_per_token) for model in models)],
        ["parameters against the first", "", *parameters],
        ["FLOPs against the first", "", *flops],
    ]
    names = ("", *(model.name for model in models))
    text = table(lines, names, right=range(1, len(models) + 1))
    notes = [f"{model.name}: {note}" for model in models for note in model.notes]
    return "\n\n".join([text, *notes])


def matches_as_text(
    matched: "Sequence[MatchedModel]",
    entries: Mapping[str, str],
    first: str,
    on: Literal["params", "flops"],
) -> str:
    """Return the value that each later model would be solved for, and how near that comes."""
    from andrea.model.size_matching import UNITS

    lines = []
    for model in matched:
        if model.fitted is None:
            lines.append([model.name, "no value changes it", "", ""])
            continue
        was, became = model.fitted.was, model.fitted.became
        change = f"{was:,} as it is" if was == became else f"{was:,} → {became:,}"
        lines.append([model.name, change, *(relative(share) for share in model.deviation.values())])
    title, setting = f"nearest to {first} in {UNITS[on]}", matched[0].setting
    text = table(lines, (title, setting, "parameters", UNITS["flops"]), right=(1, 2, 3))
    return f"{text}\nto copy: {' '.join(entries.values())}" if entries else text


def difference_to_first(per_cent: float) -> str:
    """Return a difference to the first: in per cent, or as a factor where it is large."""
    factor = 1 + per_cent / 100
    return relative(per_cent / 100) if 0.5 < factor < 2 else f"× {factor:.4g}"
