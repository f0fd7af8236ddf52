"""One run: its curves, layers, documents and throughput, and where it went wrong.

Copy this file to ./reports/run.py and change it. `build_run(run)` gets one run of the store
(`andrea.analysis.tables.run_view.RunView`: `row`, `result`, `config`, `env`, and the tables
`curves`, `layers`, `documents`), finished or not, and returns a `Report`. Losses are in nats per
token.
"""

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
    """The report of one run, finished or not."""
    sections = [
        Section("Along the training", along(run)),
        Section("Inside the layers", layers(run)),
        Section("Documents", documents(run)),
        Section("Costs and throughput", costs(run)),
        Section("Configuration and environment", configuration(run)),
    ]
    return Report(
        title=f"Run {run.run_id[:12]}",
        question=f"How did run {run.run_id[:12]} go?",
        answer=answer(run),
        head=head(run),
        sections=[section for section in sections if section.items],
        frames={
            "curves": run.curves,
            "layers": run.layers,
            "documents": run.documents,
            "rates": single.rate_curve(run),
        },
        details=details(run),
    )


# ---- first screen
# --------------------------------------------------------------------------------------------------


def answer(run: RunView) -> str:
    """How it ended, or how far it is, in a sentence."""
    row = single.full_row(run)
    if row["outcome"] in UNFINISHED:
        return f"{UNFINISHED[row['outcome']][:-1]}: {_so_far(run)}{_because(row)}."
    after = f"after {text.count(row['tokens'])} tokens"
    if row["outcome"] != "completed" or text.absent(row["loss"]):
        return f"{str(row['outcome']).capitalize()} {after}{_because(row)}: there is no final loss."
    alone = f"how often each token occurs alone gives {text.loss(row['unigram_loss'])} nats"
    stalled = (
        f" It stalled: {alone}, and it ends no more than 1\N{NO-BREAK SPACE}% below."
        if row["stalled"]
        else ""
    )
    part = f" of the {row['eval_part']} part" if row["eval_part"] else ""
    return (
        f"Completed {after} at {text.loss(row['loss'])} nats per token "
        f"({text.number(row['bpb'], 3)} bits per byte) "
        f"on {text.count(row['eval_tokens'])} evaluated tokens{part}; n = 1 run, so no interval "
        "tells how much "
        f"another seed would change it.{stalled}"
    )


def _because(row: dict[str, Any]) -> str:
    return f" ({row['reason']})" if row["reason"] else ""


def _so_far(run: RunView) -> str:
    """How many tokens are trained and where the loss is, by what is logged."""
    if run.curves.empty:
        return "nothing is logged yet"
    done, planned = int(run.curves["tokens"].max()), summaries.planned_tokens(run.config)
    share = f" of {text.count(planned)} ({text.percent(done / planned)})" if planned else ""
    told = f"{text.count(done)} tokens{share} are logged"
    evaluated = run.curves[(run.curves["kind"] == "eval") & run.curves["loss"].notna()]
    return (
        f"{told}, last evaluated loss {text.loss(evaluated['loss'].iloc[-1])} nats"
        if len(evaluated)
        else told
    )


def details(run: RunView) -> list[tuple[str, str]]:
    """Which run it is."""
    model, train, data = (run.config.get(part) or {} for part in ("model", "train", "data"))
    row = single.full_row(run)
    told = [("outcome", "stalled" if row["stalled"] else str(row["outcome"]))]
    if model.get("n_layer"):
        shape, size = text.shape(model), row["parameters"]
        told.append(
            ("size", shape if text.absent(size) else f"{text.big(size)} parameters: {shape}")
        )
    told.append(("peak rate", text.rate(row["lr"])))
    told.append(("seed", text.plain(row["seed"])))
    if data.get("source"):
        told.append(("corpus", f"{data['source']}, tokenizer {data.get('tokenizer', 'byte')}"))
    if train.get("device"):
        told.append(("device", f"{train['device']}, {train.get('dtype', 'float32')}"))
    for study, spec in run.planned:
        told.append(("of study", f"{study}: {spec.arm}, {spec.phase} ({spec.why})"))
    return told if run.planned else [*told, ("of study", "none: a single training")]


