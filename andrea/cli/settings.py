"""From `--preset` and `--set` to a validated run config."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea.errors import UserError, did_you_mean, nearest

if TYPE_CHECKING:
    from andrea.config import RunConfig


def know_variants(script: Path | None) -> None:
    """Load a user's own variants, so that settings may name them; their source's digest enters ids
    of what uses them.

    Raises:
        UserError: there is no such file, or it cannot be imported.
    """
    from andrea.catalogue import load_user_variants

    if script is None:
        return
    if script.suffix != ".py" or not script.is_file():
        raise UserError(
            f"--variants {script}: no such Python file; ablations/mine.py is the one of "
            "ablations/mine.yaml"
        )
    load_user_variants(script)


def known_preset(name: str, where: str = "--preset: ") -> str:
    """The name itself.

    Args:
        where: what the name was given to; empty for an argument.

    Raises:
        UserError: there is no such preset.
    """
    from andrea.model.presets import PRESETS

    if name not in PRESETS:
        raise UserError(f"{where}no preset {name!r}; {nearest(name, PRESETS)}")
    return name


def run_config(
    preset: str | None,
    overrides: Sequence[str],
    where: str = "--preset: ",
    said: str = "--set",
    **top: Any,
) -> "RunConfig":
    """A run config from a preset, overrides and settings of the top level (`seed=3`).

    Args:
        where: what the preset was given to; empty for an argument.
        said: what the overrides were given to.

    Raises:
        UserError: every fault of the overrides in one message.
    """
    from andrea.config import RunConfig, build, merge, parse_overrides
    from andrea.model.presets import PRESETS

    base = {"model": dict(PRESETS[known_preset(preset, where)])} if preset is not None else {}
    given = {key: value for key, value in top.items() if value is not None}
    return build(RunConfig, merge(base, parse_overrides(overrides), given), where=said)


def of_model_alone(overrides: Sequence[str]) -> None:
    """Refuse settings that a command would not read, since it trains nothing.

    Raises:
        UserError: one is not of the model.
    """
    from andrea.config import dotted, full_name, parse_overrides

    if others := [
        path for path in dotted(parse_overrides(overrides)) if not path.startswith("model.")
    ]:
        if (meant := full_name(others[0])) and meant.startswith("model."):
            raise UserError(f"--set {others[0]}: unknown; {did_you_mean(meant)}")
        raise UserError(
            f"--set {others[0]}: nothing is trained here: only settings of model are read"
        )


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_slots(device: str, threads: int) -> int:
    """Runs at once where nobody says: cores over threads per run, or one per GPU; at least 1."""
    if device == "cuda":
        import torch

        return max(1, torch.cuda.device_count())
    return max(1, cores() // threads)
