"""Llama and its kin: RMSNorm, RoPE, gated MLP, shared heads of keys and values. Torch-free."""

from typing import Any, ClassVar

from andrea.errors import UserError
from andrea.model.hf.architecture import (
    Architecture,
    HfSettings,
    Settings,
    is_same_value,
    names_and_defaults,
    read_rope,
    read_window,
    resolve_settings,
    without_keys,
    write_rope,
    write_window,
)
from andrea.model.settings import ModelSettings

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
    keys, defaults = names_and_defaults(
        {
            "vocab_size": ("vocab_size", 32000),
            "max_position_embeddings": ("context", 2048),
            "hidden_size": ("d_model", 4096),
            "num_hidden_layers": ("n_layer", 32),
            "num_attention_heads": ("n_head", 32),
            "num_key_value_heads": ("n_kv_head", None),
            "head_dim": ("head_dim", None),
            "intermediate_size": ("mlp_width", 11008),
            "rms_norm_eps": ("norm_eps", 1e-6),
            "tie_word_embeddings": ("tied", False),
            "attention_bias": ("attn_bias", False),
            "mlp_bias": ("mlp_bias", False),
            "attention_dropout": ("dropout_attention", 0.0),
        }
    )
    defaults |= {"hidden_act": "silu"}
    fixed: ClassVar = {"norm_placement": "pre", "norm": "rmsnorm", **WITHOUT_BIAS}
    following: ClassVar = {"proj_bias": "attn_bias"}

    @classmethod
    def write(cls, cfg: ModelSettings) -> dict[str, Any]:
        return super().write(cfg) | write_rope(cfg, partial=cls.partial_rope)

    @classmethod
    def read(cls, hf: HfSettings) -> Settings:
        heads = hf["num_attention_heads"]
        completed = {
            **hf,
            "num_key_value_heads": hf["num_key_value_heads"] or heads,
            "head_dim": hf.get("head_dim") or hf["hidden_size"] // heads,
        }
        return super().read(completed) | cls.read_positions(hf)

    @classmethod
    def read_positions(cls, hf: HfSettings) -> Settings:
        """Return the settings of RoPE, and of the window that some blocks see."""
        return read_rope(hf, partial=cls.partial_rope)


class Mistral(Llama):
    """Llama with a sliding window in every block (Jiang et al. 2023)."""

    model_type, class_name, whole_heads = "mistral", "MistralForCausalLM", False
    keys: ClassVar = without_keys(Llama.keys, "attention_bias", "mlp_bias") | {
        "sliding_window": "window"
    }
    following: ClassVar = {}
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
    keys: ClassVar = without_keys(Llama.keys, "mlp_bias")
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
    def write(cls, cfg: ModelSettings) -> dict[str, Any]:
        windowed = {"use_sliding_window": cfg.window is not None}
        return super().write(cfg) | write_window(cfg) | windowed

    @classmethod
    def read_positions(cls, hf: HfSettings) -> Settings:
        if not hf["use_sliding_window"]:
            return read_rope(hf)
        blocks, n_full = range(hf["num_hidden_layers"]), hf["max_window_layers"]
        kinds = hf["layer_types"] or [
            "full_attention" if i < n_full else "sliding_attention" for i in blocks
        ]
        return read_rope(hf) | read_window({**hf, "layer_types": kinds})


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
    keys: ClassVar = without_keys(Llama.keys, "head_dim", "mlp_bias")
    defaults: ClassVar = Llama.defaults | {"vocab_size": 50304, "rms_norm_eps": 1e-5}
    fixed: ClassVar = Llama.fixed | {"norm_placement": "res_post", "qk_norm": "full"}


