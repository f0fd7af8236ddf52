"""The Optuna journal is a projection: torn, deleted or contradicting, it is written again;
proposals are pure.
"""

import math

import optuna
import pytest
import stored
import study_fakes as fakes
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from study_fakes import make_study, misbehave, outcome

from andrea.execution.executors import InlineExecutor
from andrea.records.events import Observer
from andrea.study.controller import run_study
from andrea.study.optuna_journal import JournalTrial, propose, seed_of

SPACE = {"train.lr": FloatDistribution(1e-4, 1e-1, log=True)}
TPE = {
    "n_startup_trials": 4,
    "n_ei_candidates": 24,
    "multivariate": True,
    "group": False,
    "constant_liar": True,
}


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


class Lines(Observer):
    def __init__(self):
        self.lines = []

    def on_message(self, line):
        self.lines.append(line)


def go(folder, store, *observers):
    return run_study(folder, store, InlineExecutor(fakes.RUN), observers)


def journal(folder):
    """The journal as optuna-dashboard would open it: trials by study, as plain values."""
    path = str(folder.path / "optuna.journal")
    storage = JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
    return {
        study.study_name: [
            (t.state.name, t.value, dict(t.params), dict(t.user_attrs)) for t in study.get_trials()
        ]
        for study in (
            optuna.load_study(study_name=s.study_name, storage=storage)
            for s in storage.get_all_studies()
        )
    }


def test_the_journal_holds_a_study_per_arm_with_every_tuning_run_told(tmp_path):
    folder, store = make_study(tmp_path)
    misbehave(tmp_path, "diverge", activation="relu", lr=0.00316)
    go(folder, store)
    told = journal(folder)
    assert list(told) == ["gelu_tanh", "relu"]
    tune = [run for run in stored.planned(folder) if run["phase"] == "tune"]
    for arm, trials in told.items():
        mine = [run for run in tune if run["arm"] == arm]
        assert [attrs["run_id"] for *_, attrs in trials] == [run["run_id"] for run in mine]
        assert all(state == "COMPLETE" and math.isfinite(value) for state, value, *_ in trials)
    diverged = next(t for t in told["relu"] if t[2]["train.lr"] == 0.00316)
    assert diverged[1] == 5.54
    assert (
        diverged[3]["outcome"] == "diverged"
        and diverged[3]["scored_as"] == "loss at initialisation"
    )


def test_a_trial_that_was_running_when_its_controller_died_is_taken_up(tmp_path):
    folder, store = make_study(tmp_path)

    class Killed(Observer):
        def on_run_started(self, run, attempt):
            if run.trial == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(folder, store, Killed())
    assert {state for state, *_ in journal(folder)["relu"]} == {"RUNNING"}
    watch = Lines()
    go(folder, store, watch)
    assert watch.lines == []
    assert [state for state, *_ in journal(folder)["relu"]] == ["COMPLETE"] * 7


@pytest.mark.parametrize("harm", ["deleted", "torn", "locked", "garbage", "other", "longer"])
def test_a_harmed_journal_is_mended_or_written_again(tmp_path, harm):
    folder, store = make_study(tmp_path)
    go(folder, store)
    path = folder.path / "optuna.journal"
    before, numbers = journal(folder), outcome(folder)
    if harm == "deleted":
        path.unlink()
    elif harm == "torn":
        path.write_bytes(path.read_bytes()[:-9])
    elif harm == "locked":
        path.with_name("optuna.journal.lock").touch()
    elif harm == "garbage":
        path.write_text("not json\n" * 3)
    elif harm == "other":
        path.write_bytes(path.read_bytes().replace(b"run_id", b"run_ix"))
    else:
        storage = JournalStorage(
            JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))
        )
        optuna.load_study(study_name="relu", storage=storage).ask(SPACE)
    assert go(folder, store).complete
    assert journal(folder) == before
    assert outcome(folder) == numbers


def test_a_reader_of_the_live_journal_disturbs_nothing(tmp_path):
    folder, store = make_study(tmp_path)

    class Dashboard(Observer):
        def on_run_finished(self, run, result, *, reused):
            assert journal(folder)

    assert go(folder, store, Dashboard()).complete


def test_a_journal_that_cannot_be_written_costs_a_warning(tmp_path):
    folder, store = make_study(tmp_path)
    (folder.path / "optuna.journal").mkdir()
    watch = Lines()
    summary = go(folder, store, watch)
    assert summary.complete
    assert any("could not be written" in line for line in watch.lines)


def test_proposals_are_a_pure_function_of_seed_and_history():
    def history(seed):
        trials = []
        for number in range(8):
            params = propose(SPACE, TPE, seed, trials)
            trials.append(
                JournalTrial(
                    "lr", number, str(number), params, (math.log10(params["train.lr"]) + 2.5) ** 2
                )
            )
        return [trial.params["train.lr"] for trial in trials]

    assert history(1) == history(1)
    assert history(1) != history(2)
    assert len(set(history(1))) == 8
    assert len({seed_of(1, number) for number in range(100)}) == 100


def test_trials_of_one_generation_differ_although_none_is_told():
    told = [
        JournalTrial("lr", i, str(i), {"train.lr": lr}, (math.log10(lr) + 2.5) ** 2)
        for i, lr in enumerate((1e-4, 1e-3, 3e-3, 1e-2, 1e-1))
    ]
    trials = list(told)
    for number in range(5, 9):
        trials.append(JournalTrial("lr", number, str(number), propose(SPACE, TPE, 1, trials)))
    rates = [trial.params["train.lr"] for trial in trials[5:]]
    assert len(set(rates)) == 4


def test_without_a_model_rates_are_drawn_at_random_within_the_space():
    rates = [propose(SPACE, None, seed, [])["train.lr"] for seed in range(20)]
    assert len(set(rates)) == 20
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
