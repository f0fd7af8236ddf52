"""A whole factorial study on a training that takes no time: cells, effects, centers of their
own.
"""

import pytest
import stored
import study_fakes as fakes
import yaml
from study_fakes import go, misbehave, write_study

from andrea.cli.show.plan import center_lines, rule_lines
from andrea.config import RunConfig, merge
from andrea.errors import UserError
from andrea.store.runs import RunStore
from andrea.study.plan.freeze import freeze
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.plan.plan import Request
from andrea.study.plan.resolve import make_plan
from andrea.study.question.ablation import Ablation

FACTORS = {
    "activation": {"gelu": "gelu_tanh", "relu": "relu"},
    "norm_placement": {"pre": "pre", "post": "post"},
}


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


def make_design(root, center=None):
    """Activation times norm placement; relu is worse by 0.2 nats wherever the norm stands."""
    store, arms, configs = RunStore(root), {}, {}
    for first, activation in FACTORS["activation"].items():
        for last, placement in FACTORS["norm_placement"].items():
            own = {"model.activation": activation, "model.norm_placement": placement}
            arms[f"{first}+{last}"] = {
                "label": None,
                "center": center if first == "relu" else None,
                "set": own,
            }
            settings = merge({"model": {"vocab_size": 256}, "train": {"tokens": 512}}, own)
            configs[f"{first}+{last}"] = RunConfig.model_validate(settings).model_dump(mode="json")
    asked = {
        "kind": "ablation",
        "factors": {
            factor: {level: {"set": {f"model.{factor}": value}} for level, value in levels.items()}
            for factor, levels in FACTORS.items()
        },
        "factor": "activation × norm_placement",
        "baseline": "gelu+pre",
        "arms": arms,
        "protocol": {"m": 0.05, "seeds": 3},
    }
    return write_study(store, "design", "ablation", asked, configs, "gelu+pre"), store


def effect(folder, kind, factor="activation", **at):
    found = stored.study_json(folder, "verdict.json")["effects"]
    [one] = [
        e
        for e in found
        if e["kind"] == kind and e["steps"][0]["factor"] == factor and e["at"] == at
    ]
    return one


def test_every_cell_is_tuned_and_replicated_and_every_effect_is_judged(tmp_path):
    folder, store = make_design(tmp_path)
    assert go(folder, store).complete
    assert len(stored.planned(folder)) == 4 * (7 + 3)
    told = stored.study_json(folder, "verdict.json")
    assert [v["arms"] for v in told["verdicts"]] == [3, 3, 3]
    assert len(told["effects"]) == 2 + 4 + 1
    assert (
        effect(folder, "main")["verdict"] == "worse"
        and abs(effect(folder, "main")["mean"] - 0.2) < 0.01
    )
    assert effect(folder, "main", "norm_placement")["verdict"] == "equivalent"
    assert effect(folder, "interaction")["verdict"] == "absent"
    assert effect(folder, "interaction")["steps"][1] == {
        "factor": "norm_placement",
        "level": "post",
        "against": "pre",
    }


def test_a_cell_that_stalls_takes_its_effects_with_it_and_says_how_often(tmp_path):
    folder, store = make_design(tmp_path)
    misbehave(tmp_path, "stall", activation="relu", norm_placement="post", seed=0)
    assert go(folder, store).complete
    crossed = effect(folder, "interaction")
    assert (crossed["verdict"], crossed["mean"], crossed["counts"]["relu+post"]["stalled"]) == (
        "unstable",
        None,
        1,
    )
    assert "relu+post: 1 stalled of 3 runs" in crossed["reason"]
    assert effect(folder, "simple", norm_placement="pre")["verdict"] == "worse"


def test_a_cell_that_no_rate_trains_is_named_and_the_rest_is_judged(tmp_path):
    folder, store = make_design(tmp_path)
    misbehave(tmp_path, "diverge", activation="relu", norm_placement="post")
    assert go(folder, store).complete
    assert "relu+post: every tuning run diverged or stalled" in effect(folder, "main")["reason"]
    assert effect(folder, "simple", "norm_placement", activation="gelu")["verdict"] == "equivalent"