class Glm4(Llama):
    """Norms before and after the sublayers, half a head turned in neighbouring dimensions, gate and
    up in one matrix, biases of queries, keys and values alone (GLM-4-0414).
    """

    model_type, class_name, whole_heads, paired_rope = "glm4", "Glm4ForCausalLM", False, True
    partial_rope, following = 0.5, {}
    block: ClassVar = {
        "input_layernorm": ("norm1",),
        **ATTENTION,
        "post_self_attn_layernorm": ("after1",),
        "post_attention_layernorm": ("norm2",),
        "mlp.gate_up_proj": ("mlp.gate", "mlp.up"),
        "mlp.down_proj": ("mlp.down",),
        "post_mlp_layernorm": ("after2",),
    }
    keys: ClassVar = without_keys(Llama.keys, "mlp_bias")
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
    keys: ClassVar = without_keys(Llama.keys, "mlp_bias") | {
        "attn_logit_softcapping": "attn_softcap",
        "final_logit_softcapping": "logit_softcap",
    }
    activation_key = "hidden_activation"
    defaults: ClassVar = without_keys(Llama.defaults, "hidden_act") | {
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
    # Its gain 1 + w is a norm of its own: 1 + (g − 1) is not every g in float32, and weights would
    # not come back bit for bit.
    fixed: ClassVar = Llama.fixed | {
        "norm_placement": "sandwich",
        "norm": "rmsnorm_1p",
        "embedding_scale": "sqrt_d",
    }
    required: ClassVar = {"use_bidirectional_attention": None}
    full_every = 2
    """Every n-th block attends to everything where a config.json does not say."""

    @classmethod
    def write(cls, cfg: ModelSettings) -> dict[str, Any]:
        # A whole number there: another scale is found by `misplaced_settings`.
        scalar = max(1, round(resolve_settings(cfg)["attn_scale"] ** -2))
        return super().write(cfg) | write_window(cfg) | {"query_pre_attn_scalar": scalar}

    @classmethod
    def read(cls, hf: HfSettings) -> Settings:
        return super().read(hf) | {"attn_scale": hf["query_pre_attn_scalar"] ** -0.5}

    @classmethod
    def read_positions(cls, hf: HfSettings) -> Settings:
        return read_rope(hf) | read_window({**hf, "layer_types": cls.kinds(hf)})

    @classmethod
    def kinds(cls, hf: HfSettings) -> list[str]:
        """Return the kinds of the blocks, from the first to the last."""
        every = hf.get("sliding_window_pattern") or cls.full_every
        blocks = range(1, hf["num_hidden_layers"] + 1)
        return hf["layer_types"] or [
            "sliding_attention" if i % every else "full_attention" for i in blocks
        ]


class Gemma3(Gemma2):
    """Gemma 2 with norms of queries and keys instead of the cap of the scores, five windows to one
    block without; here with one base of RoPE for all blocks (Kamath et al. 2025).
    """

    model_type, class_name = "gemma3_text", "Gemma3ForCausalLM"
    block: ClassVar = {**Gemma2.block, **QK_NORM}
    keys: ClassVar = without_keys(Gemma2.keys, "attn_logit_softcapping")
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
    def write(cls, cfg: ModelSettings) -> dict[str, Any]:
        rope = write_rope(cfg)["rope_parameters"]
        return super().write(cfg) | {
            "rope_parameters": {"sliding_attention": rope, "full_attention": rope}
        }

    @classmethod
    def read_positions(cls, hf: HfSettings) -> Settings:
        kinds = cls.kinds(hf)
        ropes_by_kind = hf.get("rope_parameters") or {}
        older_bases = {
            "sliding_attention": hf.get("rope_local_base_freq", 10_000.0),
            "full_attention": hf.get("rope_theta", 1_000_000.0),
        }
        ropes = []
        for kind, base in older_bases.items():
            if kind in kinds:
                rope = {"rope_theta": base, "rope_parameters": ropes_by_kind.get(kind)}
                ropes.append(read_rope(rope))
        if not all(is_same_value(rope["rope_base"], ropes[0]["rope_base"]) for rope in ropes):
            bases = " and ".join(f"{rope['rope_base']:g}" for rope in ropes)
            raise UserError(
                f"rope_parameters: two bases ({bases}) by kind of block; andrea's RoPE has one"
            )
        return ropes[0] | read_window({**hf, "layer_types": kinds})


LLAMAS = (Llama, Mistral, Qwen3, Olmo2, Glm4, Gemma2, Gemma3)
