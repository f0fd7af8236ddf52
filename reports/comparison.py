"""An ablation: every arm against the baseline. Copy it to ./reports/comparison.py and change it.

`build(study)` gets tidy pandas tables (`study.runs`, `study.curves`, `study.layers`,
`study.trials`, `study.documents`, `study.verdicts`, `study.differences`; columns in
`andrea.analysis.tables.frames` and `andrea.analysis.tables.judged`) and what was judged as it
stands in its files (`study.verdict`, `study.choices`, `study.speed`), and returns a `Report`.
Chapters are functions of `andrea.analysis` that take the study: leave one out, put another in its
place, change their order. Losses are in nats per token.
"""

from typing import Any

import pandas as pd

from andrea.analysis.chapters import common as chapters
from andrea.analysis.chapters import confirmation, controls, documents, effects, pairs, stability
from andrea.analysis.chapters import equal_cost as budgets
from andrea.analysis.chapters import sentences as words
from andrea.analysis.figures import learning_rates as rate_curves
from andrea.analysis.figures import replicates as figures
from andrea.analysis.load import Study
from andrea.analysis.report import (
    Bullets,
    Callout,
    Column,
    Figure,
    Item,
    Report,
    Section,
    Table,
    Text,
    numbers,
)
from andrea.analysis.tables import curves
from andrea.text import numbers as text

SMOOTHED = 0.02
"""Share of the training over which the mean training loss is smoothed, where at least three logged
steps lie in it.
"""


def build(study: Study) -> Report:
    """Return the report of an ablation, finished or not."""
    sections = [
        Section("Effects of the factors", effects.chapter(study)),
        Section("How it was done", chapters.protocol_items(study)),
        Section("Controls", controls.chapter(study)),
        Section("Confirmation", confirmation.chapter(study)),
        Section("Differences per seed", pairs.pair_items(study)),
        Section("Over documents", documents.chapter(study)),
        Section("Tokens saved", budgets.tokens_saved_table(study)),
        Section("Equal budgets", budgets.equal_budget_table(study)),
        Section("What is not matched", budgets.not_matched_table(study)),
        Section("Choosing the learning rates", rate_table(study)),
        Section("Learning-rate sensitivity", stability.sensitivity_items(study)),
        Section("Stability", stability.chapter(study)),
        Section("Loss curves", draw_losses(study)),
        Section("Inside the layers", draw_layers(study)),
        Section("Noise, and what these pairs can see", pairs.noise_items(study)),
        Section("Costs", [*budgets.speed_table(study), *chapters.cost_tables(study)]),
        Section("What differs between the arms", chapters.difference_items(study)),
        Section("What was not done", not_done_items(study)),
        Section("Configurations and environment", chapters.configuration_items(study)),
        Section("Every run", chapters.run_tables(study)),
    ]
    return Report(
        title=f"{study.name} · ablation",
        question=(study.protocol.question or f"What does {study.name} do?"),
        answer=f"{effects.write_answer(study)} {confirmation.write_sentence(study)}".strip(),
        head=first_screen(study),
        sections=[section for section in sections if section.items],
        frames=study.frames() | extra_tables(study),
        details=list_details(study),
        verdicts=[verdict.to_json() for verdict in study.verdict.verdicts],
    )


# ---- first screen ----


def list_details(study: Study) -> list[tuple[str, str]]:
    """Return the regime: the conditions of the answer."""
    runs = study.replicates() if len(study.replicates()) else study.runs
    arm = study.resolved_arm(study.baseline)
    model = arm.config.get("model")
    facts = [("smallest effect of interest m", f"{study.m:g} nats" if study.m else text.NOTHING)]
    if model:
        size = text.big(sum(arm.parameters.values()))
        facts.append(("size", f"{size} parameters: {text.shape(model)}"))
    if runs["tokens"].notna().any():
        tokens, epochs = runs["tokens"].max(), runs["epochs"].max()
        facts.append(("training", f"{text.count(tokens)} tokens, {text.short(epochs)} epochs"))
    facts.append(("corpus", chapters.corpus_words(study)))
    facts.append(("seeds", f"{study.rules.seeds} per arm, paired"))
    return facts


