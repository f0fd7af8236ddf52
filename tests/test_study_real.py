"""The engine on real, tiny trainings: plan, freeze, run; killed at random it ends with the same
bits.
"""

import contextlib
import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stored
import study_real
import yaml
from conftest import generated_text
from study_fakes import outcome

from andrea.analysis.formats.build import make_report
from andrea.execution.make import make_executor
from andrea.records.events import Observer
from andrea.store.runs import RunStore
from andrea.study.controller import run_study
from andrea.study.plan.freeze import freeze
from andrea.study.plan.plan import Request
from andrea.study.plan.resolve import make_plan
from andrea.study.question.ablation import Ablation
from andrea.study.question.sweep import Sweep
from andrea.training.metrics import VOLATILE

pytestmark = pytest.mark.slow

MODEL = {"d_model": 16, "n_layer": 1, "n_head": 2, "context": 16}
TRAIN = {"tokens": 8 * 16 * 200, "batch_size": 8, "evals": 4, "diagnostics": 1, "logs": 40}
REPORT = Path(__file__).parents[1] / "reports" / "comparison.py"


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
            "arms": {
                "pre": {"model.norm_placement": "pre"},
                "post": {"model.norm_placement": "post"},
            },
            "match": {"on": "none"},
            "model": MODEL,
            "data": {"source": f"text:{text}", "eval_tokens": 1024, "curve_tokens": 128},
            "train": TRAIN,
            "protocol": {"m": 0.05, "seeds": 2, "trials": 3, "center": 1e-2},
        }
    )
    store = RunStore(root)
    return freeze(make_plan(Request(spec, name="norms", device="cpu"), store), store), store


def test_trainings_and_controllers_killed_at_random_end_with_the_same_csv(text, tmp_path):
    """Undisturbed in this process against two slots, SIGKILL to controllers and workers: every
    number is the same.
    """
    whole, store = frozen(text, tmp_path / "whole")
    watch = Watch()
    assert run_study(whole, store, make_executor("inline", 1), [watch]).complete
    assert {"train", "eval", "layers"} <= watch.kinds
    expected = tables(whole, store, tmp_path / "whole-csv")
    folder, store = frozen(text, tmp_path / "killed")
    assert (
        stored.study_json(folder, "study.json")["digest"]
        == stored.study_json(whole, "study.json")["digest"]
    )
    dice = random.Random(7)
    controller = command(store, folder)
    for victim in dice.sample(["controller"] * 2 + ["worker"] * 3, 5):
        # By progress and not by the clock: on a slow machine a clock would kill everything as it
        # starts.
        enough = records(store) + dice.randint(5, 40)
        while controller.poll() is None and (records(store) < enough or not workers(store)):
            time.sleep(0.005)
        assert controller.poll() is None, "it must not be done before it was killed"
        if victim == "worker":
            for pid in workers(store)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            controller.kill()
            controller.wait()
            controller = command(store, folder)
    for _ in range(3):
        if controller.wait() == 0:
            break
        controller = command(store, folder)
    assert controller.returncode == 0
    logs = [path.read_text() for path in store.root.glob("runs/*/*/log.txt")]
    assert len(logs) == len(stored.planned(folder)) == 10
    assert any(re.search(r"attempt [2-9]: from step [1-9]", log) for log in logs), (
        "something was resumed in its middle"
    )
    assert outcome(folder) == outcome(whole)
    assert tables(folder, store, tmp_path / "killed-csv") == expected
    assert stored.study_json(folder, "verdict.json")["exploratory"] is False, (
        "runs from before a resume are the study's own"
    )


class Watch(Observer):
    def __init__(self):
        self.kinds = set()

    def on_metrics(self, run, record):
        self.kinds.add(record.kind)


def command(store, folder):
    call = [sys.executable, str(Path(study_real.__file__)), str(store.root), str(folder.path), "2"]
    return subprocess.Popen(call)


def records(store):
    """How far the trainings are: records that they wrote, lost ones not counted."""
    return sum(path.read_bytes().count(b"\n") for path in store.root.glob("runs/*/*/metrics.jsonl"))


def workers(store):
    """Process ids of the trainings at work."""
    found = []
    for path in store.root.glob("runs/*/*.lease"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            found.append(json.loads(path.read_text())["pid"])
    return found


def tables(folder, store, out):
    """Every CSV of the report without the columns that a repeat may change."""
    make_report(store, folder, ["csv"], REPORT, out)
    found = {}
    for path in sorted(out.glob("*.csv")):
        rows = list(csv.DictReader(path.open(encoding="utf-8")))
        found[path.name] = [
            {key: row[key] for key in row if not key.startswith(VOLATILE)} for row in rows
        ]
    assert {"runs.csv", "curves.csv", "layers.csv", "verdicts.csv", "differences.csv"} <= set(found)
    return found


def test_a_real_sweep_finds_a_rate_that_learns(text, tmp_path):
    spec = Sweep.model_validate(
        {
            "question": "Which rate?",
            "space": {
                "train.lr": {"low": 1e-4, "high": 3e-2, "log": True},
                "train.batch_size": {"choices": [4, 8]},
            },
            "model": MODEL,
            "data": {"source": f"text:{text}", "eval_tokens": 1024, "curve_tokens": 128},
            "train": {key: value for key, value in TRAIN.items() if key != "batch_size"},
            "trials": 4,
            "generation": 2,
        }
    )
    store = RunStore(tmp_path / "runs")
    folder = freeze(make_plan(Request(spec, name="rate", device="cpu"), store), store)
    assert run_study(folder, store, make_executor("local", 2, "cpu")).complete
    best = stored.study_json(folder, "best.json")
    assert best["loss"] == min(t["loss"] for t in best["trials"] if t["ok"])
    assert stored.result(store, best["run_id"])["eval_part"] == "tune"
    frozen_as = yaml.safe_load((folder.path / "protocol.yaml").read_text())
    assert best["search"]["sampling"] == frozen_as["sampling"]
