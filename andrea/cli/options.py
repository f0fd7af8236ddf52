"""The options that commands share, each defined once."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from andrea.cli import completion
from andrea.store.usual import DEFAULT_RUNS as DEFAULT_RUNS


def examples(*lines: str) -> str:
    r"""Return the end of a help text. The leading `\b` keeps the line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def option(flag: str, help: str, **settings: Any) -> Any:
    """Return an option of a command; `--tokens N` calls its value N."""
    name, _, metavar = flag.partition(" ")
    return typer.Option(name, metavar=metavar or None, help=help, **settings)


def argument(metavar: str, help: str, **settings: Any) -> Any:
    """Return an argument of a command."""
    return typer.Argument(metavar=metavar, help=help, **settings)


def _store_debug(context: typer.Context, value: bool) -> bool:
    context.meta["andrea.debug"] = value
    return value


Debug = Annotated[bool, option("--debug", "Show the traceback of an error.", callback=_store_debug)]
Runs = Annotated[
    Path,
    option("--runs DIR", "Folder of runs and studies.", envvar="ANDREA_RUNS", show_envvar=True),
]
Json = Annotated[bool, option("--json", "Print JSON on stdout, everything else on stderr.")]
Preset = Annotated[
    str | None,
    option(
        "--preset NAME",
        "Model to start from (andrea list presets).",
        autocompletion=completion.preset_names,
    ),
]
Settings = Annotated[
    list[str] | None,
    option(
        "--set SECTION.FIELD=VALUE",
        "Override a setting; may be repeated, and of two values for one setting the last counts.",
        autocompletion=completion.setting_paths,
    ),
]
Variants = Annotated[
    Path | None,
    option("--variants FILE", "Python file that registers your own variants (ablations/mine.py)."),
]
Tokens = Annotated[int | None, option("--tokens N", "Training tokens per run.", min=1)]
Trials = Annotated[int | None, option("--trials N", "Trials per arm, or of the sweep.", min=1)]
Seeds = Annotated[
    int | None, option("--seeds N", "Paired replicates per arm, or seeds per trial.", min=1)
]
StudyName = Annotated[
    str | None, option("--study NAME", "Name of the study; default: the question's.")
]
Slots = Annotated[
    int | None,
    option("--slots N", "Runs at once; default: cores / threads per run, or one per GPU.", min=1),
]
ExecutorName = Annotated[
    Literal["local", "inline"],
    option(
        "--executor", "local: a process per run; inline: one run after another in this process."
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], option("--device", "Where runs are trained.")]
Wandb = Annotated[
    Literal["off", "offline", "online"] | None,
    option("--wandb", "Mirror to Weights & Biases; default: offline, or what WANDB_MODE says."),
]
WandbProject = Annotated[
    str | None,
    option(
        "--wandb-project NAME",
        "W&B project; default: WANDB_PROJECT, else that of the study's last mirror, else andrea.",
    ),
]
WandbEntity = Annotated[
    str | None,
    option(
        "--wandb-entity NAME",
        "W&B user or team; default: WANDB_ENTITY, else that of the study's last mirror, else "
        "the account's own.",
    ),
]
WandbTags = Annotated[
    str | None,
    option(
        "--wandb-tags LIST",
        "Further tags of every W&B run, with commas; default: WANDB_TAGS, else those of the "
        "study's last mirror.",
    ),
]
Controls = Annotated[
    bool,
    option(
        "--controls", "Also run checks with a known outcome: a repeat, A/A, and half the tokens."
    ),
]
Confirm = Annotated[
    bool,
    option(
        "--confirm",
        "Also a second block of seeds, judged alone: once per study, after its verdict.",
    ),
]
Equal = Annotated[
    list[str] | None,
    option(
        "--equal LIST", "Also compare at equal flops, time, or flops,time: arms trained on as much."
    ),
]
DryRun = Annotated[
    bool, option("--dry-run", "Print what would run and how long it takes; start nothing.")
]
QUESTION_HELP = "A name from `andrea list`, or a YAML file."
AblationName = Annotated[
    str, argument("NAME", QUESTION_HELP, autocompletion=completion.ablation_names)
]
SweepName = Annotated[str, argument("NAME", QUESTION_HELP, autocompletion=completion.sweep_names)]
STUDY_HELP = "Folder name of a study, or its bare name: the latest."
STUDY = argument("STUDY", STUDY_HELP, autocompletion=completion.study_names)
Study = Annotated[str, STUDY]
