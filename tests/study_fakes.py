"""A training that takes no time, for tests of the study engine: real store, real claims, synthetic
losses.

As a script it is a controller: `python study_fakes.py ROOT STUDY SLOTS`.
"""

import errno
import hashlib
import json
import math
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import stored
import yaml

from andrea.config import RunConfig, merge
from andrea.execution import dispatch
from andrea.execution.executors import InlineExecutor
from andrea.execution.local import LocalExecutor
from andrea.records.events import Observer
from andrea.records.extras import Extras
from andrea.store.digest import digest
from andrea.store.files import append_line, read_json, read_lines
from andrea.store.runs import RunBusy, RunStore
from andrea.store.studies import StudyFolder
from andrea.study.controller import run_study
from andrea.study.plan import frozen
from andrea.study.stages import arm_speed as speed

RUN = "study_fakes:run"
PRELOAD = ("andrea.config", "andrea.execution.worker", "andrea.store.runs", "yaml")
BEST = {"gelu_tanh": -2.4, "gelu": -2.4, "relu": -2.6, "swiglu": -2.2}
"""log10 of the best learning rate by activation, the factor of these studies."""
FROZEN_AT = "2026-01-01T00:00:00+00:00"


def identify(config, fingerprint, platform, repeat=0):
    identity = {
        "config": config.model_dump(mode="json"),
        "data": fingerprint,
        "platform": platform,
        "repeat": repeat,
    }
    return identity, digest(identity)


SYNTHETIC = {
    "identify": identify,
    "settle": lambda config, data_folder: config,
    "platform_of": lambda device: {"torch": "fake", "device": "fake"},
}
"""What stands in the place of the real identity, which needs torch."""


def measure(folder, study, say, budget_s=0.0):
    """What `andrea.study.stages.arm_speed.measure` does, in no time: a step of ReLU takes four
    fifths of one of the baseline.
    """
    ratios = {
        arm: {"ratio": 0.8 if arm == "relu" else 1.0} for arm in study.arms if arm != study.baseline
    }
    folder.write(
        speed.SPEED_FILE,
        {"format": speed.FORMAT, "arms": {arm: {} for arm in study.arms}, "ratio": ratios},
    )
    return speed.read(folder, study)


def patched(monkeypatch):
    """For one test: the synthetic identity, a controller that looks around often, and no waiting
    for the disk.
    """
    for name, fake in SYNTHETIC.items():
        monkeypatch.setattr(frozen, name, fake)
    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr(dispatch, "POLL_S", 0.02)
    monkeypatch.setattr(
        os, "fsync", lambda file: None
    )  # a kill loses nothing that was written; a power cut would


def make_study(
    root, name="study", arms=("gelu_tanh", "relu"), train=None, frozen_at=FROZEN_AT, **protocol
):
    """A frozen ablation of the activation, the first arm its baseline."""
    store = RunStore(root)
    asked = {
        "kind": "ablation",
        "baseline": arms[0],
        "arms": {arm: {"set": {"model.activation": arm}} for arm in arms},
        "protocol": {"m": 0.05, "seeds": 3, **protocol},
    }
    common = merge(
        {"model": {"vocab_size": 256}, "train": {"tokens": 512, "device": "cpu"}}, train or {}
    )
    configs = {
        arm: RunConfig.model_validate(merge(common, {"model": {"activation": arm}})).model_dump(
            mode="json"
        )
        for arm in arms
    }
    return write_study(store, name, "ablation", asked, configs, arms[0], frozen_at), store


def write_study(store, name, kind, asked, configs, baseline, frozen_at=FROZEN_AT):
    folder = StudyFolder(store.root / "studies" / f"{name}-0000")
    folder.path.mkdir(parents=True, exist_ok=True)
    (store.root / "data" / "fake").mkdir(parents=True, exist_ok=True)
    (folder.path / "protocol.yaml").write_text(yaml.safe_dump(asked, sort_keys=False))
    resolved = {
        "fingerprint": "fake",
        "arms": {
            arm: {"label": arm, "config": config, "asked": config}
            for arm, config in configs.items()
        },
        "baseline": baseline,
        "platform": {"torch": "fake", "device": "fake"},
        "frozen_at": frozen_at,
        "exploratory": False,
    }
    folder.write("resolved.json", resolved)
    folder.write("study.json", {"kind": kind, "name": name, "digest": "0000", "created": frozen_at})
    return folder


class Watch(Observer):
    """Notes what it is told."""

    def __init__(self):
        self.events, self.lines = [], []

    def on_phase_started(self, name, note):
        self.events.append(("phase", name))

    def on_run_started(self, run, attempt):
        self.events.append(("started", run.run_id))

    def on_metrics(self, run, record):
        self.events.append(("progress", run.run_id))

    def on_run_finished(self, run, result, *, reused):
        self.events.append(("reused" if reused else "finished", run.run_id))

    def on_run_failed(self, run, reason, attempt):
        self.events.append(("failed", reason))

    def on_message(self, line):
        self.lines.append(line)

    def count(self, kind):
        return sum(event[0] == kind for event in self.events)


class Impatient(Observer):
    """Presses Ctrl-C after that many runs."""

    def __init__(self, patience):
        self.left = patience

    def on_run_finished(self, run, result, *, reused):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def go(folder, store, *observers, **asked):
    """A whole command on a study; what is asked beside its question as `controls=True` and so
    on.
    """
    return run_study(folder, store, InlineExecutor(RUN), observers, Extras(**asked))


