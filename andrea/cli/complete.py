"""Shell completion of names. Quick (no torch, no network) and never an error: a broken YAML
completes to nothing.
"""

from typing import Literal


def _names(kind: Literal["ablations", "sweeps"]) -> list[str]:
    try:
        from andrea.catalogue import entry_names

        return list(entry_names(kind))
    except Exception:  # a shell in the middle of a Tab has no use for a message
        return []


def ablations(incomplete: str) -> list[str]:
    """Names of ablations."""
    return [name for name in _names("ablations") if name.startswith(incomplete)]


def sweeps(incomplete: str) -> list[str]:
    """Names of sweeps."""
    return [name for name in _names("sweeps") if name.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    """Names of presets."""
    from andrea.model.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def architectures(incomplete: str) -> list[str]:
    """Architectures of transformers."""
    from andrea.model.hf.registry import ARCHITECTURES

    return [name for name in ARCHITECTURES if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Presets, then after a colon fields of the model and their variants:
    `gpt2:activation=swiglu,mlp_ratio=`.

    bash begins a new word at a colon, so that fields are offered by themselves where no preset
    fits.
    """
    from andrea.model.config import ModelConfig
    from andrea.model.registry import VARIANTS

    before, last = _last_part(incomplete)
    field, equals, start = last.partition("=")
    if equals:
        return [
            f"{before}{field}={name}" for name in VARIANTS.get(field, ()) if name.startswith(start)
        ]
    fields = [f"{before}{name}=" for name in ModelConfig.model_fields if name.startswith(field)]
    return fields if before else presets(incomplete) or fields


def _last_part(text: str) -> tuple[str, str]:
    """What stands after the last `:` or `,`, and what before it."""
    cut = max(text.rfind(":"), text.rfind(",")) + 1
    return text[:cut], text[cut:]


def studies(incomplete: str) -> list[str]:
    """Studies in the runs folder that a command without `--runs` would use."""
    from andrea.store.usual import usual_runs

    return sorted(p.parent.name for p in usual_runs().glob(f"studies/{incomplete}*/study.json"))


def settings(incomplete: str) -> list[str]:
    """Dotted paths of settings, for `--set`."""
    from andrea.config import RunConfig

    paths = [
        f"{section}.{field}="
        for section in ("model", "data", "train")
        for field in type(getattr(RunConfig(), section)).model_fields
    ]
    return [path for path in paths if path.startswith(incomplete)]
