"""A run that was interrupted, wherever and however, ends as the uninterrupted one: weights, metrics
and result.
"""

import errno
import json
import multiprocessing
import random
import shutil
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stored
import torch
from training_kit import assert_same_run, corpus, job, lasting, records, tiny, weights

from andrea.records.run import MetricRecord, RunResult
from andrea.store.runs import RunStore
from andrea.training import checkpoint, loop
from andrea.training import run as run_module
from andrea.training.job import run_job
from andrea.training.run import Run, train


@pytest.fixture
def snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, RunResult, dict[int, Path]]:
    """An uninterrupted run with dropout and accumulation, and its folder as it was after every
    checkpoint.
    """
    monkeypatch.setattr(run_module, "CHECKPOINT_SHARE", 0)
    found: dict[int, Path] = {}
    save = Run._save_checkpoint

    def save_and_copy(self: Run) -> None:
        save(self)
        found[self.trainer.step] = tmp_path / f"after-{self.trainer.step}"
        shutil.copytree(self.folder, found[self.trainer.step])

    monkeypatch.setattr(Run, "_save_checkpoint", save_and_copy)
    whole = tmp_path / "whole"
    whole.mkdir()
    result = train(
        tiny(model__dropout=0.1, train__micro_batch=3), corpus(), whole, checkpoint_every_s=0
    )
    monkeypatch.setattr(Run, "_save_checkpoint", save)
    return whole, result, found


def resume(folder: Path) -> RunResult:
    return train(
        tiny(model__dropout=0.1, train__micro_batch=3),
        corpus(),
        folder,
        attempt=2,
        checkpoint_every_s=1e9,
    )


@pytest.mark.parametrize(
    "every", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "each"]
)
def test_a_resume_from_every_checkpoint_equals_the_uninterrupted_run(
    snapshots: tuple[Path, RunResult, dict[int, Path]], monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    whole, result, found = snapshots
    assert list(found) == list(range(1, 24))
    rates = {r["step"]: r["lr"] for r in records(whole, "train")}
    for step, folder in [*found.items()][::every]:
        read: list[int] = []
        batch = loop.training_batch

        def noted(
            data: Any, seed: int, k: int, *shape: int, read: list[int] = read, batch: Any = batch
        ) -> Any:
            read.append(k)
            return batch(data, seed, k, *shape)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "training_batch", noted)
            again = resume(folder)
        assert read == list(range(step, 24))  # nothing twice, nothing left out
        assert lasting(again) == lasting(result)
        assert {r["step"]: r["lr"] for r in records(folder, "train")} == rates
        assert_same_run(folder, whole)


def test_a_torn_line_and_records_after_the_checkpoint_are_cut_off(
    snapshots: tuple[Path, RunResult, dict[int, Path]],
) -> None:
    whole, result, found = snapshots
    with (found[7] / "metrics.jsonl").open("a") as file:
        file.write('{"kind":"train","step":9,"tokens":576,"loss":1.0}\n{"kind":"tra')
    assert lasting(resume(found[7])) == lasting(result)
    assert_same_run(found[7], whole)