def head(run: RunView) -> list[Item]:
    """What is wrong, the numbers, the curves."""
    items: list[Item] = []
    row = single.full_row(run)
    if row["outcome"] in UNFINISHED:
        items.append(Callout("Half finished.", f"What is shown is what is logged.{_because(row)}"))
    elif row["outcome"] == "diverged":
        items.append(
            Callout(
                "Diverged.",
                f"{row['reason'] or 'The loss or a gradient was not finite'}. Where: see the "
                "table.",
            )
        )
    elif row["stalled"]:
        items.append(Callout("Stalled.", _stalled(row)))
    items.append(ending(run))
    if run.curves["loss"].notna().any():
        caption = (
            "Training loss (mean of the batches since the last record) and loss on the curve "
            "subset of the "
            f"evaluated tokens, n = 1 run.{_drawn(run)} Dashed: the loss before training, and what "
            "the token "
            "frequencies alone give; a run that stays at the lower one has learned nothing about "
            "order."
        )
        items.append(Figure("loss", caption, single.draw_losses(run), single.curve_legend(run)))
    return items


def _stalled(row: dict[str, Any]) -> str:
    by = f"{text.loss(row['loss'])} nats, the unigram loss is {text.loss(row['unigram_loss'])}"
    return f"Its final loss is less than 1\N{NO-BREAK SPACE}% below the unigram loss ({by})."


def _drawn(run: RunView) -> str:
    train = run.curves[run.curves["kind"] == "train"]
    drawn = single.lines.thin(train)["tokens"].nunique()
    logged = train["tokens"].nunique()
    return (
        f" Drawn are {drawn} of {logged} records, picked, not averaged; the files have all."
        if drawn < logged
        else ""
    )


def ending(run: RunView) -> Table:
    """The numbers at the end, and what stands out on the way."""
    row = single.full_row(run)
    told = [
        (
            "final loss",
            row["tokens"],
            row["loss"],
            f"{text.loss(row['loss'])} nats",
            "all evaluated tokens",
        ),
        (
            "loss before training",
            0,
            row["initial_loss"],
            f"{text.loss(row['initial_loss'])} nats",
            "the same tokens",
        ),
        (
            "token frequencies alone",
            None,
            row["unigram_loss"],
            f"{text.loss(row['unigram_loss'])} nats",
            "the same tokens",
        ),
        (
            "training loss",
            row["tokens"],
            row["train_loss"],
            f"{text.loss(row['train_loss'])} nats",
            "mean of the last tenth",
        ),
    ]
    rows = [dict(zip(_KEYS, each, strict=True)) for each in told if not text.absent(each[2])]
    rows += [
        {**each, "over": "logged records"} for each in single.find_notable(run).to_dict("records")
    ]
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
    frame = pd.DataFrame(rows, columns=list(_KEYS)).astype({"tokens": "Int64", "value": "float64"})
    return Table("ending", caption, frame, columns, sortable=False, stacked=True)


_KEYS = ("what", "tokens", "value", "told", "over")


# ---- evidence
# --------------------------------------------------------------------------------------------------


def along(run: RunView) -> list[Item]:
    """Learning rate, gradient norm and speed over the tokens."""
    train = run.curves[run.curves["kind"] == "train"]
    drawings = [
        ("learning-rate", single.rate_curve(run), "lr", "learning rate", {}),
        ("gradient-norm", train, "grad_norm", "gradient norm", {"log": True}),
        ("throughput", train, "tokens_per_s", "tokens per second", {"form": "~s"}),
    ]
    items: list[Item] = []
    for name, frame, key, title, how in drawings:
        spec = single.draw_along(frame, key, title, **how)
        if spec is not None:
            n = int(np.isfinite(frame[key].astype("float64")).sum())
            items.append(Figure(name, f"{_ALONG[name]} n = {text.plural(n, 'record')}.", spec))
    return items


_ALONG = {
    "learning-rate": (
        "The learning rate of the last step before each record: where warmup ended, and how far "
        "the rate had fallen at "
        "the end, where the final loss was taken."
    ),
    "gradient-norm": (
        "Global gradient norm of the last step before each record, before clipping (log axis). "
        "Spikes that return "
        "are common; a norm that climbs for long comes before a divergence."
    ),
    "throughput": (
        "Tokens per second since the last record. Runs share the machine: a dip may be a "
        "neighbour's; the first "
        "record may include compilation."
    ),
}


