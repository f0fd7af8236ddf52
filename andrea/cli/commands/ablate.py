"""`andrea ablate`: the main job."""

from andrea.cli import options as opt
from andrea.cli.study_command import StudyOptions, run_study_command
from andrea.cli.wandb_mirror import MirrorOptions

EXAMPLES = opt.examples(
    "andrea ablate norm-placement                            the whole question: tune, replicate, "
    "judge, report",
    "andrea ablate norm-placement --dry-run                  arms, runs, FLOPs and time; starts "
    "nothing",
    "andrea ablate mine.yaml --set data.source=text:book.txt --tokens 1000000",
    "andrea ablate activation --seeds 8 --slots 4 --json > verdicts.json",
    "andrea ablate norm-placement --controls                 also checks whose outcome is known",
    "andrea ablate norm-placement --confirm                  also a second block of seeds, judged "
    "alone",
    "The same command given again resumes; --controls, --confirm and --equal add to a study that "
    "is there, and stay",
    "asked; other options make another study.",
)


def ablate(
    name: opt.AblationName,
    preset: opt.Preset = None,
    settings: opt.Settings = None,
    tokens: opt.Tokens = None,
    trials: opt.Trials = None,
    seeds: opt.Seeds = None,
    study: opt.StudyName = None,
    controls: opt.Controls = False,
    confirm: opt.Confirm = False,
    equal: opt.Equal = None,
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
    """Tune the learning rate of every arm alike, train every arm on the same fresh seeds, and give
    a verdict.
    """
    options = StudyOptions(
        kind="ablation",
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
        controls=controls,
        confirm=confirm,
        equal=equal or [],
    )
    run_study_command(options)
