"""From `--preset` and `--set` to a validated run config."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from andrea.errors import UserError, nearest

if TYPE_CHECKING:
    from andrea.config import RunConfig


def known_preset(name: str) -> str:
    """The name itself.

    Raises:
        UserError: there is no such preset.
    """
    from andrea.model.config import PRESETS

    if name not in PRESETS:
        raise UserError(f"--preset: no preset {name!r}; {nearest(name, PRESETS)}")
    return name


def run_config(preset: str | None, overrides: Sequence[str], **top: Any) -> "RunConfig":
    """A run config from a preset, overrides and settings of the top level (`seed=3`).

    Raises:
        UserError: every fault of the overrides in one message.
    """
    from andrea.config import RunConfig, build, merge, parse_overrides
    from andrea.model.config import PRESETS

    base = {"model": dict(PRESETS[known_preset(preset)])} if preset else {}
    given = {key: value for key, value in top.items() if value is not None}
    return build(RunConfig, merge(base, parse_overrides(overrides), given), where="--set")


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_slots(device: str, threads: int) -> int:
    """Runs at once where nobody says: cores over threads per run, or one per GPU; at least 1."""
    if device == "cuda":
        import torch

        return max(1, torch.cuda.device_count())
    return max(1, cores() // threads)
