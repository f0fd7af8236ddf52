"""The pairs behind a verdict: every seed, the arms by themselves, and the smallest effect that
these pairs can show.
"""

from andrea.analysis.chapters import common as chapters
from andrea.analysis.figures import replicates as figures
from andrea.analysis.load import Study
from andrea.analysis.report import Column, Figure, Item, Table, Text, numbers
from andrea.analysis.tables import summaries
from andrea.text import numbers as text


def pair_items(study: Study) -> list[Item]:
    """Return the figure with a mark per pair, and the pairs as a table."""
    pairs = study.differences
    if pairs.empty:
        return []
    arms = [arm for arm in study.arms if arm != study.baseline]
    caption = (
        f"Each small mark is one seed: the arm's final loss minus that of {study.baseline_label} "
        "with the same initial draws and batches. The tick is their mean, the thick line its "
        "simultaneous interval. An arm differs where the line misses 0 by more than the choice of "
        "rates may have cost, and does not matter where it lies inside the shaded band of ±m. No "
        "mean is drawn before the verdict, and none of an arm of which a pair is not whole."
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
    labels = chapters.arm_labels(study)
    spec = figures.draw_differences(pairs, study.verdicts, study.m, study.arms, labels)
    whole = f"{int(pairs['ok'].sum())} of {text.plural(len(pairs), 'pair')} are whole"
    return [
        Figure("differences-per-seed", caption, spec, chapters.arm_legend(study, arms), keys),
        Table("differences", f"Final loss of every pair; {whole}.", shown, columns, mark="outcome"),
    ]


def noise_items(study: Study) -> list[Item]:
    """Return the noise of the seeds, and the number of pairs that the margin needs."""
    items: list[Item] = []
    frame = summaries.final_losses(study)
    base = frame[(frame["arm"] == study.baseline) & frame["sd"].notna()]
    for row in base.to_dict("records"):
        noise = (
            f"Between its {row['n']} seeds the baseline's final loss has a standard deviation of "
            f"{text.nats(row['sd'])} (95 % interval {text.span(row['sd_low'], row['sd_high'])}). "
            "What pairs must beat is the noise of their differences."
        )
        items.append(Text(noise))
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
        caption = (
            "With 80 % power at the family's level. The smallest visible effect is context, no "
            "gate."
        )
        items.append(Table("power", caption, judged, columns))
    return items


def final_loss_table(study: Study) -> Table:
    """Return the final losses of the arms, each by itself."""
    frame = chapters.with_labels(study, summaries.final_losses(study))
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
        "Final loss of every arm by itself, mean over its seeds. Compare arms by their paired "
        "differences above, "
        "not by these intervals: seeds are shared, and their common part cancels in the pairs."
    )
    return Table("final-losses", caption, frame, columns)
