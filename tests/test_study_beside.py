"""A confirmation and equal budgets on a training that takes no time: planned, judged alone,
resumed, refused.
"""

import pytest
import stored
import study_fakes as fakes
from study_fakes import Impatient, Watch, go, make_study, misbehave, outcome, trainings, verdict

from andrea.errors import StudyError, UserError
from andrea.records.extras import parse_budgets
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.stages import arm_speed as speed
from andrea.verdict.seeds import replication_seed, tuning_seed

TOKENS = 5120
ARMS = ("gelu_tanh", "relu", "swiglu")


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


def study(root, arms=("gelu_tanh", "relu"), **more):
    return make_study(root, arms=arms, train={"train.tokens": TOKENS}, **{"trials": 3, **more})


def lines(folder, phase):
    return [run for run in stored.planned(folder) if run["phase"] == phase]


def told(folder):
    return stored.study_json(folder, "verdict.json")


def test_a_confirmation_is_a_second_block_at_the_same_rates_judged_alone(tmp_path):
    folder, store = study(tmp_path)
    go(folder, store)
    first, tuned = told(folder), len(lines(folder, "tune"))
    watch = Watch()
    assert go(folder, store, watch, confirm=True).complete
    assert watch.events[-1] == ("finished", stored.planned(folder)[-1]["run_id"])
    runs = lines(folder, "confirm")
    assert [(run["seed"], run["arm"]) for run in runs] == [
        (replication_seed(i), arm) for i in (3, 4, 5) for arm in ("gelu_tanh", "relu")
    ]
    choices = stored.study_json(folder, "choices.json")
    assert {(run["arm"], run["lr"]) for run in runs} == {
        (arm, choice["lr"]) for arm, choice in choices.items()
    }
    assert len(lines(folder, "tune")) == tuned, "nothing was tuned anew"
    assert told(folder)["verdicts"] == first["verdicts"] and "confirmation" not in first
    second = told(folder)["confirmation"]
    assert (
        second["seeds"] == [3, 4, 5] and second["complete"] and second["agrees"] == {"relu": True}
    )
    [again] = second["verdicts"]
    assert {d["seed"] for d in again["differences"]} == {3, 4, 5}
    assert again["verdict"] == "worse" and again["mean"] != verdict(folder)["mean"]


def test_a_confirmation_that_comes_out_otherwise_leaves_the_first_verdict_and_does_not_agree(
    tmp_path,
):
    folder, store = study(tmp_path, arms=ARMS)
    misbehave(tmp_path, "stall", activation="relu", seed=replication_seed(4))
    assert go(folder, store, confirm=True).complete
    assert verdict(folder)["verdict"] == "worse"
    assert told(folder)["confirmation"]["agrees"] == {"relu": False, "swiglu": True}


def test_a_study_is_completed_before_it_is_confirmed_by_the_same_command(tmp_path):
    folder, store = study(tmp_path)
    misbehave(tmp_path, "raise", times=3, activation="relu", seed=replication_seed(1))
    watch = Watch()
    assert not go(folder, store, watch, confirm=True).complete
    assert lines(folder, "confirm") == [] and any(
        "waits for the first verdict" in line for line in watch.lines
    )
    second = told(folder)["confirmation"]
    assert second["complete"] is False and second["agrees"] == {"relu": None}
    assert go(folder, store).complete, "it was asked for once"
    assert told(folder)["confirmation"]["agrees"] == {"relu": True}


def test_a_confirmation_given_again_resumes_and_then_says_that_there_is_one(tmp_path):
    folder, store = study(tmp_path)
    go(folder, store)
    with pytest.raises(KeyboardInterrupt):
        go(folder, store, Impatient(15), confirm=True)
    assert not folder.complete
    assert go(folder, store, confirm=True).complete
    before, watch, trained = outcome(folder), Watch(), len(trainings(tmp_path))
    assert go(folder, store, watch, confirm=True).complete
    assert watch.lines == [
        f"study {folder.path.name} has its confirmation: there is one per study, not as many as it "
        "takes to agree"
    ]
    assert (outcome(folder), len(trainings(tmp_path))) == (before, trained)


def test_a_confirmation_that_is_there_stays_where_a_later_control_fails(tmp_path):
    folder, store = study(tmp_path)
    assert go(folder, store, confirm=True).complete
    before = told(folder)["confirmation"]
    misbehave(tmp_path, "raise", repeat=1)
    assert not go(folder, store, controls=True).complete
    assert told(folder)["confirmation"] == before and before["agrees"] == {"relu": True}


def test_a_confirmation_uses_no_seed_of_tuning_replication_or_the_a_a_control(tmp_path):
    folder, store = study(tmp_path)
    assert go(folder, store, controls=True, confirm=True).complete
    seeds = {
        phase: {run["seed"] for run in lines(folder, phase)}
        for phase in ("tune", "replicate", "confirm")
    }
    seeds["a/a"] = {run["init_seed"] for run in stored.planned(folder) if "init_seed" in run}
    assert seeds["tune"] == {tuning_seed(0)} and len(seeds["a/a"]) == 3
    assert len(set().union(*seeds.values())) == sum(map(len, seeds.values()))


