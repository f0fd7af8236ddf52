"""`andrea sweep`: an Optuna sweep of one config."""

from andrea.cli.options import (
    DEFAULT_RUNS,
    Debug,
    Device,
    DryRun,
    ExecutorName,
    Json,
    Preset,
    Runs,
    Seeds,
    Settings,
    Slots,
    StudyName,
    SweepName,
    Tokens,
    Trials,
    Wandb,
    WandbEntity,
    WandbProject,
    WandbTags,
    examples,
)
from andrea.cli.study_command import StudyOptions, run_study_command
from andrea.cli.wandb_mirror import MirrorOptions

EXAMPLES = examples(
    "andrea sweep lr                                  learning rate of the tiny preset",
    "andrea sweep lr-wd --trials 40 --slots 4",
    "andrea sweep lr --set model.norm_placement=post --dry-run",
    "The same command given again resumes; other options make another study.",
)


def sweep(
    name: SweepName,
    preset: Preset = None,
    settings: Settings = None,
    tokens: Tokens = None,
    trials: Trials = None,
    seeds: Seeds = None,
    study: StudyName = None,
    slots: Slots = None,
    executor: ExecutorName = "local",
    device: Device = "auto",
    wandb: Wandb = None,
    project: WandbProject = None,
    entity: WandbEntity = None,
    tags: WandbTags = None,
    runs: Runs = DEFAULT_RUNS,
    dry_run: DryRun = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Search the hyper-parameters of one config with Optuna; prints the trials and the best
    config.
    """
    options = StudyOptions(
        kind="sweep",
        name=name,
        preset=preset,
        settings=settings or [],
        tokens=tokens,
        trials=trials,
        seeds=seeds,
        study=study,
        slots=slots,
        executor=executor,
        device=device,
        mirror=MirrorOptions(wandb, project, entity, tags),
        runs=runs,
        dry_run=dry_run,
        as_json=as_json,
    )
    run_study_command(options)
