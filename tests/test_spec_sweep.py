"""Sweep files: spaces that reach their ends, samplers with every argument, faults with their
lines.
"""

import inspect
import json
from pathlib import Path

import optuna
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from andrea.errors import UserError
from andrea.study.optuna_journal import sampling
from andrea.study.question.space import Dimension
from andrea.study.question.sweep import Sweep

GOOD = """\
question: Which rate?
space:
  train.lr: {low: 1e-4, high: 1e-1, log: true}
  train.warmup: {low: 0.1, high: 0.3, step: 0.1}
  model.n_layer: {low: 2, high: 6, step: 2}
  model.mlp_ratio: {choices: [1, 8/3, 4e0]}
preset: tiny
train:
  tokens: 4096
trials: 5
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def faults(tmp_path: Path, text: str) -> list[str]:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        Sweep.load(path)
    told = str(caught.value)
    assert told.count(str(path)) == 1  # however many faults
    return [
        line.strip().removeprefix("line ") for line in told.replace(f"{path}:", "").splitlines()
    ]


def change(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_a_trial_is_its_params_over_the_sections(tmp_path: Path) -> None:
    sweep = Sweep.load(written(tmp_path, GOOD))
    config = sweep.config({"train.lr": 0.01, "model.mlp_ratio": "8/3", "model.n_layer": 4})
    assert (config.train.lr, config.model.n_layer, config.train.tokens) == (0.01, 4, 4096)
    assert config.model.mlp_ratio == pytest.approx(8 / 3)
    assert sweep.config().model.n_layer == 6
    assert sweep.config(overrides={"model.d_model": 64}).model.d_model == 64


def test_a_range_reaches_both_its_ends(tmp_path: Path) -> None:
    found = Sweep.load(written(tmp_path, GOOD)).distributions()
    warmup = found["train.warmup"]
    assert isinstance(warmup, optuna.distributions.FloatDistribution)
    assert (warmup.low, warmup.high, warmup.step) == (0.1, 0.3, 0.1)
    assert Dimension(low=0.1, high=0.3, step=0.1).values("train.warmup") == [0.1, 0.2, 0.3]
    layers = found["model.n_layer"]
    assert isinstance(layers, optuna.distributions.IntDistribution) and (
        layers.low,
        layers.high,
    ) == (2, 6)
    assert found["model.mlp_ratio"] == optuna.distributions.CategoricalDistribution([1, "8/3", 4.0])


@given(st.integers(0, 50), st.integers(1, 40), st.sampled_from([1, 10, 100, 1000]))
def test_every_stepped_range_of_decimals_is_taken_exactly(
    start: int, steps: int, scale: int
) -> None:
    low, high, step = start / scale, (start + steps) / scale, 1 / scale
    values = Dimension(low=low, high=high, step=step).values("train.warmup")
    assert values is not None and len(values) == steps + 1
    assert values[0] == low and values[-1] == high
    distribution = Dimension(low=low, high=high, step=step).distribution("train.warmup")
    assert (
        isinstance(distribution, optuna.distributions.FloatDistribution)
        and distribution.high == high
    )


@pytest.mark.parametrize(
    ("dimension", "reason"),
    [
        (
            "{low: 0.1, high: 0.35, step: 0.1}",
            "steps of 0.1 from 0.1 never reach high 0.35; the last is 0.3",
        ),
        ("{low: 0.3, high: 0.1}", "low 0.3 is not below high 0.1"),
        ("{low: 0, high: 0.1, log: true}", "starts above 0"),
        ("{low: 0.1, high: 0.2, log: true, step: 0.1}", "has no step"),
        ("{low: 0.1}", "needs low and high, or choices"),
        ("{choices: [0.1], low: 0.1}", "choices stand alone"),
        ("{choices: []}", "at least 1 item"),
        ("{choices: [0.1, 1e-1]}", "given twice"),
        ("{min: 0.1, max: 0.2}", "unknown"),
        ("{low: 0.1, high: 1.5}", "train.warmup: input should be less than 1, not 1.5"),
        ("{choices: [0.1, lots]}", "train.warmup: input should be a valid number"),
    ],
)
def test_a_bad_dimension_is_named_with_its_line(
    tmp_path: Path, dimension: str, reason: str
) -> None:
    found = faults(tmp_path, change("{low: 0.1, high: 0.3, step: 0.1}", dimension))
    assert all(line.startswith("4: ") for line in found)
    assert any(reason in line for line in found)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("data.split", "all trials read the same text"),
        ("train.tokens", "trials are compared at equal tokens"),
        ("model.context", "other windows"),
        ("seed", "tuning seeds are fixed"),
        ("lr", "is no setting of model or train"),
        ("train.schedule", "takes no range; list choices"),
        ("train.batch_size", "is a whole number"),
        ("train.lrr", "takes no range"),
    ],
)
def test_what_cannot_be_searched_says_why(tmp_path: Path, key: str, reason: str) -> None:
    found = faults(tmp_path, change("train.warmup:", f"{key}:"))
    assert found[0].startswith(f"4: space.{key}: ") and reason in found[0]


def test_combinations_that_cannot_be_built_are_found_before_anything_runs(tmp_path: Path) -> None:
    text = change("{low: 2, high: 6, step: 2}", "{choices: [2]}") + "generation: 2\n"
    text = text.replace(
        "model.mlp_ratio: {choices: [1, 8/3, 4e0]}", "model.n_head:\n    choices: [4, 5]"
    )
    assert faults(tmp_path, text) == [
        "7: space.model.n_head: model: n_head 5 does not divide d_model 48: "
        "choose a width that is a multiple of the heads, or set head_dim"
    ]


def test_a_setting_is_given_in_one_place(tmp_path: Path) -> None:
    found = faults(tmp_path, change("  tokens: 4096", "  tokens: 4096\n  lr: 1e-3"))
    assert found == ["10: train.lr: the sweep searches it; set it in one place"]


def test_a_fault_of_a_section_has_its_own_line(tmp_path: Path) -> None:
    assert faults(tmp_path, change("  tokens: 4096", "  token: 4096")) == [
        "9: train.token: unknown; did you mean 'tokens'?"
    ]


def test_a_grid_runs_every_cell_once_and_says_how_many(tmp_path: Path) -> None:
    text = change(
        "  train.lr: {low: 1e-4, high: 1e-1, log: true}\n", "  train.lr: {choices: [1e-3, 1e-2]}\n"
    )
    grid = text.replace("trials: 5", "sampler: grid\ntrials: 5")
    assert faults(tmp_path, grid) == ["11: trials 5: this grid has 54 cells; write trials: 54"]
    cells = Sweep.load(written(tmp_path, grid.replace("trials: 5", "trials: 54"))).cells()
    assert cells is not None and len(cells) == 54 == len({str(cell) for cell in cells})
    assert cells[0] == {
        "train.lr": 0.001,
        "train.warmup": 0.1,
        "model.n_layer": 2,
        "model.mlp_ratio": 1,
    }
    assert faults(tmp_path, GOOD + "sampler: grid\n") == [
        "3: space.train.lr: a grid needs choices or a step"
    ]


def test_arguments_of_a_sampler_that_is_not_used_are_a_fault(tmp_path: Path) -> None:
    found = faults(tmp_path, GOOD + "sampler: random\ntpe:\n  n_startup_trials: 3\n")
    assert found == ["12: tpe: has no effect with sampler random; drop one of the two"]


def test_every_argument_of_the_sampler_is_recorded_with_optunas_version(tmp_path: Path) -> None:
    sweep = Sweep.load(written(tmp_path, GOOD + "tpe:\n  n_startup_trials: 3\n"))
    recorded = sampling(sweep)
    assert recorded is not None
    assert (recorded["class"], recorded["optuna"]) == (
        "optuna.samplers.TPESampler",
        optuna.__version__,
    )
    assert set(recorded["arguments"]) == set(
        inspect.signature(optuna.samplers.TPESampler).parameters
    )
    assert {"gamma", "weights", "warn_independent_sampling", "constraints_func"} <= set(
        recorded["arguments"]
    )
    assert recorded["arguments"]["n_startup_trials"] == 3 and recorded["arguments"]["gamma"] is None
    assert recorded["None"] == "Optuna's own default of that version"
    assert yaml.safe_load(yaml.safe_dump(recorded)) == json.loads(json.dumps(recorded)) == recorded
    uniform = sampling(sweep.model_copy(update={"sampler": "random"}))
    assert uniform is not None and uniform["class"] == "optuna.samplers.RandomSampler"
    assert sampling(sweep.model_copy(update={"sampler": "grid"})) is None


def test_overrides_may_not_fix_what_is_searched(tmp_path: Path) -> None:
    sweep = Sweep.load(written(tmp_path, GOOD))
    changed = sweep.override({"model.norm_placement": "post"}, preset="andrea-12m")
    assert changed.config().model.norm_placement == "post" and changed.config().model.d_model == 384
    assert changed.space == sweep.space
    with pytest.raises(UserError, match=r"train\.lr: the sweep searches it"):
        sweep.override({"train.lr": 0.1})


def test_the_schema_for_editors_documents_every_field() -> None:
    properties = Sweep.json_schema()["properties"]
    assert set(properties) == set(Sweep.model_fields)
    assert [name for name, field in properties.items() if "description" not in field] == []
