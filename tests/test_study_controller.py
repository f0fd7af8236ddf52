"""A whole study on a training that takes no time: what is planned, found, tuned, judged."""

import json
import random
from datetime import UTC, datetime
from importlib.metadata import version

import pytest
import stored
import study_fakes as fakes
from study_fakes import Impatient, Watch, go, make_study, misbehave, outcome, trainings, verdict

from andrea.execution.executors import InlineExecutor
from andrea.records.extras import Extras
from andrea.records.job import JobEnd
from andrea.store.files import read_json, write_json
from andrea.study.controller import run_study
from andrea.verdict.judgement import METHOD
from andrea.verdict.seeds import replication_seed, tuning_seed


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


def test_a_study_tunes_replicates_and_judges(tmp_path):
    folder, store = make_study(tmp_path)
    watch = Watch()
    assert go(folder, store, watch).complete
    assert [name for kind, name in watch.events if kind == "phase"] == [
        "grid",
        "midpoint",
        "replicate",
    ]
    runs = stored.planned(folder)
    assert [run["why"] for run in runs] == ["grid"] * 10 + ["midpoint"] * 4 + ["replicate"] * 6
    assert watch.count("started") == watch.count("finished") == watch.count("progress") == 20
    assert verdict(folder)["verdict"] == "worse"
    choices = stored.study_json(folder, "choices.json")
    assert abs(choices["relu"]["lr"] - 10**-2.6) < 3e-4
    assert len(choices["relu"]["points"]) == 7


