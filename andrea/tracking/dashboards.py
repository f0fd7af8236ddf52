"""The saved workspace of a study in W&B: built from the study's files without a network, saved
where there is one.

W&B has one filter per workspace, and this one's is the study: what belongs to replication alone is
told by metrics of its own (`eval/loss` is measured on the verdict part, `eval/tune_loss` on the
tune part) and by `series`.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as panels
import wandb_workspaces.workspaces as workspaces
from wandb_workspaces import expr

from andrea.store.studies import StudyFolder
from andrea.tracking.destination import Destination
from andrea.tracking.projection import LAYER_METRICS, short_name

wr: Any = panels  # they export by import alone, which a type checker does not count
ws: Any = workspaces
MOST_RUNS = 500
"""Runs that a panel draws: W&B's own default of 10 would leave out seeds."""
COLUMNS = ("arm", "phase", "lr", "seed")
RESULTS = ("outcome", "final_loss", "best_loss", "tokens_per_s", "parameters", "flops", "reason")


def workspace(folder: StudyFolder, project: str, entity: str = "") -> Any:
    """The dashboard of a study; the same study gives the same one."""
    built = ws.Workspace(
        entity=entity,
        project=project,
        name=folder.path.name.replace("+", "-"),  # which wandb-workspaces takes for an emoji
        sections=_sweep(folder) if folder.load_info().kind == "sweep" else _ablation(folder),
        settings=ws.WorkspaceSettings(x_axis="tokens", max_runs=MOST_RUNS, smoothing_type="none"),
        runset_settings=ws.RunsetSettings(
            filters=expr.And(expr.Metric("Group") == folder.path.name),
            order=[expr.Ordering(expr.Metric("JobType")), expr.Ordering(expr.Metric("Name"))],
            pinned_columns=[
                *(f"config:{key}" for key in COLUMNS),
                *(f"summary:{key}" for key in RESULTS),
            ],
        ),
    )
    built._internal_name = view_name(folder)
    built._internal_runset_id = _name(folder.path.name, "runs")
    for section in built.sections:
        section._id = _name(folder.path.name, section.name)
        for at, panel in enumerate(section.panels):
            panel._id = _name(folder.path.name, section.name, str(at))
    return built


def workspace_json(folder: StudyFolder, to: Destination) -> dict[str, Any]:
    """What `save` sends, without a network; the entity is empty unless somebody named one."""
    spec: dict[str, Any] = workspace(folder, to.project, to.entity)._spec
    return spec


def save_workspace(folder: StudyFolder, to: Destination) -> str:
    """Save the workspace, or update the one that was saved before; returns its address.

    A view is found again by its name in the address, which follows from the study: saved from two
    machines it is one.
    """
    entity = to.entity or str(wandb.Api().default_entity)
    built = workspace(folder, to.project, entity)
    with contextlib.suppress(ValueError):  # there is none yet
        built._internal_id = ws.Workspace.from_url(built.url)._internal_id
    built.save()
    return str(built.url)


def view_name(folder: StudyFolder) -> str:
    """The name of the view in W&B's tables; its middle stands in the address."""
    return f"nw-{_name(folder.path.name)}-v"


def _name(*parts: str) -> str:
    """As W&B's own are: eleven letters and digits, but the same every time."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:11]


def _ablation(folder: StudyFolder) -> list[Any]:
    verdicts = [_markdown(folder), _table("verdicts")]
    if folder.load_question().factors:
        verdicts.append(_table("effects"))
    losses = [
        _curve(
            "Loss on the verdict part by arm, mean and standard deviation over seeds", ["eval/loss"]
        ),
        _curve("Training loss by arm", ["train/loss"]),
        _curve("Loss on the tune part by arm", ["eval/tune_loss"]),
    ]
    columns = [
        wr.ParallelCoordinatesPlotColumn(metric=wr.Config(key), log=key == "lr") for key in COLUMNS
    ]
    return [
        _section("Verdicts", verdicts),
        _section("Loss", losses),
        _section("Learning rate", _rates("lr")),
        _section("Search", _search(columns, "final_tune_loss")),
        *_common(_table("layers")),
    ]


def _sweep(folder: StudyFolder) -> list[Any]:
    names = [short_name(key) for key in folder.load_question().space]
    columns = [
        wr.ParallelCoordinatesPlotColumn(metric=wr.Config(key), log=key == "lr") for key in names
    ]
    scatters = [panel for name in names for panel in _rates(name)[:1]]
    losses = [
        _curve("Loss on the tune part, every trial", ["eval/tune_loss"], band=False),
        _curve("Training loss, every trial", ["train/loss"], band=False),
    ]
    return [
        _section("Search", [_markdown(folder), *_search(columns, "final_loss"), _table("trials")]),
        _section("Loss", losses),
        _section("Settings", [*scatters, _rates("lr")[1]]),
        *_common(),
    ]


def _common(*more: Any) -> list[Any]:
    """What every study has.

    Args:
        more: further panels about layers.
    """
    layers = [
        _curve(
            "Gradient norm of the first and the last layer and of the embedding",
            ["layers/grad_norm_first", "layers/grad_norm_last", "layers/embedding_grad_norm"],
        ),
        *(
            wr.LinePlot(
                title=f"{key.replace('_', ' ')} by layer, of one run",
                x="tokens",
                y=[f"layers/{key}"],
            )
            for key in LAYER_METRICS
        ),
        *more,
    ]
    throughput = [
        _curve("Tokens per second by arm", ["train/tokens_per_s"]),
        wr.BarPlot(
            title="Tokens per second",
            metrics=["tokens_per_s"],
            groupby=wr.Config("series"),
            groupby_aggfunc="mean",
        ),
    ]
    outcomes = [
        _table("outcomes"),
        wr.ScatterPlot(
            title="Where runs diverged",
            x=wr.Config("lr"),
            y=wr.SummaryMetric("diverged_at_tokens"),
            log_x=True,
        ),
        wr.ScatterPlot(
            title="Where runs stalled",
            x=wr.Config("lr"),
            y=wr.SummaryMetric("stalled_since_tokens"),
            log_x=True,
        ),
    ]
    return [
        _section("Layers", layers),
        _section("Throughput", throughput),
        _section("Outcomes", outcomes),
    ]


def _section(name: str, panels: Sequence[Any]) -> Any:
    return ws.Section(name=name, panels=list(panels), is_open=True)


def _markdown(folder: StudyFolder) -> Any:
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


def _table(key: str) -> Any:
    """A table of the study's own run (job type `report`)."""
    return wr.WeavePanelSummaryTable(table_name=key)


def _curve(title: str, metrics: list[str], *, band: bool = True) -> Any:
    by_arm = {
        "groupby": wr.Config("series"),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
    }
    return wr.LinePlot(
        title=title, x="tokens", y=metrics, max_runs_to_show=MOST_RUNS, **(by_arm if band else {})
    )


def _rates(setting: str) -> list[Any]:
    """The loss against a setting, and the schedule of the rate."""
    return [
        wr.ScatterPlot(
            title=f"Final loss on the tune part at every {setting}",
            x=wr.Config(setting),
            y=wr.SummaryMetric("final_tune_loss"),
            log_x=setting == "lr",
        ),
        _curve("Learning rate over training", ["train/lr"], band=False),
        _table("rates"),
    ]


def _search(columns: list[Any], target: str) -> list[Any]:
    end = wr.ParallelCoordinatesPlotColumn(metric=wr.SummaryMetric(target))
    return [
        wr.ParallelCoordinatesPlot(title="Every run: settings and loss", columns=[*columns, end]),
        wr.ParameterImportancePlot(with_respect_to=target),
    ]
