"""The GPT family and its kin: LayerNorm, biases, two matrices in the MLP. Torch-free."""

import math
from typing import Any, ClassVar

from andrea.errors import UserError
from andrea.model.hf.architecture import (
    PLAIN,
    Architecture,
    HfSettings,
    Settings,
    names_and_defaults,
    read_rope,
    without_keys,
    write_rope,
)
from andrea.model.settings import ModelSettings

NORMED = {"norm": "layernorm", "norm_bias": True, "mlp_bias": True}
BIASED = NORMED | {"attn_bias": True, "proj_bias": True}
QKV = ("attn.q", "attn.k", "attn.v")


class GPT2(Architecture):
    """Pre-norm, learned positions (Radford et al. 2019)."""

    model_type, class_name = "gpt2", "GPT2LMHeadModel"
    prefix, layers, conv1d = "transformer.", "h", True
    outside: ClassVar = {
        "wte": "token_embedding",
        "wpe": "position_embedding",
        "ln_f": "final_norm",
    }
    block: ClassVar = {
        "ln_1": ("norm1",),
        "attn.c_attn": QKV,
        "attn.c_proj": ("attn.proj",),
        "ln_2": ("norm2",),
        "mlp.c_fc": ("mlp.up",),
        "mlp.c_proj": ("mlp.down",),
    }
    keys, defaults = names_and_defaults(
        {
            "vocab_size": ("vocab_size", 50257),
            "n_positions": ("context", 1024),
            "n_embd": ("d_model", 768),
            "n_layer": ("n_layer", 12),
            "n_head": ("n_head", 12),
            "n_inner": ("mlp_width", None),
            "layer_norm_epsilon": ("norm_eps", 1e-5),
            "tie_word_embeddings": ("tied", True),
            "embd_pdrop": ("dropout_embedding", 0.1),
            "attn_pdrop": ("dropout_attention", 0.1),
            "resid_pdrop": ("dropout_residual", 0.1),
        }
    )
    defaults |= {"activation_function": "gelu_new"}
    fixed: ClassVar = {"norm_placement": "pre", "positions": "learned", **BIASED}
    required: ClassVar = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    activation_key, activations = "activation_function", PLAIN


class OpenAIGPT(Architecture):
    """Post-norm, no final norm, MLP four times as wide (Radford et al. 2018). It says gelu for the
    tanh form.
    """

    model_type, class_name = "openai-gpt", "OpenAIGPTLMHeadModel"
    prefix, layers, conv1d = "transformer.", "h", True
    outside: ClassVar = {"tokens_embed": "token_embedding", "positions_embed": "position_embedding"}
    block = GPT2.block
    keys: ClassVar = without_keys(GPT2.keys, "n_inner")
    defaults: ClassVar = without_keys(GPT2.defaults, "n_inner", "activation_function") | {
        "vocab_size": 40478,
        "n_positions": 512,
        "afn": "gelu",
    }
    fixed: ClassVar = {"norm_placement": "post", "positions": "learned", **BIASED}
    activation_key, activations = "afn", {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}


class GPTNeoX(Architecture):
    """Two norms side by side or one after the other, partial RoPE, queries, keys and values head by
    head (Black et al. 2022; Pythia).
    """

    model_type, class_name = "gpt_neox", "GPTNeoXForCausalLM"
    prefix, by_head = "gpt_neox.", True
    outside: ClassVar = {"embed_in": "token_embedding", "final_layer_norm": "final_norm"}
    block: ClassVar = {
        "input_layernorm": ("norm1",),
        "attention.query_key_value": QKV,
        "attention.dense": ("attn.proj",),
        "post_attention_layernorm": ("norm2",),
        "mlp.dense_h_to_4h": ("mlp.up",),
        "mlp.dense_4h_to_h": ("mlp.down",),
    }
    keys, defaults = names_and_defaults(
        {
            "vocab_size": ("vocab_size", 50432),
            "max_position_embeddings": ("context", 2048),
            "hidden_size": ("d_model", 6144),
            "num_hidden_layers": ("n_layer", 44),
            "num_attention_heads": ("n_head", 64),
            "intermediate_size": ("mlp_width", 24576),
            "layer_norm_eps": ("norm_eps", 1e-5),
            "tie_word_embeddings": ("tied", False),
            "attention_bias": ("attn_bias", True),
            "attention_dropout": ("dropout_attention", 0.0),
            "hidden_dropout": ("dropout_residual", 0.0),
        }
    )
    defaults |= {"hidden_act": "gelu", "use_parallel_residual": True}
    fixed: ClassVar = NORMED
    # One number stands for both dropouts there.
    following: ClassVar = {"proj_bias": "attn_bias", "dropout_embedding": "dropout_residual"}
    activations, partial_rope = PLAIN, 0.25

    @classmethod
    def write(cls, cfg: ModelSettings) -> dict[str, Any]:
        parallel = {"use_parallel_residual": cfg.norm_placement != "pre"}
        return super().write(cfg) | parallel | write_rope(cfg, partial=cls.partial_rope)

    @classmethod
    def read(cls, hf: HfSettings) -> Settings:
        placement = "parallel_two" if hf["use_parallel_residual"] else "pre"
        rope = read_rope(hf, partial=cls.partial_rope)
        return super().read(hf) | rope | {"norm_placement": placement}