def test_a_failed_control_voids_the_confirmation_too(tmp_path):
    folder, store = study(tmp_path)
    misbehave(tmp_path, "shift", repeat=1)
    assert go(folder, store, controls=True, confirm=True).complete
    assert {v["cause"] for v in told(folder)["confirmation"]["verdicts"]} == {"control failed"}


def test_a_factorial_study_is_confirmed_with_its_effects(tmp_path):
    from test_study_factorial import make_design

    folder, store = make_design(tmp_path)
    assert go(folder, store, confirm=True).complete
    second = told(folder)["confirmation"]
    assert [e["verdict"] for e in second["effects"]] == [
        e["verdict"] for e in told(folder)["effects"]
    ]
    assert second["effects"][0]["mean"] != told(folder)["effects"][0]["mean"]
    assert set(second["agrees"].values()) == {True}


def test_at_equal_flops_only_arms_that_cost_otherwise_are_trained_on_what_costs_the_same(tmp_path):
    folder, store = study(tmp_path, arms=ARMS)
    assert go(folder, store, equal=("flops",)).complete
    runs = lines(folder, "budget")
    assert {(run["arm"], run["why"]) for run in runs} == {("swiglu", "equal flops")}
    assert [run["seed"] for run in runs] == [0, 1, 2]
    [tokens] = {run["tokens"] for run in runs}
    assert tokens < TOKENS and tokens % 512 == 0
    assert stored.config(store, runs[0]["run_id"])["config"]["train"]["tokens"] == tokens
    at = told(folder)["equal"]["flops"]
    assert "within 1 % (the same): the main comparison is at equal flops" in at["relu"]["na"]
    assert (at["swiglu"]["tokens"], at["swiglu"]["n"], at["swiglu"]["arms"]) == (tokens, 3, 1)
    assert at["swiglu"]["mean"] > verdict(folder, "swiglu")["mean"], "fewer tokens"
    assert set(told(folder)["equal"]["time"]) == {"relu", "swiglu"}
    assert told(folder)["equal"]["time"]["relu"]["na"].startswith("not asked for: --equal time")


def test_at_equal_time_what_was_planned_stays_whatever_is_measured_later(tmp_path):
    folder, store = study(tmp_path)
    assert go(folder, store, equal=("time",)).complete
    assert {run["tokens"] for run in lines(folder, "budget")} == {round(10 / 0.8) * 512}
    before = told(folder)["equal"]["time"]["relu"]
    measured = stored.study_json(folder, speed.SPEED_FILE)
    folder.write(speed.SPEED_FILE, {**measured, "ratio": {"relu": {"ratio": 1.5}}})
    assert go(folder, store).complete
    assert told(folder)["equal"]["time"]["relu"] == before
    assert {run["tokens"] for run in lines(folder, "budget")} == {round(10 / 0.8) * 512}


def test_lines_of_a_budget_that_a_kill_cut_short_are_planned_to_their_end(tmp_path):
    folder, store = study(tmp_path, arms=("gelu_tanh", "swiglu", "relu"))
    monkey = {"relu": {"ratio": 0.8}, "swiglu": {"ratio": 1.25}}
    whole = {
        "format": speed.FORMAT,
        "arms": {arm: {} for arm in ("gelu_tanh", "swiglu", "relu")},
        "ratio": monkey,
    }
    folder.write(speed.SPEED_FILE, whole)
    assert go(folder, store, equal=("time",)).complete
    before, runs = outcome(folder), folder.load_runs()
    budget = [run for run in runs if run.phase == "budget"]
    assert len(budget) == 6
    for kept in (1, 2, 3):
        folder.write_runs([run for run in runs if run.phase != "budget"] + budget[:kept])
        assert go(folder, store).complete
        assert outcome(folder) == before


def test_a_speed_that_cannot_be_measured_costs_a_line_and_that_budget(tmp_path, monkeypatch):
    def refuse(*_):
        raise StudyError("the speed of the arms could not be measured: no memory")

    monkeypatch.setattr(speed, "measure", refuse)
    folder, store = study(tmp_path)
    watch = Watch()
    assert go(folder, store, watch, controls=True, equal=("time",)).complete
    assert any("no memory" in line for line in watch.lines)
    na = told(folder)["equal"]["time"]["relu"]
    assert na == {"na": "the speed of the arms is not known: not measured yet, or it could not be"}
    assert told(folder)["controls"]["ruler"]["ok"]


