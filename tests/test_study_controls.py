"""Controls on a training that takes no time: which runs they are, what each failure does, resumes
and kills.
"""

import json

import pytest
import stored
import study_fakes as fakes
from study_fakes import Impatient, Watch, go, make_study, misbehave, outcome, trainings, verdict

from andrea.errors import UserError
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.stages import arm_speed as speed
from andrea.study.stages.evidence import Evidence
from andrea.study.stages.verdict import judge_study
from andrea.verdict.seeds import control_seed, replication_seed

TOKENS = 5120


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


def study(root, arms=("gelu_tanh", "relu"), **more):
    """Ten batches a run, so that there is half of it; hardly tuned, so that it is fast."""
    return make_study(root, arms=arms, train={"train.tokens": TOKENS}, **{"trials": 3, **more})


def controls(folder):
    return stored.study_json(folder, "verdict.json")["controls"]


def _results(folder, store):
    return {
        run["run_id"]: told
        for run in stored.planned(folder)
        if (told := stored.result(store, run["run_id"]))
    }


def lines(folder, phase):
    return [run for run in stored.planned(folder) if run["phase"] == phase]


def test_controls_are_a_repeat_a_a_and_a_ruler_of_the_baseline_at_its_rate(tmp_path):
    folder, store = study(tmp_path)
    watch = Watch()
    assert go(folder, store, watch, controls=True).complete
    assert [name for kind, name in watch.events if kind == "phase"] == [
        "grid",
        "replicate",
        "control",
    ]
    runs = lines(folder, "control")
    assert [run["why"] for run in runs] == ["repeat"] + ["a/a", "half tokens"] * 3
    assert {run["arm"] for run in runs} == {"gelu_tanh"}
    assert {run["lr"] for run in runs} == {
        stored.study_json(folder, "choices.json")["gelu_tanh"]["lr"]
    }
    assert [run["seed"] for run in runs] == [replication_seed(i) for i in (0, 0, 0, 1, 1, 2, 2)]
    of = {run["why"]: stored.config(store, run["run_id"])["config"] for run in runs[:3]}
    assert of["a/a"]["init_seed"] == control_seed(0) and of["a/a"]["data_seed"] is None
    assert of["half tokens"]["train"]["tokens"] == TOKENS // 2
    assert {config["data"]["eval_part"] for config in of.values()} == {"verdict"}
    first = next(run for run in stored.planned(folder) if run["phase"] == "replicate")
    assert (
        stored.config(store, first["run_id"])["config"] == of["repeat"]
        and first["run_id"] != runs[0]["run_id"]
    )


def test_controls_that_hold_leave_the_verdict_as_it_is(tmp_path):
    plain, store = study(tmp_path / "plain")
    go(plain, store)
    folder, store = study(tmp_path / "controlled")
    go(folder, store, controls=True)
    assert (
        stored.study_json(folder, "verdict.json")["verdicts"]
        == stored.study_json(plain, "verdict.json")["verdicts"]
    )
    assert "controls" not in stored.study_json(plain, "verdict.json")
    told = controls(folder)
    assert [told[name]["ok"] for name in ("repeat", "a_a", "ruler")] == [True] * 3
    assert told["ruler_2x"] is None
    assert (told["repeat"]["difference"], told["repeat"]["deterministic"]) == (0.0, True)
    assert abs(told["ruler"]["mean"] - 0.3) < 0.002 and told["ruler"]["tokens"] == TOKENS // 2
    saved = stored.study_json(folder, "verdict.json")["tokens_saved"]["relu"]
    assert -0.65 < saved["saved"] < -0.55, (
        "0.2 nats of the 0.3 that half the tokens cost: 1 − 2^0.67"
    )


def test_the_longer_ruler_is_trained_where_an_arm_is_better(tmp_path):
    folder, store = study(tmp_path, arms=("gelu_tanh", "swiglu"))
    assert go(folder, store, controls=True).complete
    assert [run["why"] for run in lines(folder, "control")] == ["repeat"] + [
        "a/a",
        "half tokens",
        "double tokens",
    ] * 3
    assert (
        controls(folder)["ruler_2x"]["ok"] and controls(folder)["ruler_2x"]["tokens"] == 2 * TOKENS
    )
    assert 0.3 < stored.study_json(folder, "verdict.json")["tokens_saved"]["swiglu"]["saved"] < 0.45


