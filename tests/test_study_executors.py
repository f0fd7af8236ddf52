"""The local executor: children that crash, hang, print or outlive their welcome never hurt their
controller.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import stored
import study_fakes as fakes
from study_fakes import make_study, misbehave, outcome, trainings
from waiting import PATIENT_S, wait_until

import andrea
from andrea.errors import StudyError, UserError
from andrea.execution.executors import InlineExecutor, classify
from andrea.execution.local import LocalExecutor, visible_devices
from andrea.execution.make import make_executor
from andrea.records.events import Observer
from andrea.store import interpreters
from andrea.store.interpreters import ParentCode
from andrea.study.controller import run_study
from andrea.study.plan.frozen import FrozenStudy


@pytest.fixture(autouse=True)
def _fake_identity(monkeypatch):
    fakes.patched(monkeypatch)


def local(slots=1, **more):
    return LocalExecutor(slots, run=fakes.RUN, preload=fakes.PRELOAD, **more)


def one_job(root):
    folder, store = make_study(root)
    study = FrozenStudy(folder, store)
    return study.job(study.plan("relu", "tune", "grid", lr=0.001, seed=1, trial=0, generation=0))


def ended(executor, job):
    executor.submit(job)
    return next_end(executor)


def next_end(executor):
    ends = []
    wait_until(lambda: ends.extend(executor.wait(0.2)) or ends, "no job ended")
    return ends[0]


def processes_with(words):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if words in line and state != "Z":
                found.append(int(entry.name))
    return found


def test_out_of_memory_is_told_with_what_helps():
    class OutOfMemoryError(RuntimeError):
        """As torch's is named."""

    helps = "lower train.micro_batch"
    for error in (
        OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("you can't allocate memory"),
    ):
        outcome, reason = classify(error)
        assert (
            outcome == "failed" and reason.startswith("out of memory: ") and reason.endswith(helps)
        )


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("raise", "RuntimeError: a transient fault"),
        ("crash", "the worker was ended by SIGSEGV"),
        ("killed", "the worker was ended by SIGKILL; the system may be out of memory"),
        ("leave", "the worker left without a word (exit status 7)"),
    ],
)
def test_a_child_that_dies_is_a_failure_with_a_reason(tmp_path, do, reason):
    job = one_job(tmp_path)
    misbehave(tmp_path, do)
    end = ended(local(), job)
    assert (end.outcome, end.reason) == ("failed", reason)
    assert f"training {job.run.run_id}" in Path(job.run.log).read_text()


def test_a_full_disk_in_a_child_is_told_apart_from_a_failure(tmp_path):
    job = one_job(tmp_path)
    misbehave(tmp_path, "full")
    assert ended(local(), job).outcome == "disk"


def test_a_child_that_hangs_is_ended_after_its_time(tmp_path):
    job = one_job(tmp_path)
    misbehave(tmp_path, "hang")
    end = ended(local(hung_s=1.0), job)
    assert (end.outcome, end.reason) == (
        "failed",
        "hung: the worker used no processor time for 1 s",
    )


def test_cancel_ends_running_jobs_at_once_and_leaves_nobody(tmp_path):
    job = one_job(tmp_path)
    misbehave(tmp_path, "hang")
    executor = local()
    executor.submit(job)
    wait_until(lambda: trainings(tmp_path))
    process = executor._children[0].process
    executor.cancel()
    assert not process.is_alive()
    assert process.exitcode == -signal.SIGKILL
    assert executor.wait(0) == []


def test_a_run_that_another_process_holds_is_busy_and_no_failure(tmp_path):
    job = one_job(tmp_path)
    _, store = make_study(tmp_path)
    with store.claim(job.run.run_id):
        assert ended(local(), job).outcome == "busy"


def test_every_slot_has_a_device_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert visible_devices("auto") == ["3", "5"]
    assert visible_devices("cpu") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="no CUDA device"):
        visible_devices("cuda")
    executor = LocalExecutor(
        2, devices=["3", "5"], run="study_fakes:note_device", preload=fakes.PRELOAD
    )
    folder, store = make_study(tmp_path)
    study = FrozenStudy(folder, store)
    for lr in (0.001, 0.002):
        executor.submit(study.job(study.plan("relu", "tune", "grid", lr=lr, seed=1)))
    ends = []
    wait_until(lambda: ends.extend(executor.wait(0.2)) or len(ends) == 2)
    assert sorted((tmp_path / "devices.log").read_text().split()) == ["3", "5"]


def test_every_job_is_a_process_of_its_own_and_gone_before_the_next_so_its_memory_is_free(
    tmp_path,
):
    executor = LocalExecutor(1, run="study_fakes:note_process", preload=fakes.PRELOAD)
    folder, store = make_study(tmp_path)
    study = FrozenStudy(folder, store)
    for lr in (0.001, 0.002, 0.003):
        job = study.job(study.plan("relu", "tune", "grid", lr=lr, seed=1))
        assert ended(executor, job).outcome == "done"
    seen = fakes.read_lines(tmp_path / "processes.log")
    assert len({record["pid"] for record in seen}) == 3
    assert [record["alive"] for record in seen] == [[], [], []]
    assert not any(record["optuna"] for record in seen), "workers know the run store alone"