def first_screen(study: Study) -> list[Item]:
    """Return warnings, the verdicts, the curves over learning rates, and the runs that did not
    train.
    """
    items: list[Item] = []
    if not study.complete:
        items.append(Callout("Half finished.", "What is shown is what is there; still missing:"))
        items.append(Bullets(words.list_missing(study) or ["the study is being judged"]))
    hardly_tuned = [arm for arm in study.arms if study.choice(arm).hardly_tuned]
    if hardly_tuned:
        body = (
            f"{study.rules.trials} learning rates per arm leave no room for midpoints "
            f"({study.called(*hardly_tuned)}): a difference may be one of rates."
        )
        items.append(Callout("Rate hardly tuned.", body))
    if study.verdict.exploratory or study.resolved.exploratory:
        body = (
            "Some runs were made before this protocol was frozen, by another study: they may have "
            "shaped it."
        )
        items.append(Callout("Exploratory.", body, "note"))
    items += controls.failed_callouts(study)
    items.append(verdict_table(study))
    if notes := words.verdict_notes(study):
        items.append(Bullets(notes))
    if untrained := words.describe_untrained(study):
        # A grid of rates is meant to reach rates that do not train: a warning only where it cost
        # more than that.
        all_have_rates = all(study.choice(arm).lr for arm in study.arms)
        did_not_train = study.runs["stalled"] | (study.runs["outcome"] == "diverged")
        is_expected = all_have_rates and not did_not_train[study.runs["phase"] != "tune"].any()
        items.append(Callout("Did not train.", untrained, "note" if is_expected else "warning"))
    if study.trials["ok"].any():
        items.append(draw_rates(study))
    elif study.trials["score"].notna().any():
        body = "No learning-rate curves: none of the runs in tuning that are done trained."
        items.append(Text(body))
    return items


def verdict_table(study: Study) -> Table:
    """Return the table of verdicts, a row per arm."""
    frame = study.verdicts.copy()
    frame["judged"] = list(map(text.judged, frame["verdict"], frame["cause"]))
    level = frame["level"].dropna()
    each = f" (each at {text.percent(level.iloc[0])})" if len(level) and len(study.arms) > 2 else ""
    margin = f" m, the smallest effect of interest, is {study.m:g} nats." if study.m else ""
    stalled = f" Stalled: {words.STALLED}." if study.runs["stalled"].any() else ""
    caption = (
        f"Final loss against {study.baseline_label}, paired by seed; below 0 is better.{margin} "
        "Intervals are simultaneous: all hold together with "
        f"{text.percent(1 - study.rules.alpha)}{each}.{stalled}"
    )
    columns = [
        Column("label", "arm"),
        Column("judged", "verdict"),
        numbers("mean", "difference (nats)", text.signed),
        numbers(("low", "high"), "simultaneous interval", text.interval),
        numbers("n", "pairs", text.count),
        numbers("lr", "rate chosen", text.rate),
    ]
    if frame[["diverged", "stalled"]].to_numpy().any() or not frame["planned"].any():
        counts = ("diverged", "stalled", "planned")
        columns.append(numbers(counts, "replicates diverged, stalled", _format_counts))
    if again := confirmation.words_by_arm(study):
        frame["confirmation"] = frame["arm"].map(again)
        columns.append(Column("confirmation", "confirmation"))
        caption += " The confirmation is a block of fresh seeds, judged alone."
    return Table("verdicts", caption, frame, columns, stacked=True, mark="judged")


def _format_counts(diverged: Any, stalled: Any, planned: Any) -> str:
    return f"{text.count(diverged)}, {text.count(stalled)}" if planned else text.NOTHING


def draw_rates(study: Study) -> Figure:
    """Return the figure of the loss over learning rates."""
    keys = {"○": "one run", "◆": "rate chosen"}
    if study.trials["stalled"].any():
        keys["▽"] = "stalled"
    if (study.trials["outcome"] == "diverged").any():
        keys["✚"] = "diverged"
    n = len(study.trials.dropna(subset=["score"]))
    spec = rate_curves.draw_learning_rates(study.trials, study.choices, study.arms)
    caption = (
        "Final loss over the peak learning rate, on the part of the corpus that is kept for "
        f"choosing rates (tune), {text.plural(n, 'run')}, one per arm and rate."
    )
    if any(choice.method == "vertex" for choice in study.choices.values()):
        caption += (
            " Each line is the parabola fitted round the arm's best rate and spans the rates it "
            "was fitted to; its lowest point is the rate at which that arm was replicated. Wide "
            "valleys forgive, narrow ones do not."
        )
    if rate_curves.FAILED in str(spec):
        caption += (
            " Above the dotted line, off the scale, stands what did not train, a row per arm: it "
            "counts with the loss at initialisation."
        )
    return Figure("learning-rates", caption, spec, chapters.arm_legend(study), keys)


# ---- evidence ----


def rate_table(study: Study) -> list[Item]:
    """Return the table of the chosen rates."""
    if study.trials.empty:
        return []
    rows = []
    for arm in study.arms:
        choice, trials = study.choice(arm), study.trials[study.trials["arm"] == arm]
        rows.append(
            {
                "arm": study.label(arm),
                "lr": choice.lr,
                "method": choice.method,
                "regret": choice.regret,
                "tried": len(trials),
                "good": int(trials["ok"].sum()),
                "best": trials[trials["ok"]]["loss"].min(),
                "note": choice.note,
            }
        )
    columns = [
        Column("arm", "arm"),
        numbers("lr", "rate chosen", text.rate),
        Column("method", "by"),
        numbers("regret", "regret (nats)", text.small),
        numbers("tried", "runs", text.count),
        numbers("good", "trained", text.count),
        numbers("best", "lowest loss (tune part)", text.loss),
    ]
    columns += [Column("note", "note")] if any(row["note"] for row in rows) else []
    caption = (
        "The rate of every arm: the vertex of its parabola, or the best rate tried (argmin). "
        "Regret: what the uncertainty of the fit may have cost, 95th percentile; a verdict must "
        "hold with the arm's and the baseline's subtracted. n = 1 run per rate, so these losses "
        "carry no interval and decide nothing."
    )
    return [Table("rates", caption, pd.DataFrame(rows), columns, stacked=True)]


