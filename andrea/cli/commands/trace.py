"""`andrea trace`: one token on its way through the blocks of a model."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Preset, Runs, Settings, Variants, examples
from andrea.errors import StudyError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from andrea.data.tokenizers import Tokenizer
    from andrea.model.gpt import GPT

EXAMPLES = examples(
    'andrea trace "The state of the union is strong"             a fresh model of the tiny preset',
    'andrea trace "Fellow citizens" --run 3fa9 --logit-lens --html trace.html',
    'andrea trace "We the people" --token 3 --set model.norm_placement=post',
    'andrea trace "Hello" --preset gpt2 --set model.init=zero_out --seed 2 --json',
    "A run's id is in its folder's name; a few characters of it are enough.",
)
BYTES = 256
"""Vocabulary of the byte tokenizer."""
LISTED = 40
"""Tokens that a message lists."""
LABEL = 16
"""Characters of a token in a column."""
GUESSES = 3  # per depth of the lens, where nothing is said
WIDTH = 100
"""Characters of a line of prose."""


@dataclass(frozen=True)
class Subject:
    """A model to trace in, the tokenizer that goes with it, and what to say of them."""

    model: "GPT"
    tokenizer: "Tokenizer"
    about: dict[str, Any]
    """`name`, `fresh`, and what is known besides: `seed`, or `run` and `loss`."""


def trace(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text that the token stands in.")],
    preset: Preset = None,
    settings: Settings = None,
    variants: Variants = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, metavar="N", help="Of a fresh model's weights; default: 1."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="A finished run (the beginning of its id) or a model folder.",
        ),
    ] = None,
    token: Annotated[
        int,
        typer.Option(
            "--token", metavar="I", help="Which token, from 0; negative ones count from the end."
        ),
    ] = -1,
    lens: Annotated[
        bool,
        typer.Option(
            "--logit-lens", help="Also what the head makes of the stream after every block."
        ),
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", min=1, max=20, metavar="K", help="Guesses per depth of the lens; default: 3."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Draw it as one page that opens offline."),
    ] = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Follow one token: what every sublayer read, what it added, what the stream became.

    Without --run the model is a fresh one (default: the tiny preset) over bytes, and shows how near
    to the identity its blocks start; a trained run shows where the work is done.
    """
    from andrea.analysis.trace.page import page
    from andrea.cli.settings import load_variants
    from andrea.cli.show.output import (
        print_json,
        require_writable_file,
        save_text,
        stdout_kept_for_json,
    )

    if html is not None:
        require_writable_file(html, "--html")
    if run is not None and (preset is not None or settings or seed is not None):
        raise UserError("--run names a model that is there: leave out --preset, --set and --seed")
    if top is not None and not lens:
        raise UserError(
            "--top is how many guesses --logit-lens shows: give that too, or leave it out"
        )
    with stdout_kept_for_json(as_json):
        load_variants(variants)
        subject = (
            trained(run, runs) if run is not None else fresh(preset, settings or [], seed, variants)
        )
        traced = follow(subject, text, token, top or GUESSES, lens)
        if html is not None:
            save_text(html, page(traced), "--html")
    if as_json:
        print_json(traced | ({"html": str(html)} if html is not None else {}))
    else:
        typer.echo(as_text(traced) + (f"\n\n{html}" if html is not None else ""))


def fresh(
    preset: str | None, settings: "Sequence[str]", seed: int | None, variants: Path | None
) -> Subject:
    """A model with initial weights, over bytes.

    Raises:
        UserError: the settings are at fault, or the variants that they name.
    """
    from andrea.cli.settings import build_run_config, require_model_settings
    from andrea.data.tokenizers import ByteTokenizer
    from andrea.model.gpt import build_model
    from andrea.model.memory_limit import require_room

    require_model_settings(settings)
    preset = "tiny" if preset is None else preset
    config = build_run_config(preset, [f"model.vocab_size={BYTES}", *settings], seed=seed)
    if (config.model.vocab_size or BYTES) < BYTES:
        raise UserError(
            f"model.vocab_size {config.model.vocab_size}: the text is read as bytes, and there are "
            f"{BYTES}"
        )
    if variants is not None:
        from andrea.training.rehearsal import rehearse

        rehearse(config.model, "--variants")
    require_room(config.model)
    model = build_model(config.model, config.seeds.init)
    about = {
        "name": f"{preset}, fresh, seed {config.seeds.init}",
        "fresh": True,
        "seed": config.seeds.init,
    }
    return Subject(model, ByteTokenizer(), about)


