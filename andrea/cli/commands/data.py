"""`andrea data`: text into tokens, and what they are."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, Settings, examples

if TYPE_CHECKING:
    from andrea.data.config import DataConfig
    from andrea.data.prepared import Prepared

app = typer.Typer(
    help="Text into tokens: prepare a corpus, or see what it holds.", rich_markup_mode=None
)

Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="sotu, or text:PATH (a file, a folder, a glob).")
]
Tokenizer = Annotated[
    str | None, typer.Option("--tokenizer", metavar="NAME", help="byte, char, bpe-N.")
]


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
    from andrea.data.prepare import prepare as prepared

    config = configured(source, tokenizer, settings)
    with starting_store(runs) as store:
        _show(prepared(config, store.root), as_json)


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
    from andrea.errors import UserError

    config = configured(source, tokenizer, settings)
    root = open_store(runs).root
    folder = root / "data" / fingerprint(config, root)
    if not folder.is_dir():
        raise UserError(
            f"{source} with tokenizer {config.tokenizer} is not prepared in {runs}; "
            f"`andrea data prepare {source} --tokenizer {config.tokenizer}` does it"
        )
    _show(open_prepared(folder), as_json)


def configured(source: str, tokenizer: str | None, settings: list[str] | None) -> "DataConfig":
    """The data section of a run under the command line's settings.

    Raises:
        UserError: with every fault.
    """
    from andrea.config import RunConfig, build, merge, parse_overrides

    named = {"source": source, **({"tokenizer": tokenizer} if tokenizer else {})}
    return build(RunConfig, merge({"data": named}, parse_overrides(settings or []))).data


def describe(prepared: "Prepared") -> dict[str, Any]:
    """A prepared corpus as JSON."""
    keys = (
        "source",
        "tokenizer",
        "vocab_size",
        "documents",
        "duplicates",
        "empty",
        "bytes",
        "characters",
        "tokens",
        "split",
    )
    known = {key: getattr(prepared.meta, key) for key in keys}
    return {"fingerprint": prepared.fingerprint, "folder": str(prepared.folder), **known}


def _show(prepared: "Prepared", as_json: bool) -> None:
    from andrea.cli.show.output import print_json

    described = describe(prepared)
    print_json(described) if as_json else typer.echo(as_text(described))


def as_text(described: dict[str, Any]) -> str:
    """The counts as a table."""
    from andrea.cli.show.output import table

    tokens = described["tokens"]
    total = sum(tokens.values())
    rows = [[name, described[name]] for name in ("source", "tokenizer", "fingerprint", "folder")]
    rows += [
        ["vocabulary", f"{described['vocab_size']:,}"],
        ["documents", f"{described['documents']:,}"],
    ]
    rows += [
        ["bytes", f"{described['bytes']:,}"],
        ["tokens", f"{total:,} ({described['bytes'] / total:.2f} bytes each)"],
    ]
    rows += [[f"tokens, {part}", f"{n:,} ({n / total:.1%})"] for part, n in tokens.items()]
    return table(rows, ("corpus", ""))
