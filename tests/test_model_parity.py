"""Independent implementations with the same random weights give the same numbers: Hugging Face's GPT-2 (pre-norm) and
OpenAI-GPT (post-norm), built from a configuration without any download."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT, build_model

transformers = pytest.importorskip("transformers")

SHAPES = [
    {"vocab_size": 29, "context": 12, "d_model": 24, "n_layer": 3, "n_head": 4},
    {"vocab_size": 7, "context": 5, "d_model": 15, "n_layer": 2, "n_head": 3},
]
TABLES = {
    "transformer.wte.weight": "token_embedding.weight",
    "transformer.tokens_embed.weight": "token_embedding.weight",
    "transformer.wpe.weight": "position_embedding.weight",
    "transformer.positions_embed.weight": "position_embedding.weight",
    "transformer.ln_f.weight": "final_norm.weight",
    "transformer.ln_f.bias": "final_norm.bias",
    "lm_head.weight": "head.weight",
}
PARTS = {
    "ln_1": "norm1",
    "ln_2": "norm2",
    "attn.c_attn": "attn.qkv",
    "attn.c_proj": "attn.proj",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.down",
}


def translate(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors under our names; their linear maps are stored transposed."""
    ours = {}
    for name, tensor in theirs.items():
        if name in TABLES:
            ours[TABLES[name]] = tensor
        else:
            _, _, layer, rest = name.split(".", 3)
            part, kind = rest.rsplit(".", 1)
            ours[f"blocks.{layer}.{PARTS[part]}.{kind}"] = tensor.t() if tensor.dim() == 2 else tensor
    return ours


def randomise(model: nn.Module, seed: int) -> None:
    """Every parameter random, gains and biases too, or a swapped pair of them would go unseen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "ln" in name and name.endswith("weight") else 0.0, 0.2, generator=generator)


def gpt2(shape: dict[str, int], **changes: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=shape["vocab_size"],
        n_positions=shape["context"],
        n_embd=shape["d_model"],
        n_layer=shape["n_layer"],
        n_head=shape["n_head"],
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0, **changes},
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def openai_gpt(shape: dict[str, int], **changes: Any) -> nn.Module:
    config = transformers.OpenAIGPTConfig(
        vocab_size=shape["vocab_size"],
        n_positions=shape["context"],
        n_embd=shape["d_model"],
        n_layer=shape["n_layer"],
        n_head=shape["n_head"],
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **changes},
    )
    model: nn.Module = transformers.OpenAIGPTLMHeadModel(config)
    return model


def twins(theirs: nn.Module, cfg: ModelConfig, seed: int) -> GPT:
    """Our model with their weights, after these have been made random."""
    randomise(theirs, seed)
    ours = build_model(cfg)
    weights = translate(dict(theirs.named_parameters()))
    assert set(weights) == {name for name, _ in ours.named_parameters()}
    ours.load_state_dict(weights | ({"head.weight": weights["token_embedding.weight"]} if cfg.tied else {}))
    return ours


def assert_same(ours: GPT, theirs: nn.Module, cfg: ModelConfig, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed + 1)
    tokens = torch.randint(cfg.vocab_size, (3, cfg.context), generator=generator)  # type: ignore[call-overload]
    answer = theirs(tokens, labels=tokens)  # they shift the labels themselves
    loss = ours(tokens[:, :-1], tokens[:, 1:]).mean()
    torch.testing.assert_close(ours(tokens), answer.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, answer.loss, atol=1e-5, rtol=1e-5)
    answer.loss.backward()
    loss.backward()
    expected = translate({name: p.grad for name, p in theirs.named_parameters() if p.grad is not None})
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[name], atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_s10_pre_norm_gives_the_logits_loss_and_gradients_of_gpt2(shape: dict[str, int], tied: bool, seed: int) -> None:
    cfg = ModelConfig(**shape, tied=tied)
    theirs = gpt2(shape, tie_word_embeddings=tied)
    assert_same(twins(theirs, cfg, seed), theirs, cfg, seed)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_s10_post_norm_gives_the_logits_loss_and_gradients_of_openai_gpt(shape: dict[str, int], seed: int) -> None:
    cfg = ModelConfig(**shape, norm_placement="post")
    theirs = openai_gpt(shape)
    assert_same(twins(theirs, cfg, seed), theirs, cfg, seed)


def test_dropout_falls_on_the_places_where_gpt2_has_it() -> None:
    cfg = ModelConfig(**SHAPES[0], dropout=0.3)
    theirs = gpt2(SHAPES[0], resid_pdrop=0.3, embd_pdrop=0.3, attn_pdrop=0.3, attn_implementation="sdpa").train()
    ours = twins(theirs, cfg, 6)
    tokens = torch.randint(29, (3, 12), generator=torch.Generator().manual_seed(7))

    def drawn(model: nn.Module) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(8)
            return model(tokens)

    # One place more, one less, or another order would consume the generator otherwise.
    torch.testing.assert_close(drawn(ours), drawn(theirs).logits, atol=1e-5, rtol=1e-5)
    theirs.eval(), ours.eval()
    torch.testing.assert_close(drawn(ours), drawn(theirs).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("activation", "theirs_call_it"), [("gelu", "gelu"), ("relu", "relu")])
def test_the_other_activations_agree_too(activation: str, theirs_call_it: str) -> None:
    cfg = ModelConfig(**SHAPES[0], activation=activation, norm_eps=1e-3)
    theirs = gpt2(SHAPES[0], activation_function=theirs_call_it, layer_norm_epsilon=1e-3)
    assert_same(twins(theirs, cfg, 3), theirs, cfg, 3)


def test_swiglu_gives_the_output_of_llamas_mlp() -> None:
    cfg = ModelConfig(vocab_size=5, d_model=12, n_head=2, mlp_ratio="8/3", activation="swiglu", bias=False)
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    theirs = modeling.LlamaMLP(transformers.LlamaConfig(hidden_size=12, intermediate_size=32, num_attention_heads=2))
    randomise(theirs, 4)
    ours: Any = build_model(cfg).blocks[0].mlp  # type: ignore[union-attr]
    names = {"up": "up_proj", "gate": "gate_proj", "down": "down_proj"}
    ours.load_state_dict({f"{o}.weight": theirs.get_parameter(f"{t}.weight").detach() for o, t in names.items()})
    x = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)
