"""From a YAML and a command line to a study folder: everything is refused or resolved before the
first run.
"""

import json
import shutil
from datetime import datetime

import pytest
import stored
import yaml

from andrea.errors import StudyError, UserError
from andrea.store.studies import list_studies
from andrea.study.plan import estimate
from andrea.study.plan.freeze import freeze
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.plan.plan import Request
from andrea.study.plan.resolve import make_plan
from andrea.study.question.ablation import Ablation
from andrea.study.question.sweep import Sweep
from andrea.study.stages.stage import Forecast, Training


def ablation(text, **more):
    return Ablation.model_validate(
        {
            "question": "Is post-norm worse?",
            "hypothesis": "Yes.",
            "factor": "norm_placement",
            "baseline": "pre",
            "arms": {
                "post": {"model.norm_placement": "post"},
                "pre": {"model.norm_placement": "pre"},
            },
            "match": {"on": "params", "tolerance": 0.05},
            "model": {"d_model": 16, "n_layer": 1, "n_head": 2, "context": 16},
            "data": {"source": f"text:{text}", "eval_tokens": 512, "curve_tokens": 64},
            "train": {"tokens": 1030, "batch_size": 4},
            "protocol": {"m": 0.05, "seeds": 2},
            **more,
        }
    )


def sweep(text):
    return Sweep.model_validate(
        {
            "question": "Which batch size?",
            "space": {
                "train.batch_size": {"choices": [2, 4]},
                "train.lr": {"low": 1e-3, "high": 1e-2, "log": True},
            },
            "model": {"d_model": 16, "n_layer": 1, "n_head": 2, "context": 16},
            "data": {"source": f"text:{text}", "eval_tokens": 512, "curve_tokens": 64},
            "train": {"tokens": 1024},
            "trials": 4,
        }
    )


def ask(spec, **more):
    return Request(spec, name=more.pop("name", "norms"), **more)


def test_a_plan_counts_arms_runs_tokens_and_differences_and_writes_no_study(tiny_text, store):
    planned = make_plan(ask(ablation(tiny_text)), store)
    assert list(planned.arms) == ["pre", "post"]
    assert planned.run_count == 2 * (7 + 2)
    assert planned.tokens == 1024  # whole batches of 4 x 16
    assert planned.differences == {"post": {"norms": -32}}
    assert planned.arms["pre"].config.model.vocab_size == 256
    assert planned.arms["pre"].config.train.device in ("cpu", "cuda")
    assert planned.arms["pre"].unresolved.train.device == "auto"
    assert list_studies(store) == []


def test_a_frozen_study_holds_the_protocol_and_what_it_resolved_to(tiny_text, store):
    planned = make_plan(ask(ablation(tiny_text)), store)
    folder = freeze(planned, store)
    asked = yaml.safe_load((folder.path / "protocol.yaml").read_text())
    assert asked["hypothesis"] == "Yes." and asked["protocol"]["seeds"] == 2
    resolved = stored.study_json(folder, "resolved.json")
    assert resolved["arms"]["post"]["config"]["train"]["micro_batch"] == 4
    assert resolved["arms"]["post"]["parameters"]["norms"] == 64
    assert resolved["versions"]["torch"] and resolved["platform"]["torch"]
    assert datetime.fromisoformat(resolved["frozen_at"]).microsecond == 0
    assert (
        stored.study_json(folder, "study.json")["digest"] == planned.digest
        and folder.path.name == planned.folder_name
    )
    assert FrozenStudy(folder, store).arms == ["pre", "post"]


def test_one_protocol_under_two_names_is_two_studies_that_trackers_tell_apart(tiny_text, store):
    first, again, second = (
        freeze(make_plan(ask(ablation(tiny_text), name=n), store), store) for n in ("a", "a", "b")
    )
    assert (
        stored.study_json(first, "study.json")["digest"]
        == stored.study_json(second, "study.json")["digest"]
    )
    assert (
        stored.study_json(first, "study.json")["key"]
        == stored.study_json(again, "study.json")["key"]
        != stored.study_json(second, "study.json")["key"]
    )


def test_the_same_request_finds_its_study_and_what_it_resolved_to_is_reread(tiny_text, store):
    folder = freeze(make_plan(ask(ablation(tiny_text)), store), store)
    resolved = stored.study_json(folder, "resolved.json")
    folder.write("resolved.json", {**resolved, "frozen_at": "2020-01-01T00:00:00+00:00"})
    again = freeze(make_plan(ask(ablation(tiny_text)), store), store)
    assert again.path == folder.path
    assert stored.study_json(again, "resolved.json")["frozen_at"].startswith("2020")


