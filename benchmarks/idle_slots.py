"""Share of the time that slots are idle while an ablation runs, in simulated time.

    python benchmarks/idle_slots.py [--slots 8] [--arms 6] [--seeds 5] [--spread 0.5] [--in-order]

A study of the real controller, dispatcher and store is run by an executor that trains nothing: a
run takes a simulated duration (an arm has a speed of its own, and every run varies by `--spread`),
and its loss is a parabola in the learning rate. `--in-order` starts no run before its generation
begins. Prints the idle share of the slots and the simulated duration.
"""

import argparse
import hashlib
import heapq
import math
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from andrea.config import RunConfig
from andrea.execution import dispatch
from andrea.records.job import Job, JobEnd
from andrea.store.digest import digest
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.controller import run_study
from andrea.study.plan import frozen

FROZEN_AT = "2026-01-01T00:00:00+00:00"
ACTIVATIONS = ("gelu_tanh", "relu", "gelu", "relu2", "silu", "swiglu", "geglu", "reglu")


def uniform(*parts: object) -> float:
    """Return a number in [0, 1) that is a function of `parts` alone."""
    text = " ".join(map(str, parts))
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 0x100000000


class SimulatedExecutor:
    """Runs jobs in simulated time: `wait` jumps to the end of the next one."""

    def __init__(self, store: RunStore, slots: int, spread: float) -> None:
        self.slots = slots
        self.now = self.busy = 0.0
        self._store, self._spread = store, spread
        self._running: list[tuple[float, int, Job]] = []
        self._submitted = 0

    def submit(self, job: Job) -> None:
        """Start a job now."""
        config = RunConfig.model_validate(job.run.config)
        speed = 1 + uniform("speed", config.model.activation)
        duration = speed * (1 + self._spread * uniform("duration", job.run.run_id))
        self._submitted += 1
        self.busy += duration
        heapq.heappush(self._running, (self.now + duration, self._submitted, job))

    def wait(self, timeout: float) -> list[JobEnd]:
        """Go on to the end of the next job and write its result."""
        self.now, _, job = heapq.heappop(self._running)
        with self._store.claim(job.run.run_id) as claim:
            attempt = claim.attempt({"config": job.run.config, "identity": job.run.identity}, {})
            claim.finish(attempt, simulated_result(RunConfig.model_validate(job.run.config)))
        return [JobEnd(job, "done")]

    def cancel(self) -> None:
        """Forget what is running."""
        self._running.clear()


def simulated_result(config: RunConfig) -> dict[str, Any]:
    """Return a result whose loss is a parabola in log10 of the learning rate."""
    best = -2.6 + 0.4 * uniform("best", config.model.activation)
    noise = 0.01 * (uniform("noise", config.seed, config.model.activation, config.train.lr) - 0.5)
    loss = 2.5 + 0.2 * (math.log10(config.train.lr) - best) ** 2 + noise
    return {
        "outcome": "completed",
        "stalled": False,
        "reason": None,
        "loss": loss,
        "initial_loss": 5.5,
        "unigram_loss": 3.3,
        "eval_digest": config.data.eval_part,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def identify(
    config: RunConfig, fingerprint: str, platform: Mapping[str, str], repeat: int = 0
) -> tuple[dict[str, Any], str]:
    """Return an identity that needs no torch."""
    identity = {"config": config.model_dump(mode="json"), "data": fingerprint, "repeat": repeat}
    return identity, digest(identity)


def make_study(root: Path, arms: list[str], seeds: int) -> tuple[StudyFolder, RunStore]:
    """Write a frozen ablation of the activation."""
    store = RunStore(root)
    folder = StudyFolder(store.root / "studies" / "idle-0000")
    folder.path.mkdir(parents=True)
    (store.root / "data" / "fake").mkdir(parents=True)
    question = {
        "kind": "ablation",
        "baseline": arms[0],
        "arms": {arm: {"set": {"model.activation": arm}} for arm in arms},
        "protocol": {"m": 0.05, "seeds": seeds},
    }
    (folder.path / "protocol.yaml").write_text(yaml.safe_dump(question, sort_keys=False))
    configs = {}
    for arm in arms:
        settings = {
            "model": {"vocab_size": 256, "activation": arm},
            "train": {"tokens": 512, "device": "cpu"},
        }
        configs[arm] = RunConfig.model_validate(settings).model_dump(mode="json")
    resolved = {
        "fingerprint": "fake",
        "arms": {arm: {"label": arm, "config": configs[arm]} for arm in arms},
        "baseline": arms[0],
        "platform": {"device": "fake"},
        "frozen_at": FROZEN_AT,
    }
    folder.write("resolved.json", resolved)
    folder.write("study.json", {"kind": "ablation", "name": "idle", "created": FROZEN_AT})
    return folder, store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--arms", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--in-order", action="store_true")
    options = parser.parse_args()
    # The real ones need torch, and the machine that the study was frozen on.
    frozen.identify = identify  # type: ignore[assignment]
    frozen.platform_of = lambda device: {"device": "fake"}
    if options.in_order:
        dispatch.Dispatcher._start_early = lambda self, upcoming: None  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as root:
        folder, store = make_study(Path(root), list(ACTIVATIONS[: options.arms]), options.seeds)
        executor = SimulatedExecutor(store, options.slots, options.spread)
        run_study(folder, store, executor)
        runs = [run.run_id for run in folder.load_runs()]
    idle = 1 - executor.busy / (executor.now * options.slots)
    print(
        f"{len(runs)} runs in {executor.now:.2f} simulated units on {options.slots} slots, idle "
        f"{idle:.1%}; digest of runs.jsonl {digest(runs)[:12]}"
    )


if __name__ == "__main__":
    main()