def layers(run: RunView) -> list[Item]:
    """A map per quantity: block over tokens."""
    told = {
        "grad_norm": "Gradient norm of every block on a fixed probe batch. Rows of one colour "
        "learn at one pace.",
        "attn_rms": "Size of what attention adds, block by block.",
        "mlp_rms": "Size of what the MLP adds, block by block.",
        "residual_rms": "Size of the residual stream after every block: where it grows, later "
        "blocks weigh less.",
    }
    items: list[Item] = []
    for quantity, caption in told.items():
        spec = single.draw_heat(run.layers, quantity)
        if spec is not None:
            n = run.layers[run.layers["quantity"] == quantity]["tokens"].nunique()
            said = (
                f"{caption} Logged {text.plural(n, 'time')}; the darker the larger (logarithmic)."
            )
            items.append(Figure(f"layers-{quantity.replace('_', '-')}", said, spec))
    return items


def documents(run: RunView) -> list[Item]:
    """The evaluated documents, the hardest first."""
    frame = run.documents[["document", "tokens", "loss"]].dropna(subset=["loss"])
    if frame.empty:
        return []
    frame = frame.sort_values(["loss", "document"], ascending=[False, True]).reset_index(drop=True)
    low, high = summaries.mean_interval(frame["loss"])
    within = (
        ""
        if text.absent(low)
        else f", 95\N{NO-BREAK SPACE}% interval over documents {text.span(low, high)}"
    )
    caption = (
        f"Loss of {text.plural(len(frame), 'document')}, the hardest first: mean "
        f"{text.loss(frame['loss'].mean())} "
        f"nats (documents weighed alike{within}, n = {len(frame)}). The final loss above weighs "
        "tokens alike."
    )
    columns = [
        Column("document", "document"),
        numbers("loss", "loss (nats)"),
        numbers("tokens", "evaluated tokens", text.count),
    ]
    items: list[Item] = []
    if len(frame) > 1:
        items.append(Figure("documents-by-loss", caption, single.draw_documents(frame)))
    ends = frame if len(frame) <= 2 * SHOWN else pd.concat([frame.head(SHOWN), frame.tail(SHOWN)])
    said = (
        "All of them."
        if len(ends) == len(frame)
        else f"The {SHOWN} hardest and the {SHOWN} easiest; the files have all."
    )
    return [*items, Table("documents-ends", said, ends, columns)]


SHOWN = 10


def costs(run: RunView) -> list[Item]:
    """Parameters, operations, time, memory."""
    result = run.result
    if result is None:
        return []
    groups = {name: n for name, n in result.parameters.items() if n}
    seconds, wall, flops = result.seconds, result.wall_seconds, result.flops
    rows = [
        (f"parameters: {name.replace('_', ' ')}", n, text.count(n)) for name, n in groups.items()
    ]
    rows += (
        [("parameters", sum(groups.values()), text.count(sum(groups.values())))] if groups else []
    )
    rows += [
        ("FLOPs of the training", flops, text.big(flops)),
        ("time of the training alone", seconds, text.seconds(seconds)),
        ("with evaluation, checkpoints and compilation", wall, text.seconds(wall)),
        (
            "tokens per second of training",
            result.tokens_per_s,
            text.count(result.tokens_per_s),
        ),
        (
            "FLOP per second",
            flops and seconds and flops / seconds,
            text.big(flops and seconds and flops / seconds),
        ),
        (
            "peak memory",
            result.peak_memory_bytes,
            text.memory(result.peak_memory_bytes),
        ),
        ("attempts", result.attempts, text.plain(result.attempts)),
    ]
    frame = pd.DataFrame(
        [row for row in rows if not text.absent(row[1])], columns=["what", "value", "told"]
    )
    caption = "Cost of the run. Do not compare times: runs share the machine. n = 1."
    return [
        Table("costs", caption, frame, [Column("what", ""), Column("told", "")], sortable=False)
    ]


def configuration(run: RunView) -> list[Item]:
    """What to copy in order to do it again, and where it ran."""
    items: list[Item] = [Text(f"Run {run.run_id}, in {run.path}.")]
    told = {
        "Configuration, resolved": run.config,
        "What the run's id digests beside it": run.identity,
        "Environment": run.env,
    }
    for title, content in told.items():
        if content:
            items.append(Code(title, yaml.safe_dump(content, sort_keys=False, allow_unicode=True)))
    if (run.env.get("git") or {}).get("dirty"):
        said = "The run was made with uncommitted changes: the commit alone does not tell it."
        items.append(Callout("Dirty tree.", said))
    return items
