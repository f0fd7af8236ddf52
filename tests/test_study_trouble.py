"""A whole study on a training that takes no time: interrupted, failing, waiting for another,
refused.
"""

import threading

import pytest
import stored
import study_fakes as fakes
from study_fakes import Impatient, Watch, go, make_study, misbehave, outcome, trainings, verdict

from andrea.errors import StudyError, UserError
from andrea.records.events import Observer
from andrea.verdict.seeds import replication_seed


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


def test_an_interrupted_study_goes_on_and_ends_as_if_it_never_stopped(tmp_path):
    whole, store = make_study(tmp_path / "whole")
    go(whole, store)
    folder, store = make_study(tmp_path / "cut")

    commands = 0
    while True:
        commands += 1
        try:
            go(folder, store, Impatient(1 + len(trainings(store.root)) + 3))
            break
        except KeyboardInterrupt:
            continue
    assert commands > 3
    assert outcome(folder) == outcome(whole)
    assert len(trainings(store.root)) == 20


def test_a_transient_failure_is_tried_again_and_leaves_no_trace_in_the_numbers(tmp_path):
    whole, store = make_study(tmp_path / "whole")
    go(whole, store)
    folder, store = make_study(tmp_path / "flaky")
    misbehave(store.root, "raise", times=2, lr=0.00316)
    watch = Watch()
    assert go(folder, store, watch).complete
    assert watch.count("failed") == 4
    assert outcome(folder) == outcome(whole)


def test_a_run_that_fails_at_every_try_is_no_result_and_the_next_command_tries_again(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "raise", times=3, activation="relu", lr=0.01)
    summary = go(folder, store)
    assert not summary.complete
    assert [(run.arm, run.phase, run.reason) for run in summary.failed] == [
        ("relu", "tune", "RuntimeError: a transient fault")
    ]
    run_id = summary.failed[0].run_id
    assert stored.result(store, run_id) is None
    assert stored.failure(store, run_id)["reason"].startswith("a transient fault")
    assert (
        stored.study_json(folder, "choices.json")["relu"]["lr"] is None
    )  # its midpoints wait for the failed rate
    assert go(folder, store).complete
    assert trainings(tmp_path).count(run_id) == 4


def test_an_arm_that_cannot_be_tuned_leaves_the_others_their_verdicts(tmp_path):
    folder, store = make_study(tmp_path, arms=("gelu_tanh", "relu", "swiglu"))
    misbehave(tmp_path, "raise", activation="relu", lr=0.01)
    for command in (1, 2):
        summary = go(folder, store)
        assert not summary.complete
        assert [(run.arm, run.phase) for run in summary.failed] == [("relu", "tune")]
        assert trainings(tmp_path).count(summary.failed[0].run_id) == 3 * command
        assert len(set(trainings(tmp_path))) == 15 + 4 + 6
        relu, swiglu = verdict(folder), verdict(folder, "swiglu")
        assert (relu["verdict"], relu["cause"], relu["n"]) == (
            "inconclusive",
            "failed or missing run",
            0,
        )
        assert (swiglu["verdict"], swiglu["n"], swiglu["arms"]) == ("better", 3, 2)
        assert stored.study_json(folder, "verdict.json")["complete"] is False
        later = stored.planned(folder)[15:]
        assert {run["arm"] for run in later} == {"gelu_tanh", "swiglu"}
        assert all(run["without"] == ["relu"] for run in later)


@pytest.mark.parametrize(
    "interrupted",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["to the end", "interrupted"],
)
@pytest.mark.parametrize(
    "failing", [{"lr": 0.0316}, {"lr": 0.00178}, {"lr": 0.1}], ids=["grid", "midpoint", "extension"]
)
def test_an_arm_that_can_be_tuned_later_ends_as_if_it_had_never_failed(
    tmp_path, failing, interrupted
):
    """The grid case is the hard one: this arm's edge extends everybody's grid, which the plan
    without it did not.
    """
    arms, edge = ("gelu_tanh", "relu", "swiglu"), failing["lr"] != 0.00178
    outcomes = []
    for name in ("whole", "flaky"):
        folder, store = make_study(tmp_path / name, arms=arms)
        if name == "flaky":
            misbehave(store.root, "raise", times=3, activation="relu", **failing)
        if edge:
            misbehave(store.root, "edge", activation="relu", eval_part="tune")
        if name == "flaky":
            if interrupted:
                with pytest.raises(KeyboardInterrupt):
                    go(folder, store, Impatient(22))
            else:
                assert not go(folder, store).complete
                assert verdict(folder, "swiglu")["verdict"] == "better"
            assert any("without" in run for run in stored.planned(folder))
        assert go(folder, store).complete
        assert not any("without" in run for run in stored.planned(folder))
        outcomes.append(outcome(folder))
    assert outcomes[0] == outcomes[1]