def test_tuning_and_verdict_share_neither_seeds_nor_evaluated_tokens(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    parts = {"tune": set(), "replicate": set()}
    seeds = {"tune": set(), "replicate": set()}
    for run in stored.planned(folder):
        parts[run["phase"]].add(stored.config(store, run["run_id"])["config"]["data"]["eval_part"])
        seeds[run["phase"]].add(run["seed"])
    assert parts == {"tune": {"tune"}, "replicate": {"verdict"}}
    assert seeds == {"tune": {tuning_seed(0)}, "replicate": {replication_seed(i) for i in range(3)}}


def test_every_arm_is_replicated_on_the_same_seeds_at_its_own_rate_pairs_together(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    runs = [run for run in stored.planned(folder) if run["phase"] == "replicate"]
    assert [(run["seed"], run["arm"]) for run in runs] == [
        (s, a) for s in range(3) for a in ("gelu_tanh", "relu")
    ]
    choices = stored.study_json(folder, "choices.json")
    assert all(run["lr"] == choices[run["arm"]]["lr"] for run in runs)


def test_a_second_command_finds_everything_and_trains_nothing(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    before, watch = outcome(folder), Watch()
    assert go(folder, store, watch).complete
    assert outcome(folder) == before
    assert watch.count("reused") == 20 and watch.count("started") == 0
    assert len(trainings(tmp_path)) == len(set(trainings(tmp_path))) == 20


def test_another_study_trains_only_what_no_study_has_trained(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    wider, _ = make_study(tmp_path, name="wider", arms=("gelu_tanh", "relu", "swiglu"))
    assert go(wider, store).complete
    assert len(trainings(tmp_path)) == len(set(trainings(tmp_path)))
    assert len(stored.planned(wider)) == 30
    assert len(trainings(tmp_path)) == 30


def test_what_diverges_is_scored_by_its_initial_loss_and_never_chosen_or_retried(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "diverge", activation="relu", lr=0.00316)
    misbehave(tmp_path, "stall", activation="relu", lr=0.0316)
    assert go(folder, store).complete
    points = {p["lr"]: p for p in stored.study_json(folder, "choices.json")["relu"]["points"]}
    assert points[0.00316]["loss"] == points[0.0316]["loss"] == 5.54
    assert (points[0.00316]["outcome"], points[0.0316]["stalled"]) == ("diverged", True)
    assert not points[0.00316]["ok"] and not points[0.0316]["ok"]
    assert stored.study_json(folder, "choices.json")["relu"]["lr"] != 0.00316
    assert len(trainings(tmp_path)) == len(set(trainings(tmp_path)))


def test_an_arm_that_no_rate_trains_is_unstable_and_not_replicated(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "stall", activation="relu")
    assert go(folder, store).complete
    assert verdict(folder)["verdict"] == "unstable"
    choice = stored.study_json(folder, "choices.json")["relu"]
    assert choice["lr"] is None and len(choice["points"]) == 5
    assert {run["arm"] for run in stored.planned(folder) if run["phase"] == "replicate"} == {
        "gelu_tanh"
    }


def test_a_baseline_that_no_rate_trains_makes_everything_invalid_at_once(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "diverge", activation="gelu_tanh")
    assert go(folder, store).complete
    assert verdict(folder)["verdict"] == "invalid"
    assert {run["why"] for run in stored.planned(folder)} == {"grid"}


def test_a_best_rate_at_the_edge_extends_the_grid_of_every_arm_twice_and_then_says_so(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "edge", activation="relu", eval_part="tune")
    assert go(folder, store).complete
    extended = [
        (run["arm"], run["lr"], run["generation"])
        for run in stored.planned(folder)
        if run["why"] == "extension"
    ]
    arms = ("gelu_tanh", "relu")
    assert extended == [(arm, lr, g) for g, lr in ((1, 0.1), (2, 0.316)) for arm in arms]
    assert stored.study_json(folder, "choices.json")["relu"]["edge"] == "high"
    assert verdict(folder)["cause"] == "rate at edge"


def test_few_trials_say_that_the_rate_is_hardly_tuned(tmp_path):
    folder, store = make_study(tmp_path, trials=3)
    assert go(folder, store).complete
    assert [
        run["lr"]
        for run in stored.planned(folder)
        if run["phase"] == "tune" and run["arm"] == "relu"
    ] == [
        0.000316,
        0.00316,
        0.0316,
    ]
    assert stored.study_json(folder, "choices.json")["relu"]["hardly_tuned"]
    assert "rate hardly tuned" in verdict(folder)["tags"]


def test_replicates_older_than_the_freeze_make_the_verdict_exploratory(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    assert stored.study_json(folder, "verdict.json")["exploratory"] is False
    later, _ = make_study(tmp_path, name="later", frozen_at="2199-01-01T00:00:00+00:00")
    assert go(later, store).complete
    assert (
        stored.study_json(later, "verdict.json")["exploratory"]
        is stored.study_json(later, "resolved.json")["exploratory"]
        is True
    )
    assert "exploratory" in verdict(later)["tags"]


@pytest.mark.parametrize("arm", ["gelu_tanh", "relu"])
def test_one_tuning_run_older_than_the_freeze_makes_the_verdict_exploratory(tmp_path, arm):
    folder, store = make_study(tmp_path)
    go(folder, store)
    run = next(
        run for run in stored.planned(folder) if run["arm"] == arm and run["phase"] == "tune"
    )
    path = store.folder(run["run_id"]) / "result.json"
    write_json(path, read_json(path) | {"finished_at": "2025-12-31T23:59:59+00:00"})
    assert go(folder, store).complete
    assert stored.study_json(folder, "verdict.json")["exploratory"] is True
    assert "exploratory" in verdict(folder)["tags"]


def test_runs_that_the_study_made_before_a_resume_are_not_older_than_its_freeze(tmp_path):
    folder, store = make_study(tmp_path, frozen_at=datetime.now(UTC).isoformat(timespec="seconds"))
    for patience in (4, 16):
        with pytest.raises(KeyboardInterrupt):
            go(folder, store, Impatient(patience))
    assert go(folder, store).complete
    assert stored.study_json(folder, "verdict.json")["exploratory"] is False
    assert verdict(folder)["tags"] == []


def test_a_verdict_names_the_versions_that_its_numbers_come_from(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    told = stored.study_json(folder, "verdict.json")
    assert told["method"] == METHOD
    assert told["versions"] == {name: version(name) for name in ("andrea", "numpy", "scipy")}


def test_everything_in_a_study_folder_is_json_without_nan(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "diverge", activation="relu", seed=replication_seed(0))
    go(folder, store)
    assert verdict(folder)["verdict"] == "unstable"
    for name in ("choices.json", "verdict.json"):
        json.loads((folder.path / name).read_text(), parse_constant=lambda word: pytest.fail(word))
    assert read_json(folder.path / "verdict.json")["baseline"]["n"] == 3


class ManySlots(InlineExecutor):
    """Eight slots, in which jobs end in the order of a seed; without one, as they started."""

    slots = 8

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(fakes.RUN)
        self._random = random.Random(seed) if seed is not None else None

    def wait(self, timeout: float) -> list[JobEnd]:
        if self._random is not None:
            self._random.shuffle(self._jobs)
        return super().wait(timeout)


def with_extras(root, executor, *observers):
    """A study of three arms with controls and an equal budget on an executor."""
    arms = ("gelu_tanh", "relu", "swiglu")
    folder, store = make_study(root, arms=arms, train={"train.tokens": 81920})
    extras = Extras(controls=True, equal=["flops"])
    assert run_study(folder, store, executor, observers, extras).complete
    assert len(trainings(root)) == len(set(trainings(root)))
    return folder


def test_idle_slots_take_replicates_before_tuning_has_ended(tmp_path):
    watch = Watch()
    folder = with_extras(tmp_path, ManySlots(), watch)
    position = watch.events.index(("phase", "replicate"))
    started_before = {run_id for kind, run_id in watch.events[:position] if kind == "started"}
    replicates = {run["run_id"] for run in stored.planned(folder) if run["phase"] == "replicate"}
    assert started_before & replicates


@pytest.mark.slow
def test_neither_slots_nor_the_order_in_which_runs_end_change_a_number(tmp_path):
    one = outcome(with_extras(tmp_path / "one", InlineExecutor(fakes.RUN)))
    for seed in (None, 0, 1, 2):
        assert outcome(with_extras(tmp_path / f"many {seed}", ManySlots(seed))) == one
