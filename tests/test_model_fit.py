"""Solving for one setting: the best whole number, checked against trying them all, and nothing else
changed.
"""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from andrea.errors import UserError
from andrea.model import registry
from andrea.model.config import ModelConfig
from andrea.model.mlps import Relu
from andrea.model.presets import PRESETS
from andrea.model.size_matching import UNITS, current_value, fit_setting, relative_excess, size_of

NEAR = 40
"""Values on either side that are tried by hand."""


@st.composite
def models(draw):
    """Small models of many shapes, heads that share keys and windows included."""
    heads = draw(st.sampled_from([1, 2, 3, 4, 6]))
    asked = {
        "vocab_size": draw(st.integers(2, 300)),
        "context": 64,
        "n_head": heads,
        "n_kv_head": draw(st.sampled_from([None, 1, heads])),
        "d_model": heads * draw(st.integers(2, 20)),
        "n_layer": draw(st.integers(1, 9)),
        "activation": draw(st.sampled_from(["gelu", "swiglu", "relu2", "reglu"])),
        "norm_placement": draw(st.sampled_from(["pre", "post", "sandwich"])),
        "positions": draw(st.sampled_from(["learned", "rope", "none"])),
        "tied": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "window": draw(st.sampled_from([None, 8])),
    }
    asked |= draw(
        st.sampled_from(
            [{"mlp_ratio": 8 / 3}, {"mlp_ratio": 4, "mlp_multiple": 8}, {"mlp_width": 37}]
        )
    )
    try:
        return ModelConfig(**asked)
    except ValidationError:
        assume(False)


def alternatives(cfg, by, around):
    """Every valid model whose `by` lies near a value, found by trying."""
    step = cfg.mlp_multiple if by == "mlp_width" else 1
    for number in range(max(1, around - NEAR), around + NEAR + 1):
        if number % step:
            continue
        change = {by: number} | ({"mlp_ratio": 4.0, "mlp_multiple": 1} if by == "mlp_width" else {})
        try:
            yield ModelConfig.model_validate(cfg.model_dump() | change)
        except ValidationError:
            continue


@settings(max_examples=60, deadline=None)
@given(
    models(),
    models(),
    st.sampled_from(["params", "flops"]),
    st.sampled_from(["mlp_width", "d_model", "n_layer"]),
)
def test_no_value_nearby_comes_nearer_and_nothing_else_changes(arm, base, on, by):
    target = size_of(base, on)
    found = fit_setting(arm, target, on, by)
    assert (found.was, found.became) == (current_value(arm, by), current_value(found.config, by))
    off = abs(size_of(found.config, on) - target)
    assert all(
        abs(size_of(other, on) - target) >= off for other in alternatives(arm, by, found.became)
    )
    follows = {
        "mlp_width": {"mlp_width", "mlp_ratio", "mlp_multiple"},
        "d_model": {"d_model"},
        "n_layer": {"n_layer"},
    }
    before, after = arm.model_dump(), found.config.model_dump()
    assert {key for key in before if before[key] != after[key]} <= follows[by]


