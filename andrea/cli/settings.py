"""Validated configurations from `--preset`, `--set` and `--variants`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from andrea.errors import UserError, did_you_mean, nearest

if TYPE_CHECKING:
    from andrea.config import RunConfig
    from andrea.model.config import ModelConfig


def load_variants(script: Path | None) -> None:
    """Load a user's own variants, so that settings may name them.

    The digest of their source enters the ids of the runs that use them.

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


def rehearse_variants(models: Mapping[str, "ModelConfig"], variants: Path | None) -> None:
    """Try a user's own variants in models, which an error calls by these names.

    Raises:
        UserError: a model cannot be counted or built, or its count is wrong.
    """
    if variants is None:
        return
    from andrea.training.rehearsal import rehearse

    for name, config in models.items():
        rehearse(config, name)


def require_preset(name: str, where: str = "--preset: ") -> str:
    """Return the name of a preset.

    Args:
        where: the option that the name was given to; empty for an argument.

    Raises:
        UserError: there is no such preset.
    """
    from andrea.model.presets import PRESETS

    if name not in PRESETS:
        raise UserError(f"{where}no preset {name!r}; {nearest(name, PRESETS)}")
    return name


def build_run_config(
    preset: str | None,
    overrides: Sequence[str],
    preset_option: str = "--preset: ",
    settings_option: str = "--set",
    seed: int | None = None,
) -> "RunConfig":
    """Return a validated run config.

    Args:
        preset_option: the option that the preset was given to; empty for an argument.
        settings_option: the option that the overrides were given to.

    Raises:
        UserError: every fault of the overrides in one message.
    """
    from andrea.config import RunConfig, build, merge, parse_overrides
    from andrea.model.presets import PRESETS

    base = {}
    if preset is not None:
        base = {"model": dict(PRESETS[require_preset(preset, preset_option)])}
    top_level = {} if seed is None else {"seed": seed}
    values = merge(base, parse_overrides(overrides), top_level)
    return build(RunConfig, values, where=settings_option)


def require_model_settings(overrides: Sequence[str]) -> None:
    """Refuse settings that a command would not read, since it trains nothing.

    Raises:
        UserError: one is not of the model.
    """
    from andrea.config import dotted, full_name, parse_overrides

    for path in dotted(parse_overrides(overrides)):
        if path.startswith("model."):
            continue
        meant = full_name(path)
        if meant and meant.startswith("model."):
            raise UserError(f"--set {path}: unknown; {did_you_mean(meant)}")
        raise UserError(f"--set {path}: nothing is trained here: only settings of model are read")


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_slots(device: str, threads: int) -> int:
    """Return the number of runs at once where nobody says: cores over threads per run, or one per
    GPU; at least 1.
    """
    if device == "cuda":
        import torch

        return max(1, torch.cuda.device_count())
    return max(1, available_cores() // threads)
