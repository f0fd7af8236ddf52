"""`andrea report --regrade`: stored runs judged by the present method, nothing trained, what was
there before kept.
"""

import json
import shutil
import subprocess
import sys

import pytest
from study_fakes import go, make_study, misbehave, patched, verdict
from waiting import PATIENT_S

from andrea.errors import StudyError, UserError
from andrea.store.files import read_lines
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.regrade import regrade
from andrea.verdict.judgement import METHOD


@pytest.fixture(autouse=True)
def _synthetic(monkeypatch):
    patched(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A whole study of three arms, ReLU the worse one by 0.2 nats, SwiGLU the better."""
    with pytest.MonkeyPatch.context() as patch:
        patched(patch)
        folder, store = make_study(
            tmp_path_factory.mktemp("made") / "runs",
            arms=("gelu_tanh", "relu", "swiglu"),
            train={"train.tokens": 5120},
        )
        go(folder, store, controls=True, confirm=True, equal=("flops", "time"))
    return folder, store


@pytest.fixture
def study(made, tmp_path):
    """A copy of it."""
    folder, store = made
    shutil.copytree(store.root, tmp_path / "runs")
    return StudyFolder(tmp_path / "runs" / "studies" / folder.path.name), RunStore(
        tmp_path / "runs"
    )


def pretend(folder, method=1, arm="relu", **said):
    """Make verdict.json what an older method wrote: it says something else of one arm, and knows no
    newer key.
    """
    told = folder.read("verdict.json")
    told = {
        key: told[key] for key in ("verdicts", "baseline", "versions", "complete", "exploratory")
    }
    told["verdicts"] = [{**v, **said} if v["arm"] == arm else v for v in told["verdicts"]]
    folder.write("verdict.json", {**told, "method": method})
    return folder.read("verdict.json")


def trained(store):
    return (store.root / "trained.log").read_text()


def test_a_study_of_this_method_is_left_as_it_is(study) -> None:
    folder, store = study
    files = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    found = regrade(folder, store)
    assert (found.method_before, found.method, found.changed, found.kept) == (
        METHOD,
        METHOD,
        [],
        [],
    )
    assert [change.of for change in found.changes] == ["relu", "swiglu"]
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == files


def test_a_newer_method_says_which_verdicts_change_and_trains_nothing(study) -> None:
    folder, store = study
    before, log, was = (
        trained(store),
        read_lines(folder.path / "runs.jsonl"),
        folder.read("verdict.json"),
    )
    older = pretend(folder, verdict="inconclusive", cause="rate at edge")
    found = regrade(folder, store)
    [change] = found.changed
    assert (change.of, change.before, change.after) == (
        "relu",
        "inconclusive (rate at edge)",
        "worse",
    )
    assert change.reason == was["verdicts"][0]["reason"]
    assert found.kept == ["verdict-method1.json"]
    assert json.loads((folder.path / "verdict-method1.json").read_text()) == older
    assert folder.read("verdict.json") == was, (
        "controls and all else that the older method did not know of is there"
    )
    assert (trained(store), read_lines(folder.path / "runs.jsonl")) == (before, log)
    assert regrade(folder, store).kept == [], "and now it is of this method"


def test_an_older_method_that_said_the_same_is_still_replaced(study) -> None:
    folder, store = study
    pretend(folder)
    found = regrade(folder, store)
    assert (found.changed, found.kept) == ([], ["verdict-method1.json"])
    assert folder.read("verdict.json")["method"] == METHOD


def test_the_studys_own_command_keeps_what_an_older_method_said(study) -> None:
    folder, store = study
    was, older = (
        folder.read("verdict.json"),
        pretend(folder, verdict="inconclusive", cause="rate at edge"),
    )
    go(folder, store)
    assert folder.read("verdict.json") == was
    assert json.loads((folder.path / "verdict-method1.json").read_text()) == older
    go(folder, store)
    kept = sorted(path.name for path in folder.path.glob("*-method*.json"))
    assert kept == ["choices-method1.json", "verdict-method1.json"], "once"


def test_a_regret_is_drawn_anew_and_the_choices_of_then_are_kept(study) -> None:
    folder, store = study
    choices = folder.read("choices.json")
    folder.write("choices.json", {arm: {**told, "regret": 9.0} for arm, told in choices.items()})
    pretend(folder, verdict="inconclusive", cause="rate uncertain")
    found = regrade(folder, store)
    assert found.kept == ["verdict-method1.json", "choices-method1.json"]
    assert folder.read("choices.json") == choices
    assert json.loads((folder.path / "choices-method1.json").read_text())["relu"]["regret"] == 9.0


def test_choices_that_were_lost_are_made_again_and_nothing_is_kept_of_them(study) -> None:
    folder, store = study
    choices = folder.read("choices.json")
    (folder.path / "choices.json").unlink()
    pretend(folder)
    assert regrade(folder, store).kept == ["verdict-method1.json"]
    assert folder.read("choices.json") == choices


def test_a_replicate_is_judged_at_the_rate_that_it_was_trained_at(study) -> None:
    """Another choice of the rate would need other runs: it is said, and the choices of then stand."""
    folder, store = study
    choices = folder.read("choices.json")
    choices["relu"] |= {"lr": 0.0123, "regret": 0.15}
    folder.write("choices.json", choices)
    pretend(folder)
    found = regrade(folder, store)
    assert "relu: this method would replicate at rate" in found.notes[0]
    assert folder.read("choices.json") == choices
    assert verdict(folder)["regret"] > 0.15


def test_a_method_that_would_tune_at_other_rates_keeps_the_choices_of_then(
    study, monkeypatch
) -> None:
    from andrea.study.stages import tune as tuning
    from andrea.verdict.tuning import Decision

    folder, store = study
    more = Decision("extension", 1, {"relu": [0.3, 1.0]})
    monkeypatch.setattr(tuning, "decide", lambda *_: more)
    assert regrade(folder, store).notes == [
        "this method would have tuned at 2 more rates: the choices of then stand"
    ]
    (folder.path / "choices.json").unlink()
    with pytest.raises(StudyError, match=r"choices\.json: missing"):
        regrade(folder, store)


def test_what_was_kept_is_never_overwritten(study) -> None:
    folder, store = study
    first = pretend(folder, verdict="better", cause="")
    regrade(folder, store)
    second = pretend(folder, verdict="equivalent", cause="")
    assert regrade(folder, store).kept == ["verdict-method1-2.json"]
    pretend(folder, verdict="better", cause="")
    folder.write("verdict.json", first)
    assert regrade(folder, store).kept == ["verdict-method1.json"], (
        "the same once more is no other file"
    )
    assert json.loads((folder.path / "verdict-method1-2.json").read_text()) == second


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ({"verdicts": 5, "complete": True}, "verdict-before.json"),
        ({"verdicts": [{}, 1, {"arm": "relu"}], "method": 1}, "verdict-method1.json"),
        ({"verdicts": [], "method": "/../../x", "asked": 5}, "verdict-before.json"),
    ],
)
def test_what_an_unreadable_verdict_said_is_kept_and_is_no_word(study, content, kept) -> None:
    folder, store = study
    folder.write("verdict.json", content)
    found = regrade(folder, store)
    assert [change.before for change in found.changes] == ["none", "none"] and found.kept == [kept]
    assert folder.read(kept) == content and verdict(folder)["verdict"] == "worse"


def test_lost_runs_are_not_judged_as_missing(study) -> None:
    folder, store = study
    pretend(folder)
    run = folder.runs()[-1]["run_id"]
    shutil.rmtree(store.folder(run))
    with pytest.raises(StudyError, match=r"1 of its \d+ runs are no longer in the store"):
        regrade(folder, store)
    assert folder.read("verdict.json")["method"] == 1


def test_a_study_with_a_failed_arm_is_regraded_as_it_was_judged(tmp_path) -> None:
    folder, store = make_study(tmp_path / "runs", arms=("gelu_tanh", "relu", "swiglu"))
    misbehave(store.root, "raise", activation="relu", eval_part="tune")
    go(folder, store)
    was = folder.read("verdict.json")["verdicts"]
    pretend(folder, arm="swiglu", verdict="inconclusive", cause="")
    found = regrade(folder, store)
    assert [change.of for change in found.changed] == ["swiglu"]
    assert folder.read("verdict.json")["verdicts"] == was


def test_sweeps_and_studies_without_a_verdict_are_refused(tmp_path, study) -> None:
    folder, store = study
    (folder.path / "verdict.json").unlink()
    with pytest.raises(UserError, match="no verdict yet"):
        regrade(folder, store)
    folder.write("study.json", {**folder.about, "kind": "sweep"})
    with pytest.raises(UserError, match="is a sweep"):
        regrade(folder, store)


@pytest.mark.slow
def test_regrading_loads_no_torch(study) -> None:
    folder, store = study
    pretend(folder, verdict="better", cause="")
    program = (
        "import sys; from pathlib import Path; from andrea.store.runs import RunStore; "
        "from andrea.store.studies import StudyFolder; from andrea.study.regrade import regrade; "
        "found = regrade(StudyFolder(Path(sys.argv[1])), RunStore(Path(sys.argv[2]))); "
        "print(len(found.changed), *({'torch', 'wandb', 'optuna'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program, str(folder.path), str(store.root)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S)
    assert answer.stdout.split() == ["1"], answer.stderr


def test_a_study_at_work_is_not_regraded(study) -> None:
    folder, store = study
    with folder.held(), pytest.raises(UserError, match="is being run by another command"):
        regrade(folder, store)