@pytest.mark.parametrize(
    "fault, name, said",
    [
        ({"do": "shift", "repeat": 1}, "repeat", "differs in loss"),
        ({"do": "diverge", "repeat": 1}, "repeat", "the run completed, its repeat diverged"),
        ({"do": "stall", "init_seed": control_seed(1)}, "a_a", "1 of 3 runs diverged or stalled"),
    ],
)
def test_a_failed_repeat_or_a_a_makes_every_verdict_invalid(tmp_path, fault, name, said):
    folder, store = study(tmp_path)
    misbehave(tmp_path, **fault)
    assert go(folder, store, controls=True).complete
    assert controls(folder)[name]["ok"] is False and said in controls(folder)[name]["reason"]
    assert (verdict(folder)["verdict"], verdict(folder)["cause"]) == ("invalid", "control failed")
    told = stored.study_json(folder, "verdict.json")
    means = [
        verdict(folder)["mean"],
        told["tokens_saved"]["relu"]["saved"],
        told["documents"]["relu"]["mean"],
    ]
    assert (
        means == [None] * 3
        and told["tokens_saved"]["relu"]["reason"] == "the verdict is invalid (control failed)"
    )


def test_a_baseline_that_differs_from_itself_fails_a_a(tmp_path):
    folder, store = study(tmp_path)
    for i in range(3):
        misbehave(tmp_path, "shift", init_seed=control_seed(i))
    assert go(folder, store, controls=True).complete
    told = controls(folder)["a_a"]
    assert told["ok"] is False and told["p"] < 0.005 and abs(told["mean"] - 0.1) < 0.01
    assert verdict(folder)["reason"] == "control failed: A/A"


def test_a_failed_ruler_voids_only_what_saw_nothing(tmp_path):
    arms = ("gelu_tanh", "relu", "gelu")
    plain, store = study(tmp_path / "plain", arms=arms)
    go(plain, store)
    assert verdict(plain, "gelu")["verdict"] == "equivalent"
    folder, store = study(tmp_path / "blind", arms=arms)
    misbehave(store.root, "blind", eval_part="verdict")
    assert go(folder, store, controls=True).complete
    assert controls(folder)["ruler"]["ok"] is False
    assert verdict(folder)["verdict"] == "worse"
    assert (verdict(folder, "gelu")["verdict"], verdict(folder, "gelu")["cause"]) == (
        "invalid",
        "ruler failed",
    )
    assert stored.study_json(folder, "verdict.json")["tokens_saved"]["relu"]["saved"] is None


