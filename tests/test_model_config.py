"""The configuration of a model: every key counts, faults are named, variants of one's own take
part.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from andrea.config import build
from andrea.errors import UserError
from andrea.model.accounting import count_parameters
from andrea.model.config import ModelConfig
from andrea.model.gpt import build_model
from andrea.model.mlps import Mlp
from andrea.model.presets import PRESETS
from andrea.model.registry import VARIANTS, register, variant
from andrea.model.summary import describe

SMALL = ModelConfig(vocab_size=11, context=6, d_model=12, n_layer=2, n_head=2, dropout=0.2)


class Square(Mlp):
    """A user's activation: x², in the house's MLP."""

    saved_tensors = 2

    @classmethod
    def activation(cls) -> nn.Module:
        class Squared(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * x

        return Squared()


class Plain:
    """A user's MLP that knows nothing of the house: one matrix, the three methods and no base
    class.
    """

    @staticmethod
    def build(cfg: ModelConfig) -> nn.Module:
        return nn.Sequential(nn.Linear(cfg.d_model, cfg.d_model, bias=False), nn.Tanh())

    @staticmethod
    def count(cfg: ModelConfig) -> int:
        return cfg.d_model**2

    @staticmethod
    def flops(cfg: ModelConfig) -> float:
        return 2.0 * cfg.d_model**2


class Scalar:
    """A user's norm with one parameter and no base class; `rescale` keeps the value that it is
    built with.
    """

    @staticmethod
    def build(cfg: ModelConfig) -> nn.Module:
        class Rescaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rescale = nn.Parameter(torch.tensor([0.25]))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.rescale

        return Rescaled()

    @staticmethod
    def count(cfg: ModelConfig) -> int:
        return 1

    @staticmethod
    def flops(cfg: ModelConfig) -> float:
        return 0.0


@pytest.fixture
def own_variants() -> Iterator[None]:
    before = {axis: dict(names) for axis, names in VARIANTS.items()}
    register("activation", "square", f"{__name__}:Square")
    register("activation", "plain", f"{__name__}:Plain")
    register("norm", "scalar", f"{__name__}:Scalar")
    yield
    for axis, names in before.items():
        VARIANTS[axis].clear()
        VARIANTS[axis].update(names)


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(UserError, match="d_modle: unknown; did you mean 'd_model'"):
        build(ModelConfig, {"d_modle": 8})


@pytest.mark.parametrize(
    ("axis", "name", "nearest"),
    [
        ("norm_placement", "pree", "pre"),
        ("activation", "swigul", "swiglu"),
        ("norm", "layer_norm", "layernorm"),
    ],
)
def test_an_unknown_variant_is_refused_with_the_nearest_known_one(
    axis: str, name: str, nearest: str
) -> None:
    with pytest.raises(UserError, match=f"unknown {axis} '{name}'; did you mean '{nearest}'"):
        build(ModelConfig, {axis: name})
    with pytest.raises(UserError, match=f"did you mean '{nearest}'"):
        variant(axis, name)


def test_a_variant_unlike_any_other_is_refused_with_the_list() -> None:
    with pytest.raises(
        UserError, match="there are gelu_tanh, gelu, relu, relu2, silu, swiglu, geglu"
    ):
        build(ModelConfig, {"activation": "zzz"})


def test_all_faults_of_a_model_come_in_one_message() -> None:
    with pytest.raises(UserError) as error:
        build(ModelConfig, {"d_model": 0, "mlp_ratio": "8/0", "activation": "reloo", "dropout": 1})
    for fragment in ("d_model:", "not a ratio: '8/0'", "did you mean 'relu'", "dropout:"):
        assert fragment in str(error.value)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(UserError, match="n_head 5 does not divide d_model 48"):
        build(ModelConfig, {"n_head": 5})


@pytest.mark.parametrize("written", ["8/3", " 8 / 3", 8 / 3])
def test_a_ratio_may_be_written_as_a_fraction(written: Any) -> None:
    assert ModelConfig(d_model=768, n_head=12, mlp_ratio=written).mlp_dim == 2048


def test_a_users_own_activation_is_built_counted_and_described(own_variants: None) -> None:
    cfg = ModelConfig(**{**SMALL.model_dump(), "activation": "square"})
    model = build_model(cfg)
    assert sum(p.numel() for p in model.parameters()) == count_parameters(cfg).total
    x = torch.randn(3, cfg.d_model)
    mlp: Any = model.blocks[0].mlp  # type: ignore[union-attr]
    torch.testing.assert_close(mlp(x), mlp.down(mlp.up(x) ** 2))
    assert {row.name for row in describe(cfg).rows} >= {"up.weight", "down.bias"}


def test_a_variant_with_the_three_methods_and_no_base_class_is_enough(own_variants: None) -> None:
    cfg = ModelConfig(**{**SMALL.model_dump(), "activation": "plain", "norm": "scalar"})
    model = build_model(cfg)
    assert sum(p.numel() for p in model.parameters()) == count_parameters(cfg).total
    described = describe(cfg)
    row = next(row for row in described.rows if row.name == "mlp")
    assert row.parameters == cfg.n_layer * cfg.d_model**2 == described.parameters.mlp
    assert described.parameters.norms == 2 * cfg.n_layer + 1
    assert described.memory.activations > 0
    assert (
        model.final_norm.rescale.item() == 0.25
    )  # the init rule leaves a variant's own constants alone


@pytest.mark.parametrize(("optimizer", "numbers"), [("adamw", 2), ("lion", 1), ("sgd", 1)])
def test_the_memory_that_is_shown_is_that_of_the_optimizer_that_is_asked_for(
    optimizer: str, numbers: int
) -> None:
    described = describe(ModelConfig(vocab_size=256), optimizer=optimizer)
    assert described.memory.optimizer == 4 * numbers * described.parameters.total


def test_registering_refuses_other_axes_other_classes_and_other_forms(own_variants: None) -> None:
    register("activation", "square", f"{__name__}:Square")  # the same again is no fault
    with pytest.raises(ValueError, match="already has a variant 'gelu'"):
        register("activation", "gelu", f"{__name__}:Square")
    with pytest.raises(ValueError, match="no axis 'colour'"):
        register("colour", "red", f"{__name__}:Square")
    with pytest.raises(ValueError, match="not of the form module:Class"):
        register("activation", "cube", "cube")


@pytest.mark.parametrize("target", ["no_such_module_at_all:Cube", f"{__name__}:Cube"])
def test_a_variant_that_cannot_be_loaded_is_the_users_to_mend(
    target: str, own_variants: None
) -> None:
    register("activation", "cube", target)
    with pytest.raises(UserError, match=f"activation 'cube': cannot load {target}"):
        count_parameters(SMALL.model_copy(update={"activation": "cube"}))


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_the_final_norm_follows_the_placement_unless_it_is_asked_for(placement: str) -> None:
    assert ModelConfig(norm_placement=placement).has_final_norm is (placement == "pre")
    for asked in (True, False):
        cfg = ModelConfig(vocab_size=5, norm_placement=placement, final_norm=asked)
        assert cfg.has_final_norm is asked
        assert (
            any(name.startswith("final_norm") for name, _ in build_model(cfg).named_parameters())
            is asked
        )


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid_and_described(preset: str) -> None:
    cfg = build(ModelConfig, PRESETS[preset])
    assert describe(cfg, batch_size=2, preset=preset).parameters.total > 0


def test_counting_and_describing_load_no_torch() -> None:
    code = (
        "import sys; from andrea.model import accounting, inits, summary;"
        "from andrea.model.config import ModelConfig;"
        "from andrea.model.presets import PRESETS;"
        "from andrea.model.registry import VARIANTS, variant;"
        "[variant(axis, name) for axis in VARIANTS for name in VARIANTS[axis]];"
        "cfg = ModelConfig(**PRESETS['gpt2']); summary.describe(cfg);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