@pytest.mark.parametrize("d_model", [384, 768])
def test_swiglu_against_gelu_at_four_is_solved_to_two_thirds_of_the_width(d_model):
    shape = {"d_model": d_model, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "context": 1024}
    for bias, most in ((False, 0.0), (True, 1e-4 if d_model == 768 else 2e-4)):
        base = ModelConfig(**shape, bias=bias)
        found = fit_setting(
            ModelConfig(**shape, bias=bias, activation="swiglu"),
            size_of(base, "params"),
            "params",
            "mlp_width",
        )
        assert (found.was, found.became) == (4 * d_model, 8 * d_model // 3)
        assert 0 <= relative_excess(found.config, base)["params"] <= most
        assert relative_excess(found.config, base)["flops"] == 0  # biases are in no product


def test_a_multiple_that_was_asked_for_is_kept():
    base = ModelConfig(**PRESETS["gpt2"])
    for multiple in (64, 256, 768):
        arm = ModelConfig(**PRESETS["gpt2"], activation="swiglu", mlp_multiple=multiple)
        assert (
            fit_setting(arm, size_of(base, "params"), "params", "mlp_width").became % multiple == 0
        )


def test_a_width_keeps_its_heads_and_what_rope_asks_of_them():
    shape = {"vocab_size": 256, "n_head": 3, "d_model": 48, "positions": "rope"}
    base = ModelConfig(**shape)
    found = fit_setting(
        ModelConfig(**shape, n_layer=9), size_of(base, "params"), "params", "d_model"
    )
    assert found.config.n_head == 3 and found.became % 6 == 0 and found.became < 48
    free = fit_setting(
        ModelConfig(**shape, n_layer=9, head_dim=16), size_of(base, "params"), "params", "d_model"
    )
    assert (
        free.became % 3 and free.config.d_head == 16
    )  # with a head's width of its own any width goes


def test_flops_are_matched_where_parameters_cannot_tell():
    base = ModelConfig(**PRESETS["gpt2"])
    window = ModelConfig(**PRESETS["gpt2"], window=64, full_every=2)
    assert (
        relative_excess(window, base)["params"] == 0
        and relative_excess(window, base)["flops"] < -0.01
    )
    wider = fit_setting(window, size_of(base, "flops"), "flops", "mlp_width")
    assert wider.became > wider.was and abs(relative_excess(wider.config, base)["flops"]) < 1e-4
    shared = ModelConfig(**PRESETS["gpt2"], n_kv_head=3)
    for on in UNITS:
        assert (
            abs(
                relative_excess(
                    fit_setting(shared, size_of(base, on), on, "mlp_width").config, base
                )[on]
            )
            < 1e-4
        )


def test_depth_is_solved_for():
    base = ModelConfig(**PRESETS["gpt2"])
    found = fit_setting(
        ModelConfig(**PRESETS["gpt2"], activation="swiglu"),
        size_of(base, "params"),
        "params",
        "n_layer",
    )
    assert (found.was, found.became) == (12, 9)
    assert abs(relative_excess(found.config, base)["params"]) < 1e-4


def test_of_two_values_equally_near_the_smaller_is_taken():
    cfg = ModelConfig(vocab_size=256)
    low, high = (size_of(cfg.model_copy(update={"mlp_width": n}), "params") for n in (10, 11))
    assert fit_setting(cfg, (low + high) / 2, "params", "mlp_width").became == 10
    assert fit_setting(cfg, 1, "params", "mlp_width").became == 1


class Coarse(Relu):
    """A user's own: its size goes in steps of 16 hidden units."""

    @classmethod
    def count(cls, cfg):
        return 2 * cfg.d_model * (cfg.mlp_dim // 16 * 16)


class Deaf(Relu):
    """Its size does not depend on the width."""

    @classmethod
    def count(cls, cfg):
        return 1000


class Fragile(Relu):
    @classmethod
    def count(cls, cfg):
        return super().count(cfg) // (cfg.mlp_dim % 64)


@pytest.fixture
def own(monkeypatch):
    known = {axis: dict(names) for axis, names in registry.VARIANTS.items()}
    known["activation"] |= {
        kind.__name__.lower(): f"{__name__}:{kind.__name__}" for kind in (Coarse, Deaf, Fragile)
    }
    monkeypatch.setattr(registry, "VARIANTS", known)


def test_a_users_own_variant_is_asked_for_its_count(own):
    base = ModelConfig(vocab_size=256, activation="swiglu")
    coarse = ModelConfig(vocab_size=256, activation="coarse")
    off = relative_excess(
        fit_setting(coarse, size_of(base, "params"), "params", "mlp_width").config, base
    )["params"]
    assert 0 < abs(off) < 0.02
    deaf = ModelConfig(vocab_size=256, activation="deaf")
    assert fit_setting(deaf, size_of(base, "params"), "params", "mlp_width") is None
    assert fit_setting(deaf, size_of(base, "params"), "params", "n_layer").became > 6
    with pytest.raises(
        UserError, match=r"cannot be counted with model\.mlp_width 64: ZeroDivisionError"
    ):
        fit_setting(
            ModelConfig(vocab_size=256, activation="fragile"),
            size_of(base, "params"),
            "params",
            "mlp_width",
        )