def draw_losses(study: Study) -> list[Item]:
    """Return figures of evaluated loss, its difference to the baseline, and training loss, over the
    tokens.
    """
    evaluated = study.part("curves", phase="replicate", kind="eval")
    trained = study.part("curves", phase="replicate", kind="train")
    seeds = f"n = {study.rules.seeds} seeds per arm where all are done"
    band = f"line: mean over the seeds; band: lowest to highest seed; {seeds}"
    items: list[Item] = []
    if evaluated["loss"].notna().any():
        caption = (
            f"Loss on a fixed sample of the evaluated tokens ({band}). Arms are compared at the "
            "right end only, where every schedule has run out; a mean stops where a seed of the "
            "arm has no finite loss."
        )
        spec = figures.draw_loss_curves(evaluated, study.runs, study.arms, "evaluated loss (nats)")
        legend = chapters.arm_legend(study, evaluated["arm"])
        items.append(Figure("evaluated-loss", caption, spec, legend))
    differences = curves.paired_differences(evaluated, study.baseline or "")
    later = differences[differences["tokens"] > differences["tokens"].max() * 0.15]
    if later["loss"].notna().any():
        caption = (
            f"The same as a difference to {study.baseline_label} of the same seed ({band}), from "
            "15 % of the training on. Below 0 the arm is ahead. On the way it shows who learns "
            "sooner, not who is better: rates are still high there."
        )
        spec = figures.draw_loss_curves(
            later, study.runs, study.arms, "difference of evaluated loss (nats)", difference=True
        )
        arms = [arm for arm in study.arms if arm != study.baseline]
        legend = chapters.arm_legend(study, arms)
        items.append(Figure("difference-along-training", caption, spec, legend))
    if trained["loss"].notna().any():
        smoothed, smoothing_note = None, ""
        if trained["tokens"].nunique() * SMOOTHED >= 3:
            width = round(SMOOTHED * int(trained["tokens"].max()))
            smoothed = curves.smooth_losses(trained, width)
            smoothing_note = (
                f" Line and band are of the mean over the last {text.count(width)} tokens; every "
                "seed is as logged."
            )
        logged, drawn = trained["tokens"].nunique(), curves.thin_curves(trained)["tokens"].nunique()
        drawn_note = text.selection_note(drawn, logged, "logged steps")
        caption = (
            f"Training loss, mean of the batches since the last logged step ({band})."
            f"{smoothing_note}{drawn_note}"
        )
        spec = figures.draw_loss_curves(
            trained, study.runs, study.arms, "training loss (nats)", smoothed=smoothed
        )
        legend = chapters.arm_legend(study, trained["arm"])
        items.append(Figure("training-loss", caption, spec, legend))
    return [*items, pairs.final_loss_table(study)] if len(study.replicates()) else items


def draw_layers(study: Study) -> list[Item]:
    """Return figures of gradient norms and the residual stream by block."""
    logged = study.part("layers", phase="replicate")
    keys = {
        "· · · ·": "at initialisation",
        "───": "at the end, band from the lowest to the highest seed",
    }
    captions = {
        "grad_norm": (
            "gradient-norm-by-layer",
            "gradient norm",
            "Gradient norm of every block on a fixed probe batch, mean over seeds. A level line "
            "means that every block learns at the same pace; a steep one that some hardly learn or "
            "that the last ones set the limit for the rate.",
        ),
        "residual_rms": (
            "residual-stream-by-layer",
            "RMS of the residual stream",
            "Size of the residual stream after every block, mean over seeds. Where it grows, each "
            "block adds to what is there and later blocks weigh relatively less; where it is "
            "level, a norm resets it.",
        ),
    }
    items: list[Item] = []
    for quantity, (name, title, caption) in captions.items():
        rows = logged[logged["quantity"] == quantity]
        if rows["value"].notna().any():
            count_note = (
                f" n = {rows['run_id'].nunique()} runs over all arms; the range between seeds is "
                "the band."
            )
            items.append(
                Figure(
                    name,
                    caption + count_note,
                    figures.draw_layers(rows, study.arms, title),
                    chapters.arm_legend(study, rows["arm"]),
                    keys,
                )
            )
    return items


def extra_tables(study: Study) -> dict[str, pd.DataFrame]:
    """Return the tables that are drawn or too long to be shown: files beside the report."""
    tables = {
        "document-effects": documents.by_document(study),
        "control-pairs": controls.control_pairs(study),
    }
    return {name: table for name, table in tables.items() if len(table)}


def not_done_items(study: Study) -> list[Item]:
    """What this study was not asked for, and how to ask."""
    lines = words.list_not_done(study)
    return [Bullets(lines)] if lines else []