def test_a_ruler_run_that_diverges_came_out_worse(tmp_path):
    folder, store = study(tmp_path, seeds=5)
    misbehave(tmp_path, "diverge", tokens=TOKENS // 2, seed=replication_seed(1))
    assert go(folder, store, controls=True).complete
    told = controls(folder)["ruler"]
    assert (told["ok"], told["n"], told["mean"], len(told["differences"])) == (True, 4, None, 4)
    assert stored.study_json(folder, "verdict.json")["tokens_saved"]["relu"]["saved"] is None


@pytest.mark.parametrize(
    "fault, name", [({"repeat": 1}, "repeat"), ({"tokens": TOKENS // 2}, "ruler")]
)
def test_a_control_that_fails_at_every_try_is_unknown_and_the_next_command_tries_again(
    tmp_path, fault, name
):
    whole, store = study(tmp_path / "whole")
    go(whole, store, controls=True)
    folder, store = study(tmp_path / "flaky")
    misbehave(store.root, "raise", times=3, **fault)
    summary = go(folder, store, controls=True)
    assert not summary.complete and {run.phase for run in summary.failed} == {"control"}
    assert controls(folder)[name]["ok"] is None and "failed or" in controls(folder)[name]["reason"]
    assert stored.study_json(folder, "verdict.json")["complete"] is False
    assert verdict(folder)["verdict"] == "worse"
    assert go(folder, store).complete
    assert outcome(folder) == outcome(whole)


def test_an_old_study_is_asked_for_controls_and_keeps_its_runs(tmp_path):
    folder, store = study(tmp_path)
    go(folder, store)
    before, trained = stored.planned(folder), len(trainings(tmp_path))
    assert folder.complete
    assert go(folder, store, controls=True).complete
    assert stored.planned(folder)[: len(before)] == before
    assert len(trainings(tmp_path)) == trained + 7
    assert controls(folder)["repeat"]["ok"]


def test_what_was_asked_once_stays_asked(tmp_path):
    folder, store = study(tmp_path)
    misbehave(tmp_path, "shift", repeat=1)
    go(folder, store, controls=True)
    assert go(folder, store).complete
    assert verdict(folder)["verdict"] == "invalid", (
        "leaving the option away is no way round a failed control"
    )
    (folder.path / "asked.json").unlink()
    assert folder.load_extras().controls, "the planned runs tell it too"
    go(folder, store)
    assert verdict(folder)["verdict"] == "invalid"


def test_a_study_that_was_killed_right_after_it_was_asked_is_not_done(tmp_path):
    folder, store = study(tmp_path)
    go(folder, store)
    with pytest.raises(KeyboardInterrupt):
        go(folder, store, Impatient(13), controls=True)
    assert not folder.complete and stored.study_json(folder, "asked.json")["controls"]
    runs = folder.load_runs()[:12]
    results = {run.run_id: store.load_result(run.run_id) for run in runs}
    planned = Evidence(FrozenStudy(folder, store), runs, results, folder.load_choices(), 1)
    assert judge_study(planned).complete is False, (
        "nor when it is judged again before its controls are planned"
    )
    assert go(folder, store).complete and folder.complete
    assert controls(folder)["ruler"]["ok"]


@pytest.mark.slow
@pytest.mark.parametrize("patience", [5, 9])
def test_an_interrupted_study_with_controls_ends_as_if_it_never_stopped(tmp_path, patience):
    everything = {"controls": True, "confirm": True, "equal": ("flops", "time")}
    arms = ("gelu_tanh", "relu", "swiglu")
    whole, store = study(tmp_path / "whole", arms=arms)
    go(whole, store, **everything)
    folder, store = study(tmp_path / "cut", arms=arms)
    commands = 0
    while True:
        commands += 1
        try:
            # Extras for at the first command alone: the folder remembers.
            observer = Impatient(1 + len(trainings(store.root)) + patience)
            go(folder, store, observer, **everything if commands == 1 else {})
            break
        except KeyboardInterrupt:
            continue
    assert commands > 3
    assert outcome(folder) == outcome(whole)
    assert sorted(trainings(store.root)) == sorted(trainings(whole.path.parents[1]))


@pytest.mark.slow
def test_the_order_in_which_things_were_asked_for_is_the_order_of_the_file_and_of_nothing_else(
    tmp_path,
):
    one, store = study(tmp_path / "one")
    go(one, store, controls=True, confirm=True, equal=("time",))
    other, store = study(tmp_path / "other")
    for asked in ({"equal": ("time",)}, {"confirm": True}, {"controls": True}):
        assert go(other, store, **asked).complete
    phases = list(dict.fromkeys(run["phase"] for run in stored.planned(other)))
    assert phases == ["tune", "replicate", "budget", "confirm", "control"]
    assert stored.study_json(other, "verdict.json") == stored.study_json(one, "verdict.json")
    assert sorted(map(json.dumps, stored.planned(other))) == sorted(
        map(json.dumps, stored.planned(one))
    )


@pytest.mark.slow
def test_an_arm_that_can_be_tuned_later_ends_as_if_it_had_never_failed_whatever_was_asked(
    tmp_path,
):
    arms = ("gelu_tanh", "relu", "swiglu")
    whole, store = study(tmp_path / "whole", arms=arms)
    go(whole, store, controls=True, equal=("time",))
    folder, store = study(tmp_path / "flaky", arms=arms)
    misbehave(store.root, "raise", times=6, activation="relu", lr=0.0316)
    assert not go(folder, store, equal=("time",)).complete
    assert not go(folder, store, controls=True).complete
    assert {tuple(run["without"]) for run in stored.planned(folder) if run["phase"] != "tune"} == {
        ("relu",)
    }
    assert go(folder, store).complete
    assert not any("without" in run for run in stored.planned(folder))
    assert outcome(folder) == outcome(whole)


def test_a_baseline_that_no_rate_trains_has_no_controls_and_is_not_waited_for(tmp_path):
    folder, store = study(tmp_path)
    misbehave(tmp_path, "diverge", activation="gelu_tanh")
    assert go(folder, store, controls=True, confirm=True, equal=("flops", "time")).complete
    assert {run["phase"] for run in stored.planned(folder)} == {"tune"}
    assert controls(folder)["ruler"]["ok"] is controls(folder)["repeat"]["ok"] is None
    assert folder.complete and verdict(folder)["cause"] == "under-trained"


def test_a_run_of_one_batch_has_no_half_and_nothing_is_written(tmp_path):
    folder, store = make_study(tmp_path)
    with pytest.raises(UserError, match="is a single batch, and the ruler trains half of it"):
        go(folder, store, controls=True)
    assert not (folder.path / "asked.json").exists() and not stored.planned(folder)


def test_on_another_platform_a_finished_study_is_read_and_not_asked_for_more(tmp_path, monkeypatch):
    folder, store = study(tmp_path)
    go(folder, store, controls=True)
    monkeypatch.setattr(
        fakes.frozen, "platform_of", lambda device: {"torch": "9.9", "device": "other"}
    )
    assert go(folder, store, controls=True).complete
    with pytest.raises(
        UserError, match=r"was frozen on torch fake, fake; here is torch 9\.9, other"
    ):
        go(folder, store, confirm=True)
    assert folder.complete and not folder.load_extras().confirm


def test_a_study_whose_runs_would_have_other_ids_today_is_not_asked_for_more(tmp_path, monkeypatch):
    folder, store = study(tmp_path)
    assert go(folder, store).complete
    before, known = outcome(folder), fakes.frozen.identify

    def raised(config, fingerprint, platform, repeat=0):
        told = {**known(config, fingerprint, platform, repeat)[0], "numerics": 2}
        return told, fakes.digest(told)

    monkeypatch.setattr(fakes.frozen, "identify", raised)
    with pytest.raises(UserError, match="its runs would have other ids"):
        go(folder, store, controls=True)
    assert folder.complete and not folder.load_extras()
    assert go(folder, store).complete and outcome(folder) == before


def test_a_control_that_failed_is_told_while_more_is_trained(tmp_path):
    folder, store = study(tmp_path)
    misbehave(tmp_path, "shift", repeat=1)
    assert go(folder, store, controls=True).complete
    with pytest.raises(KeyboardInterrupt):
        go(folder, store, Impatient(len(stored.planned(folder)) + 1), confirm=True)
    told = stored.study_json(folder, "verdict.json")
    assert not told["complete"] and told["controls"]["repeat"]["ok"] is False
    assert verdict(folder)["cause"] == "control failed"


def test_a_finished_study_stays_finished_while_its_command_looks_whether_it_is(tmp_path):
    folder, store = study(tmp_path)
    assert go(folder, store, controls=True).complete
    before = stored.study_json(folder, "verdict.json")
    with pytest.raises(KeyboardInterrupt):
        go(folder, store, Impatient(len(stored.planned(folder))), controls=True)
    assert folder.complete and stored.study_json(folder, "verdict.json") == before


@pytest.mark.parametrize("damage", ["rubbish", "none"])
def test_damage_to_the_log_of_a_repeat_is_no_other_number(tmp_path, damage):
    folder, store = study(tmp_path)
    assert go(folder, store, controls=True).complete
    [run_id] = [run["run_id"] for run in stored.planned(folder) if run["why"] == "repeat"]
    log = store.folder(run_id) / "metrics.jsonl"
    log.unlink() if damage == "none" else log.write_bytes(b"rubbish\n{}\n")
    assert go(folder, store).complete and controls(folder)["repeat"]["ok"]


@pytest.mark.parametrize(
    "content", ['{"equal": 5}', '{"equal": [["flops"], 1]}', '{"equal": null, "controls": 0}', "[]"]
)
def test_a_file_of_what_was_asked_of_another_shape_asks_for_nothing(tmp_path, content):
    folder, store = study(tmp_path)
    assert go(folder, store).complete
    (folder.path / "asked.json").write_text(content)
    assert folder.complete and not folder.load_extras()
    assert go(folder, store).complete


def test_where_losses_may_differ_by_rounding_the_repeat_has_to_be_within_m(tmp_path, monkeypatch):
    monkeypatch.setattr(fakes.frozen.FrozenStudy, "deterministic", False)
    folder, store = study(tmp_path, m=0.15)
    misbehave(tmp_path, "shift", repeat=1)
    go(folder, store, controls=True)
    told = controls(folder)["repeat"]
    assert (told["ok"], told["deterministic"]) == (True, False) and abs(
        told["difference"] - 0.1
    ) < 1e-9


def test_controls_of_a_factorial_study_void_its_effects(tmp_path):
    from test_study_factorial import effect, make_design

    folder, store = make_design(tmp_path)
    told = stored.study_json(folder, "resolved.json")
    for arm in told["arms"].values():
        arm["config"]["train"]["tokens"] = TOKENS
    folder.write("resolved.json", told)
    misbehave(tmp_path, "blind", eval_part="verdict")
    assert go(folder, store, controls=True).complete
    assert effect(folder, "main")["verdict"] == "worse"
    assert (
        effect(folder, "interaction")["cause"]
        == effect(folder, "main", "norm_placement")["cause"]
        == "ruler failed"
    )


def test_the_speed_of_the_arms_is_measured_with_the_controls_and_read_again(tmp_path, monkeypatch):
    folder, store = study(tmp_path)
    go(folder, store, controls=True)
    assert speed.read(folder, FrozenStudy(folder, store)).ratio["relu"].ratio == 0.8
    monkeypatch.setattr(speed, "measure", lambda *_: pytest.fail("it was measured"))
    assert go(folder, store, equal=("time",)).complete
