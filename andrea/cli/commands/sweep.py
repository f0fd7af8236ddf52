"""`andrea sweep`: an Optuna sweep of one config."""

from andrea.cli.commands.start import starter
from andrea.cli.options import examples

EXAMPLES = examples(
    "andrea sweep lr                                  learning rate of the tiny preset",
    "andrea sweep lr-wd --trials 40 --slots 4",
    "andrea sweep lr --set model.norm_placement=post --dry-run",
    "The same command given again resumes; other options make another study.",
)

sweep = starter(
    "sweep",
    "Search the hyper-parameters of one config with Optuna; prints the trials and the best config.",
)
