"""What a study does when its files are damaged, its fork server is killed or a worker stops for
ever.
"""

import os
import signal
from multiprocessing import forkserver

import pytest
import stored
import study_fakes as fakes
from study_fakes import go, make_study, misbehave, outcome, trainings
from test_study_executors import ended, local, next_end, one_job
from waiting import wait_until

from andrea.errors import StudyError, warn
from andrea.execution.executors import InlineExecutor
from andrea.study.controller import run_study


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)
    warn.cache_clear()


def inline():
    return InlineExecutor(fakes.RUN)


def complete(root):
    folder, store = make_study(root)
    assert run_study(folder, store, inline()).complete
    return folder, store, outcome(folder)


def server():
    return forkserver._forkserver._forkserver_pid


@pytest.mark.parametrize("content", [None, b"", b'{"loss": 2.', b"[]", b"\x00\xff"])
def test_a_result_that_was_lost_is_made_again_and_the_verdict_is_the_same(
    tmp_path, content, capsys
):
    folder, store, expected = complete(tmp_path)
    path = store.folder(stored.planned(folder)[-1]["run_id"]) / "result.json"
    path.unlink() if content is None else path.write_bytes(content)
    assert run_study(folder, store, inline()).complete
    assert outcome(folder) == expected and store.attempts(path.parent.name) == []
    assert capsys.readouterr().err.count("warning:") == 1
    assert len(trainings(tmp_path)) == len({run["run_id"] for run in stored.planned(folder)}) + 1


@pytest.mark.parametrize("name", ["choices.json", "verdict.json", "runs.jsonl"])
def test_what_can_be_derived_is_derived_again_where_it_is_damaged(tmp_path, name):
    folder, store, expected = complete(tmp_path)
    trained = len(trainings(tmp_path))
    path = folder.path / name
    path.write_bytes(path.read_bytes()[:200] + b"\n\xff rubbish\n" + path.read_bytes()[200:])
    assert run_study(folder, store, inline()).complete
    assert outcome(folder) == expected and len(trainings(tmp_path)) == trained


@pytest.mark.parametrize(
    ("where", "line"), [(3, "{}"), (-2, '{"run_id": "x", "phase": "control", "why": "repeat"}')]
)
def test_a_line_that_names_no_run_is_planned_again_with_all_after_it(tmp_path, where, line):
    folder, store = make_study(tmp_path, train={"train.tokens": 5120}, trials=3)
    assert go(folder, store, controls=True, confirm=True, equal=("flops", "time")).complete
    before, path = outcome(folder), folder.path / "runs.jsonl"
    lines = path.read_text().splitlines()
    lines[where] = line
    path.write_text("\n".join(lines) + "\n")
    assert go(folder, store).complete and outcome(folder) == before


def test_a_tuning_run_that_is_lost_and_fails_now_is_told_and_tried_again(tmp_path):
    folder, store, expected = complete(tmp_path)
    [lost, *_] = [run["run_id"] for run in stored.planned(folder) if run["arm"] == "relu"]
    (store.folder(lost) / "result.json").unlink()
    misbehave(tmp_path, "raise", times=4, activation="relu", lr=stored.planned(folder)[1]["lr"])
    with pytest.raises(
        StudyError, match="a tuning run of relu has lost its result, and failed at every try now"
    ):
        go(folder, store)
    assert run_study(folder, store, inline()).complete and outcome(folder) == expected


@pytest.mark.parametrize("name", ["resolved.json", "protocol.yaml", "study.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"a": '])
def test_a_study_that_lost_what_it_asked_says_how_to_go_on(tmp_path, name, content):
    folder, store, _ = complete(tmp_path)
    (folder.path / name).write_bytes(content)
    with pytest.raises(
        StudyError, match=rf"{name}: .*delete .*study-0000 and give the command again"
    ) as raised:
        run_study(folder, store, inline())
    assert "\n" not in str(raised.value)


def test_the_log_of_a_run_whose_controller_was_killed_is_kept_with_it(tmp_path):
    folder, store, _ = complete(tmp_path)
    run_id = stored.planned(folder)[0]["run_id"]
    store.log(run_id).write_text("printed\n")
    assert run_study(folder, store, inline()).complete
    assert (store.folder(run_id) / "worker.log").read_text() == "printed\n" and not store.log(
        run_id
    ).exists()


@pytest.mark.slow
def test_a_fork_server_that_is_killed_is_started_again(tmp_path):
    job, executor = one_job(tmp_path), local()
    for _ in range(3):
        assert ended(executor, job).outcome == "done"
        os.kill(server(), signal.SIGKILL)  # and at once the next job
    assert ended(executor, job).outcome == "done"


def test_a_worker_at_work_outlives_its_fork_server_and_its_result_counts(tmp_path):
    job, executor = one_job(tmp_path), local()
    misbehave(tmp_path, "slow")
    executor.submit(job)
    wait_until(lambda: trainings(tmp_path))
    os.kill(server(), signal.SIGKILL)
    assert next_end(executor).outcome == "done" and len(trainings(tmp_path)) == 1


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_a_worker_without_a_fork_server_can_still_be_ended(tmp_path, how):
    job, executor = one_job(tmp_path), local()
    misbehave(tmp_path, "hang")
    executor.submit(job)
    wait_until(lambda: trainings(tmp_path))
    pid = executor._children[0].process.pid
    os.kill(server(), signal.SIGKILL)
    if how == "cancel":
        executor.cancel()
    else:
        os.kill(pid, signal.SIGKILL)
        assert next_end(executor).outcome == "failed"
    assert fakes.RunStore(tmp_path).lease(job.run.run_id) is None


def test_a_stopped_worker_is_found_hung_and_its_run_is_tried_again(tmp_path):
    job, executor = one_job(tmp_path), local(hung_s=1.0)
    misbehave(tmp_path, "compute", times=1)
    executor.submit(job)
    wait_until(lambda: trainings(tmp_path))
    os.kill(executor._children[0].process.pid, signal.SIGSTOP)
    end = next_end(executor)
    assert (end.outcome, end.reason) == (
        "failed",
        "hung: the worker used no processor time for 1 s",
    )
    assert ended(local(), job).outcome == "done"
