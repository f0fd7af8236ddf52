"""An Optuna sweep: its trials, the best configuration, and the importance of the parameters.

Copy this file to ./reports/sweep.py and change it. `build(study)` gets tidy pandas tables
(`study.runs`, `study.trials`, `study.curves`, …; columns in `andrea.analysis.tables.frames`) and
returns a `Report`. Losses are in nats per token on the tune part.
"""

import json
from typing import Any

import pandas as pd

from andrea.analysis.chapters import common as chapters
from andrea.analysis.chapters import sentences as words
from andrea.analysis.figures import importances
from andrea.analysis.figures import parallel_coordinates as parallel
from andrea.analysis.figures import sweep as searches
from andrea.analysis.figures.marks import group_legend
from andrea.analysis.load import Study
from andrea.analysis.report import (
    Bullets,
    Callout,
    Code,
    Column,
    Figure,
    Item,
    Report,
    Section,
    Table,
    Text,
    facts_table,
    intervals,
    numbers,
)
from andrea.analysis.tables import summaries
from andrea.text import numbers as text


def build(study: Study) -> Report:
    """Return the report of a sweep, finished or not."""
    trials = summaries.sweep_trials(study)
    shares = compute_importances(study, trials)
    sections = [
        Section("How it was done", search_table(study)),
        Section("Trials", [trial_table(study, trials)]),
        Section("What mattered", importance_items(study, trials, shares)),
        Section("Along each parameter", slice_figures(study, trials)),
        Section("All parameters together", joint_figures(study, trials, shares)),
        Section("Configuration and environment", configuration_items(study)),
    ]
    question = (
        study.protocol.question
        or f"Which {text.listing(summaries.parameter_names(study))} suit this model?"
    )
    return Report(
        title=f"{study.name} · sweep",
        question=str(question),
        answer=write_answer(study, trials),
        head=first_screen(study, trials),
        sections=[section for section in sections if section.items],
        frames=study.frames(),
        details=list_details(study, trials),
    )


def write_answer(study: Study, trials: pd.DataFrame) -> str:
    """Return the best trial in one sentence, or that there is none yet."""
    good = trials[trials["ok"]].sort_values(["loss", "trial"])
    if not study.is_decided:
        done = int((~trials["loss"].isna()).sum())
        so_far = f"; the best so far is trial {good['trial'].iloc[0]}" if len(good) else ""
        return (
            f"Not decided yet: {done} of {study.protocol.trials or len(trials)} trials are "
            f"done{so_far}."
        )
    if good.empty:
        return f"None of {text.plural(len(trials), 'trial')} trained: each diverged or stalled."
    best = good.iloc[0]
    setting = text.listing(
        [f"{name} {format_value(best[name])}" for name in summaries.parameter_names(study)]
    )
    runs = text.plural(int(best["n"]), "run")
    return (
        "On this corpus, at this size and budget, the lowest of "
        f"{text.plural(len(trials), 'trial')} is trial {best['trial']} with {setting}: "
        f"{text.loss(best['loss'])} nats on the tune part (n = {runs}, chosen as the lowest, so it "
        "flatters)."
    )


def format_value(setting: Any) -> str:
    """Return a parameter's value in few characters."""
    return text.rate(setting) if isinstance(setting, float) else text.plain(setting)