def verdict(folder, arm="relu"):
    """What the study says about an arm."""
    return next(v for v in stored.study_json(folder, "verdict.json")["verdicts"] if v["arm"] == arm)


def misbehave(root, do, times=1000, **match):
    """From now on runs that match (activation, norm_placement, lr, seed, eval_part, init_seed,
    tokens, repeat) do this, at their first `times` attempts.
    """
    append_line(Path(root) / "behaviour.jsonl", {"do": do, "times": times, "match": match})


def run(root, cfg, data_folder, run_id, identity):
    """What `andrea.training.job.run_job` does, in no time."""
    store = RunStore(root)
    try:
        claim = store.claim(run_id)
    except RunBusy:
        return None
    with claim:
        if (done := stored.result(store, run_id)) is not None:
            return done
        with (root / "trained.log").open("a") as log:
            log.write(run_id + "\n")
        attempt = claim.attempt({"config": cfg.model_dump(mode="json"), "identity": identity}, {})
        try:
            result = train(root, cfg, run_id, attempt)
        except Exception as error:
            claim.fail(attempt, str(error))
            raise
        claim.finish(attempt, result)
    return result


def note_device(root, cfg, data_folder, run_id, identity):
    """A job that only says which device it was given, after long enough for two to run side by
    side.
    """
    time.sleep(0.5)
    with (root / "devices.log").open("a") as log:
        log.write(os.environ["CUDA_VISIBLE_DEVICES"] + "\n")
    return {}


def note_process(root, cfg, data_folder, run_id, identity):
    """A job that says who it is, which earlier ones are still there, and whether it knows
    Optuna.
    """
    log = root / "processes.log"
    earlier = [record["pid"] for record in read_lines(log)]
    alive = [pid for pid in earlier if Path(f"/proc/{pid}").exists()]
    append_line(log, {"pid": os.getpid(), "alive": alive, "optuna": "optuna" in sys.modules})
    return {}


def train(root, cfg, run_id, attempt):
    (attempt / "metrics.jsonl").unlink(
        missing_ok=True
    )  # an earlier attempt's, which left no checkpoint
    append_line(attempt / "metrics.jsonl", {"kind": "train", "step": 1, "tokens": 512, "loss": 3.0})
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    do = _behaviour(root, cfg, run_id, attempt)
    print(f"training {run_id}", flush=True)
    if do == "raise":
        raise RuntimeError("a transient fault\nwith details")
    if do == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if do == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "leave":
        os._exit(7)
    if do == "hang":
        time.sleep(600)
    if do == "compute":
        while True:
            pass
    if do == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if do == "slow":
        time.sleep(1.5)
    return result_of(cfg, do, root)


def _behaviour(root, cfg, run_id, attempt):
    seen = {
        "activation": cfg.model.activation,
        "norm_placement": cfg.model.norm_placement,
        "lr": cfg.train.lr,
        "seed": cfg.seed,
        "eval_part": cfg.data.eval_part,
        "init_seed": cfg.init_seed,
        "tokens": cfg.train.tokens,
        "repeat": json.loads((attempt / "config.json").read_text())["identity"]["repeat"],
    }
    attempts = (root / "trained.log").read_text().split().count(run_id)
    for rule in read_lines(root / "behaviour.jsonl"):
        if attempts <= rule["times"] and all(
            seen[key] == value for key, value in rule["match"].items()
        ):
            return rule["do"]
    return None


def result_of(cfg, do=None, root=None):
    """A parabola in log10 lr with seeded noise; `edge` moves the optimum far above the grid."""
    best = BEST[cfg.model.activation] if do != "edge" else 0.5
    seeds = cfg.seed if cfg.init_seed is None else f"{cfg.seed} {cfg.init_seed}"
    noise = int(
        hashlib.sha256(f"{seeds} {cfg.model.activation} {cfg.train.lr}".encode()).hexdigest()[:6],
        16,
    )
    loss = 2.5 + 0.2 * (math.log10(cfg.train.lr) - best) ** 2 + 0.002 * (noise / 0xFFFFFF - 0.5)
    loss -= 0.3 * math.log2(cfg.train.tokens / 512) if do != "blind" else 0.0
    loss += 0.1 if do == "shift" else 0.0
    loss += {"relu": 0.2, "swiglu": -0.2}.get(cfg.model.activation, 0.0)
    return {
        "outcome": "diverged" if do == "diverge" else "completed",
        "stalled": do == "stall",
        "reason": do,
        "loss": None if do == "diverge" else 3.34 if do == "stall" else loss,
        "initial_loss": 5.54,
        "unigram_loss": 3.35,
        "eval_digest": f"{cfg.data.eval_part} tokens",
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def outcome(folder):
    """Everything that must not depend on kills or slots: runs in order, choices, verdicts, best."""
    names = ("choices.json", "verdict.json", "best.json")
    return json.dumps([stored.planned(folder), *(read_json(folder.path / name) for name in names)])


def trainings(root):
    """Run ids in the order in which their trainings began, repeats included."""
    log = Path(root) / "trained.log"
    return log.read_text().split() if log.exists() else []


if __name__ == "__main__":
    for name, fake in SYNTHETIC.items():
        setattr(frozen, name, fake)
    speed.measure = measure
    store_, study_, slots_ = RunStore(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    summary = run_study(
        StudyFolder(store_.root / "studies" / study_),
        store_,
        LocalExecutor(slots_, run=RUN, preload=PRELOAD),
    )
    sys.exit(0 if summary.complete else 1)
