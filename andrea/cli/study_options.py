"""The command lines of `andrea ablate` and `andrea sweep`, each a dataclass of options."""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from andrea.cli import options as opt
from andrea.cli.wandb_mirror import MirrorOptions

OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True)
class StudyOptions:
    """The options that both commands have; None where one is not given."""

    name: str
    preset: opt.Preset = None
    settings: opt.Settings = None
    tokens: opt.Tokens = None
    trials: opt.Trials = None
    seeds: opt.Seeds = None
    study: opt.StudyName = None
    slots: opt.Slots = None
    executor: opt.ExecutorName = "local"
    device: opt.Device = "auto"
    wandb: opt.Wandb = None
    project: opt.WandbProject = None
    entity: opt.WandbEntity = None
    tags: opt.WandbTags = None
    runs: opt.Runs = opt.DEFAULT_RUNS
    dry_run: opt.DryRun = False
    as_json: opt.Json = False

    @property
    def mirror(self) -> MirrorOptions:
        """The options of the W&B mirror."""
        return MirrorOptions(self.wandb, self.project, self.entity, self.tags)

    @property
    def stream(self) -> IO[str]:
        """Where people read: stdout, or stderr when stdout carries JSON."""
        return sys.stderr if self.as_json else sys.stdout

    def say(self, text: str = "") -> None:
        """Print for people, at once."""
        print(text, file=self.stream, flush=True)


@dataclass(frozen=True)
class AblateOptions(StudyOptions):
    """The options of `andrea ablate`."""

    name: opt.AblationName
    controls: opt.Controls = False
    confirm: opt.Confirm = False
    equal: opt.Equal = None
    debug: opt.Debug = False


@dataclass(frozen=True)
class SweepOptions(StudyOptions):
    """The options of `andrea sweep`: it has no verdicts, so nothing can be asked beside them."""

    name: opt.SweepName
    debug: opt.Debug = False


def takes_options(
    options_class: Callable[..., OptionsT],
) -> Callable[[Callable[[OptionsT], None]], Callable[..., None]]:
    """Give a command the fields of a dataclass as its command line."""

    def decorate(command: Callable[[OptionsT], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def command_of_fields(**values: Any) -> None:
            command(options_class(**values))

        # Typer reads the options of a command from its signature.
        command_of_fields.__signature__ = inspect.signature(options_class)  # type: ignore[attr-defined]
        return command_of_fields

    return decorate
