"""The architectures of Hugging Face transformers, and the choice of one for a model. Torch-free."""

from collections.abc import Mapping
from typing import Any, Literal

from andrea.config import build
from andrea.errors import UserError, list_first, nearest
from andrea.model.config import ModelConfig
from andrea.model.hf.architecture import (
    Architecture,
    HfSettings,
    misplaced_settings,
    shorten_settings,
)
from andrea.model.hf.gpts import GPTS
from andrea.model.hf.llamas import LLAMAS

EVERY: tuple[type[Architecture], ...] = (*GPTS, *LLAMAS)
ARCHITECTURES: Mapping[str, type[Architecture]] = {
    architecture.model_type: architecture for architecture in EVERY
}
"""In the order in which they are tried: of two that compute the same, the first."""
NEAR = 2
"""Architectures that a refusal names, and settings of each."""
Dtype = Literal["float32", "bfloat16", "float16"]


def find_architecture(name: str) -> type[Architecture]:
    """Return the architecture of that model type; `gpt-neox` is `gpt_neox`.

    Raises:
        UserError: it is none of those.
    """
    for model_type, architecture in ARCHITECTURES.items():
        if model_type.replace("-", "_") == name.lower().replace("-", "_"):
            return architecture
    raise UserError(f"unknown architecture {name!r}; there are {', '.join(ARCHITECTURES)}")


def choose_architecture(cfg: ModelConfig) -> type[Architecture]:
    """Return the first architecture that computes what such a model does.

    Raises:
        UserError: there is none; names those that come nearest, and what has no place there.
    """
    faults: dict[type[Architecture], list[str]] = {}
    for architecture in EVERY:
        faults[architecture] = misplaced_settings(architecture, cfg)
        if not faults[architecture]:
            return architecture
    nearest_first = sorted(EVERY, key=lambda architecture: _distance(faults[architecture]))
    reasons = []
    for architecture in nearest_first[:NEAR]:
        settings = list_first(faults[architecture], NEAR + 1)
        reasons.append(f"{architecture.model_type} has no place for {settings}")
    raise UserError(
        "no architecture of transformers that andrea knows computes this model: "
        + "; ".join(reasons)
    )


def _distance(faults: list[str]) -> int:
    """In how many things a model differs; all biases are one."""
    return len({"bias" if "_bias " in fault else fault for fault in faults})


def require_architecture(architecture: type[Architecture], cfg: ModelConfig) -> None:
    """Check that an architecture computes what such a model does.

    Raises:
        UserError: it does not; names every setting, and architectures that do.
    """
    faults = misplaced_settings(architecture, cfg)
    if not faults:
        return
    fitting = next((fit for fit in EVERY if not misplaced_settings(fit, cfg)), None)
    hint = f"; --arch {fitting.model_type} fits" if fitting else ""
    raise UserError(f"{architecture.model_type} has no place for {', '.join(faults)}{hint}")


def write_config(
    architecture: type[Architecture], cfg: ModelConfig, dtype: Dtype, end: int | None
) -> dict[str, Any]:
    """Return config.json of an architecture.

    Args:
        end: the token that ends a text, if there is one.
    """
    return {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "dtype": dtype,
        **architecture.write(cfg),
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": None,
    }


def read_config(hf: HfSettings, where: str) -> tuple[type[Architecture], ModelConfig]:
    """Return architecture and configuration of a config.json; `where` stands before the message.

    Raises:
        UserError: not an architecture or a setting that andrea has.
    """
    architecture = _architecture_of(hf, where)
    if hf.get("quantization_config"):
        message = f"{where}: the weights are quantized; andrea reads float32, bfloat16 and float16"
        raise UserError(message)
    completed = {**architecture.defaults, **hf}
    for setting, needed in architecture.required.items():
        if bool(completed.get(setting, needed)) != bool(needed):
            message = f"{where}: {setting} {completed[setting]!r}: andrea has no place for it"
            raise UserError(message)
    try:
        settings = shorten_settings({**architecture.fixed, **architecture.read(completed)})
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    # Anything may stand in a file of somebody else's.
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        message = f"{where}: settings that make no sense ({type(error).__name__}: {error})"
        raise UserError(message) from error
    return architecture, build(ModelConfig, settings, where)


def _architecture_of(hf: HfSettings, where: str) -> type[Architecture]:
    name = hf.get("model_type")
    if name is None and "format" in hf:
        raise UserError(
            f"{where}: the folder is andrea's own already; `andrea export hf` reads it as it is"
        )
    architecture = ARCHITECTURES.get(str(name))
    if architecture is None:
        all_names = ", ".join(ARCHITECTURES)
        hint = nearest(str(name), ARCHITECTURES) if name else f"there are {all_names}"
        if not hint.startswith("there are"):
            hint += f" (known: {all_names})"
        message = f"{where}: model_type {name!r} is no architecture that andrea knows; {hint}"
        raise UserError(message)
    return architecture