def trained(run: str, runs: Path) -> Subject:
    """The model of a finished run, with its tokenizer; or that of a folder.

    Raises:
        UserError: there is none, or it is damaged, or its tokenizer is gone.
    """
    from andrea.cli.stores import open_store
    from andrea.data.prepared import load_tokenizer, open_prepared
    from andrea.training.load import find_run, load_run_model

    folder = Path(run)
    there = bool(run) and folder.is_dir()
    if there and not (folder / "checkpoint").is_file():
        return kept(folder)
    # `andrea train` prints the folder of a run.
    store = open_store(folder.resolve().parents[2]) if there else open_store(runs)
    run_id = find_run(store, folder.resolve().name if there else run)
    model, config, data = load_run_model(store, run_id)
    try:
        tokenizer = load_tokenizer(open_prepared(data))
    except StudyError as error:
        again = f"andrea data prepare {config.data.source} --tokenizer {config.data.tokenizer} --runs {store.root}"
        raise UserError(
            f"run {run_id[:12]}: its tokenizer is missing in {data}; `{again}` makes it again"
        ) from error
    loss = (store.result(run_id) or {}).get("loss")
    return Subject(
        model,
        tokenizer,
        {"name": f"run {run_id[:12]}", "fresh": False, "run": run_id, "loss": loss},
    )


def kept(folder: Path) -> Subject:
    """The model of a folder, with the `tokenizer.json` in it; without one, of bytes where there are
    so many tokens.

    Raises:
        UserError: the folder holds no model of andrea's, or no tokenizer.
    """
    from andrea.data.tokenizers import BpeTokenizer, ByteTokenizer
    from andrea.model.folder import load_model

    model, path = load_model(folder), folder / "tokenizer.json"
    tokenizer: Tokenizer = ByteTokenizer()
    if path.is_file():
        from tokenizers import Tokenizer as Library

        try:
            tokenizer = BpeTokenizer(Library.from_file(str(path)))
        except Exception as error:  # the library raises nothing more special
            raise UserError(f"{path}: not a tokenizer ({error})") from error
    elif model.config.vocab_size != BYTES:
        raise UserError(
            f"{folder}: it has no tokenizer.json, so no text can be read; put the model's own one "
            "into it"
        )
    return Subject(model, tokenizer, {"name": str(folder), "fresh": False})


def follow(subject: Subject, text: str, token: int, top: int, lens: bool) -> dict[str, Any]:
    """The trace as plain data, tokens with their texts.

    Raises:
        UserError: no such token, or a text that the tokenizer cannot read.
    """
    import torch

    from andrea.analysis.trace.sentences import sentence
    from andrea.model.trace import trace as traced

    model = subject.model
    ids, notes = encoded(subject, text)
    labels = [{"id": i, "text": label(subject.tokenizer, i)} for i in ids]
    found = asdict(traced(model, torch.tensor(ids), position(token, labels), top))
    if not math.isfinite(found["stream"]):
        raise UserError(
            f"{subject.about['name']}: the stream holds numbers that are not finite: it cannot be "
            "followed"
        )
    for row in found["lens"]:
        for guess in row["guesses"]:
            guess["text"] = label(subject.tokenizer, guess["token"])
    count = sum(parameter.numel() for parameter in model.parameters())
    told: dict[str, Any] = {
        "model": {
            **subject.about,
            "parameters": count,
            "config": model.config.model_dump(mode="json"),
        },
        "text": text,
        "tokens": labels,
        **found,
        "prediction": found["lens"][-1],
        "lens": found["lens"] if lens else [],
        "notes": notes,
    }
    return {**told, "summary": sentence(told)}


def encoded(subject: Subject, text: str) -> tuple[list[int], list[str]]:
    """The tokens that fit into the context, and what to say about the rest.

    Raises:
        UserError: there is no text, or it cannot be tokenized.
    """
    try:
        ids = subject.tokenizer.encode(text).tolist()
    except UnicodeEncodeError:
        raise UserError("the text is not valid UTF-8") from None
    if not ids:
        raise UserError("the text is empty: give at least one character")
    known, context = subject.model.config.vocab_size or 0, subject.model.config.context
    if max(ids) >= known:
        raise UserError(
            f"the tokenizer makes token {max(ids)}, the model knows {known}: they do not belong "
            "together"
        )
    if len(ids) <= context:
        return ids, []
    return ids[:context], [
        f"Of the text's {len(ids):,} tokens the first {context:,} fit into the context."
    ]


def position(token: int, labels: list[dict[str, Any]]) -> int:
    """The place of a token that may be counted from the end.

    Raises:
        UserError: there is no such token; all of them are listed.
    """
    from andrea.analysis.trace.sentences import quoted
    from andrea.text.numbers import plural

    if -len(labels) <= token < len(labels):
        return token % len(labels)
    listed = ", ".join(f"{i} {quoted(one)}" for i, one in enumerate(labels[:LISTED]))
    more = f" … {len(labels) - 1} {quoted(labels[-1])}" if len(labels) > LISTED else ""
    raise UserError(f"--token {token}: the text has {plural(len(labels), 'token')}: {listed}{more}")


