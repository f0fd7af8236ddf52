"""An ablation: every arm against the baseline. Copy this file to ./reports/comparison.py and change it.

`build(study)` gets tidy pandas tables (`study.runs`, `study.curves`, `study.layers`, `study.trials`,
`study.documents`, `study.verdicts`, `study.differences`; columns in `andrea.analysis.frames` and
`andrea.analysis.load`) and returns a `Report`. Losses are in nats per token.
"""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from andrea.analysis import chapters, curves, effects, figures, rate_curves, summaries, text, theme, words
from andrea.analysis.load import Study
from andrea.analysis.report import Bullets, Callout, Column, Figure, Item, Report, Section, Table, Text, numbers


def build(study: Study) -> Report:
    """The report of an ablation, finished or not."""
    sections = [
        Section("Effects of the factors", effects.chapter(study)),
        Section("How it was done", chapters.how(study)),
        Section("Differences per seed", per_seed(study)),
        Section("Choosing the learning rates", rates(study)),
        Section("Loss curves", losses(study)),
        Section("Inside the layers", layers(study)),
        Section("Noise, and what these pairs can see", noise(study)),
        Section("Costs", chapters.costs(study)),
        Section("What differs between the arms", chapters.differing(study)),
        Section("Configurations and environment", chapters.configurations(study)),
        Section("Every run", chapters.every_run(study)),
    ]
    return Report(
        title=f"{study.name} · ablation",
        question=str(study.protocol.get("question") or f"What does {study.name} do?"),
        answer=effects.answer(study),
        head=head(study),
        sections=[section for section in sections if section.items],
        frames=study.frames(),
        details=details(study),
    )


# ---- first screen ----------------------------------------------------------------------------------------------------


def details(study: Study) -> list[tuple[str, str]]:
    """The regime in small print: what the answer is conditional on."""
    runs = study.replicates() if len(study.replicates()) else study.runs
    arm = (study.resolved.get("arms") or {}).get(study.baseline) or {}
    model = (arm.get("config") or {}).get("model") or {}
    told = [("smallest effect of interest m", f"{study.m:g} nats" if study.m else text.NOTHING)]
    if model:
        shape = f"{model.get('n_layer')} blocks, d {model.get('d_model')}, {model.get('n_head')} heads"
        told.append(("size", f"{text.big(sum((arm.get('parameters') or {}).values()))} parameters: {shape}"))
    if runs["tokens"].notna().any():
        tokens, epochs = runs["tokens"].max(), runs["epochs"].max()
        told.append(("training", f"{text.count(tokens)} tokens, {text.short(epochs)} epochs"))
    told.append(("corpus", chapters.corpus(study)))
    told.append(("seeds", f"{study.rules.get('seeds', text.NOTHING)} per arm, paired"))
    return told


def head(study: Study) -> list[Item]:
    """Warnings, the verdicts, the picture, and what did not train."""
    items: list[Item] = []
    if not study.complete:
        items.append(Callout("Half finished.", "What is shown is what is there; still missing:"))
        items.append(Bullets(words.what_is_missing(study) or ["the study is being judged"]))
    hardly = [arm for arm in study.arms if (study.choices.get(arm) or {}).get("hardly_tuned")]
    if hardly:
        said = f"{study.rules.get('trials')} learning rates per arm leave no room for midpoints"
        items.append(
            Callout("Rate hardly tuned.", f"{said} ({study.called(*hardly)}): a difference may be one of rates.")
        )
    if study.verdict.get("exploratory") or study.resolved.get("exploratory"):
        said = "Some runs were made before this protocol was frozen, by another study: they may have shaped it."
        items.append(Callout("Exploratory.", said, "note"))
    items.append(verdicts(study))
    if lost := words.did_not_train(study):
        items.append(Callout("Did not train.", lost))
    if study.trials["ok"].any():
        items.append(rate_figure(study))
    elif study.trials["score"].notna().any():
        items.append(Text("No learning-rate curves: none of the runs in tuning that are done trained."))
    return items


