"""What makes no sense is refused with the reason and how to mend it; two spellings of one model
have one form.
"""

import json
from typing import Any

import pytest
from model_zoo import NAMES, config, valid_models
from pydantic import ValidationError
from typer.testing import CliRunner

from andrea.cli.app import app
from andrea.config import RunConfig, build
from andrea.errors import UserError
from andrea.model.checks import normal_form
from andrea.model.config import ModelConfig
from andrea.model.norms import LayerNorm
from andrea.model.registry import VARIANTS, register
from andrea.training.identity import NEUTRAL

SMALL: dict[str, Any] = {"vocab_size": 13, "context": 8, "d_model": 16, "n_layer": 2, "n_head": 4}
NO_NORM = {"norm_placement": "none"}
ROPE = {"positions": "rope"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n_head": 5}, "n_head 5 does not divide d_model 16: .*or set head_dim"),
    ({"n_kv_head": 3}, "n_kv_head 3 does not divide n_head 4: choose a divisor"),
    ({"n_kv_head": 8}, "n_kv_head 8 does not divide n_head 4"),
    ({"window": 8}, "window 8 hides nothing in a context of 8: make it smaller"),
    ({"window": 1}, "window 1 shows a token itself alone.*make it larger"),
    ({"full_every": 2}, "full_every is read with a window only: set window"),
    ({"window": 2, "full_every": 3}, "full_every 3 of 2 blocks lets none attend to everything"),
    (
        {"head_dim": 1, "qk_norm": "head"},
        "qk_norm head would leave a head of width 1 nothing but its sign",
    ),
    ({"mlp_width": 9, "mlp_ratio": 3}, "mlp_width 9 leaves mlp_ratio 3 without effect: give one"),
    ({"mlp_width": 9, "mlp_multiple": 3}, "mlp_width 9 leaves mlp_multiple 3 without effect"),
    (
        {"n_head": 8, "head_dim": 3, **ROPE},
        "3 of 3 dimensions .* turn in pairs: change n_head, head_dim or rope_frac",
    ),
    ({**ROPE, "rope_fraction": 0.2}, "0 of 4 dimensions of a head would be rotated"),
    (
        {**ROPE, "rope_fraction": 0.5, "rope_base": 50},
        "2 dimensions of a head turn at one rate, whatever rope_base",
    ),
    (
        {"rope_base": 50},
        "rope_base is read with positions rope only, and positions is learned: leave it out",
    ),
    ({"rope_fraction": 0.5, "positions": "alibi"}, "rope_fraction .* and positions is alibi"),
    ({"dyt_alpha": 0.7}, "dyt_alpha is read with norm dyt only, and norm is layernorm"),
    (
        {"norm": "dyt", "norm_eps": 0.1},
        "norm_eps is read with norm layernorm, rmsnorm.*, and norm is dyt",
    ),
    ({"norm": "rmsnorm", "norm_bias": False}, "norm_bias is read with norm layernorm, dyt only"),
    ({"norm_affine": False, "norm_bias": True}, "norm_bias is read with norm_affine only"),
    ({"norm_affine": False, "norm_bias": False}, "norm_bias is read with norm_affine only"),
    (
        {"layerscale_init": 0.2},
        "layerscale_init is read with residual layerscale only, and residual is on",
    ),
    ({"mup_base": 64}, "mup_base is read with init mup only, and init is gpt2"),
    (
        {**NO_NORM, "norm_affine": False},
        "norm_affine is read .* and no norm stands anywhere: leave it out",
    ),
    (
        {**NO_NORM, "norm": "rmsnorm"},
        "norm rmsnorm: no norm stands anywhere; choose another norm_placement",
    ),
    (
        {"norm": "identity", "qk_norm": "head"},
        "qk_norm would normalize nothing: choose another norm",
    ),
    (
        {"norm": "identity", "final_norm": True, "embedding_norm": True},
        "embedding_norm and final_norm would normalize",
    ),
    (
        {"norm": "identity", "norm_placement": "post"},
        "there is no norm for norm_placement post to place: leave",
    ),
    (
        {"norm": "identity", "norm_placement": "deepnorm"},
        "no norm for norm_placement deepnorm to place",
    ),
    (
        {"norm_placement": "deepnorm", "residual": "off"},
        "scales the residual itself, which residual off contradicts",
    ),
    (
        {"init": "zero_out", "residual": "rezero"},
        "init zero_out: with residual rezero too.*no block ever learns",
    ),
    (
        {"init": "zero_out", "residual": "off"},
        "init zero_out: without a residual every block puts out 0",
    ),
    (
        {
            "bias": False,
            "attn_bias": True,
            "proj_bias": True,
            "mlp_bias": False,
            "norm_bias": False,
        },
        "bias has no part left: attn_bias, proj_bias, mlp_bias, norm_bias are set; leave bias or "
        "one of them out",
    ),
    (
        {"bias": False, "norm": "rmsnorm", "attn_bias": True, "proj_bias": True, "mlp_bias": False},
        "bias has no part left: attn_bias, proj_bias, mlp_bias are set",
    ),
    (
        {"dropout": 0.1, "dropout_embedding": 0, "dropout_attention": 0, "dropout_residual": 0.2},
        "dropout has no part left",
    ),
    (
        {"context": 1, "attn_softcap": 3},
        "attn_softcap does nothing in a context of 1: leave it out",
    ),
    ({"context": 1, **ROPE}, "positions rope tells nothing in a context of 1"),
    ({"embedding_scale": True}, "embedding_scale: a number above 0 or sqrt_d, not True"),
    ({"embedding_scale": "sqrt"}, "embedding_scale: a number above 0 or sqrt_d, not 'sqrt'"),
    ({"embedding_scale": -1}, "embedding_scale: a number above 0 or sqrt_d, not -1"),
    ({"embedding_scale": None}, "embedding_scale: a number above 0 or sqrt_d, not None"),
    ({"embedding_scale": float("inf")}, "embedding_scale"),
    ({"logit_softcap": float("nan")}, "logit_softcap: "),
    ({"logit_softcap": 0}, "logit_softcap: "),
    ({"window": True}, "window: input should be a number, not true"),
    ({"embedding_norm": "perhaps"}, "embedding_norm: "),
    ({"qk_norm": "heads"}, "qk_norm: .*'none', 'head' or 'full'"),
    ({"full_every": 1, "window": 2}, "full_every: .*greater than or equal to 2"),
    ({"positions": "rotary"}, "unknown positions 'rotary'; .*rope"),
]
SPELLINGS: list[list[dict[str, Any]]] = [
    [
        {},
        {"n_kv_head": 4},
        {"head_dim": 4},
        {"mlp_width": 64},
        {"mlp_ratio": 4.01},
        {"final_norm": True},
    ],
    [
        {},
        {"attn_scale": 0.5},
        {"attn_bias": True, "norm_bias": True},
        {"dropout_residual": 0.0},
        {"mlp_multiple": 32},
    ],
    [{"embedding_scale": "sqrt_d"}, {"embedding_scale": 4}, {"embedding_scale": 4.0}],
    [
        {"bias": False},
        {"attn_bias": False, "proj_bias": False, "mlp_bias": False, "norm_bias": False},
    ],
    [
        {"bias": False, "attn_bias": True},
        {"proj_bias": False, "mlp_bias": False, "norm_bias": False},
    ],
    [
        {"bias": False, "norm": "rmsnorm"},
        {"attn_bias": False, "proj_bias": False, "mlp_bias": False, "norm": "rmsnorm"},
    ],
    [
        {"dropout": 0.1},
        {"dropout_embedding": 0.1, "dropout_attention": 0.1, "dropout_residual": 0.1},
    ],
    [
        {"dropout": 0.1, "dropout_residual": 0.0},
        {"dropout_embedding": 0.1, "dropout_attention": 0.1},
    ],
    [{**ROPE, "head_dim": 8, "rope_fraction": 0.5}, {**ROPE, "head_dim": 8, "rope_fraction": 0.51}],
    [{"n_head": 1, "qk_norm": "full"}, {"n_head": 1, "qk_norm": "head"}],
    [{"norm": "identity"}, {"norm": "identity", "final_norm": False}, NO_NORM],
    [{"init": "mup", "mup_base": 16}, {"attn_scale": 0.25}],
    [{"init": "mup"}, {"init": "mup", "attn_scale": 0.25}],
    [
        {"norm_placement": "res_post", "residual": "off", "final_norm": False},
        {"norm_placement": "post", "residual": "off"},
    ],
    [{"activation": "swiglu", "mlp_ratio": "8/3"}, {"activation": "swiglu", "mlp_width": 43}],
]