def label(tokenizer: "Tokenizer", token: int) -> str | None:
    """The text of one token; None where it is a part of a character, or the tokenizer does not know
    it.
    """
    text = (
        tokenizer.decode([token]) if token < tokenizer.vocab_size else "\N{REPLACEMENT CHARACTER}"
    )
    return None if "\N{REPLACEMENT CHARACTER}" in text or not text else text


def as_text(traced: dict[str, Any]) -> str:
    """What the command prints."""
    import textwrap

    from andrea.analysis.trace.sentences import legend, notes

    below = textwrap.fill(legend(traced), WIDTH)
    parts = [heading(traced), f"{steps(traced)}\n{below}", ending(traced)]
    parts += [lens_table(traced)] if traced["lens"] else []
    parts += ["\n".join(notes(traced))] if notes(traced) else []
    return "\n\n".join([*parts, textwrap.fill(traced["summary"], WIDTH)])


def heading(traced: dict[str, Any]) -> str:
    """Model, token, and what the embedding makes of it."""
    from andrea.analysis.trace.sentences import place, quoted
    from andrea.text.numbers import number, short

    model, start, at = traced["model"], traced["start"], traced["position"]
    loss = f", loss {number(model['loss'])}" if model.get("loss") is not None else ""
    before = "".join(one["text"] or "\N{REPLACEMENT CHARACTER}" for one in traced["tokens"][:at])[
        -40:
    ]
    after = f" after {quoted({'id': 0, 'text': before})}" if before else ""
    summed = f"token table {short(start['token'])}"
    summed += f" + position {short(start['position'])}" if start["position"] is not None else ""
    summed += ", normalized" if model["config"]["embedding_norm"] else ""
    return "\n".join(
        [
            f"{model['name']}{loss}: {model['parameters']:,} parameters, norm placement "
            f"{model['config']['norm_placement']}, residual {model['config']['residual']}",
            f"token {place(traced)}: {quoted(traced['tokens'][at])}{after}",
            f"embedding: {summed} → stream {short(start['after'])}",
        ]
    )


def steps(traced: dict[str, Any]) -> str:
    """A line per sublayer."""
    from andrea.analysis.trace.sentences import cosine, moves, name, part, relative
    from andrea.cli.show.output import table
    from andrea.text.numbers import short

    moved, plain = moves(traced), traced["model"]["config"]["residual"] == "off"
    header = [
        "",
        "stream",
        "reads",
        "adds",
        "of stream",
        "cosine",
        *([moved] if moved else []),
        "after",
    ]
    header += [] if plain else ["of the way"]
    rows = [
        [
            name(step),
            short(step["source"]),
            short(step["read"]),
            short(step["added"]),
            part(relative(step)),
            cosine(step["cosine"]),
            *([short(step["moved"])] if moved else []),
            short(step["after"]),
            *([] if plain else [part(step["share"])]),
        ]
        for step in traced["steps"]
    ]
    return table(rows, header, right=range(1, len(header)))


def ending(traced: dict[str, Any]) -> str:
    """What the head reads, what it predicts, and what really follows."""
    from andrea.analysis.trace.sentences import part, quoted
    from andrea.text.numbers import count, short

    last, guess = traced["prediction"], traced["prediction"]["guesses"][0]
    normed = f", normalized {short(traced['normed'])}" if traced["normed"] is not None else ""
    line = f"head: stream {short(traced['stream'])}{normed} → {quoted({'id': guess['token'], **guess})}"
    line += f" with {part(guess['probability'])}"
    if traced["target"] is None:
        return line
    follows = quoted(traced["tokens"][traced["position"] + 1])
    return f"{line}; the text goes on with {follows}, rank {count(last['rank'])}, {part(last['probability'])}"


def lens_table(traced: dict[str, Any]) -> str:
    """The likeliest tokens at every depth."""
    from andrea.analysis.trace.sentences import depth, part, quoted
    from andrea.cli.show.output import table
    from andrea.text.numbers import count

    guesses = len(traced["lens"][0]["guesses"])
    rows = []
    for row in traced["lens"]:
        cells = [depth(row["block"])]
        for guess in row["guesses"]:
            told = quoted({"id": guess["token"], **guess})
            told = told if len(told) <= LABEL else told[: LABEL - 1] + "…"
            cells.append(f"{told} {part(guess['probability'])}")
        if traced["target"] is not None:
            cells.append(f"{count(row['rank'])}, {part(row['probability'])}")
        rows.append(cells)
    header = ["logit lens", *(f"guess {i + 1}" for i in range(guesses))]
    if traced["target"] is not None:
        header.append(f"rank of {quoted(traced['tokens'][traced['position'] + 1])}")
    return table(rows, header)