def verdicts(study: Study) -> Table:
    """One row per arm."""
    frame = study.verdicts.assign(
        judged=[text.judged(*pair) for pair in zip(study.verdicts["verdict"], study.verdicts["cause"], strict=True)]
    )
    level = frame["level"].dropna()
    each = f" (each at {text.percent(level.iloc[0])})" if len(level) and len(study.arms) > 2 else ""
    margin = f" m, the smallest effect of interest, is {study.m:g} nats." if study.m else ""
    stalled = f" Stalled: {words.STALLED}." if study.runs["stalled"].any() else ""
    caption = (
        f"Final loss against {study.called(study.baseline or '')}, paired by seed; below 0 is better.{margin} "
        f"Intervals are simultaneous: all hold together with {text.percent(1 - study.rules.get('alpha', 0.05))}{each}."
        f"{stalled}"
    )
    columns = [
        Column("label", "arm"),
        Column("judged", "verdict"),
        numbers("mean", "difference (nats)", text.signed),
        numbers(("low", "high"), "simultaneous interval", text.interval),
        numbers("n", "pairs", text.count),
        numbers("lr", "rate chosen", text.rate),
        numbers(("diverged", "stalled", "planned"), "replicates diverged, stalled", _two_counts),
        Column("note", "note"),
    ]
    return Table("verdicts", caption, frame, columns, stacked=True, mark="judged")


def _two_counts(diverged: Any, stalled: Any, planned: Any) -> str:
    return f"{text.count(diverged)}, {text.count(stalled)}" if planned else text.NOTHING


def rate_figure(study: Study) -> Figure:
    """The learning-rate curves."""
    keys = {"○": "one run", "◆": "rate chosen"}
    if study.trials["stalled"].any():
        keys["▽"] = "stalled"
    if (study.trials["outcome"] == "diverged").any():
        keys["✚"] = "diverged"
    n = len(study.trials.dropna(subset=["score"]))
    spec = rate_curves.learning_rates(study.trials, study.choices, study.arms)
    said = f"Final loss on the tune part over the peak learning rate, {text.plural(n, 'run')}, one per arm and rate."
    if any((choice or {}).get("method") == "vertex" for choice in study.choices.values()):
        said += (
            " Each line is the parabola fitted round the arm's best rate and spans the rates it was fitted to; its "
            "lowest point is the rate at which that arm was replicated. Wide valleys forgive, narrow ones do not."
        )
    if rate_curves.FAILED in str(spec):
        said += (
            " Above the dashed line, off the scale, stands what did not train, a row per arm: it counts with the loss "
            "at initialisation."
        )
    return Figure("learning-rates", said, spec, legend(study), keys)


def legend(study: Study, drawn: Iterable[str] | None = None) -> dict[str, tuple[str, str]]:
    """Label and colour of every arm that is drawn."""
    colors, shown = theme.arm_colors(study.arms), set(study.arms if drawn is None else drawn)
    return {arm: (study.label(arm), colors[arm]) for arm in study.arms if arm in shown}


# ---- evidence --------------------------------------------------------------------------------------------------------


