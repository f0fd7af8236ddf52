"""Shell completion of names.

It is quick (no torch, no network) and never an error: a broken YAML completes to nothing.
"""

from typing import Literal


def ablation_names(incomplete: str) -> list[str]:
    """Return the names of ablations that begin so."""
    return _catalogue_names("ablations", incomplete)


def sweep_names(incomplete: str) -> list[str]:
    """Return the names of sweeps that begin so."""
    return _catalogue_names("sweeps", incomplete)


def _catalogue_names(kind: Literal["ablations", "sweeps"], incomplete: str) -> list[str]:
    try:
        from andrea.catalogue import entry_names

        return [name for name in entry_names(kind) if name.startswith(incomplete)]
    except Exception:  # a shell in the middle of a Tab has no use for a message
        return []


def preset_names(incomplete: str) -> list[str]:
    """Return the names of presets that begin so."""
    from andrea.model.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def architecture_names(incomplete: str) -> list[str]:
    """Return the architectures of transformers that begin so."""
    from andrea.model.hf.registry import ARCHITECTURES

    return [name for name in ARCHITECTURES if name.startswith(incomplete)]


def model_expressions(incomplete: str) -> list[str]:
    """Return presets, then after a colon fields of the model and their variants, as in
    `gpt2:activation=swiglu,mlp_ratio=`.
    """
    from andrea.model.config import ModelConfig
    from andrea.model.registry import VARIANTS

    start_of_last = max(incomplete.rfind(":"), incomplete.rfind(",")) + 1
    before, last = incomplete[:start_of_last], incomplete[start_of_last:]
    field, equals, start = last.partition("=")
    if equals:
        variants = [name for name in VARIANTS.get(field, ()) if name.startswith(start)]
        return [f"{before}{field}={name}" for name in variants]
    fields = [f"{before}{name}=" for name in ModelConfig.model_fields if name.startswith(field)]
    # bash begins a new word at a colon: fields are offered by themselves where no preset fits.
    return fields if before else preset_names(incomplete) or fields


def study_names(incomplete: str) -> list[str]:
    """Return the studies in the runs folder that a command without `--runs` would use."""
    from andrea.store.usual import usual_runs

    records = usual_runs().glob(f"studies/{incomplete}*/study.json")
    return sorted(path.parent.name for path in records)


def setting_paths(incomplete: str) -> list[str]:
    """Return the dotted paths of settings that begin so, for `--set`."""
    from andrea.config import RunConfig, dotted

    sections = RunConfig().model_dump(include={"model", "data", "train"})
    return [f"{path}=" for path in dotted(sections) if path.startswith(incomplete)]
