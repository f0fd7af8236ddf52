"""`andrea trace`: one token on its way through the blocks of a model."""

import math
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.analysis.trace import sentences
from andrea.cli import options as opt
from andrea.cli.settings import (
    build_run_config,
    load_variants,
    rehearse_variants,
    require_model_settings,
)
from andrea.cli.show.output import (
    print_json,
    require_writable_file,
    save_text,
    stdout_kept_for_json,
    table,
)
from andrea.errors import StudyError, UserError
from andrea.text.numbers import count, number, plural, short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from andrea.analysis.trace.sentences import Traced
    from andrea.data.tokenizers import Tokenizer
    from andrea.model.gpt import GPT

EXAMPLES = opt.examples(
    'andrea trace "The state of the union is strong"             a fresh model of the tiny preset',
    'andrea trace "Fellow citizens" --run 3fa9 --logit-lens --html trace.html',
    'andrea trace "We the people" --token 3 --set model.norm_placement=post',
    'andrea trace "Hello" --preset gpt2 --set model.init=zero_out --seed 2 --json',
    "A run's id is in its folder's name; a few characters of it are enough.",
)
BYTES = 256
"""Vocabulary of the byte tokenizer."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LISTED = 40
"""Tokens that a message lists."""
LABEL = 16
"""Characters of a token in a column."""
GUESSES = 3
"""Guesses per depth of the lens, where `--top` is not given."""
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
    text: Annotated[str, opt.argument("TEXT", "The text that the token stands in.")],
    preset: opt.Preset = None,
    settings: opt.Settings = None,
    variants: opt.Variants = None,
    seed: Annotated[
        int | None, opt.option("--seed N", "Of a fresh model's weights; default: 1.", min=0)
    ] = None,
    run: Annotated[
        str | None,
        opt.option("--run RUN", "A finished run (the beginning of its id) or a model folder."),
    ] = None,
    token: Annotated[
        int, opt.option("--token I", "Which token, from 0; negative ones count from the end.")
    ] = -1,
    lens: Annotated[
        bool,
        opt.option("--logit-lens", "Also what the head makes of the stream after every block."),
    ] = False,
    top: Annotated[
        int | None,
        opt.option("--top K", "Guesses per depth of the lens; default: 3.", min=1, max=20),
    ] = None,
    html: Annotated[
        Path | None, opt.option("--html FILE", "Draw it as one page that opens offline.")
    ] = None,
    runs: opt.Runs = opt.DEFAULT_RUNS,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Follow one token: what every sublayer read, what it added, what the stream became.

    Without --run the model is a fresh one (default: the tiny preset) over bytes, and shows how near
    to the identity its blocks start; a trained run shows where the work is done.
    """
    from andrea.analysis.trace.page import render_page

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
        if run is not None:
            subject = load_subject(run, runs)
        else:
            subject = build_subject(preset, settings or [], seed, variants)
        traced = trace_token(subject, text, token, top or GUESSES)
        if not lens:
            traced["lens"] = []
        if html is not None:
            save_text(html, render_page(traced), "--html")
    if as_json:
        print_json(traced if html is None else traced | {"html": str(html)})
    else:
        typer.echo(trace_as_text(traced) + (f"\n\n{html}" if html is not None else ""))


def build_subject(
    preset: str | None, settings: "Sequence[str]", seed: int | None, variants: Path | None
) -> Subject:
    """Build a model with initial weights, over bytes.

    Raises:
        UserError: the settings are at fault, or the variants that they name.
    """
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
    rehearse_variants({"--variants": config.model}, variants)
    require_room(config.model)
    model = build_model(config.model, config.seeds.init)
    name, seed = f"{preset}, fresh, seed {config.seeds.init}", config.seeds.init
    return Subject(model, ByteTokenizer(), {"name": name, "fresh": True, "seed": seed})