def test_a_speed_that_is_measured_anew_changes_no_family(tmp_path):
    folder, store = study(tmp_path, arms=ARMS)
    ratio = {"relu": {"ratio": 0.8}, "swiglu": {"ratio": 1.02, "low": 0.9, "high": 1.1}}
    measured = {"format": speed.FORMAT, "arms": {arm: {} for arm in ARMS}, "ratio": ratio}
    folder.write(speed.SPEED_FILE, measured)
    assert go(folder, store, equal=("time",)).complete
    before = told(folder)["equal"]["time"]["relu"]
    folder.write(
        speed.SPEED_FILE,
        {**measured, "ratio": {**ratio, "swiglu": {"ratio": 1.2, "low": 1.1, "high": 1.3}}},
    )
    assert go(folder, store).complete
    after = told(folder)["equal"]["time"]
    assert after["relu"] == before and (before["arms"], before["n"]) == (1, 3)
    assert "what was measured since changes no plan" in after["swiglu"]["na"]


@pytest.mark.parametrize(
    "told_of",
    [
        {"arms": 5, "ratio": {}},
        {"arms": {"gelu_tanh": {}, "relu": {}}},
        *(
            {"arms": {"gelu_tanh": {}, "relu": {}}, "ratio": ratio}
            for ratio in (5, {}, {"relu": 1.5}, {"swiglu": {}})
        ),
        *(
            {"arms": {"gelu_tanh": {}, "relu": {}}, "ratio": {"relu": {"ratio": 0.7, **ratio}}}
            for ratio in (
                {"ratio": 0},
                {"ratio": -1},
                {"ratio": "1"},
                {"low": "x"},
                {"ratio": None},
                {"high": -2},
            )
        ),
    ],
)
def test_a_speed_of_another_shape_is_none(tmp_path, told_of):
    folder, store = study(tmp_path)
    folder.write(speed.SPEED_FILE, {"format": speed.FORMAT, **told_of})
    assert speed.read(folder, FrozenStudy(folder, store)) is None
    (folder.path / speed.SPEED_FILE).write_text(
        f'{{"format": {speed.FORMAT}, "arms": {{"relu": NaN'
    )
    assert speed.read(folder, FrozenStudy(folder, store)) is None


def test_a_speed_that_was_not_seen_to_differ_is_no_other_budget(tmp_path, monkeypatch):
    def noisy(folder, study, say, budget_s=0.0):
        told = fakes.measure(folder, study, say)
        folder.write(
            speed.SPEED_FILE,
            told.to_json() | {"ratio": {"relu": {"ratio": 0.93, "low": 0.7, "high": 1.1}}},
        )
        return speed.read(folder, study)

    monkeypatch.setattr(speed, "measure", noisy)
    folder, store = study(tmp_path)
    assert go(folder, store, equal=("time",)).complete
    assert lines(folder, "budget") == []
    assert "was not seen to take another time" in told(folder)["equal"]["time"]["relu"]["na"]


def test_a_budgets_run_that_stalls_makes_the_arm_unstable_there_and_nowhere_else(tmp_path):
    folder, store = study(tmp_path, arms=ARMS)
    misbehave(
        tmp_path, "stall", activation="relu", tokens=round(10 / 0.8) * 512, seed=replication_seed(2)
    )
    assert go(folder, store, equal=("time",)).complete
    assert told(folder)["equal"]["time"]["relu"]["word"] == "unstable"
    assert verdict(folder)["verdict"] == "worse"


def test_an_arm_without_a_rate_is_missing_at_every_budget_and_counts_in_the_family(tmp_path):
    folder, store = study(tmp_path, arms=ARMS)
    misbehave(tmp_path, "diverge", activation="relu")
    assert go(folder, store, equal=("time",)).complete
    at = told(folder)["equal"]["time"]["relu"]
    assert (at["word"], at["cause"], at["tokens"]) == ("unstable", "no rate trains", None)


def test_budgets_are_named_and_a_word_that_is_none_is_refused(tmp_path):
    assert parse_budgets(["time", "flops"]) == ["flops", "time"] and parse_budgets([]) == []
    with pytest.raises(UserError, match=r"--equal 'flop': no budget.*did you mean 'flops'"):
        parse_budgets(["flop"])
    folder, store = study(tmp_path)
    go(folder, store, equal=("flops",))
    go(folder, store, equal=("time",))
    assert folder.load_extras().equal == ["flops", "time"]


def test_what_describes_the_arms_stands_beside_the_verdicts(tmp_path):
    folder, store = study(tmp_path, trials=7)
    misbehave(tmp_path, "diverge", activation="relu", lr=0.0316)
    assert go(folder, store).complete
    relu = told(folder)["stability"]["relu"]
    assert (relu["tune"]["n"], relu["tune"]["diverged"], relu["replicate"]["rate"]) == (7, 1, 0.0)
    sensitivity = told(folder)["sensitivity"]["relu"]
    assert len(sensitivity["rates"]) == 5 and sensitivity["losses"][-1] == 5.54
    assert sensitivity["value"] > told(folder)["sensitivity"]["gelu_tanh"]["value"] > 0
    assert told(folder)["documents"]["relu"]["reason"]