@pytest.mark.parametrize(
    ("settings", "reason"), REFUSED, ids=[" ".join(map(str, s)) for s, _ in REFUSED]
)
def test_what_makes_no_sense_is_refused_with_the_reason_and_how_to_mend_it(
    settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason) as refused:
        build(ModelConfig, {**SMALL, **settings})
    assert "\n" not in str(refused.value)


def test_the_command_says_all_faults_in_one_line_and_ends_with_2() -> None:
    settings = [
        "rope_base=5",
        "window=99",
        "dyt_alpha=2",
        "n_kv_head=3",
        "init=zero_out",
        "residual=off",
    ]
    arguments = [part for setting in settings for part in ("--set", f"model.{setting}")]
    result = CliRunner().invoke(app, ["model", "show", "tiny", *arguments], prog_name="andrea")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    for fragment in (
        "rope_base is read",
        "window 99 hides nothing",
        "dyt_alpha is read",
        "n_kv_head 3",
        "puts out 0",
    ):
        assert fragment in result.stderr


def test_what_a_run_resolves_is_accepted_again() -> None:
    for name in NAMES:
        cfg = config(name)
        again = cfg.model_copy(update={"final_norm": cfg.has_final_norm})
        assert ModelConfig.model_validate_json(json.dumps(again.model_dump(mode="json"))) == again