class GPTJ(Architecture):
    """One norm for both sublayers, side by side; RoPE turns neighbouring dimensions (Wang &
    Komatsuzaki 2021).
    """

    model_type, class_name = "gptj", "GPTJForCausalLM"
    prefix, layers, paired_rope = "transformer.", "h", True
    outside: ClassVar = {"wte": "token_embedding", "ln_f": "final_norm"}
    block: ClassVar = {
        "ln_1": ("norm1",),
        "attn.q_proj": ("attn.q",),
        "attn.k_proj": ("attn.k",),
        "attn.v_proj": ("attn.v",),
        "attn.out_proj": ("attn.proj",),
        "mlp.fc_in": ("mlp.up",),
        "mlp.fc_out": ("mlp.down",),
    }
    keys: ClassVar = GPT2.keys
    defaults: ClassVar = GPT2.defaults | {
        "vocab_size": 50400,
        "n_positions": 2048,
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "tie_word_embeddings": False,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "rotary_dim": 64,
    }
    fixed: ClassVar = {
        "norm_placement": "parallel",
        "head_bias": True,
        "attn_bias": False,
        "proj_bias": False,
        **NORMED,
    }
    activation_key, activations = "activation_function", PLAIN

    @classmethod
    def write(cls, cfg: ModelSettings) -> dict[str, Any]:
        return super().write(cfg) | {"rotary_dim": cfg.rope_dim}

    @classmethod
    def read(cls, hf: HfSettings) -> Settings:
        rotated, head_dim = hf["rotary_dim"], hf["n_embd"] // hf["n_head"]
        if not rotated or rotated > head_dim:
            message = f"rotary_dim {rotated}: no number of the {head_dim} dimensions of a head"
            raise UserError(message)
        rope = {"positions": "rope", "rope_fraction": share_of(rotated, head_dim)}
        return super().read(hf) | rope


class Bloom(Architecture):
    """Pre-norm with ALiBi and a norm of the embedding, MLP four times as wide (BigScience 2022)."""

    model_type, class_name = "bloom", "BloomForCausalLM"
    prefix, layers, by_head = "transformer.", "h", True
    outside: ClassVar = {
        "word_embeddings": "token_embedding",
        "word_embeddings_layernorm": "embedding_norm",
        "ln_f": "final_norm",
    }
    block: ClassVar = {
        "input_layernorm": ("norm1",),
        "self_attention.query_key_value": QKV,
        "self_attention.dense": ("attn.proj",),
        "post_attention_layernorm": ("norm2",),
        "mlp.dense_h_to_4h": ("mlp.up",),
        "mlp.dense_4h_to_h": ("mlp.down",),
    }
    keys, defaults = names_and_defaults(
        {
            "vocab_size": ("vocab_size", 250880),
            "seq_length": ("context", 2048),  # nothing there depends on it
            "hidden_size": ("d_model", 64),
            "n_layer": ("n_layer", 2),
            "n_head": ("n_head", 8),
            "layer_norm_epsilon": ("norm_eps", 1e-5),
            "tie_word_embeddings": ("tied", True),
            "attention_dropout": ("dropout_attention", 0.0),
            "hidden_dropout": ("dropout_residual", 0.0),
        }
    )
    fixed: ClassVar = {
        "norm_placement": "pre",
        "positions": "alibi",
        "embedding_norm": True,
        "activation": "gelu_tanh",
        "dropout_embedding": 0.0,
        **BIASED,
    }
    required: ClassVar = {"apply_residual_connection_post_layernorm": False}
    activation_key = ""


def share_of(part: int, whole: int) -> float:
    """Return the share of `whole` whose product, rounded down, is `part`: division alone may fall
    short by one bit.
    """
    share = part / whole
    return share if int(whole * share) == part else math.nextafter(share, 1.0)


GPTS = (GPT2, OpenAIGPT, GPTNeoX, GPTJ, Bloom)
