"""`andrea sweep`: an Optuna sweep of one config."""

from andrea.cli.options import examples
from andrea.cli.study_options import SweepOptions, takes_options

EXAMPLES = examples(
    "andrea sweep lr                                  learning rate of the tiny preset",
    "andrea sweep lr-wd --trials 40 --slots 4",
    "andrea sweep lr --set model.norm_placement=post --dry-run",
    "The same command given again resumes; other options make another study.",
)


@takes_options(SweepOptions)
def sweep(options: SweepOptions) -> None:
    """Search the hyper-parameters of one config with Optuna; prints the trials and the best
    config.
    """
    from andrea.cli.study_command import run_study_command

    run_study_command(options)