def per_seed(study: Study) -> list[Item]:
    """A dot per pair, and the pairs as a table."""
    pairs = study.differences
    if pairs.empty:
        return []
    arms = [arm for arm in study.arms if arm != study.baseline]
    caption = (
        f"Each small mark is one seed: the arm's final loss minus that of {study.called(study.baseline or '')} with "
        "the same initial draws and batches. The tick is their mean, the thick line its simultaneous interval. An arm "
        "differs where the line misses 0 and does not matter where it lies inside the shaded band of ±m. No mean is "
        "drawn before the verdict, and none of an arm of which a pair is not whole."
    )
    shown = pairs.assign(label=pairs["arm"].map(study.label))
    columns = [
        Column("label", "arm"),
        numbers("seed", "seed", text.plain),
        numbers("baseline_loss", "baseline (nats)"),
        numbers("loss", "arm (nats)"),
        numbers("difference", "difference (nats)", text.signed),
        Column("baseline_outcome", "baseline's outcome"),
        Column("outcome", "arm's outcome"),
    ]
    keys = {"○": "one seed", "┃": "mean", "▬": "simultaneous interval", "░": "±m"}
    if (pairs["outcome"] == "stalled").any():
        keys["▽"] = "stalled, at the edge where it lies beyond"
    spec = figures.differences(pairs, study.verdicts, study.m, study.arms)
    return [
        Figure("differences-per-seed", caption, spec, legend(study, arms), keys),
        Table(
            "differences",
            f"Final loss of every pair; {int(pairs['ok'].sum())} of {text.plural(len(pairs), 'pair')} are whole.",
            shown,
            columns,
            mark="outcome",
        ),
    ]


