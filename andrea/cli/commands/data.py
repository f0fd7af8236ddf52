"""`andrea data`: text into tokens, and what they are."""

from typing import TYPE_CHECKING, Annotated

import typer

from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, Settings, argument, examples, option
from andrea.cli.show.output import print_json, table
from andrea.errors import UserError

if TYPE_CHECKING:
    from andrea.data.config import DataConfig
    from andrea.data.prepared import Prepared

app = typer.Typer(
    help="Text into tokens: prepare a corpus, or see what it holds.", rich_markup_mode=None
)

Source = Annotated[str, argument("SOURCE", "sotu, or text:PATH (a file, a folder, a glob).")]
Tokenizer = Annotated[str | None, option("--tokenizer NAME", "byte, char, bpe-N.")]
UNPRINTED = {"format", "dtype", "parts", "files", "versions", "fingerprint"}
"""Fields of meta.json that `--json` leaves out."""


@app.command(
    "prepare",
    epilog=examples(
        "andrea data prepare sotu --tokenizer bpe-8449",
        "andrea data prepare text:books/ --tokenizer char",
    ),
)
def prepare(
    source: Source = "sotu",
    tokenizer: Tokenizer = None,
    settings: Settings = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Tokenize a corpus into the runs folder, once; studies find it there."""
    from andrea.cli.stores import starting_store
    from andrea.data.prepare import prepare as prepare_corpus

    config = build_data_config(source, tokenizer, settings)
    with starting_store(runs) as store:
        print_corpus(prepare_corpus(config, store.root), as_json)


@app.command(
    "info",
    epilog=examples(
        "andrea data info sotu", "andrea data info text:book.txt --tokenizer char --json"
    ),
)
def info(
    source: Source = "sotu",
    tokenizer: Tokenizer = None,
    settings: Settings = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Counts of a prepared corpus; prepares nothing."""
    from andrea.cli.stores import open_store
    from andrea.data.prepare import fingerprint
    from andrea.data.prepared import open_prepared

    config = build_data_config(source, tokenizer, settings)
    root = open_store(runs).root
    folder = root / "data" / fingerprint(config, root)
    if not folder.is_dir():
        raise UserError(
            f"{source} with tokenizer {config.tokenizer} is not prepared in {runs}; "
            f"`andrea data prepare {source} --tokenizer {config.tokenizer}` does it"
        )
    print_corpus(open_prepared(folder), as_json)


def build_data_config(
    source: str, tokenizer: str | None, settings: list[str] | None
) -> "DataConfig":
    """Return the data section of a run under the command line's settings.

    Raises:
        UserError: with every fault.
    """
    from andrea.config import RunConfig, build, merge, parse_overrides

    section = {"source": source}
    if tokenizer:
        section["tokenizer"] = tokenizer
    return build(RunConfig, merge({"data": section}, parse_overrides(settings or []))).data


def print_corpus(prepared: "Prepared", as_json: bool) -> None:
    """Print the counts of a prepared corpus."""
    if not as_json:
        typer.echo(corpus_as_text(prepared))
        return
    head = {"fingerprint": prepared.fingerprint, "folder": str(prepared.folder)}
    print_json(head | prepared.meta.model_dump(mode="json", exclude=UNPRINTED))


def corpus_as_text(prepared: "Prepared") -> str:
    """Return the counts as a table."""
    meta = prepared.meta
    tokens = sum(meta.tokens.values())
    rows: list[tuple[str, object]] = [
        ("source", meta.source),
        ("tokenizer", meta.tokenizer),
        ("fingerprint", prepared.fingerprint),
        ("folder", prepared.folder),
        ("vocabulary", f"{meta.vocab_size:,}"),
        ("documents", f"{meta.documents:,}"),
        ("bytes", f"{meta.bytes:,}"),
        ("tokens", f"{tokens:,} ({meta.bytes / tokens:.2f} bytes each)"),
    ]
    for part, count in meta.tokens.items():
        rows.append((f"tokens, {part}", f"{count:,} ({count / tokens:.1%})"))
    return table(rows, ("corpus", ""))