@pytest.mark.parametrize(
    "damage",
    [
        "flipped",
        "metrics gone",
        *(pytest.param(damage, marks=pytest.mark.slow) for damage in ("empty", "torn", "foreign")),
    ],
)
def test_a_bad_checkpoint_restarts_the_run_with_one_warning(
    snapshots: tuple[Path, RunResult, dict[int, Path]],
    damage: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    whole, result, found = snapshots
    path = found[12] / "checkpoint"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "torn":
        path.write_bytes(path.read_bytes()[:5000])
    elif damage == "flipped":
        path.write_bytes(content)
    elif damage == "foreign":
        checkpoint.save(
            path,
            {"step": 3, "offset": 0, "result": None, "model": {"w": weights(whole)["head.weight"]}},
        )
    else:
        (found[12] / "metrics.jsonl").write_text("")
    assert lasting(resume(found[12])) == lasting(result)
    assert_same_run(found[12], whole)
    shown = [line for line in capfd.readouterr().err.splitlines() if line]
    assert len(shown) == 1
    assert "starts again from step 0" in shown[0]
    assert (found[12] / "log.txt").read_text().count("starts again from step 0") == 1


def test_a_checkpoint_is_written_and_read_without_a_second_copy_of_the_state(
    tmp_path: Path,
) -> None:
    state = {f"w{i}": torch.full((2**18,), float(i)) for i in range(40)}  # a megabyte each
    tracemalloc.start()
    checkpoint.save(tmp_path / "checkpoint", state)
    found = checkpoint.load(tmp_path / "checkpoint")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    assert peak < 8 * 2**20
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_checkpoints_share_the_tied_table_carry_no_prefix_and_end_without_optimizer(
    snapshots: tuple[Path, RunResult, dict[int, Path]],
) -> None:
    whole, _, found = snapshots
    along, final = checkpoint.load(found[5] / "checkpoint"), checkpoint.load(whole / "checkpoint")
    assert "optimizer" in along
    assert "optimizer" not in final
    assert final["step"] == 24
    assert not any("_orig_mod" in name for name in final["model"])
    table, head = final["model"]["token_embedding.weight"], final["model"]["head.weight"]
    assert table.data_ptr() == head.data_ptr()
    trainer = loop.Trainer(tiny(model__dropout=0.1, train__micro_batch=3), corpus())
    trainer.load_state_dict(along)
    assert trainer.model.head.weight is trainer.model.token_embedding.weight
    assert (whole / "checkpoint").stat().st_size < 0.6 * (found[5] / "checkpoint").stat().st_size


def test_a_kill_between_the_last_checkpoint_and_the_result_trains_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = job(tmp_path, tiny())
    monkeypatch.setattr(
        "andrea.store.runs.Claim.finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        run_job(*arguments)
    monkeypatch.undo()
    monkeypatch.setattr(loop.Trainer, "advance", lambda self: pytest.fail("trained again"))
    result = run_job(*arguments)
    assert result is not None
    assert result.steps == 24
    assert RunStore(tmp_path).load_result(arguments[3]) == result


def test_seconds_of_earlier_attempts_count(
    snapshots: tuple[Path, RunResult, dict[int, Path]],
) -> None:
    _, _, found = snapshots
    earlier = checkpoint.load(found[20] / "checkpoint")
    again = resume(found[20])
    assert again.seconds > earlier["seconds"] > 0
    assert again.wall_seconds > earlier["wall_seconds"]
    assert again.attempts == 2


def test_checkpoints_cost_a_few_percent_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(run_module.time, "perf_counter", lambda: clock[0])
    saved: list[int] = []

    def save(self: Run) -> None:
        clock[0] += 2.0
        saved.append(self.trainer.step)

    advance = loop.Trainer.advance

    def slow(self: loop.Trainer) -> None:
        clock[0] += 1.0
        advance(self)

    monkeypatch.setattr(Run, "_save_checkpoint", save)
    monkeypatch.setattr(loop.Trainer, "advance", slow)
    train(tiny(train__tokens=64 * 150), corpus(), tmp_path, checkpoint_every_s=10.0)
    assert saved == [10, 70, 130]


def _end(process: Any, seconds: float) -> bool:
    """Kill a process after a while; whether it was still alive."""
    process.join(seconds)
    alive = process.is_alive()
    process.kill()
    process.join()
    return bool(alive)


@pytest.mark.slow
def test_sigkill_at_random_moments_ends_with_the_same_run(tmp_path: Path) -> None:
    cfg = tiny(model__dropout=0.1, train__tokens=64 * 1000, train__diagnostics=10)
    whole = run_job(*job(tmp_path / "whole", cfg))
    arguments = job(tmp_path / "killed", cfg)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["andrea.training.job"])
    draw, kills = random.Random(2), 0
    for _ in range(60):
        process = context.Process(
            target=run_job, args=arguments, kwargs={"checkpoint_every_s": 0.05}
        )
        process.start()
        kills += _end(process, draw.uniform(0.05, 0.8))
        if stored.result(RunStore(tmp_path / "killed"), arguments[3]):
            break
    result = run_job(*arguments)
    assert whole is not None
    assert result is not None
    assert kills >= 3
    assert lasting(result) == lasting(whole)
    run_id = arguments[3]
    assert_same_run(
        RunStore(tmp_path / "killed").folder(run_id), RunStore(tmp_path / "whole").folder(run_id)
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small tmpfs cannot be mounted here (it needs root)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("where", ["checkpoint", "metrics"])
def test_a_full_disk_is_an_error_and_the_run_resumes_when_there_is_room(
    small_disk: Path, where: str
) -> None:
    cfg = (
        tiny(model__d_model=32, model__n_layer=3) if where == "checkpoint" else tiny(train__logs=24)
    )
    arguments = job(small_disk / "runs", cfg)
    store = RunStore(small_disk / "runs")
    ballast = small_disk / "ballast"
    room = 40 if where == "metrics" else 520
    ballast.write_bytes(b"x" * 1024 * (600 - room))
    with pytest.raises(OSError) as raised:
        run_job(*arguments, checkpoint_every_s=0 if where == "checkpoint" else 1e9)
    assert raised.value.errno == errno.ENOSPC
    assert stored.result(store, arguments[3]) is None
    assert store.lease(arguments[3]) is None
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    result = run_job(*arguments)
    plain = small_disk / "plain"
    plain.mkdir()
    assert result is not None
    assert lasting(result) == lasting(train(cfg, corpus(), plain))
    assert_same_run(store.folder(arguments[3]), plain)


def test_metrics_are_whole_lines_for_a_reader_at_any_moment(tmp_path: Path) -> None:
    """One flushed write a record: what another process reads now ends with a newline."""
    seen = []
    path = tmp_path / "metrics.jsonl"
    append = run_module.MetricsFile.append

    def append_and_read(self: Any, record: MetricRecord) -> None:
        append(self, record)
        seen.append(json.loads(path.read_text().splitlines()[-1])["kind"])
        assert path.stat().st_size == self.offset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module.MetricsFile, "append", append_and_read)
        train(tiny(), corpus(), tmp_path)
    assert len(seen) == 8 + 4 + 3
    assert time.time() - path.stat().st_mtime < 60
