"""Chapters that reports of different kinds share: the protocol, costs, settings that differ, the
appendix.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import yaml

from andrea.analysis.figures import theme
from andrea.analysis.load import Study
from andrea.analysis.report import Callout, Code, Column, Item, Table, Text, facts_table, numbers
from andrea.analysis.tables import summaries
from andrea.text import numbers as text


def arm_legend(study: Study, drawn: Iterable[str] | None = None) -> dict[str, tuple[str, str]]:
    """Return label and colour of every arm that is drawn; of all unless `drawn` names some."""
    colors, arms = theme.arm_colors(study.arms), set(study.arms if drawn is None else drawn)
    return {arm: (study.label(arm), colors[arm]) for arm in study.arms if arm in arms}


def arm_labels(study: Study) -> dict[str, str]:
    """Return the labels by arm."""
    return {arm: study.label(arm) for arm in study.arms}


def with_labels(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the labels of its arms in the second column."""
    labelled = frame.copy()
    labelled.insert(1, "label", frame["arm"].map(study.label))
    return labelled


def protocol_items(study: Study) -> list[Item]:
    """Return the protocol, as frozen before the first run."""
    rules = study.rules
    items: list[Item] = []
    question = study.protocol
    words = {"Claim": question.claim, "Hypothesis": question.hypothesis, "Why": question.why}
    items += [Text(f"{name}: {answer}") for name, answer in words.items() if answer]
    k = max(1, len(study.arms) - 1)
    facts = [
        ("judged by", _judged_by(study)),
        ("smallest effect of interest m", f"{study.m:g} nats" if study.m else text.NOTHING),
        (
            "test",
            f"paired t, Holm over {text.plural(k, 'arm')}, at {rules.alpha}; equivalent: two "
            f"one-sided tests against ±m at {rules.alpha:g}/{k}",
        ),
        ("replicates", f"{rules.seeds} seeds per arm, the same ones, which tuning never used"),
        ("tuning", describe_tuning(study)),
        ("matched", describe_matching(study)),
        ("corpus", describe_corpus(study)),
    ]
    facts += _evaluation_facts(study.replicates())
    platform, versions = study.resolved.platform, study.verdict.versions
    if platform:
        facts.append(("platform", ", ".join(f"{key} {value}" for key, value in platform.items())))
    if versions:
        numbered = ", ".join(f"{name} {number}" for name, number in versions.items())
        facts.append(("judged with", f"method {study.verdict.method}, {numbered}"))
    caption = f"The protocol, frozen {study.resolved.frozen_at or 'before the first run'}."
    return [*items, facts_table("protocol", caption, facts), *size_tables(study)]


