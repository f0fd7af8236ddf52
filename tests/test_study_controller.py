"""A whole study on a training that takes no time: what is planned, found, retried, refused, judged."""

import json
import threading
from datetime import UTC, datetime
from importlib.metadata import version

import pytest
import study_fakes as fakes
from study_fakes import make_study, misbehave, outcome, trainings

from andrea.errors import StudyError, UserError
from andrea.store.files import read_json, write_json
from andrea.study.controller import run_study
from andrea.study.events import Observer
from andrea.study.executors import InlineExecutor
from andrea.verdict.records import METHOD
from andrea.verdict.seeds import replication_seed, tuning_seed


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


class Watch(Observer):
    def __init__(self):
        self.events, self.lines = [], []

    def phase(self, name, note):
        self.events.append(("phase", name))

    def started(self, run):
        self.events.append(("started", run["run_id"]))

    def progress(self, run, record):
        self.events.append(("progress", run["run_id"]))

    def finished(self, run, result):
        self.events.append(("reused" if run["reused"] else "finished", run["run_id"]))

    def failed(self, run, reason):
        self.events.append(("failed", reason))

    def say(self, line):
        self.lines.append(line)

    def count(self, kind):
        return sum(event[0] == kind for event in self.events)


class Impatient(Observer):
    """Presses Ctrl-C after that many runs."""

    def __init__(self, patience):
        self.left = patience

    def finished(self, run, result):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def go(folder, store, *observers):
    return run_study(folder, store, InlineExecutor(fakes.RUN), observers)


def verdict(folder, arm="relu"):
    return next(v for v in folder.read("verdict.json")["verdicts"] if v["arm"] == arm)


def test_a_study_tunes_replicates_and_judges(tmp_path):
    folder, store = make_study(tmp_path)
    watch = Watch()
    assert go(folder, store, watch).complete
    assert [name for kind, name in watch.events if kind == "phase"] == ["grid", "midpoint", "replicate"]
    runs = folder.runs()
    assert [run["why"] for run in runs] == ["grid"] * 10 + ["midpoint"] * 4 + ["replicate"] * 6
    assert watch.count("started") == watch.count("finished") == watch.count("progress") == 20
    assert verdict(folder)["verdict"] == "worse"
    choices = folder.read("choices.json")
    assert abs(choices["relu"]["lr"] - 10**-2.6) < 3e-4
    assert len(choices["relu"]["points"]) == 7