def rates(study: Study) -> list[Item]:
    """How every arm came to its rate."""
    rows = []
    for arm in study.arms:
        choice, tried = study.choices.get(arm) or {}, study.trials[study.trials["arm"] == arm]
        rows.append(
            {
                "arm": study.label(arm),
                "lr": choice.get("lr"),
                "method": choice.get("method"),
                "regret": choice.get("regret"),
                "tried": len(tried),
                "good": int(tried["ok"].sum()),
                "best": tried[tried["ok"]]["loss"].min(),
                "note": choice.get("note") or "",
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
        Column("note", "note"),
    ]
    caption = (
        "The rate of every arm: the vertex of its parabola, or the best rate tried (argmin). Regret: what the "
        "uncertainty of the fit may have cost, 95th percentile; a verdict must hold with the arm's and the baseline's "
        "subtracted. n = 1 run per rate, so these losses carry no interval and decide nothing."
    )
    return [Table("rates", caption, pd.DataFrame(rows), columns, stacked=True)] if len(study.trials) else []


def losses(study: Study) -> list[Item]:
    """Evaluated loss, its difference to the baseline, and training loss, along the tokens."""
    curves_ = study.curves[study.curves["phase"] == "replicate"]
    evaluated, trained = curves_[curves_["kind"] == "eval"], curves_[curves_["kind"] == "train"]
    seeds = f"n = {study.rules.get('seeds')} seeds per arm where all are done"
    band = f"line: mean over the seeds; band: lowest to highest seed; {seeds}"
    items: list[Item] = []
    if evaluated["loss"].notna().any():
        caption = (
            f"Loss on the curve subset of the evaluated tokens ({band}). Arms are compared at the right end only, "
            "where every schedule has run out; a mean stops where a seed of the arm has no finite loss."
        )
        spec = figures.loss_curves(evaluated, study.runs, study.arms, "evaluated loss (nats)")
        items.append(Figure("evaluated-loss", caption, spec, legend(study, evaluated["arm"])))
    pairs = curves.paired(evaluated, study.baseline or "")
    later = pairs[pairs["tokens"] > pairs["tokens"].max() * 0.15]
    if later["loss"].notna().any():
        caption = (
            f"The same as a difference to {study.called(study.baseline or '')} of the same seed ({band}), from 15 % "
            "of the training on. Below 0 the arm is ahead. On the way it shows who learns sooner, not who is "
            "better: rates are still high there."
        )
        spec = figures.loss_curves(
            later, study.runs, study.arms, "difference of evaluated loss (nats)", difference=True
        )
        arms = [arm for arm in study.arms if arm != study.baseline]
        items.append(Figure("difference-along-training", caption, spec, legend(study, arms)))
    if trained["loss"].notna().any():
        logged, drawn = trained["tokens"].nunique(), curves.thin(trained)["tokens"].nunique()
        some = (
            f" Drawn are {drawn} of {logged} logged steps, picked, not averaged; the files have all."
            if drawn < logged
            else ""
        )
        caption = f"Training loss, mean of the batches since the last logged step ({band}).{some}"
        spec = figures.loss_curves(trained, study.runs, study.arms, "training loss (nats)")
        items.append(Figure("training-loss", caption, spec, legend(study, trained["arm"])))
    items.append(final_table(study)) if len(study.replicates()) else None
    return items


def layers(study: Study) -> list[Item]:
    """Gradient norms and the residual stream, block by block."""
    logged = study.layers[study.layers["phase"] == "replicate"]
    keys = {"· · · ·": "at initialisation", "───": "at the end, band from the lowest to the highest seed"}
    told = {
        "grad_norm": (
            "gradient-norm-by-layer",
            "gradient norm",
            "Gradient norm of every block on a fixed probe batch, mean over seeds. A level line means that every "
            "block learns at the same pace; a steep one that some hardly learn or that the last ones set the limit "
            "for the rate.",
        ),
        "residual_rms": (
            "residual-stream-by-layer",
            "RMS of the residual stream",
            "Size of the residual stream after every block, mean over seeds. Where it grows, each block adds to "
            "what is there and later blocks weigh relatively less; where it is level, a norm resets it.",
        ),
    }
    items: list[Item] = []
    for quantity, (name, title, caption) in told.items():
        rows = logged[logged["quantity"] == quantity]
        if rows["value"].notna().any():
            n = f" n = {rows['run_id'].nunique()} runs over all arms; the range between seeds is the band."
            items.append(
                Figure(name, caption + n, figures.by_layer(rows, study.arms, title), legend(study, rows["arm"]), keys)
            )
    return items


def noise(study: Study) -> list[Item]:
    """What the seeds alone do, and how many pairs m asks for."""
    items: list[Item] = []
    frame = summaries.final_losses(study)
    base = frame[(frame["arm"] == study.baseline) & frame["sd"].notna()]
    for row in base.to_dict("records"):
        span = text.span(row["sd_low"], row["sd_high"])
        items.append(
            Text(
                f"Between its {row['n']} seeds the baseline's final loss has a standard deviation of "
                f"{text.loss(row['sd'])} nats (95 % interval {span}). What pairs must beat is the noise of their "
                "differences."
            )
        )
    judged = study.verdicts[study.verdicts["sd"].notna()]
    if len(judged):
        columns = [
            Column("label", "arm"),
            numbers("n", "pairs", text.count),
            numbers("sd", "sd of differences (nats)"),
            numbers("smallest_visible", "smallest effect these pairs see (nats)"),
            numbers("pairs_needed", "pairs that would see m", text.count),
            numbers("pairs_needed_regret", "with the regret subtracted", text.count),
            numbers("regret", "regret of both (nats)", text.small),
            numbers("p", "p", text.probability),
            numbers("p_holm", "p (Holm)", text.probability),
            numbers("tost_p", "p (equivalence)", text.probability),
        ]
        caption = "With 80 % power at the family's level. The smallest visible effect is context, no gate."
        items.append(Table("power", caption, judged, columns))
    return items


def final_table(study: Study) -> Table:
    """The arms by themselves."""
    frame = summaries.final_losses(study)
    frame.insert(1, "label", frame["arm"].map(study.label))
    columns = [
        Column("label", "arm"),
        numbers("n", "n", text.count),
        numbers("planned", "planned", text.count),
        numbers("mean", "final loss (nats)"),
        numbers(("low", "high"), "95 % interval", text.span),
        numbers("sd", "sd over seeds"),
        numbers("bpb", "bits per byte"),
        numbers("initial", "at initialisation (nats)"),
    ]
    caption = (
        "Final loss of every arm by itself, mean over its seeds. Compare arms by their paired differences above, "
        "not by these intervals: seeds are shared, and their common part cancels in the pairs."
    )
    return Table("final-losses", caption, frame, columns)
