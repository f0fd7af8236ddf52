"""The architectures of Hugging Face transformers that andrea knows, and which of them computes a
model. Torch-free.
"""

from collections.abc import Mapping
from typing import Any, Literal

from andrea.config import build
from andrea.errors import UserError, nearest
from andrea.model.config import ModelConfig
from andrea.model.hf.architecture import Architecture, misplaced, plain
from andrea.model.hf.gpts import GPT2, GPTJ, Bloom, GPTNeoX, OpenAIGPT
from andrea.model.hf.llamas import Gemma2, Gemma3, Glm4, Llama, Mistral, Olmo2, Qwen3

EVERY: tuple[type[Architecture], ...] = (
    GPT2,
    OpenAIGPT,
    GPTNeoX,
    GPTJ,
    Bloom,
    Llama,
    Mistral,
    Qwen3,
    Olmo2,
    Glm4,
    Gemma2,
    Gemma3,
)
ARCHITECTURES: Mapping[str, type[Architecture]] = {
    architecture.model_type: architecture for architecture in EVERY
}
"""In the order in which they are tried: of two that compute the same, the first."""
NEAR = 2
"""Architectures that a refusal names, and settings of each."""
Dtype = Literal["float32", "bfloat16", "float16"]


def known(name: str) -> type[Architecture]:
    """The architecture of that model type; `gpt-neox` is `gpt_neox`.

    Raises:
        UserError: it is none of those.
    """
    for model_type, architecture in ARCHITECTURES.items():
        if model_type.replace("-", "_") == name.lower().replace("-", "_"):
            return architecture
    raise UserError(f"unknown architecture {name!r}; there are {', '.join(ARCHITECTURES)}")


def choose(cfg: ModelConfig) -> type[Architecture]:
    """The first architecture that computes what such a model does.

    Raises:
        UserError: there is none; names those that come nearest, and what has no place there.
    """
    faults = {architecture: misplaced(architecture, cfg) for architecture in EVERY}
    for architecture, wrong in faults.items():
        if not wrong:
            return architecture
    near = sorted(EVERY, key=lambda architecture: _distance(faults[architecture]))[:NEAR]
    told = "; ".join(f"{one.model_type} has no place for {_few(faults[one])}" for one in near)
    raise UserError(
        f"no architecture of transformers that andrea knows computes this model: {told}"
    )


def _distance(faults: list[str]) -> int:
    """In how many things a model differs; all biases are one."""
    return len({"bias" if "_bias " in fault else fault for fault in faults})


def _few(faults: list[str]) -> str:
    more = f" and {len(faults) - NEAR - 1} more" if len(faults) > NEAR + 1 else ""
    return ", ".join(faults[: NEAR + 1]) + more


def require(architecture: type[Architecture], cfg: ModelConfig) -> None:
    """Make sure that an architecture computes what such a model does.

    Raises:
        UserError: it does not; names every setting, and architectures that do.
    """
    wrong = misplaced(architecture, cfg)
    if wrong:
        fit = [one.model_type for one in EVERY if not misplaced(one, cfg)]
        other = f"; --arch {fit[0]} fits" if fit else ""
        raise UserError(f"{architecture.model_type} has no place for {', '.join(wrong)}{other}")


def described(
    architecture: type[Architecture], cfg: ModelConfig, dtype: Dtype, end: int | None
) -> dict[str, Any]:
    """config.json of an architecture.

    Args:
        end: the token that ends a text, if there is one.
    """
    tokens = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": None}
    return {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "dtype": dtype,
        **architecture.write(cfg),
        **tokens,
    }


def read_config(theirs: Mapping[str, Any], where: str) -> tuple[type[Architecture], ModelConfig]:
    """Architecture and configuration of a config.json; `where` stands before what is wrong.

    Raises:
        UserError: not an architecture or a setting that andrea has.
    """
    name = theirs.get("model_type")
    architecture = ARCHITECTURES.get(str(name))
    if name is None and "format" in theirs:
        raise UserError(
            f"{where}: the folder is andrea's own already; `andrea export hf` reads it as it is"
        )
    if architecture is None:
        hint = (
            nearest(str(name), ARCHITECTURES) if name else f"there are {', '.join(ARCHITECTURES)}"
        )
        every = "" if hint.startswith("there are") else f" (known: {', '.join(ARCHITECTURES)})"
        raise UserError(
            f"{where}: model_type {name!r} is no architecture that andrea knows; {hint}{every}"
        )
    if theirs.get("quantization_config"):
        raise UserError(
            f"{where}: the weights are quantized; andrea reads float32, bfloat16 and float16"
        )
    given = {**architecture.defaults, **theirs}
    for setting, needed in architecture.required.items():
        if bool(given.get(setting, needed)) != bool(needed):
            raise UserError(f"{where}: {setting} {given[setting]!r}: andrea has no place for it")
    try:
        settings = plain({**architecture.fixed, **architecture.read(given)})
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise UserError(
            f"{where}: settings that make no sense ({type(error).__name__}: {error})"
        ) from error
    return architecture, build(ModelConfig, settings, where)
