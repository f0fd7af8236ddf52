"""The saved workspace of a study in W&B: built from the study's files without a network, saved
where there is one.

W&B has one filter per workspace, and this one's is the study. Replication alone is therefore told
apart by metrics of its own (`eval/loss` is measured on the verdict part, `eval/tune_loss` on the
tune part) and by `series`.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import wandb
import wandb_workspaces.reports.v2 as panels
import wandb_workspaces.workspaces as workspaces
from wandb_workspaces import expr

from andrea.records.base import Settings
from andrea.store.studies import StudyFolder
from andrea.tracking.destination import Destination
from andrea.tracking.projection import LAYER_METRICS, short_name

# They export by import alone, which a type checker does not count.
wr: Any = panels
ws: Any = workspaces
Panel: TypeAlias = Any
Section: TypeAlias = Any
Workspace: TypeAlias = Any

MOST_RUNS = 500
"""Runs that a panel draws: W&B's own default of 10 would leave out seeds."""
MEAN_BY_SERIES = {"groupby": wr.Config("series"), "groupby_aggfunc": "mean"}
COLUMNS = ("arm", "phase", "lr", "seed")
RESULTS = ("outcome", "final_loss", "best_loss", "tokens_per_s", "parameters", "flops", "reason")


def build_workspace(folder: StudyFolder, project: str, entity: str = "") -> Workspace:
    """Return the dashboard of a study; the same study gives the same one."""
    study = folder.path.name
    if folder.load_info().kind == "sweep":
        sections = _sweep_sections(folder)
    else:
        sections = _ablation_sections(folder)
    columns = [f"config:{key}" for key in COLUMNS] + [f"summary:{key}" for key in RESULTS]
    workspace = ws.Workspace(
        entity=entity,
        project=project,
        # wandb-workspaces takes a plus sign for the beginning of an emoji's code.
        name=study.replace("+", "-"),
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis="tokens", max_runs=MOST_RUNS, smoothing_type="none"),
        runset_settings=ws.RunsetSettings(
            filters=expr.And(expr.Metric("Group") == study),
            order=[expr.Ordering(expr.Metric("JobType")), expr.Ordering(expr.Metric("Name"))],
            pinned_columns=columns,
        ),
    )
    # Random by default, so that every saving would make another view.
    workspace._internal_name = view_name(folder)
    workspace._internal_runset_id = _stable_id(study, "runs")
    for section in workspace.sections:
        section._id = _stable_id(study, section.name)
        for number, panel in enumerate(section.panels):
            panel._id = _stable_id(study, section.name, str(number))
    return workspace


def workspace_json(folder: StudyFolder, to: Destination) -> Settings:
    """Return what `save_workspace` sends, without a network; the entity is empty unless somebody
    named one.
    """
    spec: Settings = build_workspace(folder, to.project, to.entity)._spec
    return spec


def save_workspace(folder: StudyFolder, to: Destination) -> str:
    """Save the workspace, or update the one that was saved before; returns its address.

    A view is found again by its name in the address, which follows from the study: saved from two
    machines it is one.
    """
    entity = to.entity or str(wandb.Api().default_entity)
    workspace = build_workspace(folder, to.project, entity)
    # ValueError: there is none yet.
    with contextlib.suppress(ValueError):
        workspace._internal_id = ws.Workspace.from_url(workspace.url)._internal_id
    workspace.save()
    return str(workspace.url)


def view_name(folder: StudyFolder) -> str:
    """Return the name of the view in W&B's tables; its middle stands in the address."""
    return f"nw-{_stable_id(folder.path.name)}-v"