def list_details(study: Study, trials: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the conditions of the answer."""
    config = next((arm.config for arm in study.resolved.arms.values()), {})
    facts = [("trials", text.count(len(trials))), ("sampler", study.protocol.sampler or "tpe")]
    if config.get("model"):
        facts.append(("size", text.shape(config["model"])))
    if data := config.get("data"):
        facts.append(("corpus", f"{data.get('source')}, tokenizer {data.get('tokenizer')}"))
    if study.runs["tokens"].notna().any():
        facts.append(("training", f"{text.count(study.runs['tokens'].max())} tokens"))
    return facts


def first_screen(study: Study, trials: pd.DataFrame) -> list[Item]:
    """Return warnings, the best settings and the history."""
    items: list[Item] = []
    if not study.complete:
        items.append(Callout("Half finished.", "What is shown is what is there; still missing:"))
        items.append(Bullets(words.list_missing(study) or ["trials that are not proposed yet"]))
    if untrained := words.describe_untrained(study):
        items.append(Callout("Did not train.", untrained))
    params = study.best.params
    if params:
        options = " ".join(
            f"--set {name}={json.dumps(setting)}" for name, setting in params.items()
        )
        items.append(Code("The best settings, as options", options, "sh", folded=False))
    if trials["ok"].any():
        caption = (
            "Loss of every trial in the order of proposal; the line is the best so far (n = "
            f"{int(trials['n'].max())} per trial). Where the line is level for long, more trials "
            "of this kind bring little."
        )
        spec = searches.draw_history(trials)
        items.append(Figure("history", caption, spec, keys=mark_keys(trials)))
    return items


def mark_keys(trials: pd.DataFrame) -> dict[str, str]:
    """Return the marks in use, with their meanings."""
    signs = {"○": "one trial"}
    if (trials["outcome"] == "stalled").any():
        signs["▽"] = "stalled, at the upper edge"
    if (trials["outcome"] == "diverged").any():
        signs["✚"] = "diverged, at the upper edge"
    return signs


def trial_table(study: Study, trials: pd.DataFrame) -> Table:
    """Return the table of all trials, best first."""
    frame = trials.assign(
        short=trials["run_id"].str[:12],
        rank=trials["loss"].where(trials["ok"]).rank(method="first"),
    )
    frame = frame.sort_values("rank", na_position="last", kind="stable").reset_index(drop=True)
    settings = [
        Column(name, name, format_value, numeric=pd.api.types.is_numeric_dtype(trials[name]))
        for name in summaries.parameter_names(study)
    ]
    columns = [
        numbers("trial", "trial", text.plain),
        *settings,
        numbers("loss", "loss (nats)"),
        numbers("n", "n", text.count),
        Column("outcome", "outcome"),
        numbers("generation", "generation", text.plain),
        Column("short", "run"),
    ]
    caption = (
        f"{text.plural(len(frame), 'trial')}, best first; loss: final, on the tune part, mean over "
        "n runs. A trial that diverged or stalled counts with the loss at initialisation."
    )
    return Table("trial-values", caption, frame, columns, mark="outcome")


def compute_importances(study: Study, trials: pd.DataFrame) -> pd.DataFrame | None:
    """Return the importances; None where there are too few trials."""
    names = summaries.parameter_names(study)
    if importances.reason_without_importance(trials, names):
        return None
    return importances.importance_shares(trials, names, study.protocol.ranges)


def importance_items(study: Study, trials: pd.DataFrame, table: pd.DataFrame | None) -> list[Item]:
    """Return figure and table of the importances, or why there are none."""
    if table is None:
        names = summaries.parameter_names(study)
        reason = importances.reason_without_importance(trials, names)
        return [Text(f"{reason}.")] if len(names) > 1 else []
    row = table.iloc[0]
    untrained = int(row["n"] - row["good"])
    sample = f"n = {row['n']} finished trials" + (
        f", of which {untrained} did not train and count among the worst" if untrained else ""
    )
    meaning = (
        f"PED-ANOVA: where the values of the best {row['best']} trials lie against where those of "
        f"all lie, as a share of the sum over the parameters ({sample}). A share says where the "
        "search had to look, not how many nats it gained: a parameter of small share may still "
        f"have a best value. Range: central 95 % over {importances.RESAMPLES} resamples of the "
        "trials; no test."
    )
    columns = [
        Column("parameter", "parameter"),
        numbers("share", "importance", text.percent),
        numbers(("low", "high"), "over resamples", intervals(text.percent)),
        numbers("n", "trials", text.count),
        numbers("good", "trained", text.count),
    ]
    caption = (
        "The bar is the share, the line across it its range over resampled trials: where lines "
        "overlap, the order is open."
    )
    return [
        Figure("importance-shares", caption, importances.draw_importances(table)),
        Table("importances", meaning, table, columns, stacked=True),
    ]


def joint_figures(study: Study, trials: pd.DataFrame, shares: pd.DataFrame | None) -> list[Item]:
    """Return a line per trial over all parameters, and the two of largest importance."""
    names, space = summaries.parameter_names(study), study.protocol.ranges
    if len(names) < 2 or not trials["ok"].any():
        return []
    logs = [name for name in names if searches.searched_on_log_scale(trials, name, space)]
    done = int(trials["loss"].notna().sum())
    sample = f"n = {text.plural(done, 'finished trial')}, {int(trials['n'].max())} per setting"
    caption = (
        f"A line per trial ({sample}), from parameter to parameter to its loss, low losses below. "
        "Where the lines of the best quarter pass close together that value mattered; where they "
        f"fan out it did not.{' Log axes: ' + text.listing(logs) + '.' if logs else ''} Point at a "
        "mark to follow its trial."
    )
    legend = group_legend(parallel.trial_groups(trials), parallel.GROUPS)
    lines = parallel.draw_parallel_coordinates(trials, names, space)
    first, second = names[:2]
    how_chosen = "the first two parameters"
    if shares is not None:
        first, second = shares["parameter"][:2]
        how_chosen = "the two parameters of largest importance"
    pair_caption = (
        f"Every trial over {first} and {second}, {how_chosen} (n = {done}). A slanted or bent "
        "cloud of best trials means that the best value of one depends on the other."
    )
    signs = {
        sign: meaning.replace(", at the upper edge", "")
        for sign, meaning in mark_keys(trials).items()
    }
    pair = parallel.draw_pair(trials, first, second, space)
    return [
        Figure("parallel-coordinates", caption, lines, legend),
        Figure("pair", pair_caption, pair, legend, signs),
    ]


def slice_figures(study: Study, trials: pd.DataFrame) -> list[Item]:
    """Return a figure per parameter."""
    items: list[Item] = []
    names = summaries.parameter_names(study)
    others = ""
    if len(names) > 1:
        others = (
            " The other parameters vary too: the lower edge is what this one can reach, the spread "
            "above it their doing."
        )
    for name in names if trials["ok"].any() else []:
        log = searches.searched_on_log_scale(trials, name, study.protocol.ranges)
        caption = (
            f"Loss over {name}{' (log axis)' if log else ''}, later trials darker, n = "
            f"{int(trials['n'].max())} per trial.{others}"
        )
        spec = searches.draw_slice(trials, name, log)
        slug = name.replace(".", "-").replace("_", "-")
        items.append(Figure(f"slice-{slug}", caption, spec, keys=mark_keys(trials)))
    return items


def search_table(study: Study) -> list[Item]:
    """Return space and sampler, with every argument."""
    rows = [(name, json.dumps(dimension)) for name, dimension in study.protocol.space.items()]
    fields = {"sampler", "seed", "generation", "sampling"}
    search = study.best.search or study.protocol.model_dump(include=fields, exclude_unset=True)
    rows += [
        (key, setting if isinstance(setting, str) else json.dumps(setting))
        for key, setting in search.items()
    ]
    caption = (
        "The search: its space, and the sampler with every argument. Trials of a generation are "
        "proposed together."
    )
    return [facts_table("search", caption, rows)] if rows else []


def configuration_items(study: Study) -> list[Item]:
    """Return the best configuration, the question and the environments."""
    items: list[Item] = []
    if study.best.config:
        body = chapters.config_yaml(study.best.config)
        items.append(Code("The best configuration, resolved", body))
    items.append(Code("Sweep, as asked", study.question_yaml))
    return items + chapters.environment_items(study)
