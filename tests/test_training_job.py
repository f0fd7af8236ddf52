"""One job from claim to result, and what it leaves behind when it fails."""

import time
from pathlib import Path
from typing import Any

import pytest
import stored
import torch
from training_kit import assert_same_run, corpus, job, lasting, tiny

from andrea.errors import StudyError
from andrea.store.runs import RunStore
from andrea.training import loop
from andrea.training import run as run_module
from andrea.training.calibrate import calibrate
from andrea.training.job import run_job


def failing(error: BaseException) -> Any:
    """A step that raises."""

    def advance(self: loop.Trainer) -> None:
        raise error

    return advance


def test_a_job_leaves_a_finished_run_in_the_store(tmp_path: Path) -> None:
    arguments = job(tmp_path, tiny())
    result = run_job(*arguments)
    store, run_id = RunStore(tmp_path), arguments[3]
    assert result == store.load_result(run_id)
    assert result is not None
    assert result.attempts == 1
    assert {p.name for p in store.folder(run_id).iterdir()} == {
        "config.json",
        "env.json",
        "metrics.jsonl",
        "result.json",
        "checkpoint",
        "log.txt",
    }
    config = stored.config(store, run_id)
    assert config == {"config": tiny().model_dump(mode="json"), "identity": arguments[4]}
    assert store.lease(run_id) is None
    log = (store.folder(run_id) / "log.txt").read_text().splitlines()
    assert "attempt 1: from step 0 on cpu" in log[0]
    assert "completed at step 24" in log[-1]


def test_a_finished_run_is_never_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = job(tmp_path, tiny())
    first = run_job(*arguments)
    monkeypatch.setattr(loop.Trainer, "advance", failing(AssertionError("trained again")))
    assert run_job(*arguments) == first


def test_a_run_that_another_process_holds_is_left_alone(tmp_path: Path) -> None:
    arguments = job(tmp_path, tiny())
    with RunStore(tmp_path).claim(arguments[3]):
        assert run_job(*arguments) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"),
            "out of memory: CUDA out of memory",
        ),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            ),
            "out of memory",
        ),
        (MemoryError(), "out of memory: the process got no more"),
        (ValueError("odd\nshape"), "ValueError: odd"),
        (StudyError("data are gone"), "data are gone"),
    ],
)
def test_a_crash_is_a_failure_with_a_reason_and_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    arguments = job(tmp_path, tiny())
    store, run_id = RunStore(tmp_path), arguments[3]
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "advance", failing(error))
        with pytest.raises(type(error)):
            run_job(*arguments)
    failure = stored.failure(store, run_id)
    assert failure is not None
    assert failure["reason"].startswith(reason)
    assert "\n" not in failure["reason"]
    assert "Traceback" in failure["log"]
    assert stored.result(store, run_id) is None
    result = run_job(*arguments)  # a transient failure is retried
    assert result is not None
    assert result.attempts == 2
    assert stored.failure(store, run_id) is None


def test_an_interrupt_is_no_failure_and_the_run_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "CHECKPOINT_SHARE", 0)
    advance = loop.Trainer.advance

    def interrupted(self: loop.Trainer) -> None:
        if self.step == 10:
            raise KeyboardInterrupt
        advance(self)

    arguments = job(tmp_path / "one", tiny())
    store, run_id = RunStore(tmp_path / "one"), arguments[3]
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_job(*arguments, checkpoint_every_s=0)
    assert stored.failure(store, run_id) is None
    assert store.lease(run_id) is None
    assert store.metrics(run_id)
    result = run_job(*arguments)
    whole = run_job(*job(tmp_path / "other", tiny()))
    assert result is not None
    assert whole is not None
    assert lasting(result) == lasting(whole)
    assert "attempt 2: from step 10" in (store.folder(run_id) / "log.txt").read_text()
    assert_same_run(store.folder(run_id), RunStore(tmp_path / "other").folder(run_id))


def test_threads_of_the_run_hold_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    advance = loop.Trainer.advance
    monkeypatch.setattr(
        loop.Trainer,
        "advance",
        lambda self: (seen.append(torch.get_num_threads()), advance(self))[1],
    )
    run_job(*job(tmp_path, tiny(train__threads=2, train__tokens=128)))
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1


@pytest.mark.slow
def test_a_calibration_estimates_the_time_of_a_run_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of this process alone: what else the machine does is not estimated.
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    cfg = tiny(train__tokens=64 * 200)
    before = torch.random.get_rng_state()
    calibrate(cfg, corpus())  # the first one pays for warming torch up
    estimate = calibrate(cfg, corpus())
    assert torch.equal(torch.random.get_rng_state(), before)
    result = run_job(*job(tmp_path, cfg))
    assert result is not None
    assert result.wall_seconds / 5 < estimate < result.wall_seconds * 5