def load_subject(run: str, runs: Path) -> Subject:
    """Load the model of a finished run, with its tokenizer; or that of a folder.

    Raises:
        UserError: there is none, or it is damaged, or its tokenizer is gone.
    """
    from andrea.cli.stores import open_store
    from andrea.data.prepared import load_tokenizer, open_prepared
    from andrea.training.load import find_run, load_run_model

    folder = Path(run)
    if run and folder.is_dir():
        if not (folder / "checkpoint").is_file():
            return load_model_folder(folder)
        # It is the folder of a run, as `andrea train` prints it.
        runs, run = folder.resolve().parents[2], folder.resolve().name
    store = open_store(runs)
    run_id = find_run(store, run)
    model, config, data = load_run_model(store, run_id)
    try:
        tokenizer = load_tokenizer(open_prepared(data))
    except StudyError as error:
        source, name = config.data.source, config.data.tokenizer
        again = f"andrea data prepare {source} --tokenizer {name} --runs {store.root}"
        raise UserError(
            f"run {run_id[:12]}: its tokenizer is missing in {data}; `{again}` makes it again"
        ) from error
    result = store.load_result(run_id)
    loss = result.loss if result else None
    about = {"name": f"run {run_id[:12]}", "fresh": False, "run": run_id, "loss": loss}
    return Subject(model, tokenizer, about)