def _stable_id(*parts: str) -> str:
    """Return eleven letters and digits as W&B's own ids have, but the same every time."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:11]


def _ablation_sections(folder: StudyFolder) -> list[Section]:
    verdicts = [_question(folder), _table("verdicts")]
    if folder.load_question().factors:
        verdicts.append(_table("effects"))
    by_arm = "Loss on the verdict part by arm, mean and standard deviation over seeds"
    losses = [
        _curve(by_arm, "eval/loss"),
        _curve("Training loss by arm", "train/loss"),
        _curve("Loss on the tune part by arm", "eval/tune_loss"),
    ]
    return [
        _section("Verdicts", verdicts),
        _section("Loss", losses),
        _section("Learning rate", [_loss_against("lr"), *_rate_panels()]),
        _section("Search", _search_panels(COLUMNS, "final_tune_loss")),
        *_common_sections([_table("layers")]),
    ]


def _sweep_sections(folder: StudyFolder) -> list[Section]:
    names = [short_name(key) for key in folder.load_question().space]
    search = [_question(folder), *_search_panels(names, "final_loss"), _table("trials")]
    losses = [
        _curve("Loss on the tune part, every trial", "eval/tune_loss", band=False),
        _curve("Training loss, every trial", "train/loss", band=False),
    ]
    return [
        _section("Search", search),
        _section("Loss", losses),
        _section("Settings", [*map(_loss_against, names), _rate_panels()[0]]),
        *_common_sections([]),
    ]


def _common_sections(layer_tables: Sequence[Panel]) -> list[Section]:
    """Return the sections that every study has."""
    ends = [f"layers/{key}" for key in ("grad_norm_first", "grad_norm_last", "embedding_grad_norm")]
    layers = [_curve("Gradient norm of the first and the last layer and of the embedding", *ends)]
    for key in LAYER_METRICS:
        title = f"{key.replace('_', ' ')} by layer, of one run"
        layers.append(wr.LinePlot(title=title, x="tokens", y=[f"layers/{key}"]))
    throughput = [
        _curve("Tokens per second by arm", "train/tokens_per_s"),
        wr.BarPlot(title="Tokens per second", metrics=["tokens_per_s"], **MEAN_BY_SERIES),
    ]
    outcomes = [
        _table("outcomes"),
        _scatter("Where runs diverged", "lr", "diverged_at_tokens"),
        _scatter("Where runs stalled", "lr", "stalled_since_tokens"),
    ]
    return [
        _section("Layers", [*layers, *layer_tables]),
        _section("Throughput", throughput),
        _section("Outcomes", outcomes),
    ]


def _section(name: str, panels: Sequence[Panel]) -> Section:
    return ws.Section(name=name, panels=list(panels), is_open=True)


def _question(folder: StudyFolder) -> Panel:
    """Return the panel with the question, and with where the numbers come from."""
    question = folder.load_question()
    paragraphs = [
        f"**{folder.load_info().name}**",
        question.question,
        question.hypothesis,
        f"Written by `andrea sync {folder.path.name}` from the run store; the next one replaces "
        "this view.",
    ]
    return wr.MarkdownPanel(markdown="\n\n".join(filter(None, paragraphs)))


def _table(key: str) -> Panel:
    """Return a table of the study's own run (job type `report`)."""
    return wr.WeavePanelSummaryTable(table_name=key)


def _curve(title: str, *metrics: str, band: bool = True) -> Panel:
    """Return curves over tokens, of every run or (`band`) as means and deviations by series."""
    grouping = {}
    if band:
        grouping = {**MEAN_BY_SERIES, "groupby_rangefunc": "stddev"}
    return wr.LinePlot(
        title=title, x="tokens", y=list(metrics), max_runs_to_show=MOST_RUNS, **grouping
    )


def _scatter(title: str, setting: str, result: str) -> Panel:
    x, y = wr.Config(setting), wr.SummaryMetric(result)
    return wr.ScatterPlot(title=title, x=x, y=y, log_x=setting == "lr")


def _loss_against(setting: str) -> Panel:
    return _scatter(f"Final loss on the tune part at every {setting}", setting, "final_tune_loss")


def _rate_panels() -> list[Panel]:
    return [_curve("Learning rate over training", "train/lr", band=False), _table("rates")]


def _search_panels(settings: Sequence[str], target: str) -> list[Panel]:
    columns = [
        wr.ParallelCoordinatesPlotColumn(metric=wr.Config(key), log=key == "lr") for key in settings
    ]
    columns.append(wr.ParallelCoordinatesPlotColumn(metric=wr.SummaryMetric(target)))
    return [
        wr.ParallelCoordinatesPlot(title="Every run: settings and loss", columns=columns),
        wr.ParameterImportancePlot(with_respect_to=target),
    ]