def test_cells_with_a_center_of_their_own_are_tuned_round_it(tmp_path):
    folder, store = make_design(tmp_path, center=0.001)
    assert FrozenStudy(folder, store).question.centers == {"relu+pre": 0.001, "relu+post": 0.001}
    assert go(folder, store).complete
    choices = stored.study_json(folder, "choices.json")
    assert choices["gelu+pre"]["grid"] == [0.000316, 0.001, 0.00316, 0.01, 0.0316]
    assert choices["relu+post"]["grid"] == [0.0001, 0.000316, 0.001, 0.00316, 0.01]
    assert {len(choice["points"]) for choice in choices.values()} == {7}


def test_an_ordinary_study_has_no_effects(tmp_path):
    folder, store = fakes.make_study(tmp_path)
    go(folder, store)
    assert "effects" not in stored.study_json(folder, "verdict.json")


FACTORIAL = {
    "norm_placement": {
        "pre": {"model.norm_placement": "pre"},
        "post": {"model.norm_placement": "post"},
    },
    "warmup": {"warm": {"train.warmup": 0.1}, "cold": {"train.warmup": 0.0, "label": "no warmup"}},
}


def asked(text, factors=FACTORIAL):
    return Request(
        Ablation.model_validate(
            {
                "question": "Does post-norm need warmup?",
                "hypothesis": "It does.",
                "factors": factors,
                "baseline": "pre+warm",
                "match": {"on": "params", "tolerance": 0.05},
                "model": {"d_model": 16, "n_layer": 1, "n_head": 2, "context": 16},
                "data": {"source": f"text:{text}", "eval_tokens": 512, "curve_tokens": 64},
                "train": {"tokens": 1024, "batch_size": 4},
                "protocol": {"m": 0.05, "seeds": 2},
            }
        ),
        name="design",
    )


def test_a_frozen_design_knows_its_levels_and_the_protocol_loads_back_equal(
    tiny_text, store, monkeypatch
):
    monkeypatch.undo()  # with real identities
    planned = make_plan(asked(tiny_text), store)
    assert list(planned.arms) == ["pre+warm", "pre+cold", "post+warm", "post+cold"]
    assert planned.arms["post+cold"].label == "post, no warmup"
    folder = freeze(planned, store)
    told = yaml.safe_load((folder.path / "protocol.yaml").read_text())
    again = Ablation.model_validate({key: told[key] for key in told.keys() & Ablation.model_fields})
    assert again == planned.spec
    assert FrozenStudy(folder, store).question.levels == {
        "norm_placement": ["pre", "post"],
        "warmup": ["warm", "cold"],
    }


def test_cells_that_would_train_the_same_are_refused(tiny_text, store, monkeypatch):
    monkeypatch.undo()
    rounded = {
        **FACTORIAL,
        "warmup": {"warm": {"train.warmup": 0.1}, "cold": {"train.warmup": 0.12}},
    }
    with pytest.raises(UserError, match=r"arms pre\+warm and pre\+cold train the same model"):
        make_plan(asked(tiny_text, rounded), store)


def test_a_center_of_an_arm_makes_another_study(tiny_text, store, monkeypatch):
    monkeypatch.undo()
    own = {
        **FACTORIAL,
        "warmup": {**FACTORIAL["warmup"], "cold": {"train.warmup": 0.0, "center": 0.001}},
    }
    planned = make_plan(asked(tiny_text, own), store)
    assert planned.centers == {"pre+cold": 0.001, "post+cold": 0.001}
    assert planned.digest != make_plan(asked(tiny_text), store).digest
    assert "grids of learning rates round 0.00316; pre+cold 0.001, post+cold 0.001" in "\n".join(
        center_lines(planned)
    )
    assert rule_lines(planned)[-1] == "effects: 2 main, 4 simple, 1 interaction"
    assert "or as many round the arm's own center" in rule_lines(planned)[1]
