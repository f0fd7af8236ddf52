"""Tiny runs on generated text for the tests of the training room: milliseconds a step."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from conftest import generated_text

from andrea.config import RunConfig, build, merge
from andrea.data.prepare import prepare
from andrea.data.prepared import Prepared
from andrea.records.run import RunResult
from andrea.training import checkpoint
from andrea.training.identity import identity, resolve, run_id
from andrea.training.metrics import VOLATILE

TINY = {
    "model": {"d_model": 16, "n_layer": 2, "n_head": 2, "context": 16},
    "data": {"eval_tokens": 640, "curve_tokens": 160},
    "train": {
        "tokens": 24 * 64,
        "batch_size": 4,
        "evals": 3,
        "logs": 8,
        "diagnostics": 2,
        "device": "cpu",
    },
}
"""24 steps of 4 sequences of 16 bytes."""


@cache
def corpus() -> Prepared:
    """Generated text as bytes, one document, prepared once for all tests of a process."""
    folder = Path(tempfile.mkdtemp(prefix="andrea-corpus-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "tiny.txt"
    path.write_text(generated_text(20_000), encoding="utf-8")
    return prepare(build(RunConfig, {"data": {"source": f"text:{path}"}}).data, folder)


def tiny(**settings: Any) -> RunConfig:
    """A resolved tiny configuration; settings are dotted with `__` for the dot."""
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    data = {"data.source": corpus().meta.source}
    return resolve(build(RunConfig, merge(TINY, data, dotted)), corpus(), "cpu")


def job(root: Path, cfg: RunConfig) -> tuple[Path, RunConfig, Path, str, dict[str, Any]]:
    """The arguments of `run_job`."""
    who = identity(cfg, corpus().fingerprint)
    return root, cfg, corpus().folder, run_id(who), who


def records(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The metrics without what a clock decides."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "tokens_per_s")}
        for record in found
        if kind in (None, record["kind"])
    ]


def lasting(result: RunResult) -> dict[str, Any]:
    """A result without what a clock or the number of attempts decides."""
    return {k: v for k, v in result.to_json().items() if k not in VOLATILE}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in a checkpoint."""
    found: dict[str, torch.Tensor] = checkpoint.load(folder / "checkpoint")["model"]
    return found


def assert_same_run(one: Path, other: Path) -> None:
    """Weights and metrics are equal bit for bit."""
    assert records(one) == records(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
