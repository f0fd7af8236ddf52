"""`andrea export` and `andrea import`: models to and from Hugging Face transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from andrea.cli import completion
from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, argument, examples, option
from andrea.cli.show.output import print_json, table
from andrea.errors import StudyError, UserError

if TYPE_CHECKING:
    from andrea.model.gpt import GPT
    from andrea.records.base import Settings

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
        str, argument("RUN|FOLDER", "Id of a finished run, or its beginning; or a model folder.")
    ],
    out: Annotated[Path, option("--out DIR", OUT_HELP)],
    arch: Annotated[
        str | None,
        option(
            "--arch NAME",
            "Architecture; default: the first that computes the model.",
            autocompletion=completion.architecture_names,
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], option("--dtype", "Precision of the weights.")
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

    architecture = find_architecture(arch) if arch else None
    exported = load_source(source, runs)
    name, notes = write(
        exported.model, out, architecture, dtype, exported.end_token, exported.tokenizer_files
    )
    if exported.missing:
        notes.append(exported.missing)
    print_written(out, exported.model, name, dtype, notes, as_json)


@imports.command("hf", epilog=IMPORT)
def import_hf(
    source: Annotated[Path, argument("FOLDER", "Folder with config.json and safetensors.")],
    out: Annotated[Path, option("--out DIR", OUT_HELP)],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write andrea's own model folder from one of Hugging Face transformers; nothing is downloaded.

    `andrea export hf` and `andrea trace --run` read it. Weights become float32.
    """
    from andrea.model.folder import read_description, save_model
    from andrea.model.hf.convert import import_hf as read

    model = read(source)
    save_model(model, out, read_tokenizer_files(source))
    architecture = read_description(source)["model_type"]
    print_written(out, model, architecture, "float32", [], as_json)


class ExportSource(NamedTuple):
    """A model to export, with its tokenizer."""

    model: "GPT"
    tokenizer_files: "Settings"
    """Contents of the tokenizer's files, as transformers reads them, by name."""
    end_token: int | None
    missing: str | None
    """Why there is no tokenizer; None where there is one."""


def load_source(source: str, runs: Path) -> ExportSource:
    """Load the model of a run or folder, and its tokenizer.

    Raises:
        UserError: there is no such run or folder, or it is not whole.
    """
    from andrea.cli.stores import open_store
    from andrea.model.folder import load_model
    from andrea.training.load import load_run_model

    folder = Path(source)
    if source and folder.is_dir():
        files = read_tokenizer_files(folder)
        missing = None if files else "no tokenizer: the folder has none"
        return ExportSource(load_model(folder), files, None, missing)
    if folder.name != source:
        raise UserError(f"{source}: no such folder")
    model, config, data = load_run_model(open_store(runs), source)
    return load_run_tokenizer(model, data, config.model.context)


def load_run_tokenizer(model: "GPT", data: Path, context: int) -> ExportSource:
    """Return a run's model with the tokenizer of the prepared data that it was trained on."""
    from andrea.data.portable import tokenizer_files
    from andrea.data.tokenizers import make_tokenizer
    from andrea.store.files import read_mapping

    description = read_mapping(data / "tokenizer.json") or {}
    try:
        end = make_tokenizer(description).end
    except StudyError:
        missing = f"no tokenizer: the run's data in {data} are gone or damaged"
        return ExportSource(model, {}, None, missing)
    return ExportSource(model, tokenizer_files(description, context), end, None)


def read_tokenizer_files(folder: Path) -> "Settings":
    """Return the files of a tokenizer that lie in a model folder, of the kind that transformers
    reads.

    Raises:
        UserError: one is damaged.
    """
    from andrea.data.portable import SETTINGS, TOKENIZER
    from andrea.model.folder import read_json_object

    names = [name for name in (TOKENIZER, SETTINGS) if (folder / name).is_file()]
    return {name: read_json_object(folder / name) for name in names}


def print_written(
    out: Path, model: "GPT", architecture: str, dtype: str, notes: list[str], as_json: bool
) -> None:
    """Print what was written to the folder `out`."""
    from andrea.model.accounting import count_parameters

    parameters = count_parameters(model.config).total
    files = sorted(path.name for path in out.iterdir())
    about: dict[str, object] = {"folder": str(out), "parameters": parameters}
    about |= {"architecture": architecture, "dtype": dtype, "files": files}
    if as_json:
        print_json(about | {"notes": notes, "model": model.config.model_dump(mode="json")})
        return
    texts = about | {"parameters": f"{parameters:,}", "files": ", ".join(files)}
    typer.echo("\n\n".join([table(list(texts.items()), ("written", "")), *notes]))
