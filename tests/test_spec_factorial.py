"""Factorial ablation files: what they expand to, and every fault named with its line."""

from pathlib import Path

import pytest
import yaml

from andrea.errors import UserError
from andrea.study.question.ablation import Ablation

GOOD = """\
question: Does post-norm need warmup?
hypothesis: It does.
factors:
  norm_placement:
    pre:  {model.norm_placement: pre, label: pre-norm}
    post: {model.norm_placement: post, label: post-norm}
  warmup:
    warm: {train.warmup: 0.1}
    cold: {train.warmup: 0, label: no warmup}
baseline: pre+warm
preset: tiny
protocol:
  m: 0.05
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def faults(tmp_path: Path, old: str, new: str) -> list[str]:
    assert GOOD.count(old) == 1
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(UserError) as caught:
        Ablation.load(path)
    told = str(caught.value)
    return [
        line.strip().removeprefix("line ") for line in told.replace(f"{path}:", "").splitlines()
    ]


def test_the_arms_are_every_combination_of_levels(tmp_path: Path) -> None:
    ablation = Ablation.load(written(tmp_path, GOOD))
    assert list(ablation.arms) == ["pre+warm", "pre+cold", "post+warm", "post+cold"]
    assert [ablation.label(arm) for arm in ablation.arms] == [
        "pre-norm, warm",
        "pre-norm, no warmup",
        "post-norm, warm",
        "post-norm, no warmup",
    ]
    config = ablation.arm_config("post+cold")
    assert (config.model.norm_placement, config.train.warmup) == ("post", 0)
    assert ablation.arms["post+cold"].set == {"model.norm_placement": "post", "train.warmup": 0}
    assert ablation.factor == "norm_placement × warmup" and ablation.baseline == "pre+warm"
    assert ablation.levels == {"norm_placement": ["pre", "post"], "warmup": ["warm", "cold"]}


def test_a_dumped_design_is_the_same_design(tmp_path: Path) -> None:
    ablation = Ablation.load(written(tmp_path, GOOD))
    again = yaml.safe_load(yaml.safe_dump(ablation.model_dump(mode="json"), sort_keys=False))
    assert Ablation.model_validate(again).with_path(tmp_path / "mine.yaml") == ablation
    changed = ablation.override({"protocol.seeds": 3, "model.n_layer": 4}, preset="andrea-12m")
    assert changed.arms == ablation.arms and changed.arm_config("post+cold").model.n_layer == 4


def test_three_factors_and_three_levels_multiply(tmp_path: Path) -> None:
    text = GOOD.replace(
        "baseline: pre+warm",
        "  bias:\n    with: {model.bias: true}\n    without: {model.bias: false}\nbaseline: "
        "pre+cold+with",
    )
    text = text.replace("    cold: ", "    half: {train.warmup: 0.05}\n    cold: ")
    ablation = Ablation.load(written(tmp_path, text))
    assert len(ablation.arms) == 12 and "post+half+without" in ablation.arms
    assert ablation.factor == "norm_placement × warmup × bias"


def test_one_factor_and_one_level_are_too_few(tmp_path: Path) -> None:
    alone = (
        "  warmup:\n    warm: {train.warmup: 0.1}\n    cold: {train.warmup: 0, label: no warmup}\n"
    )
    assert faults(tmp_path, alone, "")[0].startswith(
        "3: factors: dictionary should have at least 2 items"
    )
    level = "    cold: {train.warmup: 0, label: no warmup}\n"
    assert faults(tmp_path, level, "")[0].startswith(
        "7: factors.warmup: dictionary should have at least 2 items"
    )


def test_factors_and_arms_exclude_each_other_and_one_of_them_is_there(tmp_path: Path) -> None:
    arms = "baseline: pre+warm\narms:\n  a: {model.bias: true}\n  b: {model.bias: false}\n"
    assert faults(tmp_path, "baseline: pre+warm\n", arms) == [
        "11: arms: the factors make them already; leave one of the two out"
    ]
    factor = "factor: warmup\nbaseline: pre+warm\n"
    assert faults(tmp_path, "baseline: pre+warm\n", factor) == [
        "10: factor: the factors say it already; leave it out"
    ]
    block = GOOD[GOOD.index("factors:") : GOOD.index("baseline:")]
    missing = faults(tmp_path, block, "")
    assert [line.partition(" (or")[0] for line in missing] == [
        "1: arms: required and missing",
        "1: factor: required and missing",
    ]


def test_a_factor_of_several_settings_has_any_name(tmp_path: Path) -> None:
    text = GOOD.replace("placement: post,", "placement: post, model.norm: rmsnorm,").replace(
        "  norm_placement:", "  norms:"
    )
    ablation = Ablation.load(written(tmp_path, text))
    assert ablation.factor == "norms × warmup" and ablation.levels == {
        "norms": ["pre", "post"],
        "warmup": ["warm", "cold"],
    }


def test_a_setting_belongs_to_one_factor(tmp_path: Path) -> None:
    said = "factor norm_placement sets it too; a setting belongs to one factor"
    assert faults(
        tmp_path, "cold: {train.warmup: 0,", "cold: {train.warmup: 0, model.norm_placement: post,"
    ) == [f"9: factors.warmup.cold: model.norm_placement: {said}"]


def test_two_factors_cannot_both_move_the_grid(tmp_path: Path) -> None:
    text = GOOD.replace("{train.warmup: 0.1}", "{train.warmup: 0.1, center: 0.01}")
    ablation = Ablation.load(written(tmp_path, text))
    assert ablation.centers == {"pre+warm": 0.01, "post+warm": 0.01}
    with pytest.raises(
        UserError, match=r":8: factors\.warmup\.warm: center: factor norm_placement sets it too"
    ):
        Ablation.load(
            written(tmp_path, text.replace("placement: post,", "placement: post, center: 0.001,"))
        )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "cold: {train.warmup: 0,",
            "cold: {train.lr: 1, train.warmup: 0,",
            "9: factors.warmup.cold: train.lr: the protocol",
        ),
        (
            "cold: {train.warmup: 0,",
            "cold: {train.warmupp: 0,",
            "9: factors.warmup.cold: train.warmupp: unknown; did you",
        ),
        (
            "placement: post,",
            "placement: pots,",
            "6: factors.norm_placement.post: model.norm_placement: unknown norm_pl",
        ),
        (
            "placement: post,",
            "placement: post, nonsense: 1,",
            "6: factors.norm_placement.post: nonsense: an arm holds",
        ),
        ("    cold: {", "    co+ld: {", "9: factors.warmup.co+ld: a level's name has"),
        (
            "  warmup:\n",
            "  warmpu:\n",
            "7: factor 'warmpu' is no setting that its levels differ in; did you",
        ),
        (
            "baseline: pre+warm",
            "baseline: pre",
            "10: baseline 'pre' is not an arm; there are pre+warm, pre+cold, post",
        ),
        (
            "placement: post,",
            "placement: pre,",
            "6: factors.norm_placement.post: the same configuration as level pre",
        ),
        (
            "0.1}",
            "0.1, center: 1e-8}",
            "8: factors.warmup.warm: center: trials 7 round center 1e-08 could come to",
        ),
        (
            "0.1}",
            "0.1, center: -1}",
            "8: factors.warmup.warm.center: input should be greater than 0, not -1",
        ),
    ],
)
def test_a_fault_of_a_level_is_named_once_where_it_was_written(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    found = faults(tmp_path, old, new)
    assert any(line.startswith(told) for line in found), found
    assert len({line for line in found if line.startswith(told[:8])}) == 1


def test_names_that_would_be_too_long_together_are_refused(tmp_path: Path) -> None:
    found = faults(tmp_path, "    cold: {", f"    {'c' * 38}: {{")
    assert "an arm's name has up to 40 letters" in found[0]


def test_the_command_line_cannot_set_what_a_factor_sets(tmp_path: Path) -> None:
    ablation = Ablation.load(written(tmp_path, GOOD))
    with pytest.raises(UserError, match=r"train\.warmup: factor warmup sets it"):
        ablation.override({"train.warmup": 0.2})


def test_the_schema_for_editors_knows_both_kinds() -> None:
    schema = Ablation.json_schema()
    assert {"required": ["factors"]} in schema["oneOf"] and "arms" not in schema["required"]
    assert "center" in schema["$defs"]["Arm"]["properties"]
