"""Independent implementations with the same random weights give the same numbers: Hugging Face's
models, built from a configuration without any download.
"""

from typing import Any

import pytest
import torch
from hf_models import KINDS, built, configured, tokens_for, twin

from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT
from andrea.model.hf.registry import ARCHITECTURES, choose_architecture
from andrea.model.hf.tensors import to_hf


def assert_same(name: str, ours: GPT, theirs: Any, seed: int) -> None:
    """Logits, loss, and the gradient of every parameter."""
    tokens = tokens_for(ours.config, seed)
    answer = theirs(tokens, labels=tokens)  # they shift the labels themselves
    loss = ours(tokens[:, :-1], tokens[:, 1:]).mean()
    torch.testing.assert_close(ours(tokens), answer.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, answer.loss, atol=1e-5, rtol=1e-5)
    answer.loss.backward()
    loss.backward()
    gradients = {parameter: p.grad for parameter, p in ours.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    found = to_hf(ARCHITECTURES[name], ours.config, gradients)  # type: ignore[arg-type]
    expected = {parameter: p.grad for parameter, p in theirs.named_parameters()}
    assert set(found) == set(expected)
    for parameter, gradient in expected.items():
        torch.testing.assert_close(
            found[parameter],
            gradient,
            atol=1e-5,
            rtol=1e-5,
            msg=lambda text, at=parameter: f"{at}: {text}",
        )


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", ["wide", "odd"])
@pytest.mark.parametrize("name", KINDS)
def test_logits_loss_and_gradients_are_those_of_transformers(
    name: str, shape: str, seed: int
) -> None:
    cfg = configured(name, shape)
    theirs = built(name, cfg, seed)
    ours = twin(name, theirs)
    assert choose_architecture(ours.config) is choose_architecture(cfg) is ARCHITECTURES[name]
    assert_same(name, ours, theirs, seed)


def test_every_architecture_that_is_offered_is_compared() -> None:
    assert set(KINDS) == set(ARCHITECTURES)


VARIATIONS = [
    ("gpt2", {"tied": False}),
    ("gpt2", {"activation": "gelu", "norm_eps": 1e-3}),
    ("gpt2", {"activation": "relu"}),
    ("gpt2", {"activation": "relu2"}),
    ("gpt2", {"activation": "silu"}),
    ("openai-gpt", {"activation": "silu"}),
    ("gpt_neox", {"norm_placement": "pre", "rope_fraction": 1.0}),
    ("gpt_neox", {"attn_bias": False, "proj_bias": False, "tied": False}),
    ("bloom", {"n_head": 3, "d_model": 15}),
    ("llama", {"bias": True, "tied": True}),
    *(
        ("llama", {"activation": gated})
        for gated in ("geglu", "geglu_tanh", "reglu", "bilinear", "glu")
    ),
    ("qwen3", {"full_every": 2}),
    ("gemma2", {"full_every": None}),
    ("gemma2", {"window": None, "full_every": None, "attn_softcap": None, "logit_softcap": None}),
    ("gemma3_text", {"full_every": 3, "logit_softcap": None}),
]


@pytest.mark.parametrize(("name", "changes"), VARIATIONS, ids=lambda value: str(value))
def test_settings_of_an_architecture_agree_too(name: str, changes: dict[str, Any]) -> None:
    cfg = ModelConfig(**configured(name, "wide").model_dump() | changes)
    theirs = built(name, cfg, 3)
    assert_same(name, twin(name, theirs), theirs, 3)


def test_dropout_falls_on_the_places_where_gpt2_has_it() -> None:
    cfg = ModelConfig(**configured("gpt2", "wide").model_dump() | {"dropout": 0.3})
    theirs = built("gpt2", cfg, 6).train()
    theirs.set_attn_implementation("sdpa")
    ours = twin("gpt2", theirs).train()
    tokens = tokens_for(cfg, 7)

    def drawn(model: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(8)
            return model(tokens)

    # One place more, one less, or another order would consume the generator otherwise.
    torch.testing.assert_close(drawn(ours), drawn(theirs).logits, atol=1e-5, rtol=1e-5)
    theirs.eval(), ours.eval()
    torch.testing.assert_close(drawn(ours), drawn(theirs).logits, atol=1e-5, rtol=1e-5)
