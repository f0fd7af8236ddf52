"""Models of every architecture that andrea shares with Hugging Face transformers, tiny and with
random weights.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from andrea.model.config import ModelConfig
from andrea.model.folder import model_with_weights
from andrea.model.gpt import GPT
from andrea.model.hf.registry import ARCHITECTURES, read_config, write_config
from andrea.model.hf.tensors import from_hf

transformers = pytest.importorskip("transformers")

RMS = {"norm": "rmsnorm", "bias": False, "positions": "rope", "activation": "swiglu"}
GEMMA = RMS | {
    "norm_placement": "sandwich",
    "norm": "rmsnorm_1p",
    "activation": "geglu_tanh",
    "tied": True,
}
GEMMA |= {"embedding_scale": "sqrt_d", "norm_eps": 1e-6, "window": 5, "logit_softcap": 3.0}
WIDE = {"vocab_size": 29, "context": 13, "d_model": 24, "n_layer": 3, "n_head": 4}
ODD = {"vocab_size": 7, "context": 9, "d_model": 18, "n_layer": 2, "n_head": 3, "mlp_width": 25}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {"d_model": 21, "mlp_width": 25},
    "openai-gpt": {"norm_placement": "post", "d_model": 21, "mlp_width": None},
    "gpt_neox": {
        "norm_placement": "parallel_two",
        "positions": "rope",
        "activation": "gelu",
        "rope_fraction": 0.4,
    },
    "gptj": {
        "norm_placement": "parallel",
        "positions": "rope",
        "rope_fraction": 0.7,
        "tied": False,
        "head_bias": True,
        "bias": False,
        "mlp_bias": True,
        "norm_bias": True,
    },
    "bloom": {"positions": "alibi", "embedding_norm": True, "mlp_width": None},
    "llama": RMS | {"tied": False, "rope_base": 500.0},
    "mistral": RMS | {"tied": False, "window": 5, "head_dim": 10},
    "qwen3": RMS | {"tied": True, "qk_norm": "head", "head_dim": 10, "window": 5},
    "olmo2": RMS | {"tied": False, "qk_norm": "full", "norm_placement": "res_post"},
    "glm4": RMS
    | {"tied": False, "norm_placement": "sandwich", "attn_bias": True, "rope_fraction": 0.7},
    "gemma2": GEMMA | {"attn_softcap": 2.0, "attn_scale": 7**-0.5, "head_dim": 10, "full_every": 2},
    "gemma3_text": GEMMA | {"qk_norm": "head", "attn_scale": 7**-0.5, "full_every": 2},
}
"""What is peculiar to an architecture, beside a shape; the wide shape has GQA where it exists."""
SHARED = ("llama", "mistral", "qwen3", "olmo2", "glm4", "gemma2", "gemma3_text")


def configured(name: str, shape: str) -> ModelConfig:
    """A configuration that the architecture of this name computes; `shape` is `wide` or `odd`."""
    settings = KINDS[name]
    if shape == "wide":
        own = {key: value for key, value in settings.items() if key not in ("d_model", "mlp_width")}
        return ModelConfig(**WIDE | own | ({"n_kv_head": 2} if name in SHARED else {}))
    return ModelConfig(**ODD | settings)


def randomise(model: nn.Module, seed: int) -> None:
    """Every parameter random, gains and biases too, or a swapped pair of them would go unseen."""
    generator = torch.Generator().manual_seed(seed)
    gains = {
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() == 1 and parameter.mean() == 1
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name in gains else 0.0, 0.2, generator=generator)


def built(name: str, cfg: ModelConfig, seed: int, **changes: Any) -> Any:
    """transformers' model of a configuration of ours, its weights random, eager attention."""
    said = write_config(ARCHITECTURES[name], cfg, "float32", None)
    config = transformers.AutoConfig.for_model(said.pop("model_type"), **said | changes)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    randomise(model, seed)
    return model


def twin(name: str, theirs: Any) -> GPT:
    """Our model of their configuration and weights."""
    architecture, cfg = read_config(theirs.config.to_dict(), name)
    return model_with_weights(
        cfg, from_hf(architecture, cfg, dict(theirs.named_parameters())), name
    )


def tokens_for(cfg: ModelConfig, seed: int) -> Tensor:
    """Three sequences that fill the context."""
    assert cfg.vocab_size
    return torch.randint(
        cfg.vocab_size, (3, cfg.context), generator=torch.Generator().manual_seed(seed)
    )
