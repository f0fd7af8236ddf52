"""The mirror, read back from the files that the real wandb writes offline."""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from tracking_study import (
    RESULT,
    RUN,
    curve,
    diverging_curve,
    finished,
    make_study,
    plan,
    run_spec,
    train,
)
from waiting import wait_until
from wandb_live import QUICK
from wandb_reader import OfflineRun, read_offline_run, read_offline_runs

from andrea.errors import StudyError, UserError
from andrea.records.run import RunSpec
from andrea.store.files import read_json
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking import __main__ as mirror_process
from andrea.tracking.destination import Destination
from andrea.tracking.mirror import Mirror, sync
from andrea.tracking.published import hold_mirror, load_entries

if TYPE_CHECKING:
    from andrea.tracking.writer import Writer

OFFLINE, ONLINE = Destination("offline"), Destination("online")


@dataclass
class Told:
    """A study mirrored once, by a process of its own, in an environment that says much about runs
    and servers.
    """

    folder: StudyFolder
    planned: dict[str, RunSpec]
    runs: dict[str, OfflineRun]
    lines: list[str]
    asked_the_network: bool

    def run(self, name: str) -> OfflineRun:
        """What was read back of a planned run."""
        return self.runs[f"{self.planned[name].run_id[:12]}-012345"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Two whole runs, one diverged, one whose metrics cannot be read, one unfinished."""
    store = RunStore(tmp_path_factory.mktemp("mirrored") / "runs")
    folder = make_study(store)
    planned = {"pre": finished(store, folder, "pre", 1), "post": finished(store, folder, "post", 1)}
    planned |= {"diverged": plan(folder, "post", 2), "unread": finished(store, folder, "pre", 2)}
    train(store, planned["diverged"], diverging_curve(), outcome="diverged", loss=None)
    metrics = store.folder(planned["unread"].run_id) / "metrics.jsonl"
    metrics.unlink()
    metrics.mkdir()
    planned["unfinished"] = plan(folder, "post", 3)
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as shell, socket.create_server(("127.0.0.1", 0)) as silent:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            shell.delenv(name)
        for name in ("RUN_ID", "RESUME", "NAME", "RUN_GROUP", "TAGS", "DIR"):
            shell.setenv(f"WANDB_{name}", "allow")
        shell.setenv("WANDB_MODE", "disabled")
        shell.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        shell.setenv("WANDB_API_KEY", "secret" + "0" * 34)
        silent.setblocking(False)
        with closing(Mirror(folder, store, OFFLINE, warn=lines.append)) as mirror:
            mirror.on_run_finished(RUN, RESULT, reused=False)
            mirror.on_run_finished(RUN, RESULT, reused=False)
        try:
            silent.accept()[0].close()
            asked = True
        except BlockingIOError:
            asked = False
    return Told(folder, planned, read_offline_runs(folder.path), lines, asked)


def processes_about(folder: StudyFolder) -> list[str]:
    """Processes that name the study, and the wandb services that serve them."""
    commands = {path.name: command_of(path.name) for path in Path("/proc").glob("[0-9]*")}
    found = [pid for pid, command in commands.items() if str(folder.path) in command]
    return found + [
        pid for pid, command in commands.items() if any(f"--pid {own} " in command for own in found)
    ]


def command_of(pid: str) -> str:
    """The command line of a process; empty when it has ended."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def wait_until_gone(pids: list[str]) -> None:
    wait_until(lambda: not any(map(command_of, pids)), f"left behind: {pids}")


def test_a_study_read_back_from_wandbs_own_files_is_the_study(told: Told) -> None:
    assert set(told.runs) == {
        f"{told.planned[name].run_id[:12]}-012345" for name in ("pre", "post", "diverged")
    }
    run = told.run("post")
    assert (run.project, run.group, run.job_type) == ("andrea", told.folder.path.name, "replicate")
    assert run.name == "post lr=0.00316 seed=1"
    assert run.tags == ["norm-placement", "ablation", "post", "tiny"]
    assert run.config["model.d_model"] == 48
    assert run.config["seed"] == 1
    assert run.axes == {
        "tokens": "",
        **dict.fromkeys(("step", "train/*", "eval/*", "layers/*"), "tokens"),
    }
    assert all("tokens" in row for row in run.history)
    assert [row["train/loss"] for row in run.history if "train/loss" in row] == [5.0, 4.5, 4.0, 3.5]
    assert run.history[0]["layers/grad_norm"] == {
        "_type": "histogram",
        "values": [0.1, 0.2],
        "bins": [-0.5, 0.5, 1.5],
    }
    assert run.summary["final_loss"] == 3.4
    assert run.summary["outcome"] == "completed"
    assert run.exit_code == 0


def test_a_diverged_run_is_whole_failed_and_without_nan(told: Told) -> None:
    run = told.run("diverged")
    assert run.exit_code == 1
    assert run.summary["outcome"] == "diverged"
    assert "final_loss" not in run.summary
    assert "NaN" not in str(run.summary)
    assert [row.get("train/loss") for row in run.history[:4]] == [None, 5.0, 9.0, None]


def test_each_run_has_its_own_rows_whatever_the_shell_says_about_runs(told: Told) -> None:
    assert [len(told.run(name).history) for name in ("pre", "post", "diverged")] == [5, 5, 4]
    assert {run.group for run in told.runs.values()} == {told.folder.path.name}


def test_offline_asks_nothing_of_the_network(told: Told) -> None:
    assert not told.asked_the_network


def test_a_run_that_cannot_be_read_costs_one_line_and_the_others_are_mirrored(told: Told) -> None:
    [line] = told.lines
    assert told.planned["unread"].run_id[:12] in line
    path = told.folder.path
    assert f"`andrea sync {path.name} --runs {path.parents[1]}` tries again" in line
    log = (told.folder.path / "wandb" / "mirror.log").read_text()
    assert "secret" not in log + line, "no key in what is printed"


def test_mirrored_twice_is_mirrored_once(store: RunStore) -> None:
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    assert sync(folder, store, OFFLINE) == 1
    files = sorted(folder.path.rglob("*.wandb"))
    with closing(Mirror(folder, store, OFFLINE, warn=pytest.fail)):
        pass
    assert sync(folder, store, OFFLINE) == 0
    assert sorted(folder.path.rglob("*.wandb")) == files


@pytest.mark.slow
def test_sync_writes_what_is_missing_also_when_its_folder_was_deleted(store: RunStore) -> None:
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    lines: list[str] = []
    assert sync(folder, store, OFFLINE, lines.append) == 1
    assert len(lines) == 1
    (copy,) = folder.path.glob("wandb/offline-run-*")
    for path in sorted(copy.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    copy.rmdir()
    finished(store, folder, "pre", 2)
    assert sync(folder, store, OFFLINE) == 2
    assert len(read_offline_runs(folder.path)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_mirror_killed_at_any_moment_and_given_again_has_each_run_whole_and_once(
    store: RunStore,
) -> None:
    folder = make_study(store)
    for seed in range(4):
        train(store, plan(folder, "pre", seed), curve(steps=150))
    lines: list[str] = []

    def copies() -> int:
        return len(list(folder.path.glob("wandb/offline-run-*")))

    def killed(delay: float) -> None:
        """In the middle of a copy, or later."""
        mirror = Mirror(folder, store, OFFLINE, warn=lines.append)
        before = copies()
        mirror.on_run_finished(RUN, RESULT, reused=False)
        wait_until(lambda: copies() > before)
        time.sleep(delay)
        assert mirror._process is not None
        mirror._process.kill()
        mirror.close()
        assert "andrea sync" in lines[-1]

    killed(0.0)
    killed(0.1)
    sync(folder, store, OFFLINE)
    runs = read_offline_runs(folder.path)
    assert len(runs) == 4
    assert {len(run.history) for run in runs.values()} == {151}
    assert {run.exit_code for run in runs.values()} == {0}
    assert copies() == 4


@pytest.mark.slow
def test_a_half_written_folder_is_replaced_by_a_whole_one(store: RunStore) -> None:
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    sync(folder, store, OFFLINE)
    (copy,) = folder.path.glob("wandb/offline-run-*/*.wandb")
    copy.write_bytes(copy.read_bytes()[:900])
    assert read_offline_run(copy).exit_code is None
    (folder.path / "wandb" / "mirrored.json").unlink()
    sync(folder, store, OFFLINE)
    (run,) = read_offline_runs(folder.path).values()
    assert run.exit_code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_run_that_starts_and_ends_before_its_line_is_mirrored_when_the_line_is_there(
    store: RunStore,
) -> None:
    folder, early = make_study(store), run_spec("pre", 1)
    mirror = Mirror(folder, store, OFFLINE, warn=pytest.fail)
    mirror.on_run_started(early, 1)
    train(store, early, curve())
    mirror.on_run_finished(early, RESULT, reused=False)
    in_time = finished(store, folder, "post", 1)
    mirror.on_run_finished(in_time, RESULT, reused=False)
    wait_until(lambda: len(load_entries(folder)) == 1, "the other run is mirrored")
    assert set(load_entries(folder)) == {f"{in_time.run_id[:12]}-012345"}
    folder.add_run(early)
    mirror.on_run_finished(early, RESULT, reused=True)
    wait_until(
        lambda: len(load_entries(folder)) == 2, "the early run is mirrored, and not at the end"
    )
    mirror.close()
    assert {len(run.history) for run in read_offline_runs(folder.path).values()} == {5}


def test_a_run_that_is_trained_before_its_line_is_shown_when_the_line_is_there(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_process, "AFTER_S", 0.0)
    monkeypatch.setattr(mirror_process, "EVERY_S", 0.0)
    monkeypatch.setattr(mirror_process, "LOOKING", math.inf)
    folder, early = make_study(store), run_spec("pre", 1)
    shown: list[str] = []

    def follow(specs: list[RunSpec]) -> int:
        shown.extend(spec.run_id for spec in specs)
        return 0

    writer = cast("Writer", SimpleNamespace(follow=follow))
    orders = Queue[str]()
    mirroring = mirror_process._Mirroring(orders, writer, folder, store)
    orders.put(f"train {early.run_id}")
    assert mirroring._take_orders() == {"train"}
    mirroring._follow_training()
    assert not shown
    folder.add_run(early)
    mirroring._follow_training()
    assert shown == [early.run_id]


CONTROLLER = """
import sys, time
from pathlib import Path
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking import mirror as mirrors
from andrea.tracking.mirror import Mirror
from andrea.tracking.destination import Destination

def begin(command, popen=mirrors.subprocess.Popen, **how):
    # A mirror at its full priority: on a busy machine another would not come far.
    return popen([sys.executable, "-P", "-c", sys.argv[3], command[-1]], **how)

mirrors.subprocess.Popen = begin
folder = StudyFolder(Path(sys.argv[1]))
from andrea.records.run import RunResult, RunSpec
run = RunSpec(run_id="r", arm="pre", phase="replicate", why="replicate", seed=0)
mirror = Mirror(folder, RunStore(Path(sys.argv[2])), Destination("offline"), warn=print)
mirror.on_run_finished(run, RunResult(outcome="completed"), reused=False)
assert not {"wandb", "torch"} & set(sys.modules), "the controller imports neither"
print("told", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "kill", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGINT]
)
def test_no_process_outlives_a_controller(store: RunStore, kill: signal.Signals) -> None:
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    arguments = [sys.executable, "-c", CONTROLLER, str(folder.path), str(store.root), QUICK]
    controller = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert controller.stdout is not None
    assert controller.stdout.readline() == b"told\n"
    # The controller, the mirror and wandb's service.
    wait_until(lambda: len(processes_about(folder)) >= 3)
    pids = processes_about(folder)
    controller.send_signal(kill)
    controller.wait()
    controller.stdout.close()
    wait_until_gone(pids)


def test_a_broken_mirror_is_one_line_and_not_an_exception(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    lines: list[str] = []
    mirror = Mirror(folder, store, OFFLINE, warn=lines.append)
    for _ in range(3):
        mirror.on_run_finished(RUN, RESULT, reused=False)
    mirror.close()
    mirror.close()
    assert len(lines) == 1
    assert f"andrea sync {folder.path.name}" in lines[0]


@pytest.mark.slow
def test_a_mirror_that_takes_too_long_is_ended_and_can_be_finished_later(store: RunStore) -> None:
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    lines: list[str] = []
    mirror = Mirror(folder, store, OFFLINE, warn=lines.append)
    with hold_mirror(folder, wait_s=0):  # another mirror holds the study
        mirror.on_run_finished(RUN, RESULT, reused=False)
        mirror.close(wait_s=0.5)
    assert len(lines) == 1
    assert "not done after 0.5 s" in lines[0]
    assert sync(folder, store, OFFLINE) == 1


def test_a_second_sync_of_a_study_is_refused_by_name(store: RunStore) -> None:
    folder = make_study(store)
    with (
        hold_mirror(folder, wait_s=0),
        pytest.raises(UserError, match="being mirrored"),
        hold_mirror(folder, wait_s=0),
    ):
        pass


@pytest.mark.slow
def test_online_without_an_answering_server_becomes_offline(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    for seed in (1, 2):
        finished(store, folder, "pre", seed)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "secret" + "0" * 34)
        lines: list[str] = []
        with closing(Mirror(folder, store, ONLINE, warn=lines.append)):
            pass
        with pytest.raises(StudyError, match="cannot be reached"):
            sync(folder, store, ONLINE)
    assert len(lines) == 1
    assert f"andrea sync {folder.path.name} --wandb online" in lines[0]
    assert len(read_offline_runs(folder.path)) == 2
    assert all(
        entry["mode"] == "offline"
        for entry in read_json(folder.path / "wandb" / "mirrored.json").values()
    )
    log = (folder.path / "wandb" / "mirror.log").read_text()
    assert "secret" not in log + "".join(lines), "no key in what is printed"


@pytest.mark.slow
def test_online_without_a_key_becomes_offline_at_once(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    monkeypatch.setenv("HOME", os.environ["WANDB_CONFIG_DIR"])
    lines: list[str] = []
    with closing(Mirror(folder, store, ONLINE, warn=lines.append)):
        pass
    assert len(lines) == 1
    assert "no key found for https://api.wandb.ai" in lines[0]
    assert len(read_offline_runs(folder.path)) == 1
