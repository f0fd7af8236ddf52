"""`andrea sweep`: an Optuna sweep of one config."""

from andrea.cli import options as opt
from andrea.cli.study_command import StudyOptions, run_study_command
from andrea.cli.wandb_mirror import MirrorOptions

EXAMPLES = opt.examples(
    "andrea sweep lr                                  learning rate of the tiny preset",
    "andrea sweep lr-wd --trials 40 --slots 4",
    "andrea sweep lr --set model.norm_placement=post --dry-run",
    "The same command given again resumes; other options make another study.",
)


def sweep(
    name: opt.SweepName,
    preset: opt.Preset = None,
    settings: opt.Settings = None,
    tokens: opt.Tokens = None,
    trials: opt.Trials = None,
    seeds: opt.Seeds = None,
    study: opt.StudyName = None,
    slots: opt.Slots = None,
    executor: opt.ExecutorName = "local",
    device: opt.Device = "auto",
    wandb: opt.Wandb = None,
    project: opt.WandbProject = None,
    entity: opt.WandbEntity = None,
    tags: opt.WandbTags = None,
    runs: opt.Runs = opt.DEFAULT_RUNS,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
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
