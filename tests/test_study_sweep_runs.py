"""A sweep on a training that takes no time: the same trials whatever the slots, the kills and the
duplicates.
"""

import json

import pytest
import stored
import study_fakes as fakes
from study_fakes import misbehave, outcome, trainings, write_study

from andrea.config import RunConfig
from andrea.execution.executors import InlineExecutor
from andrea.execution.local import LocalExecutor
from andrea.records.events import Observer
from andrea.store.runs import RunStore
from andrea.study.controller import run_study
from andrea.study.question.sweep import Sweep
from andrea.verdict.seeds import tuning_seed

LR = {"train.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
CHOICES = {
    "train.lr": {"choices": [0.001, 0.003]},
    "model.activation": {"choices": ["gelu", "relu"]},
}


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


def make_sweep(root, space=LR, **settings):
    spec = Sweep.model_validate(
        {"question": "Which rate?", "space": space, "trials": 12, **settings}
    )
    config = RunConfig.model_validate(
        {"model": {"vocab_size": 256}, "train": {"tokens": 512}}
    ).model_dump(mode="json")
    store = RunStore(root)
    asked = {"kind": "sweep", "name": "lr", **spec.model_dump(mode="json")}
    return write_study(store, "lr", "sweep", asked, {"lr": config}, None), store


def go(folder, store, *observers):
    return run_study(folder, store, InlineExecutor(fakes.RUN), observers)


def test_a_sweep_finds_the_rate_and_writes_a_config_to_copy(tmp_path):
    folder, store = make_sweep(tmp_path)
    assert go(folder, store).complete
    best = stored.study_json(folder, "best.json")
    assert abs(best["params"]["train.lr"] - 10**-2.4) < 2e-3
    assert best["config"]["train"]["lr"] == best["params"]["train.lr"]
    assert best["trial"] == min(best["trials"], key=lambda t: t["loss"])["trial"]
    assert [t["trial"] for t in best["trials"]] == list(range(12))
    assert best["search"]["sampling"]["arguments"]["n_ei_candidates"] == 24
    runs = stored.planned(folder)
    assert [run["generation"] for run in runs] == [i // 4 for i in range(12)]
    assert {(run["seed"], run["phase"]) for run in runs} == {(tuning_seed(0), "trial")}
    assert stored.config(store, runs[0]["run_id"])["config"]["data"]["eval_part"] == "tune"


def test_an_interrupted_sweep_proposes_the_same_and_trains_nothing_twice(tmp_path):
    whole, store = make_sweep(tmp_path / "whole")
    go(whole, store)
    folder, store = make_sweep(tmp_path / "cut")

    class Impatient(Observer):
        def __init__(self):
            self.left = 1 + len(trainings(store.root)) + 2

        def on_run_finished(self, run, result, *, reused):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    while True:
        try:
            go(folder, store, Impatient())
            break
        except KeyboardInterrupt:
            continue
    assert outcome(folder) == outcome(whole)
    assert len(trainings(store.root)) == len(set(trainings(store.root))) == 12


def test_a_generation_that_was_recorded_in_part_is_completed_with_the_same_proposals(tmp_path):
    whole, store = make_sweep(tmp_path / "whole")
    go(whole, store)
    folder, store = make_sweep(tmp_path / "cut")
    go(folder, store)
    lines = (folder.path / "runs.jsonl").read_text().splitlines(keepends=True)
    (folder.path / "runs.jsonl").write_text("".join(lines[:6]) + lines[6][:20])
    (folder.path / "best.json").unlink()
    assert go(folder, store).complete
    assert outcome(folder) == outcome(whole)


def test_identical_proposals_are_trained_once_and_shown_as_duplicates(tmp_path):
    folder, store = make_sweep(tmp_path, space=CHOICES, sampler="random")
    assert go(folder, store).complete
    trials = stored.study_json(folder, "best.json")["trials"]
    distinct = {json.dumps(t["params"], sort_keys=True) for t in trials}
    assert len(distinct) <= 4 < len(trials)
    assert len(trainings(tmp_path)) == len(distinct)
    for trial in trials:
        first = next(t for t in trials if t["params"] == trial["params"])
        assert trial["duplicate_of"] == (None if first is trial else first["trial"])
        assert trial["run_id"] == first["run_id"]


def test_every_cell_of_a_grid_is_run_exactly_once(tmp_path):
    folder, store = make_sweep(tmp_path, space=CHOICES, sampler="grid", trials=4, generation=3)
    assert go(folder, store).complete
    cells = [tuple(run["params"].values()) for run in stored.planned(folder)]
    assert cells == [(0.001, "gelu"), (0.001, "relu"), (0.003, "gelu"), (0.003, "relu")]
    assert len(trainings(tmp_path)) == 4


def test_a_trial_of_several_seeds_is_worth_their_mean_and_good_only_if_all_are(tmp_path):
    folder, store = make_sweep(tmp_path, space=CHOICES, sampler="grid", trials=4, seeds=2)
    misbehave(tmp_path, "diverge", activation="relu", lr=0.003, seed=tuning_seed(1))
    assert go(folder, store).complete
    assert len(stored.planned(folder)) == 8
    trials = stored.study_json(folder, "best.json")["trials"]
    for trial in trials:
        results = [stored.result(store, run_id) for run_id in trial["runs"]]
        losses = [r["loss"] if r["outcome"] == "completed" else r["initial_loss"] for r in results]
        assert trial["loss"] == sum(losses) / 2
    assert [t["ok"] for t in trials] == [True, True, True, False]


def test_what_diverged_is_never_best(tmp_path):
    folder, store = make_sweep(tmp_path, space=CHOICES, sampler="grid", trials=4)
    misbehave(tmp_path, "diverge")
    assert go(folder, store).complete
    best = stored.study_json(folder, "best.json")
    assert best["trial"] is None and best["params"] is None
    assert {t["outcome"] for t in best["trials"]} == {"diverged"}


def test_a_failed_trial_stops_the_sweep_where_it_is_and_the_next_command_goes_on(tmp_path):
    whole, store = make_sweep(tmp_path / "whole")
    go(whole, store)
    folder, store = make_sweep(tmp_path / "flaky")
    rate = stored.planned(whole)[5]["lr"]
    misbehave(store.root, "raise", times=3, lr=rate)
    summary = go(folder, store)
    assert not summary.complete and len(summary.failed) == 1
    assert len(stored.planned(folder)) == 8 and stored.study_json(folder, "best.json") is None
    assert go(folder, store).complete
    assert outcome(folder) == outcome(whole)


@pytest.mark.slow
def test_a_sweep_is_the_same_with_one_slot_and_with_two(tmp_path):
    outcomes = []
    for slots in (1, 2):
        folder, store = make_sweep(tmp_path / str(slots))
        executor = LocalExecutor(slots, run=fakes.RUN, preload=fakes.PRELOAD)
        assert run_study(folder, store, executor).complete
        outcomes.append(outcome(folder))
    assert outcomes[0] == outcomes[1]
