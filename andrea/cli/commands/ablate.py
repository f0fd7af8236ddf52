"""`andrea ablate`: the main job."""

from andrea.cli.options import examples
from andrea.cli.study_options import AblateOptions, takes_options

EXAMPLES = examples(
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


@takes_options(AblateOptions)
def ablate(options: AblateOptions) -> None:
    """Tune the learning rate of every arm alike, train every arm on the same fresh seeds, and give
    a verdict.
    """
    from andrea.cli.study_command import run_study_command

    run_study_command(options)
