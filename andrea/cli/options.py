"""The options that commands share, each defined once."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from andrea.cli import completion
from andrea.store.usual import DEFAULT_RUNS as DEFAULT_RUNS


def examples(*lines: str) -> str:
    r"""Return the end of a help text. The leading `\b` keeps the line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _store_debug(context: typer.Context, value: bool) -> bool:
    context.meta["andrea.debug"] = value
    return value


Debug = Annotated[
    bool,
    typer.Option("--debug", callback=_store_debug, help="Show the traceback of an error."),
]
Runs = Annotated[
    Path,
    typer.Option(
        "--runs",
        metavar="DIR",
        envvar="ANDREA_RUNS",
        show_envvar=True,
        help="Folder of runs and studies.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout, everything else on stderr.")
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        autocompletion=completion.preset_names,
        help="Model to start from (andrea list presets).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        autocompletion=completion.setting_paths,
        help="Override a setting; may be repeated, and of two values for one setting the last "
        "counts.",
    ),
]
Variants = Annotated[
    Path | None,
    typer.Option(
        "--variants",
        metavar="FILE",
        help="Python file that registers your own variants (ablations/mine.py).",
    ),
]
Tokens = Annotated[
    int | None, typer.Option("--tokens", min=1, metavar="N", help="Training tokens per run.")
]
Trials = Annotated[
    int | None,
    typer.Option("--trials", min=1, metavar="N", help="Trials per arm, or of the sweep."),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds", min=1, metavar="N", help="Paired replicates per arm, or seeds per trial."
    ),
]
StudyName = Annotated[
    str | None,
    typer.Option("--study", metavar="NAME", help="Name of the study; default: the question's."),
]
Slots = Annotated[
    int | None,
    typer.Option(
        "--slots",
        min=1,
        metavar="N",
        help="Runs at once; default: cores / threads per run, or one per GPU.",
    ),
]
ExecutorName = Annotated[
    Literal["local", "inline"],
    typer.Option(
        "--executor",
        help="local: a process per run; inline: one run after another in this process.",
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Where runs are trained.")
]
Wandb = Annotated[
    Literal["off", "offline", "online"] | None,
    typer.Option(
        "--wandb", help="Mirror to Weights & Biases; default: offline, or what WANDB_MODE says."
    ),
]
WandbProject = Annotated[
    str | None,
    typer.Option(
        "--wandb-project",
        metavar="NAME",
        help="W&B project; default: WANDB_PROJECT, else that of the study's last mirror, else "
        "andrea.",
    ),
]
WandbEntity = Annotated[
    str | None,
    typer.Option(
        "--wandb-entity",
        metavar="NAME",
        help="W&B user or team; default: WANDB_ENTITY, else that of the study's last mirror, else "
        "the account's own.",
    ),
]
WandbTags = Annotated[
    str | None,
    typer.Option(
        "--wandb-tags",
        metavar="LIST",
        help="Further tags of every W&B run, with commas; default: WANDB_TAGS, else those of the "
        "study's last mirror.",
    ),
]
Controls = Annotated[
    bool,
    typer.Option(
        "--controls",
        help="Also run checks with a known outcome: a repeat, A/A, and half the tokens.",
    ),
]
Confirm = Annotated[
    bool,
    typer.Option(
        "--confirm",
        help="Also a second block of seeds, judged alone: once per study, after its verdict.",
    ),
]
Equal = Annotated[
    list[str] | None,
    typer.Option(
        "--equal",
        metavar="LIST",
        help="Also compare at equal flops, time, or flops,time: arms trained on as much.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print what would run and how long it takes; start nothing."),
]
AblationName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        autocompletion=completion.ablation_names,
        help="A name from `andrea list`, or a YAML file.",
    ),
]
SweepName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        autocompletion=completion.sweep_names,
        help="A name from `andrea list`, or a YAML file.",
    ),
]
Study = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        autocompletion=completion.study_names,
        help="Folder name of a study, or its bare name: the latest.",
    ),
]