def load_model_folder(folder: Path) -> Subject:
    """Load the model of a folder, with the `tokenizer.json` in it.

    A model of 256 tokens that has none reads bytes.

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


def trace_token(subject: Subject, text: str, token: int, guesses: int) -> dict[str, Any]:
    """Return the trace as plain data, tokens with their texts; it is what `--json` prints.

    Raises:
        UserError: no such token, or a text that the tokenizer cannot read.
    """
    import torch

    from andrea.model.trace import trace as trace_model

    model = subject.model
    ids, notes = encode_text(subject, text)
    tokens = [{"id": i, "text": decode_token(subject.tokenizer, i)} for i in ids]
    position = find_position(token, tokens)
    values = asdict(trace_model(model, torch.tensor(ids), position, guesses))
    if not math.isfinite(values["stream"]):
        raise UserError(
            f"{subject.about['name']}: the stream holds numbers that are not finite: it cannot be "
            "followed"
        )
    for layer in values["lens"]:
        for guess in layer["guesses"]:
            guess["text"] = decode_token(subject.tokenizer, guess["token"])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    config = model.config.model_dump(mode="json")
    about = {**subject.about, "parameters": parameters, "config": config}
    traced: dict[str, Any] = {"model": about, "text": text, "tokens": tokens, **values}
    traced |= {"prediction": values["lens"][-1], "notes": notes}
    traced["summary"] = sentences.summarize_trace(traced)
    return traced


def encode_text(subject: Subject, text: str) -> tuple[list[int], list[str]]:
    """Return the tokens that fit into the context, and notes about the rest.

    Raises:
        UserError: there is no text, or it cannot be tokenized.
    """
    try:
        ids = subject.tokenizer.encode(text).tolist()
    except UnicodeEncodeError:
        raise UserError("the text is not valid UTF-8") from None
    if not ids:
        raise UserError("the text is empty: give at least one character")
    vocab_size, context = subject.model.config.vocab_size or 0, subject.model.config.context
    if max(ids) >= vocab_size:
        raise UserError(
            f"the tokenizer makes token {max(ids)}, the model knows {vocab_size}: they do not "
            "belong together"
        )
    if len(ids) <= context:
        return ids, []
    note = f"Of the text's {len(ids):,} tokens the first {context:,} fit into the context."
    return ids[:context], [note]


def find_position(token: int, tokens: "Sequence[Mapping[str, object]]") -> int:
    """Return the position of a token that may be counted from the end.

    Raises:
        UserError: there is no such token; all of them are listed.
    """
    count = len(tokens)
    if -count <= token < count:
        return token % count
    labels = map(sentences.quote_token, tokens[:LISTED])
    listed = ", ".join(f"{i} {label}" for i, label in enumerate(labels))
    if count > LISTED:
        listed += f" … {count - 1} {sentences.quote_token(tokens[-1])}"
    raise UserError(f"--token {token}: the text has {plural(count, 'token')}: {listed}")


def decode_token(tokenizer: "Tokenizer", token: int) -> str | None:
    """Return the text of one token; None where it is a part of a character, or the tokenizer does
    not know it.
    """
    if token >= tokenizer.vocab_size:
        return None
    text = tokenizer.decode([token])
    return text if text and REPLACEMENT not in text else None


def trace_as_text(traced: "Traced") -> str:
    """Return what the command prints."""
    below = textwrap.fill(sentences.column_legend(traced), WIDTH)
    parts = [heading(traced), f"{steps_table(traced)}\n{below}", prediction_line(traced)]
    if traced["lens"]:
        parts.append(lens_table(traced))
    if remarks := sentences.trace_notes(traced):
        parts.append("\n".join(remarks))
    return "\n\n".join([*parts, textwrap.fill(traced["summary"], WIDTH)])


def heading(traced: "Traced") -> str:
    """Return the model, the token, and what the embedding makes of it."""
    model, start, position = traced["model"], traced["start"], traced["position"]
    config, tokens = model["config"], traced["tokens"]
    loss = f", loss {number(model['loss'])}" if model.get("loss") is not None else ""
    before = "".join(token["text"] or REPLACEMENT for token in tokens[:position])[-40:]
    after = f" after {sentences.quote_token({'id': 0, 'text': before})}" if before else ""
    embedding = f"token table {short(start['token'])}"
    if start["position"] is not None:
        embedding += f" + position {short(start['position'])}"
    if config["embedding_norm"]:
        embedding += ", normalized"
    return (
        f"{model['name']}{loss}: {model['parameters']:,} parameters, norm placement "
        f"{config['norm_placement']}, residual {config['residual']}\n"
        f"token {sentences.position_words(traced)}: "
        f"{sentences.quote_token(tokens[position])}{after}\n"
        f"embedding: {embedding} → stream {short(start['after'])}"
    )


def steps_table(traced: "Traced") -> str:
    """Return a line per sublayer."""
    moved = sentences.movement_title(traced)
    has_residuals = traced["model"]["config"]["residual"] != "off"
    header = ["", "stream", "reads", "adds", "of stream", "cosine"]
    header += [moved, "after"] if moved else ["after"]
    if has_residuals:
        header.append("of the way")
    rows = []
    for step in traced["steps"]:
        norms = [short(step[name]) for name in ("source", "read", "added")]
        relative_norm = sentences.format_share(sentences.relative_norm(step))
        cosine = sentences.format_cosine(step["cosine"])
        row = [sentences.step_name(step), *norms, relative_norm, cosine]
        if moved:
            row.append(short(step["moved"]))
        row.append(short(step["after"]))
        if has_residuals:
            row.append(sentences.format_share(step["share"]))
        rows.append(row)
    return table(rows, header, right=range(1, len(header)))


def prediction_line(traced: "Traced") -> str:
    """Return what the head reads, what it predicts, and what really follows."""
    last = traced["prediction"]
    guess = last["guesses"][0]
    normed = f", normalized {short(traced['normed'])}" if traced["normed"] is not None else ""
    guessed = sentences.quote_token({"id": guess["token"], **guess})
    best = f"{guessed} with {sentences.format_share(guess['probability'])}"
    line = f"head: stream {short(traced['stream'])}{normed} → {best}"
    if traced["target"] is None:
        return line
    target = sentences.quote_token(traced["tokens"][traced["position"] + 1])
    rank, probability = count(last["rank"]), sentences.format_share(last["probability"])
    return f"{line}; the text goes on with {target}, rank {rank}, {probability}"


def lens_table(traced: "Traced") -> str:
    """Return the likeliest tokens at every depth."""
    rows = []
    for row in traced["lens"]:
        cells = [sentences.depth_title(row["block"])]
        for guess in row["guesses"]:
            label = sentences.quote_token({"id": guess["token"], **guess})
            if len(label) > LABEL:
                label = f"{label[: LABEL - 1]}…"
            cells.append(f"{label} {sentences.format_share(guess['probability'])}")
        if traced["target"] is not None:
            cells.append(f"{count(row['rank'])}, {sentences.format_share(row['probability'])}")
        rows.append(cells)
    header = ["logit lens", *(f"guess {i + 1}" for i in range(len(traced["lens"][0]["guesses"])))]
    if traced["target"] is not None:
        header.append(f"rank of {sentences.quote_token(traced['tokens'][traced['position'] + 1])}")
    return table(rows, header)