def test_a_freeze_that_a_kill_cut_short_is_written_again(tiny_text, store):
    planned = make_plan(ask(ablation(tiny_text)), store)
    folder = freeze(planned, store)
    (folder.path / "study.json").unlink()
    (folder.path / "resolved.json").write_text("{")
    assert (
        stored.study_json(freeze(planned, store), "resolved.json")["fingerprint"]
        == planned.prepared.fingerprint
    )


@pytest.mark.parametrize(
    "change",
    [
        {"overrides": {"train.warmup": 0.2}},
        {"seeds": 3},
        {"trials": 5},
        {"tokens": 2048},
        {"device": "cpu"},
        {"preset": "tiny"},
    ],
)
def test_other_options_make_another_study(tiny_text, store, change):
    assert (
        make_plan(ask(ablation(tiny_text), **change), store).digest
        != make_plan(ask(ablation(tiny_text)), store).digest
    )


def test_what_changes_no_run_changes_no_digest(tiny_text, store, tmp_path):
    digest = make_plan(ask(ablation(tiny_text)), store).digest
    moved = tmp_path / "elsewhere" / tiny_text.name
    moved.parent.mkdir()
    shutil.copy(tiny_text, moved)
    assert make_plan(ask(ablation(moved)), store).digest == digest
    assert (
        make_plan(ask(ablation(tiny_text), overrides={"train.clip": 1.0}), store).digest == digest
    )
    named = make_plan(ask(ablation(tiny_text), name="mine"), store)
    assert named.digest == digest and named.folder_name.startswith("mine-")
    moved.write_text(moved.read_text() + "One more sentence.\n")
    assert make_plan(ask(ablation(moved)), store).digest != digest


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"overrides": {"model.norm_placement": "pre"}}, "arm post sets it"),
        ({"overrides": {"train.lr": 0.1}}, "protocol.center moves the grid"),
        ({"overrides": {"data.eval_part": "tune"}}, "not for a study to choose"),
        ({"overrides": {"model.n_head": 3}}, "does not divide"),
        ({"tokens": -5}, "--tokens: input"),
        ({"seeds": 1}, "^--seeds: input"),
        ({"trials": 0}, "--trials: input"),
        ({"tokens": 10}, "tokens"),
        ({"overrides": {"model.vocab_size": 100}}, "vocab_size 100"),
        ({"overrides": {"model.context": 8192}, "tokens": 10**6}, "one window"),
        ({"name": "a/b"}, "--study 'a/b'"),
    ],
)
def test_what_does_not_do_is_refused_before_anything_is_written(tiny_text, store, more, message):
    with pytest.raises(UserError, match=message):
        make_plan(ask(ablation(tiny_text), **more), store)
    assert list_studies(store) == []


def test_all_unknown_settings_are_named_at_once(tiny_text, store):
    with pytest.raises(UserError) as refused:
        make_plan(
            ask(
                ablation(tiny_text),
                overrides={"model.d_modle": 8, "train.wramup": 1, "protocol.sedes": 2},
            ),
            store,
        )
    for hint in ("did you mean 'd_model'?", "did you mean 'warmup'?", "did you mean 'seeds'?"):
        assert hint in str(refused.value)


def test_a_disk_that_refuses_the_study_is_a_failure_of_the_way_and_not_of_the_user(
    tiny_text, store
):
    planned = make_plan(ask(ablation(tiny_text)), store)
    (store.root / "studies").write_text("a file where a folder should be")
    with pytest.raises(StudyError, match="cannot write the study"):
        freeze(planned, store)


def test_a_sweep_settles_every_trial_anew_so_that_a_batch_size_brings_its_micro_batch(
    tiny_text, store
):
    planned = make_plan(ask(sweep(tiny_text), name="batch", trials=6), store)
    assert planned.run_count == 6 and planned.baseline is None and planned.differences == {}
    study = FrozenStudy(freeze(planned, store), store)
    params = {"train.batch_size": 2, "train.lr": 0.005}
    run = study.plan(study.arms[0], "trial", "trial", lr=None, seed=1, params=params)
    config = study.settings(run.run_id)
    assert config["train"]["batch_size"] == config["train"]["micro_batch"] == 2
    assert run.lr == 0.005 and run.params == params
    with pytest.raises(UserError, match="--trials"):
        make_plan(ask(sweep(tiny_text), trials=-1), store)


