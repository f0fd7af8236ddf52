"""The end of a mirror: somebody waits for it, listens meanwhile, and may leave."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from test_tracking_mirror import wait_until_gone
from tracking_study import RESULT, RUN, finished, make_study
from wandb_reader import read_offline_runs
from wandb_server import WandbServer

from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking import mirror as mirrors
from andrea.tracking.destination import Destination
from andrea.tracking.mirror import Mirror
from andrea.tracking.published import Entry, hold_mirror, save_entry
from andrea.tracking.subject import SingleRun, wandb_folder, wandb_id

OFFLINE = Destination("offline")
TALKATIVE = "for n in range(2000): print(f'line {n} ' + 100 * '.', flush=True)"
SILENT = "import time; time.sleep(600)"
Begin = Callable[[str], tuple[Mirror, StudyFolder, list[str]]]


@pytest.fixture
def begin(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """A mirror whose process runs this program instead."""

    def begun(program: str) -> tuple[Mirror, StudyFolder, list[str]]:
        folder = make_study(store)
        finished(store, folder, "pre", 1)
        wandb_folder(folder).mkdir()

        def start(self: Mirror) -> "subprocess.Popen[bytes]":
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [sys.executable, "-c", program], stdin=pipe, stdout=pipe, bufsize=0
            )
            assert process.stdin is not None and process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            return process

        monkeypatch.setattr(Mirror, "_start", start)
        lines: list[str] = []
        return Mirror(folder, store, OFFLINE, warn=lines.append), folder, lines

    return begun


def test_whatever_the_mirror_says_at_its_end_arrives(begin: Begin) -> None:
    mirror, _, lines = begin(TALKATIVE)
    mirror.close()
    assert [line.split()[1] for line in lines] == [str(n) for n in range(2000)]


def test_who_waits_is_told_and_waits_as_long_as_runs_are_written(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, folder, lines = begin(SILENT)
    waits: list[float] = []

    def wait(self: Mirror, process: "subprocess.Popen[bytes]", wait_s: float) -> int:
        """It does not end; during the second to the fourth wait it writes a run."""
        waits.append(wait_s)
        if 1 < len(waits) <= 4:
            save_entry(folder, f"run{len(waits)}", Entry(mode="online"))
            os.utime(wandb_folder(folder) / "mirrored.json", (len(waits), len(waits)))
        raise subprocess.TimeoutExpired("mirror", wait_s)

    monkeypatch.setattr(Mirror, "_wait", wait)
    mirror.close()
    assert waits == [mirrors.SAY_S] + 4 * [mirrors.CLOSE_WAIT_S], "to the last run, and once more"
    assert lines[0].startswith(
        f"W&B: writing what is left of {folder.path.name}; Ctrl-C leaves it to `andrea sync "
    )
    assert lines[1].startswith(
        "W&B mirror: nothing written for 60 s; no result is lost, mirror it with `andrea sync "
    )
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("say_s", "told"), [(3600.0, "W&B: the rest is left to"), (0.1, "W&B: writing what is left of")]
)
def test_ctrl_c_when_only_w_b_is_left_ends_the_mirror_and_not_the_command(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, say_s: float, told: str
) -> None:
    monkeypatch.setattr(mirrors, "SAY_S", say_s)
    wait = Mirror._wait

    def interrupted(self: Mirror, process: "subprocess.Popen[bytes]", wait_s: float) -> int:
        """Somebody presses Ctrl-C during the wait that has no end in sight."""
        if wait_s > 1:
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        return wait(self, process, wait_s)

    monkeypatch.setattr(Mirror, "_wait", interrupted)
    mirror, _, lines = begin(SILENT)
    mirror.on_run_started(RUN, 1)
    assert mirror._process is not None
    pid = mirror._process.pid
    mirror.close()
    wait_until_gone([str(pid)])
    [line] = lines
    assert line.startswith(told)
    assert "`andrea sync norm-placement-" in line


def test_a_mirror_whose_process_has_ended_says_so_and_nothing_of_pipes(begin: Begin) -> None:
    mirror, _, lines = begin("")
    mirror.on_run_started(RUN, 1)
    assert mirror._process is not None
    mirror._process.wait()
    mirror.close()
    assert len(lines) == 1
    assert lines[0].startswith(
        "W&B mirror: its process has ended; no result is lost, mirror it with `andrea sync"
    )


@pytest.mark.slow
def test_beside_a_sync_the_mirror_waits_for_its_turn(store: RunStore, tmp_path: Path) -> None:
    folder = make_study(store)
    with hold_mirror(folder, wait_s=0):
        mirror = Mirror(folder, store, OFFLINE, warn=pytest.fail)
        mirror.on_run_started(RUN, 1)
        finished(store, folder, "pre", 1)
        mirror.on_run_finished(RUN, RESULT, reused=False)
    mirror.close()
    assert len(read_offline_runs(folder.path)) == 1


@pytest.mark.slow
def test_a_run_of_no_study_ends_with_its_address(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = finished(store, make_study(store), "", 1)
    subject = SingleRun(store, planned.run_id)
    lines: list[str] = []
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
        with closing(Mirror(subject, store, Destination("online"), warn=lines.append)):
            pass
        assert set(server.runs) == {wandb_id("train", planned.run_id)}
        assert lines == [
            f"W&B run: {server.url}/me/andrea/runs/{wandb_id('train', planned.run_id)}"
        ]