@pytest.mark.slow
def test_many_workers_that_start_at_once_wait_for_no_locked_storage(tmp_path):
    """Twelve at a time claim their runs, and somebody else's lock on the journal is always
    there.
    """
    folder, store = make_study(tmp_path, arms=("gelu_tanh", "relu", "swiglu"), trials=4, seeds=2)
    at_work, most, broken = set(), [0], []

    class Watch(Observer):
        def on_run_started(self, run, attempt):
            at_work.add(run.run_id)
            most.append(len(at_work))
            (folder.path / "optuna.journal.lock").touch()

        def on_run_finished(self, run, result, *, reused):
            at_work.discard(run.run_id)

        def on_run_failed(self, run, reason, attempt):
            broken.append(reason)

    assert run_study(folder, store, local(12), [Watch()]).complete
    assert (max(most), broken) == (12, [])
    assert (
        len(trainings(tmp_path))
        == len(set(trainings(tmp_path)))
        == len(stored.planned(folder))
        >= 18
    )


def test_executors_by_name():
    assert isinstance(make_executor("inline", 1), InlineExecutor)
    assert make_executor("local", 3, "cpu").slots == 3
    with pytest.raises(UserError, match="there are local, inline"):
        make_executor("slurm", 1)
    with pytest.raises(UserError, match="--slots 0"):
        make_executor("local", 0)
    with pytest.raises(UserError, match="one run at a time"):
        make_executor("inline", 2)


def test_crashes_of_workers_are_recorded_and_the_study_still_completes(tmp_path):
    folder, store = make_study(tmp_path, trials=1, seeds=2)
    misbehave(tmp_path, "crash", times=1, activation="relu", eval_part="tune")
    seen = []

    class Watch(Observer):
        def on_run_failed(self, run, reason, attempt):
            seen.append((reason, stored.failure(store, run.run_id)["reason"]))

    assert run_study(folder, store, local(2), [Watch()]).complete
    assert seen == [("the worker was ended by SIGSEGV",) * 2]
    assert not list(store.root.glob("runs/*/*.log"))


@pytest.mark.slow
def test_the_numbers_are_the_same_inline_with_one_slot_and_with_two(tmp_path):
    outcomes = []
    for name, executor in (
        ("inline", InlineExecutor(fakes.RUN)),
        ("one", local(1)),
        ("two", local(2)),
    ):
        folder, store = make_study(tmp_path / name, arms=("gelu_tanh", "relu", "swiglu"))
        assert run_study(folder, store, executor).complete
        outcomes.append(outcome(folder))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_controller(tmp_path, how):
    make_study(tmp_path)
    misbehave(tmp_path, "hang")
    command = [sys.executable, str(Path(fakes.__file__)), str(tmp_path), "study-0000", "2"]
    controller = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: len(trainings(tmp_path)) == 2)
    pids = [fakes.read_json(path)["pid"] for path in tmp_path.glob("runs/*/*.lease")]
    assert len(pids) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids)
    controller.send_signal(how)
    controller.wait(timeout=PATIENT_S)
    wait_until(lambda: not any(map(_lives, pids)) and not processes_with(str(tmp_path)))


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def hostile_folder(tmp_path):
    """A folder in which every module that somebody might import ends whoever imports it."""
    folder = tmp_path / "hostile"
    for name in ("random", "queue", "token", "yaml", "signal", "andrea/__init__"):
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('raise SystemExit("imported from the working folder")\n')
    return folder


def test_workers_import_nothing_from_the_working_folder(tmp_path, hostile_folder):
    folder, store = make_study(tmp_path, arms=("gelu_tanh", "relu"), seeds=2)
    command = [sys.executable, fakes.__file__, str(store.root), folder.path.name, "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(andrea.__file__).parents[1])}
    ended = subprocess.run(
        command, cwd=hostile_folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert folder.load_verdict().complete


def test_a_worker_of_other_code_trains_nothing(tmp_path, monkeypatch):
    folder, store = make_study(tmp_path)
    changed = {**interpreters._package_manifest(), "execution/worker.py": "another"}
    monkeypatch.setattr(interpreters, "_package_manifest", lambda: changed)
    executor = LocalExecutor(1, run=fakes.RUN, preload=fakes.PRELOAD)
    with pytest.raises(
        StudyError, match=r"execution/worker\.py has changed since the command began"
    ):
        run_study(folder, store, executor)
    assert trainings(tmp_path) == []
    elsewhere = ParentCode(tmp_path, {}, {})
    assert str(tmp_path) in elsewhere.enter_child()


def test_a_child_has_the_parents_search_path_and_the_users_variables(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "relative", *sys.path])
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.chdir(tmp_path)
    paths = interpreters.import_variables()["PYTHONPATH"].split(os.pathsep)
    assert paths[:2] == [str(tmp_path), str(tmp_path / "relative")], "no working folder"
    with interpreters.same_imports():
        assert os.environ["PYTHONSAFEPATH"] == "1" and os.environ["PYTHONPATH"] != "mine"
    assert os.environ["PYTHONPATH"] == "mine" and "PYTHONSAFEPATH" not in os.environ
