"""The engine on real, tiny trainings: plan, freeze, run; killed at random it ends with the same bits."""

import random
import signal
import subprocess
import sys
import time

import pytest
from conftest import generated_text
from study_fakes import outcome

from andrea.store.runs import RunStore
from andrea.study.ablation import Ablation
from andrea.study.controller import run_study
from andrea.study.events import Observer
from andrea.study.executors import make_executor
from andrea.study.freeze import Request, freeze, plan
from andrea.study.sweep import Sweep

pytestmark = pytest.mark.slow

MODEL = {"d_model": 16, "n_layer": 1, "n_head": 2, "context": 16}
TRAIN = {"tokens": 8 * 16 * 200, "batch_size": 8, "evals": 2, "diagnostics": 1, "logs": 5}
COMMAND = """
import sys
from pathlib import Path
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.controller import run_study
from andrea.study.executors import make_executor
store = RunStore(Path(sys.argv[1]))
summary = run_study(StudyFolder(Path(sys.argv[2])), store, make_executor("local", 2, "cpu"))
sys.exit(0 if summary.complete else 1)
"""


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(generated_text(20_000))
    return path


def frozen(text, root):
    spec = Ablation.model_validate(
        {
            "question": "Is post-norm worse?",
            "hypothesis": "Yes.",
            "factor": "norm_placement",
            "baseline": "pre",
            "arms": {"pre": {"model.norm_placement": "pre"}, "post": {"model.norm_placement": "post"}},
            "match": {"on": "none"},
            "model": MODEL,
            "data": {"source": f"text:{text}", "eval_tokens": 1024, "curve_tokens": 128},
            "train": TRAIN,
            "protocol": {"m": 0.05, "seeds": 2, "trials": 3, "center": 1e-2},
        }
    )
    store = RunStore(root)
    return freeze(plan(Request(spec, name="norms", device="cpu"), store), store), store


def test_real_trainings_killed_at_random_give_the_same_bits_as_inline(text, tmp_path):
    whole, store = frozen(text, tmp_path / "whole")
    records = []

    class Watch(Observer):
        def progress(self, run, record):
            records.append(record["kind"])

    assert run_study(whole, store, make_executor("inline", 1), [Watch()]).complete
    assert {"train", "eval", "layers"} <= set(records)
    assert whole.read("verdict.json")["baseline"]["n"] == 2
    folder, store = frozen(text, tmp_path / "killed")
    assert folder.about["digest"] == whole.about["digest"]
    dice, kills = random.Random(5), 0
    while True:
        call = [sys.executable, "-c", COMMAND, str(store.root), str(folder.path)]
        controller = subprocess.Popen(call)
        target = _done(store) + dice.randint(0, 3)
        while controller.poll() is None and (kills >= 3 or _done(store) < target or not _at_work(store)):
            time.sleep(0.02)
        time.sleep(0.2 * dice.random())
        if controller.poll() is not None:
            break
        controller.send_signal(signal.SIGKILL)
        controller.wait()
        kills += 1
    assert controller.returncode == 0 and kills == 3
    assert outcome(folder) == outcome(whole)


def _done(store):
    return len(list(store.root.glob("runs/*/*/result.json")))


def _at_work(store):
    return list(store.root.glob("runs/*/*.lease"))


def test_a_real_sweep_finds_a_rate_that_learns(text, tmp_path):
    spec = Sweep.model_validate(
        {
            "question": "Which rate?",
            "space": {"train.lr": {"low": 1e-4, "high": 3e-2, "log": True}, "train.batch_size": {"choices": [4, 8]}},
            "model": MODEL,
            "data": {"source": f"text:{text}", "eval_tokens": 1024, "curve_tokens": 128},
            "train": {key: value for key, value in TRAIN.items() if key != "batch_size"},
            "trials": 4,
            "generation": 2,
        }
    )
    store = RunStore(tmp_path / "runs")
    folder = freeze(plan(Request(spec, name="rate", device="cpu"), store), store)
    assert run_study(folder, store, make_executor("local", 2, "cpu")).complete
    best = folder.read("best.json")
    assert best["loss"] == min(t["loss"] for t in best["trials"] if t["ok"])
    assert store.result(best["run_id"])["eval_part"] == "tune"
