"""Kill anything at any moment and give the same command again: the same runs, choices and verdicts
come out.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import stored
import study_fakes as fakes
from study_fakes import make_study, outcome, read_json, trainings
from waiting import PATIENT_S, wait_until

from andrea.execution.executors import InlineExecutor
from andrea.records.extras import Extras
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.controller import run_study

pytestmark = pytest.mark.slow

ARMS = ("gelu_tanh", "relu")


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


def command(root, slots=2, seconds="0.03", **how):
    call = [sys.executable, str(Path(fakes.__file__)), str(root), "study-0000", str(slots)]
    environment = {**os.environ, "FAKE_SECONDS": seconds}
    return subprocess.Popen(
        call, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how
    )


def workers(root):
    """Process ids that hold a lease now."""
    found = []
    for path in Path(root).glob("runs/*/*.lease"):
        with contextlib.suppress(ValueError):
            found.append((read_json(path) or {}).get("pid"))
    return [pid for pid in found if pid]


def uninterrupted(root):
    folder, store = make_study(root, arms=ARMS)
    assert run_study(folder, store, InlineExecutor(fakes.RUN)).complete
    return outcome(folder), folder


@pytest.mark.parametrize("seed", [1, 2])
def test_a_controller_killed_at_random_moments_ends_with_the_same_study(tmp_path, seed):
    expected, _ = uninterrupted(tmp_path / "whole")
    root = tmp_path / "killed"
    folder, store = make_study(root, arms=ARMS)
    dice, kills = random.Random(seed), 0
    while True:
        controller = command(root)
        # By progress and not by the clock: on a slow machine a clock would kill every one of them
        # as it starts.
        enough = len(trainings(root)) + dice.randint(0, 8)
        while controller.poll() is None and (kills >= 6 or len(trainings(root)) < enough):
            time.sleep(0.01)
        time.sleep(dice.random() * 0.1)
        if controller.poll() is not None:
            break
        controller.send_signal(dice.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        controller.wait()
        kills += 1
    assert controller.returncode == 0 and kills >= 3
    assert outcome(folder) == expected
    _no_result_was_replaced(store, folder, kills)


def test_where_ctrl_c_is_ignored_as_in_the_background_the_study_goes_on(tmp_path):
    folder, _ = make_study(tmp_path, arms=ARMS)
    controller = command(tmp_path, preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN))
    wait_until(lambda: trainings(tmp_path))
    controller.send_signal(signal.SIGINT)
    assert controller.wait(PATIENT_S) == 0
    assert StudyFolder(folder.path).complete


def test_a_study_with_everything_asked_beside_it_is_killed_at_random_moments_and_ends_the_same(
    tmp_path,
):
    asked, outcomes = Extras(controls=True, confirm=True, equal=["flops", "time"]), []
    dice, kills = random.Random(4), 0
    for name in ("whole", "killed"):
        folder, store = make_study(
            tmp_path / name, arms=("gelu_tanh", "swiglu"), train={"train.tokens": 5120}, trials=1
        )
        folder.save_extras(asked)
        while name == "killed":
            controller = command(tmp_path / name)
            # One more kill for every few trainings, so that the controls and what follows them are
            # cut too.
            enough = len(trainings(tmp_path / name)) + dice.randint(5, 8)
            while controller.poll() is None and (
                kills >= 4 or len(trainings(tmp_path / name)) < enough
            ):
                time.sleep(0.01)
            if controller.poll() is not None:
                break
            controller.kill()
            controller.wait()
            kills += 1
        else:
            assert run_study(folder, store, InlineExecutor(fakes.RUN)).complete
        outcomes.append(outcome(folder))
    assert controller.returncode == 0 and kills >= 3
    assert outcomes[0] == outcomes[1]
    assert {run["phase"] for run in stored.planned(folder)} == {
        "tune",
        "replicate",
        "control",
        "budget",
        "confirm",
    }


def test_workers_killed_at_random_moments_change_nothing(tmp_path):
    expected, _ = uninterrupted(tmp_path / "whole")
    root = tmp_path / "killed"
    folder, store = make_study(root, arms=ARMS)
    dice, kills = random.Random(3), 0
    # Long enough that a poll finds somebody at work, whatever the machine.
    controller = command(root, seconds="0.2")
    enough = 1
    while controller.poll() is None:
        time.sleep(0.01)
        if kills < 6 and len(trainings(root)) >= enough:
            # One kill for several trainings, so that no run fails three times: that would be the
            # command's last try.
            for pid in workers(root)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
                    enough = len(trainings(root)) + dice.randint(2, 3)
    while controller.returncode:
        controller = command(root)
        controller.wait()
    assert kills >= 3
    assert outcome(folder) == expected
    _no_result_was_replaced(store, folder, kills)


def _no_result_was_replaced(store: RunStore, folder, kills):
    """Every run has one result; trainings that began anew are those that a kill cut off, at most
    two at once.
    """
    ids = [run["run_id"] for run in stored.planned(folder)]
    assert len(ids) == len(set(ids))
    assert all(stored.result(store, run_id) and not store.attempts(run_id) for run_id in ids)
    assert set(trainings(store.root)) == set(ids)
    assert len(trainings(store.root)) <= len(ids) + 2 * kills


def test_two_studies_at_once_on_one_store_share_their_runs(tmp_path):
    expected, _ = uninterrupted(tmp_path / "whole")
    make_study(tmp_path / "both", arms=ARMS)
    folder, store = make_study(tmp_path / "both", name="study", arms=ARMS)
    other, _ = make_study(tmp_path / "both", name="other", arms=ARMS)
    calls = [
        subprocess.Popen(
            [sys.executable, str(Path(fakes.__file__)), str(store.root), name, "2"],
            env={**os.environ, "FAKE_SECONDS": "0.05"},
        )
        for name in ("study-0000", "other-0000")
    ]
    assert [call.wait() for call in calls] == [0, 0]
    assert outcome(folder) == outcome(other) == expected
    assert len(trainings(store.root)) == len(set(trainings(store.root))) == 20
