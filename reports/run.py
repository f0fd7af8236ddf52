"""One run: its curves, layers, documents and throughput, and where it went wrong.

Copy this file to ./reports/run.py and change it. `build_run(run)` gets one run of the store
(`andrea.analysis.tables.run_view.RunView`: `row`, `result`, `config`, `env`, and the tables
`curves`, `layers`, `documents`), finished or not, and returns a `Report`. Losses are in nats per
token.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import yaml

from andrea.analysis.chapters import one_run as single
from andrea.analysis.report import (
    Callout,
    Code,
    Column,
    Figure,
    Item,
    Report,
    Section,
    Table,
    Text,
    numbers,
)
from andrea.analysis.tables import summaries
from andrea.analysis.tables.run_view import RunView
from andrea.text import numbers as text

UNFINISHED = {
    "running": "Still running.",
    "failed": "Failed.",
    "missing": "Not finished, and nobody is at it.",
}


def build_run(run: RunView) -> Report:
    """Return the report of one run, finished or not."""
    sections = [
        Section("Along the training", draw_along_training(run)),
        Section("Inside the layers", draw_layers(run)),
        Section("Documents", document_items(run)),
        Section("Costs and throughput", cost_table(run)),
        Section("Configuration and environment", configuration_items(run)),
    ]
    return Report(
        title=f"Run {run.run_id[:12]}",
        question=f"How did run {run.run_id[:12]} go?",
        answer=write_answer(run),
        head=first_screen(run),
        sections=[section for section in sections if section.items],
        frames={
            "curves": run.curves,
            "layers": run.layers,
            "documents": run.documents,
            "rates": single.rate_curve(run),
        },
        details=list_details(run),
    )


# ---- first screen ----


def write_answer(run: RunView) -> str:
    """Return the end of the run, or its progress, in a sentence."""
    row = single.full_row(run)
    outcome, reason = str(row["outcome"]), _reason_in_brackets(row)
    if outcome in UNFINISHED:
        return f"{UNFINISHED[outcome][:-1]}: {_describe_progress(run)}{reason}."
    after = f"after {text.count(row['tokens'])} tokens"
    if outcome != "completed" or text.absent(row["loss"]):
        return f"{outcome.capitalize()} {after}{reason}: there is no final loss."
    unigram = f"how often each token occurs alone gives {text.loss(row['unigram_loss'])} nats"
    stalled = (
        f" It stalled: {unigram}, and it ends no more than 1\N{NO-BREAK SPACE}% below."
        if row["stalled"]
        else ""
    )
    part = f" of the {row['eval_part']} part" if row["eval_part"] else ""
    return (
        f"Completed {after} at {text.loss(row['loss'])} nats per token "
        f"({text.number(row['bpb'], 3)} bits per byte) on {text.count(row['eval_tokens'])} "
        f"evaluated tokens{part}; n = 1 run, so no interval tells how much another seed would "
        f"change it.{stalled}"
    )


def _reason_in_brackets(row: dict[str, Any]) -> str:
    return f" ({row['reason']})" if row["reason"] else ""


def _describe_progress(run: RunView) -> str:
    """Word the tokens and the loss that are logged so far."""
    if run.curves.empty:
        return "nothing is logged yet"
    done, planned = int(run.curves["tokens"].max()), summaries.planned_tokens(run.config)
    share = f" of {text.count(planned)} ({text.percent(done / planned)})" if planned else ""
    progress = f"{text.count(done)} tokens{share} are logged"
    evaluated = run.curves[(run.curves["kind"] == "eval") & run.curves["loss"].notna()]
    if evaluated.empty:
        return progress
    return f"{progress}, last evaluated loss {text.nats(evaluated['loss'].iloc[-1])}"


def list_details(run: RunView) -> list[tuple[str, str]]:
    """Return the identity of the run."""
    model, train, data = (run.config.get(part) or {} for part in ("model", "train", "data"))
    row = single.full_row(run)
    facts = [("outcome", "stalled" if row["stalled"] else str(row["outcome"]))]
    if model.get("n_layer"):
        counted = row["parameters"]
        size = "" if text.absent(counted) else f"{text.big(counted)} parameters: "
        facts.append(("size", f"{size}{text.shape(model)}"))
    facts += [("peak rate", text.rate(row["lr"])), ("seed", text.plain(row["seed"]))]
    if data.get("source"):
        facts.append(("corpus", f"{data['source']}, tokenizer {data.get('tokenizer', 'byte')}"))
    if train.get("device"):
        facts.append(("device", f"{train['device']}, {train.get('dtype', 'float32')}"))
    for study, spec in run.planned:
        facts.append(("of study", f"{study}: {spec.arm}, {spec.phase} ({spec.why})"))
    return facts if run.planned else [*facts, ("of study", "none: a single training")]


def first_screen(run: RunView) -> list[Item]:
    """Return warnings, the numbers and the curves."""
    items: list[Item] = []
    row = single.full_row(run)
    if row["outcome"] in UNFINISHED:
        body = f"What is shown is what is logged.{_reason_in_brackets(row)}"
        items.append(Callout("Half finished.", body))
    elif row["outcome"] == "diverged":
        reason = row["reason"] or "The loss or a gradient was not finite"
        items.append(Callout("Diverged.", f"{reason}. Where: see the table."))
    elif row["stalled"]:
        items.append(Callout("Stalled.", _describe_stall(row)))
    items.append(ending_table(run))
    if run.curves["loss"].notna().any():
        caption = (
            "Training loss (mean of the batches since the last record) and loss on the curve "
            f"subset of the evaluated tokens, n = 1 run.{_thinning_note(run)} Dashed: the loss "
            "before training, and what the token frequencies alone give; a run that stays at the "
            "lower one has learned nothing about order."
        )
        items.append(Figure("loss", caption, single.draw_losses(run), single.curve_legend(run)))
    return items


def _describe_stall(row: dict[str, Any]) -> str:
    by = f"{text.loss(row['loss'])} nats, the unigram loss is {text.loss(row['unigram_loss'])}"
    return f"Its final loss is less than 1\N{NO-BREAK SPACE}% below the unigram loss ({by})."


def _thinning_note(run: RunView) -> str:
    train = run.curves[run.curves["kind"] == "train"]
    drawn = single.lines.thin_curves(train)["tokens"].nunique()
    return text.selection_note(drawn, train["tokens"].nunique(), "records")


def ending_table(run: RunView) -> Table:
    """Return the numbers at the end, and what stands out on the way."""
    row = single.full_row(run)
    losses = [
        ("final loss", row["tokens"], row["loss"], "all evaluated tokens"),
        ("loss before training", 0, row["initial_loss"], "the same tokens"),
        ("token frequencies alone", None, row["unigram_loss"], "the same tokens"),
        ("training loss", row["tokens"], row["train_loss"], "mean of the last tenth"),
    ]
    ending = pd.DataFrame(losses, columns=["what", "tokens", "value", "over"])
    ending = ending.dropna(subset="value").assign(told=lambda rows: rows["value"].map(text.nats))
    notable = single.find_notable(run).assign(over="logged records")
    columns = [
        Column("what", "what"),
        Column("told", "value"),
        numbers("tokens", "after tokens", text.count),
        Column("over", "over"),
    ]
    caption = (
        "How it ended and what stands out on the way. n = 1 run: no number here has an interval "
        "over seeds."
    )
    frame = pd.concat([ending.astype(notable.dtypes.to_dict()), notable], ignore_index=True)
    return Table("ending", caption, frame[list(notable)], columns, sortable=False, stacked=True)


# ---- evidence ----


def draw_along_training(run: RunView) -> list[Item]:
    """Return figures of learning rate, gradient norm and speed over the tokens."""
    train = run.curves[run.curves["kind"] == "train"]
    drawings = [
        ("learning-rate", single.rate_curve(run), "lr", "learning rate", {}),
        ("gradient-norm", train, "grad_norm", "gradient norm", {"log": True}),
        ("throughput", train, "tokens_per_s", "tokens per second", {"form": "~s"}),
    ]
    items: list[Item] = []
    for name, frame, key, title, options in drawings:
        spec = single.draw_along(frame, key, title, **options)
        if spec is not None:
            n = int(np.isfinite(frame[key].astype("float64")).sum())
            items.append(Figure(name, f"{_ALONG[name]} n = {text.plural(n, 'record')}.", spec))
    return items


_ALONG = {
    "learning-rate": (
        "The learning rate of the last step before each record: where warmup ended, and how far "
        "the rate had fallen at the end, where the final loss was taken."
    ),
    "gradient-norm": (
        "Global gradient norm of the last step before each record, before clipping (log axis). "
        "Spikes that return are common; a norm that climbs for long comes before a divergence."
    ),
    "throughput": (
        "Tokens per second since the last record. Runs share the machine: a dip may be a "
        "neighbour's; the first record may include compilation."
    ),
}


def draw_layers(run: RunView) -> list[Item]:
    """Return a heat map per quantity: block over tokens."""
    captions = {
        "grad_norm": "Gradient norm of every block on a fixed probe batch. Rows of one colour "
        "learn at one pace.",
        "attn_rms": "Size of what attention adds, block by block.",
        "mlp_rms": "Size of what the MLP adds, block by block.",
        "residual_rms": "Size of the residual stream after every block: where it grows, later "
        "blocks weigh less.",
    }
    items: list[Item] = []
    for quantity, caption in captions.items():
        spec = single.draw_heat(run.layers, quantity)
        if spec is not None:
            n = run.layers[run.layers["quantity"] == quantity]["tokens"].nunique()
            caption += f" Logged {text.plural(n, 'time')}; the darker the larger (logarithmic)."
            items.append(Figure(f"layers-{quantity.replace('_', '-')}", caption, spec))
    return items


def document_items(run: RunView) -> list[Item]:
    """Return the evaluated documents, the hardest first."""
    frame = run.documents[["document", "tokens", "loss"]].dropna(subset=["loss"])
    if frame.empty:
        return []
    frame = frame.sort_values(["loss", "document"], ascending=[False, True]).reset_index(drop=True)
    low, high = summaries.mean_interval(frame["loss"])
    interval = ""
    if not text.absent(low):
        interval = f", 95\N{NO-BREAK SPACE}% interval over documents {text.span(low, high)}"
    caption = (
        f"Loss of {text.plural(len(frame), 'document')}, the hardest first: mean "
        f"{text.loss(frame['loss'].mean())} nats (documents weighed alike{interval}, n = "
        f"{len(frame)}). The final loss above weighs tokens alike."
    )
    columns = [
        Column("document", "document"),
        numbers("loss", "loss (nats)"),
        numbers("tokens", "evaluated tokens", text.count),
    ]
    items: list[Item] = []
    if len(frame) > 1:
        items.append(Figure("documents-by-loss", caption, single.draw_documents(frame)))
    ends, selection = frame, "All of them."
    if len(frame) > 2 * SHOWN:
        ends = pd.concat([frame.head(SHOWN), frame.tail(SHOWN)])
        selection = f"The {SHOWN} hardest and the {SHOWN} easiest; the files have all."
    return [*items, Table("documents-ends", selection, ends, columns)]


SHOWN = 10


def cost_table(run: RunView) -> list[Item]:
    """Return parameters, operations, time and memory."""
    result = run.result
    if result is None:
        return []
    groups = {name: n for name, n in result.parameters.items() if n}
    flops, seconds = result.flops, result.seconds
    quantities: list[tuple[str, Any, Callable[[Any], str]]] = [
        (f"parameters: {name.replace('_', ' ')}", n, text.count) for name, n in groups.items()
    ]
    quantities += [
        ("parameters", sum(groups.values()) or None, text.count),
        ("FLOPs of the training", flops, text.big),
        ("time of the training alone", seconds, text.seconds),
        ("with evaluation, checkpoints and compilation", result.wall_seconds, text.seconds),
        ("tokens per second of training", result.tokens_per_s, text.count),
        ("FLOP per second", flops and seconds and flops / seconds, text.big),
        ("peak memory", result.peak_memory_bytes, text.memory),
        ("attempts", result.attempts, text.plain),
    ]
    rows = [(what, n, show(n)) for what, n, show in quantities if not text.absent(n)]
    frame = pd.DataFrame(rows, columns=["what", "value", "told"])
    caption = "Cost of the run. Do not compare times: runs share the machine. n = 1."
    columns = [Column("what", ""), Column("told", "")]
    return [Table("costs", caption, frame, columns, sortable=False)]


def configuration_items(run: RunView) -> list[Item]:
    """Return the configuration and the environment, to be copied."""
    items: list[Item] = [Text(f"Run {run.run_id}, in {run.path}.")]
    contents = {
        "Configuration, resolved": run.config,
        "What the run's id digests beside it": run.identity,
        "Environment": run.env.to_json(),
    }
    for title, content in contents.items():
        if content:
            items.append(Code(title, yaml.safe_dump(content, sort_keys=False, allow_unicode=True)))
    if run.env.git and run.env.git.dirty:
        body = "The run was made with uncommitted changes: the commit alone does not tell it."
        items.append(Callout("Dirty tree.", body))
    return items
