"""Settings become one run: layers, overrides, and what a wrong one is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea.config import RunConfig, build, dotted, merge, parse_overrides, parse_value
from andrea.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("3", 3),
        ("true", True),
        ("null", None),
        ("post", "post"),
        ("8/3", "8/3"),
        ("[90, 5, 5]", [90, 5, 5]),
    ],
)
def test_values_are_read_as_json_before_yaml_so_that_1e_3_is_a_number(
    text: str, value: object
) -> None:
    assert parse_value(text) == value


def test_a_ratio_may_be_written_as_a_fraction() -> None:
    config = build(RunConfig, merge(parse_overrides(["model.mlp_ratio=8/3", "model.d_model=768"])))
    assert config.model.mlp_ratio == 8 / 3 and config.model.mlp_dim == 2048


def test_later_layers_win_key_by_key_and_dotted_keys_mean_the_same() -> None:
    assert merge({"model": {"d_model": 1, "n_head": 2}}, {"model.d_model": 3}) == {
        "model": {"d_model": 3, "n_head": 2}
    }
    assert merge({"a.b.c": 1}, {"a": {"b": {"d": 2}}}) == {"a": {"b": {"c": 1, "d": 2}}}


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.integers()))
def test_merging_a_layer_twice_changes_nothing(layer: dict[str, int]) -> None:
    assert merge(layer, layer) == merge(layer)


def test_dotted_keys_are_those_of_the_command_line() -> None:
    settings = {"model": {"d_model": 48}, "data": {"split": [90, 5, 5]}, "train.lr": 0.01}
    assert dotted(settings) == {"model.d_model": 48, "data.split": [90, 5, 5], "train.lr": 0.01}
    assert merge(dotted(settings)) == merge(settings)


def test_every_fault_is_told_at_once_with_its_path_and_a_hint() -> None:
    settings = {
        "model.d_modle": 3,
        "train.lr": -1,
        "model.activation": "gelo",
        "data.tokenizer": "bp",
        "modell": 1,
    }
    with pytest.raises(UserError) as caught:
        build(RunConfig, merge(settings))
    message = str(caught.value)
    for part in (
        "model.d_modle: unknown; did you mean 'd_model'?",
        "train.lr: input should be greater than 0, not -1",
        "did you mean 'gelu'?",
        "data.tokenizer: unknown tokenizer 'bp'",
        "modell: unknown; did you mean 'model'?",
    ):
        assert part in message
    assert "\n" not in message


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(UserError, match="n_head 5 does not divide d_model 48"):
        build(RunConfig, {"model": {"n_head": 5}})


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0"])
def test_a_learning_rate_is_a_positive_finite_number(value: str) -> None:
    with pytest.raises(UserError, match=r"train\.lr"):
        build(RunConfig, merge(parse_overrides([f"train.lr={value}"])))


def test_an_override_without_a_value_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'model\.d_model' is not of the form"):
        parse_overrides(["model.d_model", "train.lr=1e-3"])