def test_a_baseline_that_cannot_be_tuned_leaves_nothing_to_compare_with_until_it_can(tmp_path):
    whole, store = make_study(tmp_path / "whole")
    go(whole, store)
    folder, store = make_study(tmp_path / "flaky")
    misbehave(store.root, "raise", times=3, activation="gelu_tanh", lr=0.01)
    assert not go(folder, store).complete
    assert len(stored.planned(folder)) == 10
    assert (verdict(folder)["verdict"], verdict(folder)["cause"]) == (
        "inconclusive",
        "failed or missing run",
    )
    assert go(folder, store).complete
    assert outcome(folder) == outcome(whole)


def test_a_failed_replicate_makes_its_verdict_inconclusive_until_it_succeeds(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "raise", times=3, activation="relu", seed=replication_seed(1))
    summary = go(folder, store)
    assert not summary.complete and len(summary.failed) == 1
    assert verdict(folder)["cause"] == "failed or missing run"
    assert stored.study_json(folder, "verdict.json")["complete"] is False
    assert go(folder, store).complete
    assert verdict(folder)["verdict"] == "worse"


def test_a_second_controller_is_refused(tmp_path):
    folder, store = make_study(tmp_path)
    with folder.held(), pytest.raises(UserError, match="is being run by another command"):
        go(folder, store)
    assert stored.planned(folder) == []


def test_a_run_that_another_study_is_training_is_waited_for_and_not_trained_twice(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    run_id = stored.planned(folder)[0]["run_id"]
    result = stored.result(store, run_id)
    config = stored.config(store, run_id)
    fresh, other = make_study(tmp_path / "fresh")
    claim = other.claim(run_id)
    attempt = claim.attempt(config, {})
    watch = Watch()

    def finish_elsewhere():
        claim.finish(attempt, result)
        claim.release()

    threading.Timer(0.5, finish_elsewhere).start()
    assert go(fresh, other, watch).complete
    assert any("waiting for it" in line for line in watch.lines)
    assert run_id not in trainings(other.root)
    assert ("reused", run_id) in watch.events


def test_a_result_that_a_kill_left_unnamed_is_found_and_not_trained_again(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    run_id = stored.planned(folder)[3]["run_id"]
    store.folder(run_id).rename(store.folder(run_id).with_name(f"{run_id}.1"))
    assert go(folder, store).complete
    assert trainings(tmp_path).count(run_id) == 1


def test_a_full_disk_stops_the_study_with_one_line_and_it_goes_on_later(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "full", times=1, activation="relu", lr=0.01)
    with pytest.raises(StudyError, match=r"no space left.*give the same command again"):
        go(folder, store)
    assert go(folder, store).complete


def test_a_disk_that_fills_up_under_the_controller_stops_it_alike(tmp_path, monkeypatch):
    folder, store = make_study(tmp_path)
    with monkeypatch.context() as patch:

        def refuse(self, record):
            raise OSError(28, "No space left on device")

        patch.setattr(type(folder), "add_run", refuse)
        with pytest.raises(StudyError, match="no space left"):
            go(folder, store)
    assert go(folder, store).complete


def test_an_observer_that_breaks_costs_one_warning_and_no_number(tmp_path, capsys):
    class Broken(Observer):
        def on_metrics(self, run, record):
            raise ValueError("a display without a terminal")

    folder, store = make_study(tmp_path)
    assert go(folder, store, Broken(), Watch()).complete
    assert capsys.readouterr().err.count("warning: Broken failed") == 1


def test_a_study_is_not_continued_on_another_platform_but_a_finished_one_can_be_read(
    tmp_path, monkeypatch
):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "raise", times=3, activation="relu", lr=0.01)
    go(folder, store)
    with monkeypatch.context() as patch:
        patch.setattr(
            fakes.frozen, "platform_of", lambda device: {"torch": "9.9", "device": "other"}
        )
        with pytest.raises(
            UserError, match=r"was frozen on torch fake, fake; here is torch 9\.9, other"
        ):
            go(folder, store)
    assert go(folder, store).complete
    monkeypatch.setattr(
        fakes.frozen, "platform_of", lambda device: {"torch": "9.9", "device": "other"}
    )
    assert go(folder, store).complete


def test_runs_that_would_have_other_ids_now_are_refused(tmp_path, monkeypatch):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "raise", times=3, activation="relu", lr=0.01)
    go(folder, store)
    before = fakes.frozen.identify
    monkeypatch.setattr(
        fakes.frozen, "identify", lambda c, f, *more: before(c, f + " with other numerics", *more)
    )
    with pytest.raises(UserError, match="numerics changed since it was frozen"):
        go(folder, store)