def test_s70_tuning_and_verdict_share_neither_seeds_nor_evaluated_tokens(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    parts = {"tune": set(), "replicate": set()}
    seeds = {"tune": set(), "replicate": set()}
    for run in folder.runs():
        parts[run["phase"]].add(store.config(run["run_id"])["config"]["data"]["eval_part"])
        seeds[run["phase"]].add(run["seed"])
    assert parts == {"tune": {"tune"}, "replicate": {"verdict"}}
    assert seeds == {"tune": {tuning_seed(0)}, "replicate": {replication_seed(i) for i in range(3)}}


def test_every_arm_is_replicated_on_the_same_seeds_at_its_own_rate_pairs_together(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    runs = [run for run in folder.runs() if run["phase"] == "replicate"]
    assert [(run["seed"], run["arm"]) for run in runs] == [(s, a) for s in range(3) for a in ("gelu_tanh", "relu")]
    choices = folder.read("choices.json")
    assert all(run["lr"] == choices[run["arm"]]["lr"] for run in runs)


def test_a_second_command_finds_everything_and_trains_nothing(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    before, watch = outcome(folder), Watch()
    assert go(folder, store, watch).complete
    assert outcome(folder) == before
    assert watch.count("reused") == 20 and watch.count("started") == 0
    assert len(trainings(tmp_path)) == len(set(trainings(tmp_path))) == 20


def test_s67_another_study_trains_only_what_no_study_has_trained(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    wider, _ = make_study(tmp_path, name="wider", arms=("gelu_tanh", "relu", "swiglu"))
    assert go(wider, store).complete
    assert len(trainings(tmp_path)) == len(set(trainings(tmp_path)))
    assert len(wider.runs()) == 30
    assert len(trainings(tmp_path)) == 30


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


def test_s64_a_transient_failure_is_tried_again_and_leaves_no_trace_in_the_numbers(tmp_path):
    whole, store = make_study(tmp_path / "whole")
    go(whole, store)
    folder, store = make_study(tmp_path / "flaky")
    misbehave(store.root, "raise", times=2, lr=0.00316)
    watch = Watch()
    assert go(folder, store, watch).complete
    assert watch.count("failed") == 4
    assert outcome(folder) == outcome(whole)


def test_s34_a_run_that_fails_at_every_try_is_no_result_and_the_next_command_tries_again(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "raise", times=3, activation="relu", lr=0.01)
    summary = go(folder, store)
    assert not summary.complete
    assert [(run.arm, run.phase, run.reason) for run in summary.failed] == [
        ("relu", "tune", "RuntimeError: a transient fault")
    ]
    run_id = summary.failed[0].run_id
    assert store.result(run_id) is None
    assert store.failure(run_id)["reason"].startswith("a transient fault")
    assert folder.read("choices.json")["relu"]["lr"] is None  # its midpoints wait for the failed rate
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
        assert (relu["verdict"], relu["cause"], relu["n"]) == ("inconclusive", "failed or missing run", 0)
        assert (swiglu["verdict"], swiglu["n"], swiglu["arms"]) == ("better", 3, 2)
        assert folder.read("verdict.json")["complete"] is False
        later = folder.runs()[15:]
        assert {run["arm"] for run in later} == {"gelu_tanh", "swiglu"}
        assert all(run["without"] == ["relu"] for run in later)


@pytest.mark.parametrize("interrupted", [False, True], ids=["to the end", "interrupted"])
@pytest.mark.parametrize(
    "failing", [{"lr": 0.0316}, {"lr": 0.00178}, {"lr": 0.1}], ids=["grid", "midpoint", "extension"]
)
def test_an_arm_that_can_be_tuned_later_ends_as_if_it_had_never_failed(tmp_path, failing, interrupted):
    """The grid case is the hard one: this arm's edge extends everybody's grid, which the plan without it did not."""
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
            assert any("without" in run for run in folder.runs())
        assert go(folder, store).complete
        assert not any("without" in run for run in folder.runs())
        outcomes.append(outcome(folder))
    assert outcomes[0] == outcomes[1]


def test_a_baseline_that_cannot_be_tuned_leaves_nothing_to_compare_with_until_it_can(tmp_path):
    whole, store = make_study(tmp_path / "whole")
    go(whole, store)
    folder, store = make_study(tmp_path / "flaky")
    misbehave(store.root, "raise", times=3, activation="gelu_tanh", lr=0.01)
    assert not go(folder, store).complete
    assert len(folder.runs()) == 10
    assert (verdict(folder)["verdict"], verdict(folder)["cause"]) == ("inconclusive", "failed or missing run")
    assert go(folder, store).complete
    assert outcome(folder) == outcome(whole)


def test_a_failed_replicate_makes_its_verdict_inconclusive_until_it_succeeds(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "raise", times=3, activation="relu", seed=replication_seed(1))
    summary = go(folder, store)
    assert not summary.complete and len(summary.failed) == 1
    assert verdict(folder)["cause"] == "failed or missing run"
    assert folder.read("verdict.json")["complete"] is False
    assert go(folder, store).complete
    assert verdict(folder)["verdict"] == "worse"


def test_s30_s31_what_diverges_is_scored_by_its_initial_loss_and_never_chosen_or_retried(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "diverge", activation="relu", lr=0.00316)
    misbehave(tmp_path, "stall", activation="relu", lr=0.0316)
    assert go(folder, store).complete
    points = {p["lr"]: p for p in folder.read("choices.json")["relu"]["points"]}
    assert points[0.00316]["loss"] == points[0.0316]["loss"] == 5.54
    assert (points[0.00316]["outcome"], points[0.0316]["stalled"]) == ("diverged", True)
    assert not points[0.00316]["ok"] and not points[0.0316]["ok"]
    assert folder.read("choices.json")["relu"]["lr"] != 0.00316
    assert len(trainings(tmp_path)) == len(set(trainings(tmp_path)))


def test_an_arm_that_no_rate_trains_is_unstable_and_not_replicated(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "stall", activation="relu")
    assert go(folder, store).complete
    assert verdict(folder)["verdict"] == "unstable"
    choice = folder.read("choices.json")["relu"]
    assert choice["lr"] is None and len(choice["points"]) == 5
    assert {run["arm"] for run in folder.runs() if run["phase"] == "replicate"} == {"gelu_tanh"}


def test_a_baseline_that_no_rate_trains_makes_everything_invalid_at_once(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "diverge", activation="gelu_tanh")
    assert go(folder, store).complete
    assert verdict(folder)["verdict"] == "invalid"
    assert {run["why"] for run in folder.runs()} == {"grid"}


def test_a_best_rate_at_the_edge_extends_the_grid_of_every_arm_twice_and_then_says_so(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "edge", activation="relu", eval_part="tune")
    assert go(folder, store).complete
    extended = [(run["arm"], run["lr"], run["generation"]) for run in folder.runs() if run["why"] == "extension"]
    arms = ("gelu_tanh", "relu")
    assert extended == [(arm, lr, g) for g, lr in ((1, 0.1), (2, 0.316)) for arm in arms]
    assert folder.read("choices.json")["relu"]["edge"] == "high"
    assert verdict(folder)["cause"] == "rate at edge"


def test_few_trials_say_that_the_rate_is_hardly_tuned(tmp_path):
    folder, store = make_study(tmp_path, trials=3)
    assert go(folder, store).complete
    assert [run["lr"] for run in folder.runs() if run["phase"] == "tune" and run["arm"] == "relu"] == [
        0.000316,
        0.00316,
        0.0316,
    ]
    assert folder.read("choices.json")["relu"]["hardly_tuned"]
    assert "rate hardly tuned" in verdict(folder)["tags"]


def test_replicates_older_than_the_freeze_make_the_verdict_exploratory(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    assert folder.read("verdict.json")["exploratory"] is False
    later, _ = make_study(tmp_path, name="later", frozen_at="2199-01-01T00:00:00+00:00")
    assert go(later, store).complete
    assert later.read("verdict.json")["exploratory"] is later.read("resolved.json")["exploratory"] is True
    assert "exploratory" in verdict(later)["tags"]


@pytest.mark.parametrize("arm", ["gelu_tanh", "relu"])
def test_one_tuning_run_older_than_the_freeze_makes_the_verdict_exploratory(tmp_path, arm):
    folder, store = make_study(tmp_path)
    go(folder, store)
    run = next(run for run in folder.runs() if run["arm"] == arm and run["phase"] == "tune")
    path = store.folder(run["run_id"]) / "result.json"
    write_json(path, read_json(path) | {"finished_at": "2025-12-31T23:59:59+00:00"})
    assert go(folder, store).complete
    assert folder.read("verdict.json")["exploratory"] is True
    assert "exploratory" in verdict(folder)["tags"]


def test_runs_that_the_study_made_before_a_resume_are_not_older_than_its_freeze(tmp_path):
    folder, store = make_study(tmp_path, frozen_at=datetime.now(UTC).isoformat(timespec="seconds"))
    for patience in (4, 16):
        with pytest.raises(KeyboardInterrupt):
            go(folder, store, Impatient(patience))
    assert go(folder, store).complete
    assert folder.read("verdict.json")["exploratory"] is False
    assert verdict(folder)["tags"] == []


def test_a_verdict_names_the_versions_that_its_numbers_come_from(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    told = folder.read("verdict.json")
    assert told["method"] == METHOD
    assert told["versions"] == {name: version(name) for name in ("andrea", "numpy", "scipy")}


def test_s23_a_second_controller_is_refused(tmp_path):
    folder, store = make_study(tmp_path)
    with folder.held(), pytest.raises(UserError, match="is being run by another command"):
        go(folder, store)
    assert folder.runs() == []


def test_a_run_that_another_study_is_training_is_waited_for_and_not_trained_twice(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    run_id = folder.runs()[0]["run_id"]
    result = store.result(run_id)
    config = store.config(run_id)
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
    run_id = folder.runs()[3]["run_id"]
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
        def progress(self, run, record):
            raise ValueError("a display without a terminal")

    folder, store = make_study(tmp_path)
    assert go(folder, store, Broken(), Watch()).complete
    assert capsys.readouterr().err.count("warning: Broken failed") == 1


def test_s73_a_study_is_not_continued_on_another_platform_but_a_finished_one_can_be_read(tmp_path, monkeypatch):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "raise", times=3, activation="relu", lr=0.01)
    go(folder, store)
    with monkeypatch.context() as patch:
        patch.setattr(fakes.frozen, "platform_of", lambda device: {"torch": "9.9", "device": "other"})
        with pytest.raises(UserError, match=r"was frozen on torch fake, fake; here is torch 9\.9, other"):
            go(folder, store)
    assert go(folder, store).complete
    monkeypatch.setattr(fakes.frozen, "platform_of", lambda device: {"torch": "9.9", "device": "other"})
    assert go(folder, store).complete


def test_runs_that_would_have_other_ids_now_are_refused(tmp_path, monkeypatch):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "raise", times=3, activation="relu", lr=0.01)
    go(folder, store)
    before = fakes.frozen.identify
    monkeypatch.setattr(fakes.frozen, "identify", lambda c, f, p: before(c, f + " with other numerics", p))
    with pytest.raises(UserError, match="numerics changed since it was frozen"):
        go(folder, store)


def test_everything_in_a_study_folder_is_json_without_nan(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "diverge", activation="relu", seed=replication_seed(0))
    go(folder, store)
    assert verdict(folder)["verdict"] == "unstable"
    for name in ("choices.json", "verdict.json"):
        json.loads((folder.path / name).read_text(), parse_constant=lambda word: pytest.fail(word))
    assert read_json(folder.path / "verdict.json")["baseline"]["n"] == 3
