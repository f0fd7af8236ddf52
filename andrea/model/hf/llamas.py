"""Llama and its kin: RMSNorm, RoPE, gated MLP, shared heads of keys and values. Torch-free."""

from collections.abc import Mapping
from typing import Any, ClassVar

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.hf.architecture import (
    Architecture,
    read_rope,
    read_window,
    resolved,
    same,
    write_rope,
    write_window,
)

ATTENTION = {
    "self_attn.q_proj": ("attn.q",),
    "self_attn.k_proj": ("attn.k",),
    "self_attn.v_proj": ("attn.v",),
    "self_attn.o_proj": ("attn.proj",),
}
QK_NORM = {"self_attn.q_norm": ("attn.q_norm",), "self_attn.k_norm": ("attn.k_norm",)}
MLP = {"mlp.gate_proj": ("mlp.gate",), "mlp.up_proj": ("mlp.up",), "mlp.down_proj": ("mlp.down",)}
WITHOUT_BIAS = {"attn_bias": False, "proj_bias": False, "mlp_bias": False}


class Llama(Architecture):
    """Pre-norm (Touvron et al. 2023)."""

    model_type, class_name = "llama", "LlamaForCausalLM"
    outside: ClassVar = {"embed_tokens": "token_embedding", "norm": "final_norm"}
    block: ClassVar = {
        "input_layernorm": ("norm1",),
        **ATTENTION,
        "post_attention_layernorm": ("norm2",),
        **MLP,
    }
    keys: ClassVar = {
        "vocab_size": "vocab_size",
        "max_position_embeddings": "context",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "num_key_value_heads": "n_kv_head",
        "head_dim": "head_dim",
        "intermediate_size": "mlp_width",
        "rms_norm_eps": "norm_eps",
        "tie_word_embeddings": "tied",
        "attention_bias": "attn_bias",
        "mlp_bias": "mlp_bias",
        "attention_dropout": "dropout_attention",
    }
    defaults: ClassVar = {
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "head_dim": None,
        "intermediate_size": 11008,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
    }
    fixed: ClassVar = {"norm_placement": "pre", "norm": "rmsnorm", **WITHOUT_BIAS}

    @classmethod
    def write(cls, cfg: ModelConfig) -> dict[str, Any]:
        return super().write(cfg) | write_rope(cfg)

    @classmethod
    def read(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        heads = theirs["num_attention_heads"]
        given = {
            **theirs,
            "num_key_value_heads": theirs["num_key_value_heads"] or heads,
            "head_dim": theirs.get("head_dim") or theirs["hidden_size"] // heads,
        }
        found = super().read(given)
        if "attn_bias" in found:
            found["proj_bias"] = found["attn_bias"]
        return found | cls.read_positions(theirs)

    @classmethod
    def read_positions(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """RoPE, and which blocks see a window."""
        return read_rope(theirs)


class Mistral(Llama):
    """Llama with a sliding window in every block (Jiang et al. 2023)."""

    model_type, class_name, whole_heads = "mistral", "MistralForCausalLM", False
    keys: ClassVar = {
        theirs: ours for theirs, ours in Llama.keys.items() if ours not in ("attn_bias", "mlp_bias")
    }
    keys |= {"sliding_window": "window"}
    defaults: ClassVar = Llama.defaults | {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "sliding_window": 4096,
    }


class Qwen3(Llama):
    """Llama with a norm of every head's queries and keys, and heads of any width (Yang et al.
    2025).
    """

    model_type, class_name, whole_heads = "qwen3", "Qwen3ForCausalLM", False
    block: ClassVar = {**Llama.block, **QK_NORM}
    keys: ClassVar = {theirs: ours for theirs, ours in Llama.keys.items() if ours != "mlp_bias"}
    defaults: ClassVar = Llama.defaults | {
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "intermediate_size": 22016,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": None,
    }
    fixed: ClassVar = Llama.fixed | {"qk_norm": "head"}

    @classmethod
    def write(cls, cfg: ModelConfig) -> dict[str, Any]:
        return (
            super().write(cfg) | write_window(cfg) | {"use_sliding_window": cfg.window is not None}
        )

    @classmethod
    def read_positions(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        if not theirs["use_sliding_window"]:
            return read_rope(theirs)
        blocks, first = range(theirs["num_hidden_layers"]), theirs["max_window_layers"]
        kinds = theirs["layer_types"] or [
            "sliding_attention" if i >= first else "full_attention" for i in blocks
        ]
        return read_rope(theirs) | read_window({**theirs, "layer_types": kinds})


class Olmo2(Llama):
    """Norms after the sublayers, inside the branch, and of all queries and keys at once (OLMo et
    al. 2025).
    """

    model_type, class_name = "olmo2", "Olmo2ForCausalLM"
    block: ClassVar = {
        **ATTENTION,
        **QK_NORM,
        "post_attention_layernorm": ("norm1",),
        **MLP,
        "post_feedforward_layernorm": ("norm2",),
    }
    keys: ClassVar = {
        theirs: ours for theirs, ours in Llama.keys.items() if ours not in ("head_dim", "mlp_bias")
    }
    defaults: ClassVar = Llama.defaults | {"vocab_size": 50304, "rms_norm_eps": 1e-5}
    fixed: ClassVar = Llama.fixed | {"norm_placement": "res_post", "qk_norm": "full"}


class Glm4(Llama):
    """Norms before and after the sublayers, half a head turned in neighbouring dimensions, gate and
    up in one matrix, biases of queries, keys and values alone (GLM-4-0414).
    """

    model_type, class_name, whole_heads, paired_rope = "glm4", "Glm4ForCausalLM", False, True
    block: ClassVar = {
        "input_layernorm": ("norm1",),
        **ATTENTION,
        "post_self_attn_layernorm": ("after1",),
        "post_attention_layernorm": ("norm2",),
        "mlp.gate_up_proj": ("mlp.gate", "mlp.up"),
        "mlp.down_proj": ("mlp.down",),
        "post_mlp_layernorm": ("after2",),
    }
    keys: ClassVar = {theirs: ours for theirs, ours in Llama.keys.items() if ours != "mlp_bias"}
    defaults: ClassVar = Llama.defaults | {
        "vocab_size": 151552,
        "max_position_embeddings": 131072,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "intermediate_size": 13696,
        "rms_norm_eps": 1.5625e-07,
        "attention_bias": True,
    }
    fixed: ClassVar = Llama.fixed | {"norm_placement": "sandwich"}

    @classmethod
    def write(cls, cfg: ModelConfig) -> dict[str, Any]:
        return super().write(cfg) | write_rope(cfg, partial=True)

    @classmethod
    def read(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        return super().read(theirs) | {"proj_bias": False}

    @classmethod
    def read_positions(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        return read_rope(theirs, partial=0.5)


class Gemma2(Llama):
    """Norms before and after the sublayers with gains 1 + w, soft caps, a window in every second
    block (Riviere et al. 2024).
    """

    model_type, class_name = "gemma2", "Gemma2ForCausalLM"
    block: ClassVar = {
        "input_layernorm": ("norm1",),
        **ATTENTION,
        "post_attention_layernorm": ("after1",),
        "pre_feedforward_layernorm": ("norm2",),
        **MLP,
        "post_feedforward_layernorm": ("after2",),
    }
    keys: ClassVar = {theirs: ours for theirs, ours in Llama.keys.items() if ours != "mlp_bias"} | {
        "attn_logit_softcapping": "attn_softcap",
        "final_logit_softcapping": "logit_softcap",
    }
    activation_key = "hidden_activation"
    defaults: ClassVar = {
        name: value for name, value in Llama.defaults.items() if name != "hidden_act"
    } | {
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 9216,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "layer_types": None,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }
    fixed: ClassVar = Llama.fixed | {
        "norm_placement": "sandwich",
        "norm": "rmsnorm_1p",
        "embedding_scale": "sqrt_d",
    }
    required: ClassVar = {"use_bidirectional_attention": None}
    full_every = 2
    """Which blocks attend to everything where a config.json does not say."""

    @classmethod
    def write(cls, cfg: ModelConfig) -> dict[str, Any]:
        scale = resolved(cfg)["attn_scale"] ** -2  # a whole number there, as `misplaced` sees
        return (
            super().write(cfg) | write_window(cfg) | {"query_pre_attn_scalar": max(1, round(scale))}
        )

    @classmethod
    def read(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        return super().read(theirs) | {"attn_scale": theirs["query_pre_attn_scalar"] ** -0.5}

    @classmethod
    def read_positions(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        return read_rope(theirs) | read_window({**theirs, "layer_types": cls.kinds(theirs)})

    @classmethod
    def kinds(cls, theirs: Mapping[str, Any]) -> list[str]:
        """Whether a block sees a window, from the first to the last."""
        every = theirs.get("sliding_window_pattern") or cls.full_every
        blocks = range(1, theirs["num_hidden_layers"] + 1)
        return theirs["layer_types"] or [
            "sliding_attention" if i % every else "full_attention" for i in blocks
        ]


class Gemma3(Gemma2):
    """Gemma 2 with norms of queries and keys instead of the cap of the scores, five windows to one
    block without; here with one base of RoPE for all blocks (Kamath et al. 2025).
    """

    model_type, class_name = "gemma3_text", "Gemma3ForCausalLM"
    block: ClassVar = {**Gemma2.block, **QK_NORM}
    keys: ClassVar = {
        theirs: ours for theirs, ours in Gemma2.keys.items() if ours != "attn_softcap"
    }
    defaults: ClassVar = Gemma2.defaults | {
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
    }
    fixed: ClassVar = Gemma2.fixed | {"qk_norm": "head"}
    required: ClassVar = {"use_bidirectional_attention": False, "attn_logit_softcapping": None}
    full_every = 6

    @classmethod
    def write(cls, cfg: ModelConfig) -> dict[str, Any]:
        rope = write_rope(cfg)["rope_parameters"]
        return super().write(cfg) | {
            "rope_parameters": {"sliding_attention": rope, "full_attention": rope}
        }

    @classmethod
    def read_positions(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        kinds = cls.kinds(theirs)
        given = theirs.get("rope_parameters") or {}
        local, everywhere = (
            theirs.get("rope_local_base_freq", 10_000.0),
            theirs.get("rope_theta", 1_000_000.0),
        )
        ropes = [
            read_rope({"rope_theta": base, "rope_parameters": given.get(kind)})
            for kind, base in (("sliding_attention", local), ("full_attention", everywhere))
            if kind in kinds
        ]
        if not all(same(rope["rope_base"], ropes[0]["rope_base"]) for rope in ropes):
            bases = " and ".join(f"{rope['rope_base']:g}" for rope in ropes)
            raise UserError(
                f"rope_parameters: two bases ({bases}) by kind of block; andrea's RoPE has one"
            )
        return ropes[0] | read_window({**theirs, "layer_types": kinds})