def test_a_users_own_variants_are_copied_into_the_study_and_name_it(tiny_text, store, tmp_path):
    script = tmp_path / "mine_own.py"
    script.write_text(
        "from andrea.model.registry import register\n"
        "from andrea.model.mlps import Relu\n"
        "class Own(Relu):\n    pass\n"
        "register('activation', 'own_relu', f'{__name__}:Own')\n"
    )
    path = tmp_path / "mine_own.yaml"
    path.touch()
    from andrea.catalogue import load_user_variants

    load_user_variants(path)
    arms = {"pre": {"model.activation": "relu"}, "own": {"model.activation": "own_relu"}}
    planned = make_plan(ask(ablation(tiny_text, arms=arms).with_path(path)), store)
    folder = freeze(planned, store)
    assert (folder.path / "mine_own.py").read_text() == script.read_text()
    study = FrozenStudy(folder, store)
    run = study.plan("own", "tune", "grid", lr=0.001, seed=1)
    assert study.job(run).variants == str(folder.path / "mine_own.py")
    script.write_text(script.read_text() + "# other\n")
    other = make_plan(ask(ablation(tiny_text, arms=arms).with_path(path)), store)
    assert other.digest != planned.digest


def test_an_estimate_counts_rounds_of_slots_and_leaves_out_what_is_done(tiny_text, store):
    arms = ["a", "b"]
    one_each = [Training("a", 100), Training("b", 100)]
    forecasts = [Forecast(name, one_each * n) for name, n in zip("gmr", (5, 2, 5), strict=True)]
    fresh = estimate.stretches(arms, forecasts, done={})
    assert [sum(s.runs.values()) for s in fresh] == [10, 4, 10]
    per_run = {"a": 10.0, "b": 20.0}
    assert estimate.seconds(fresh, per_run, 1) == 360
    assert estimate.seconds(fresh, per_run, 2) == 180
    assert estimate.seconds(fresh, per_run, 4) == 15 * (3 + 1 + 3)
    half = estimate.stretches(arms, forecasts, done={"a": 12, "b": 6})
    assert [s.runs for s in half] == [{"a": 0, "b": 0}, {"a": 0, "b": 1}, {"a": 0, "b": 5}]
    assert estimate.seconds(half, per_run, 2) == 20 + 3 * 20
    planned = make_plan(ask(ablation(tiny_text)), store)
    assert 0 < planned.estimate_s(2) < planned.estimate_s(1)


def test_a_finished_study_is_not_calibrated_again(tiny_text, store, monkeypatch):
    def calibrated(*_):
        raise AssertionError("trained to estimate nothing")

    monkeypatch.setattr(estimate, "per_run", calibrated)
    planned = make_plan(ask(ablation(tiny_text)), store)
    folder = freeze(planned, store)
    folder.write("verdict.json", {"complete": False, "verdicts": []})
    with pytest.raises(AssertionError):
        planned.estimate_s(2)
    folder.write("verdict.json", {"complete": True, "verdicts": []})
    assert planned.estimate_s(2) == 0.0


def test_a_deleted_cache_is_filled_again_and_a_changed_text_is_refused(tiny_text, store):
    study = FrozenStudy(freeze(make_plan(ask(ablation(tiny_text)), store), store), store)
    shutil.rmtree(store.root / "data")
    study.require_data()
    assert (study.data_folder / "meta.json").is_file()
    shutil.rmtree(store.root / "data")
    tiny_text.write_text(tiny_text.read_text() + "One more sentence.\n")
    with pytest.raises(UserError, match="the text has changed since study norms-"):
        study.require_data()


def test_a_plan_needs_no_store_to_say_what_would_run(tiny_text):
    assert make_plan(ask(ablation(tiny_text))).run_count == 18


def test_every_file_of_a_frozen_study_is_plain_json_or_yaml(tiny_text, store):
    folder = freeze(make_plan(ask(ablation(tiny_text)), store), store)
    json.loads(
        (folder.path / "resolved.json").read_text(), parse_constant=lambda word: pytest.fail(word)
    )
    assert "!!" not in (folder.path / "protocol.yaml").read_text()
