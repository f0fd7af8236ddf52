"""`andrea export` and `andrea import`: models to and from Hugging Face transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from andrea.cli import completion
from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, examples
from andrea.errors import StudyError, UserError

if TYPE_CHECKING:
    from andrea.model.gpt import GPT

exports = typer.Typer(help="A trained model for other programs.", rich_markup_mode=None)
imports = typer.Typer(help="A model from other programs.", rich_markup_mode=None)

EXPORT = examples(
    "andrea export hf 3f2a9c --out my-model                   the run whose id begins so",
    "andrea export hf 3f2a9c --out my-model --arch gpt_neox --dtype bfloat16",
    "andrea export hf imported --out my-model                 a folder that `andrea import hf` "
    "wrote",
    "transformers' AutoModelForCausalLM.from_pretrained loads the folder.",
)
IMPORT = examples(
    "andrea import hf gpt2-folder --out imported",
    "andrea import hf gpt2-folder --out imported --json",
)
OUT_HELP = "Folder to write; it must not exist yet."


@exports.command("hf", epilog=EXPORT)
def export_hf(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER", help="Id of a finished run, or its beginning; or a model folder."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help=OUT_HELP)],
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",
            metavar="NAME",
            autocompletion=completion.architecture_names,
            help="Architecture; default: the first that computes the model.",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option("--dtype", help="Precision of the weights."),
    ] = "float32",
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a model for Hugging Face transformers: config.json, model.safetensors and the
    tokenizer.

    A model that no architecture of theirs computes exactly is refused, with what has no place
    there.
    """
    from andrea.model.hf.convert import export_hf as write
    from andrea.model.hf.registry import find_architecture

    chosen = find_architecture(arch) if arch else None
    model, files, end, missing = _source(source, runs)
    name, notes = write(model, out, chosen, dtype, end, files)
    notes += [missing] if missing else []
    _show(
        out,
        model,
        {"architecture": name, "dtype": dtype, "files": _written(out), "notes": notes},
        as_json,
    )


@imports.command("hf", epilog=IMPORT)
def import_hf(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder with config.json and safetensors.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help=OUT_HELP)],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write andrea's own model folder from one of Hugging Face transformers; nothing is downloaded.

    `andrea export hf` and `andrea trace --run` read it. Weights become float32.
    """
    from andrea.model.folder import read_description, save_model
    from andrea.model.hf.convert import import_hf as read

    model = read(source)
    save_model(model, out, _tokenizer_beside(source))
    told = {
        "architecture": read_description(source)["model_type"],
        "dtype": "float32",
        "files": _written(out),
    }
    _show(out, model, told | {"notes": []}, as_json)


def _source(source: str, runs: Path) -> tuple["GPT", dict[str, Any], int | None, str | None]:
    """The model of a run or folder, the files of its tokenizer, its end token, and why there are no
    such files.

    Raises:
        UserError: there is no such run or folder, or it is not whole.
    """
    from andrea.cli.stores import open_store
    from andrea.model.folder import load_model
    from andrea.training.load import load_run_model

    if source and Path(source).is_dir():
        files = _tokenizer_beside(Path(source))
        return (
            load_model(Path(source)),
            files,
            None,
            None if files else "no tokenizer: the folder has none",
        )
    if Path(source).name != source:
        raise UserError(f"{source}: no such folder")
    model, config, data = load_run_model(open_store(runs), source)
    return model, *_tokenizer_of(data, config.model.context)


def _tokenizer_of(data: Path, context: int) -> tuple[dict[str, Any], int | None, str | None]:
    """Files of the tokenizer of prepared data, its end token, and why there is none."""
    from andrea.data import tokenizers
    from andrea.data.portable import tokenizer_files
    from andrea.store.files import read_mapping

    description = read_mapping(data / "tokenizer.json") or {}
    try:
        end = tokenizers.make_tokenizer(description).end
    except StudyError:
        return {}, None, f"no tokenizer: the run's data in {data} are gone or damaged"
    return tokenizer_files(description, context), end, None


def _tokenizer_beside(folder: Path) -> dict[str, Any]:
    """Files of a tokenizer that lie in a model folder, of the kind that transformers reads.

    Raises:
        UserError: one is damaged.
    """
    from andrea.data.portable import SETTINGS, TOKENIZER
    from andrea.model.folder import read_json_object

    there = [name for name in (TOKENIZER, SETTINGS) if (folder / name).is_file()]
    return {name: read_json_object(folder / name) for name in there}


def _written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _show(out: Path, model: "GPT", told: dict[str, Any], as_json: bool) -> None:
    """What was written, as a table or as JSON."""
    from andrea.cli.show.output import print_json, table
    from andrea.model.accounting import count_parameters

    told = {"folder": str(out), "parameters": count_parameters(model.config).total, **told}
    if as_json:
        print_json(told | {"model": model.config.model_dump(mode="json")})
        return
    rows = [
        [name, f"{value:,}" if isinstance(value, int) else value]
        for name, value in told.items()
        if name != "notes"
    ]
    rows = [[name, ", ".join(value) if isinstance(value, list) else value] for name, value in rows]
    typer.echo("\n\n".join([table(rows, ("written", "")), *told["notes"]]))
