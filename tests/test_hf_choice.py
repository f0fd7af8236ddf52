"""Whether an architecture computes a model is never guessed: whatever is accepted gives the same
logits there.
"""

import random
from typing import Any

import pytest
import torch
from hf_models import KINDS, configured, randomise, tokens_for, transformers
from pydantic import ValidationError

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.folder import weights_of
from andrea.model.gpt import build_model
from andrea.model.hf.registry import choose_architecture, write_config
from andrea.model.hf.tensors import from_hf, to_hf
from andrea.model.registry import VARIANTS

SWITCH = (True, False)
PART = (True, False, None)
VALUES: dict[str, tuple[Any, ...]] = {
    **{axis: tuple(names) for axis, names in VARIANTS.items()},
    "vocab_size": (5,),
    "context": (7, 8),
    "d_model": (16, 21),
    "n_layer": (1, 4),
    "n_head": (1, 3, 6),
    "n_kv_head": (1, 2, None),
    "head_dim": (4, 6, None),
    "window": (3, None),
    "full_every": (2, 3, None),
    "mlp_ratio": (2.5,),
    "mlp_width": (31, None),
    "mlp_multiple": (32,),
    "rope_base": (100.0,),
    "rope_fraction": (0.3, 0.5, 1.0),
    "norm_eps": (1e-3,),
    "dyt_alpha": (0.7,),
    "layerscale_init": (0.5,),
    "qk_norm": ("none", "head", "full"),
    "attn_scale": (0.5, 0.3, None),
    "attn_softcap": (1.5, None),
    "logit_softcap": (1.5, None),
    "embedding_scale": (1.0, 2.0, "sqrt_d"),
    "z_loss": (0.1,),
    "init_std": (0.1,),
    "mup_base": (12,),
    **{f"dropout{part}": (0.2,) for part in ("", "_embedding", "_attention", "_residual")},
    **dict.fromkeys(("norm_affine", "embedding_norm", "tied", "head_bias", "bias"), SWITCH),
    **dict.fromkeys(("norm_bias", "final_norm", "attn_bias", "proj_bias", "mlp_bias"), PART),
}
"""Values of every setting that are tried on top of what an architecture is known by."""


def test_every_setting_is_tried() -> None:
    assert set(VALUES) == set(ModelConfig.model_fields)


def accepted(settings: dict[str, Any]) -> bool:
    """Whether such a model makes sense and has an architecture; if it has, its logits must be ours
    there.
    """
    try:
        cfg = ModelConfig(**settings)
        architecture = choose_architecture(cfg)
    except (ValidationError, UserError):
        return False
    model = build_model(cfg).eval()
    randomise(model, 1)
    said = write_config(architecture, cfg, "float32", None)
    config = transformers.AutoConfig.for_model(said.pop("model_type"), **said)
    theirs = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    tensors = to_hf(architecture, cfg, weights_of(model))
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert not unexpected and missing == (["lm_head.weight"] if cfg.tied else [])
    tokens = tokens_for(cfg, 2)
    with torch.no_grad():
        torch.testing.assert_close(
            theirs(tokens).logits,
            model(tokens),
            atol=1e-4,
            rtol=1e-4,
            msg=lambda m: f"{cfg!r}: {m}",
        )
    back = from_hf(architecture, cfg, tensors)
    assert all(torch.equal(tensor, back[name]) for name, tensor in weights_of(model).items())
    return True


def trials(name: str) -> list[dict[str, Any]]:
    """The settings of an architecture with one other value, each in turn."""
    base = configured(name, "wide").model_dump()
    return [base | {field: value} for field, values in VALUES.items() for value in values]


def test_one_setting_changed_is_computed_or_refused() -> None:
    found = [accepted(settings) for settings in trials("gpt_neox")[::9]]
    assert 2 < sum(found) < len(found) - 2


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_one_setting_changed_is_computed_or_refused_by_every_architecture(name: str) -> None:
    found = [accepted(settings) for settings in trials(name)]
    assert 15 < sum(found) < len(found) - 15


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_several_settings_changed_are_computed_or_refused(seed: int) -> None:
    draw = random.Random(seed)
    found = []
    for _ in range(400):
        settings = configured(draw.choice([*KINDS]), draw.choice(["wide", "odd"])).model_dump()
        chosen = draw.sample([*VALUES], draw.randint(2, 4))
        found.append(accepted(settings | {field: draw.choice(VALUES[field]) for field in chosen}))
    assert sum(found) > 20