@pytest.mark.parametrize("same", SPELLINGS, ids=lambda same: str(same[-1]))
def test_two_spellings_of_one_model_have_one_form(same: list[dict[str, Any]]) -> None:
    forms = [normal_form(ModelConfig(**{**SMALL, **spelling})) for spelling in same]
    assert all(form == forms[0] for form in forms)


def test_models_of_different_kinds_have_different_forms() -> None:
    forms = {name: json.dumps(normal_form(config(name)), sort_keys=True) for name in NAMES}
    equal = {name for name, form in forms.items() if list(forms.values()).count(form) > 1}
    defaults = {f"{axis} {ModelConfig.model_fields[axis].default}" for axis in VARIANTS}
    no_norms = {"norm_placement none", "norm identity"}
    twins = {"norm_placement post", "openai-gpt", "scale by the root of the width"}
    assert equal <= defaults | no_norms | twins


def test_a_form_is_a_model_again_and_its_own_form() -> None:
    for cfg in valid_models(200, 5):
        form = normal_form(cfg)
        assert (
            normal_form(
                ModelConfig(
                    **{k: v for k, v in form.items() if k != "mlp_dim"}, mlp_width=cfg.mlp_dim
                )
            )
            == form
        )


def test_every_later_field_at_its_default_is_left_out_of_a_runs_name() -> None:
    first = {
        "vocab_size",
        "context",
        "d_model",
        "n_layer",
        "norm_placement",
        "norm",
        "norm_affine",
        "norm_eps",
    }
    first |= {
        "final_norm",
        "activation",
        "mlp_ratio",
        "n_head",
        "tied",
        "bias",
        "dropout",
        "init",
        "init_std",
    }
    for name, field in ModelConfig.model_fields.items():
        assert name in first or NEUTRAL[f"model.{name}"] == field.default, name


class Reader(LayerNorm):
    """A user's norm that reads settings of others."""

    reads = ("norm_affine", "norm_bias", "norm_eps", "dyt_alpha")


def test_a_users_own_part_may_read_what_the_shipped_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(VARIANTS, "norm", dict(VARIANTS["norm"]))
    register("norm", "reader", f"{__name__}:Reader")
    assert ModelConfig(norm="reader", dyt_alpha=0.9, rope_base=5).dyt_alpha == 0.9
    with pytest.raises(ValidationError, match="window 64 hides nothing"):
        ModelConfig(norm="reader", window=64)


def test_the_json_schema_knows_every_field_and_what_it_takes() -> None:
    schema = RunConfig.model_json_schema()["$defs"]["ModelConfig"]["properties"]
    assert schema.keys() == ModelConfig.model_fields.keys()
    assert {"const": "sqrt_d", "type": "string"} in schema["embedding_scale"]["anyOf"]
    shipped = {
        axis: [n for n, to in names.items() if to.startswith("andrea.")]
        for axis, names in VARIANTS.items()
    }
    assert all(schema[axis]["examples"] == names for axis, names in shipped.items())
    assert all(field["description"] for field in schema.values())