def _evaluation_facts(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the text that replicates were evaluated and trained on; nothing before one has
    ended.
    """
    evaluated = runs.dropna(subset=["eval_tokens"])
    if evaluated.empty:
        return []
    digests = evaluated["eval_digest"].unique()
    same = "the same in every run" if len(digests) == 1 else f"{len(digests)} different sets"
    tokens = text.count(evaluated["eval_tokens"].iloc[0])
    most = runs[["tokens", "unique_tokens", "epochs"]].max()
    trained_on = f"{text.count(most['tokens'])} tokens, {text.count(most['unique_tokens'])} of them"
    facts = [
        ("evaluated", f"{tokens} tokens of the verdict part, {same} (digest {digests[0][:12]})"),
        ("trained on", f"{trained_on} unique, {text.short(most['epochs'])} epochs"),
    ]
    good = runs[runs["ok"]]
    if len(good):
        ratio = text.number((good["bpb"] / good["loss"]).iloc[0], 3)
        facts.append(("bits per byte", f"1 nat per token is {ratio} bits per byte of this text"))
    return facts


def _judged_by(study: Study) -> str:
    return (
        "final loss on text that neither training nor tuning reads (the verdict part), "
        f"arm − {study.baseline_label}, paired by seed"
    )


def describe_tuning(study: Study) -> str:
    """Return the tuning design in words."""
    trials = study.rules.trials
    if study.centers:
        centers = {study.called(arm): text.rate(center) for arm, center in study.centers.items()}
        own = text.listing([f"{arm} round {center}" for arm, center in centers.items()])
        middle = text.rate(study.rules.center)
        common = f"for every arm round {middle}, but {own}, as declared before the first run"
    else:
        grids = [choice.grid for choice in study.choices.values() if choice.grid]
        rates = f" ({', '.join(map(text.rate, grids[0]))})" if grids else ""
        common = f"common to all arms{rates}"
    if trials < 7:
        return f"{text.plural(trials, 'rate')} {common}, the best of them; no midpoints"
    return (
        f"{trials} runs per arm on one tuning seed: a half-decade grid {common}; then two "
        "midpoints round the arm's best; the vertex of the parabola through them"
    )


_QUANTITY = {"params": "parameters", "flops": "FLOPs per token, forward and backward"}


def describe_matching(study: Study) -> str:
    """Return the rule by which the arms match, in words."""
    match = study.protocol.match
    if match.on == "none":
        return "nothing: parameters and FLOPs differ as listed below"
    rule = f"{_QUANTITY[match.on]}, within {text.percent(match.tolerance)}"
    if (summaries.size_table(study)["setting"] != "").any():
        rule += f"; arms outside it were brought nearest to the baseline by model.{match.by} alone"
    return rule


def size_tables(study: Study) -> list[Item]:
    """Return size and cost of every arm, whatever was matched, and what was solved for."""
    frame = with_labels(study, summaries.size_table(study))
    if not frame["parameters"].notna().any():
        return []
    columns = [
        Column("label", "arm"),
        numbers("parameters", "parameters", text.count),
        numbers("params_against", "deviation", text.relative),
        numbers("flops_per_token", "FLOPs per token", text.big),
        numbers("flops_against", "deviation", text.relative),
    ]
    if (frame["setting"] != "").any():
        columns.append(Column(("setting", "was", "became"), "solved for", _format_solved))
    caption = (
        "Size and cost of every arm, counted from its configuration, and by how much they exceed "
        f"those of {study.baseline_label}. FLOPs are those of forward and backward."
    )
    return [Table("sizes", caption, frame, columns)]


def _format_solved(setting: Any, was: Any, became: Any) -> str:
    return f"{setting} {text.count(was)} → {text.count(became)}" if setting else text.NOTHING


def corpus_words(study: Study) -> str:
    """Return the source of the text and the tokenizer."""
    data = study.resolved_arm(study.baseline).config.get("data") or study.protocol.data
    return f"{data.get('source', 'sotu')}, tokenizer {data.get('tokenizer', 'byte')}"


_PURPOSE = {"train": "train on", "tune": "tune on", "verdict": "judge by"}


def describe_corpus(study: Study) -> str:
    """Return the corpus in words, with its size where it is known."""
    parts = [corpus_words(study)]
    corpus = study.corpus
    for unit, count in (("documents", corpus.documents), ("bytes", corpus.bytes)):
        if count is not None:
            parts.append(f"{text.count(count)} {unit}")
    for part, count in corpus.tokens.items():
        parts.append(f"{text.count(count)} tokens to {_PURPOSE.get(part, part)}")
    if study.resolved.fingerprint:
        parts.append(f"fingerprint {study.resolved.fingerprint[:12]}")
    return ", ".join(parts)


def cost_tables(study: Study) -> list[Item]:
    """Return the tables of parameters by group, and of operations, time and memory."""
    items: list[Item] = []
    groups = with_labels(study, summaries.parameter_table(study))
    named = [key for key in groups.columns if key not in ("arm", "label", "against")]
    if len(named) > 1:
        columns = [Column("label", "arm")]
        columns += [numbers(key, key.replace("_", " "), text.count) for key in named]
        columns.append(numbers("against", "against the baseline", text.relative))
        caption = "Parameters by group, counted from the configuration."
        items.append(Table("parameters", caption, groups, columns))
    frame = with_labels(study, summaries.cost_table(study))
    if frame["flops_per_token"].notna().any() or frame["n"].any():
        columns = [
            Column("label", "arm"),
            numbers("flops_per_token", "FLOPs per trained token", text.big),
            numbers("flops", "FLOPs per training", text.big),
            numbers("n", "n", text.count),
            numbers(("seconds", "seconds_sd"), "time per training", _mean_seconds),
            numbers(("tokens_per_s", "tokens_per_s_sd"), "tokens/s", _mean_speed),
            numbers("peak_memory_bytes", "peak memory", text.memory),
        ]
        caption = (
            "Means over the n completed replicates ± one standard deviation; of peak memory the "
            "largest. Do not compare times and tokens/s: runs shared the machine, in no controlled "
            "order."
        )
        items.append(Table("costs", caption, frame, columns))
    return items


def _mean_seconds(mean: Any, sd: Any) -> str:
    return text.NOTHING if text.absent(mean) else f"{text.seconds(mean)} ± {text.seconds(sd)}"


def _mean_speed(mean: Any, sd: Any) -> str:
    return text.NOTHING if text.absent(mean) else f"{text.count(mean)} ± {text.count(sd)}"


def difference_items(study: Study) -> list[Item]:
    """Return the settings and counts that are not the same in every arm."""
    frame = summaries.settings_that_differ(study)
    items: list[Item] = []
    if len(frame):
        columns = [Column("setting", "setting")]
        columns += [Column(arm, study.label(arm)) for arm in study.arms]
        caption = (
            "Resolved settings that differ, the tuned learning rate apart. Everything else is the "
            "same in every arm."
        )
        items.append(Table("settings-that-differ", caption, frame, columns))
    groups = summaries.parameter_table(study)
    others = [
        f"{study.called(arm)} {text.relative(share)}"
        for arm, share in zip(groups["arm"], groups["against"], strict=True)
        if arm != study.baseline
    ]
    if others and len(groups.columns) > 3:
        items.append(Text(f"Parameters against {study.baseline_label}: {text.listing(others)}."))
    return items


def config_yaml(config: Mapping[str, Any]) -> str:
    """Return a configuration as YAML, without the seeds, which are each run's own."""
    without_seeds = {key: value for key, value in config.items() if not key.endswith("seed")}
    return yaml.safe_dump(without_seeds, sort_keys=False)


def environment_items(study: Study) -> list[Item]:
    """Return every distinct environment, to be copied."""
    items: list[Item] = []
    for environment, n in study.environments:
        body = yaml.safe_dump(environment.to_json(), sort_keys=False, allow_unicode=True)
        items.append(Code(f"Environment of {text.plural(n, 'run')}", body))
    return items


def configuration_items(study: Study) -> list[Item]:
    """Return the configurations, environments and the question, to be copied."""
    items: list[Item] = []
    for arm in study.arms:
        config = dict(study.resolved_arm(arm).config)
        if config:
            lr = study.choice(arm).lr
            if lr is not None:
                config["train"] = {**config.get("train", {}), "lr": lr}
            title = f"Configuration of {study.called(arm)}, resolved"
            items.append(Code(title, config_yaml(config)))
    items += environment_items(study)
    if any(environment.git and environment.git.dirty for environment, _ in study.environments):
        body = "Runs were made with uncommitted changes: the commit alone does not tell them."
        items.append(Callout("Dirty tree.", body))
    return [*items, Code("Protocol, as asked", study.question_yaml)]


def _format_phase(phase: Any, why: Any) -> str:
    return str(phase) if phase == why else f"{phase}: {why}"


def run_tables(study: Study) -> list[Item]:
    """Return counts by arm and phase, and every run with its outcome."""
    counts = with_labels(study, summaries.progress_table(study))
    keys = ("planned", "done", "running", "failed", "missing")
    columns = [Column("label", "arm"), Column("phase", "phase")]
    columns += [numbers(key, key, text.count) for key in keys]
    progress = Table("progress", "Runs by arm and phase.", counts, columns)
    frame = study.runs.assign(
        label=study.runs["arm"].map(study.label),
        short=study.runs["run_id"].str[:12],
        fate=study.runs["outcome"].where(~study.runs["stalled"], "stalled"),
    )
    columns = [
        Column("short", "run"),
        Column("label", "arm"),
        Column(("phase", "why"), "phase", _format_phase),
        numbers("lr", "rate", text.rate),
        numbers("seed", "seed", text.plain),
        Column("fate", "outcome"),
        numbers("loss", "final loss (nats)"),
        numbers("bpb", "bits per byte"),
        numbers("seconds", "time", text.seconds),
        Column("reason", "remark"),
    ]
    caption = (
        f"{text.plural(len(frame), 'run')}. Tuning reads the tune part and replicates the verdict "
        "part: losses of the two are not compared."
    )
    return [progress, Table("runs", caption, frame, columns, mark="fate")]
