"""The mirror beside training: it begins early, at a low priority, and names the place that a study
is mirrored to.
"""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from test_tracking_mirror import command_of, wait_until_gone
from tracking_study import RESULT, RUN, finished, make_study
from waiting import wait_until
from wandb_live import run_instead
from wandb_reader import read_offline_runs

from andrea.store.runs import RunStore
from andrea.tracking.destination import Destination, sync_command
from andrea.tracking.mirror import Mirror
from andrea.tracking.priority import NICE, SESSION_NICE

OFFLINE = Destination("offline")
GROUPED = Path("/proc/self/autogroup").exists()


def weight_of(pid: int) -> tuple[int, str]:
    """The nice value of a process and, where Linux groups processes by session, the line about its
    session.

    The line is empty for the descendants of the first process that have never begun a session, as a
    container's or a virtual machine's command may be: they belong to no group.
    """
    return os.getpriority(os.PRIO_PROCESS, pid), Path(
        f"/proc/{pid}/autogroup"
    ).read_text().strip() if GROUPED else ""


def has_low_priority(process: int, session: str) -> bool:
    return process == NICE and (not GROUPED or session.endswith(f" nice {SESSION_NICE}"))


def service_of(mirror: int) -> int:
    """wandb's service, as soon as the mirror has begun it."""
    found: list[int] = []

    def look() -> bool:
        commands = {path.name: command_of(path.name) for path in Path("/proc").glob("[0-9]*")}
        found.extend(int(pid) for pid, words in commands.items() if f"--pid {mirror} " in words)
        return bool(found)

    wait_until(look, "no service")
    return found[0]


PATIENT = """
import sys
import andrea.tracking.__main__ as mirror
from andrea.tracking import priority, writer  # with wandb: long work at a low priority
priority.TRIES = 1000  # other sessions of this user are weighed at the same time
mirror.main(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sessions are weighed on Linux alone")
def test_mirror_and_service_lower_priority_as_processes_and_as_sessions(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, PATIENT)
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    own = weight_of(os.getpid())
    with closing(Mirror(folder, store, OFFLINE, warn=pytest.fail)) as mirror:
        mirror.on_run_finished(RUN, RESULT, reused=False)
        assert mirror._process is not None
        pids = [mirror._process.pid, service_of(mirror._process.pid)]
        wait_until(lambda: all(has_low_priority(*weight_of(pid)) for pid in pids))
    assert weight_of(os.getpid()) == own, "training's priority is as it was"
    assert len(read_offline_runs(folder.path)) == 1


SESSIONS = """
import subprocess
from andrea.tracking import priority
from andrea.tracking.priority import _session_nice, match_children, lower_priority, restore_priority
priority.TRIES = 1000
def told():
    print(_session_nice("self"), _session_nice(str(child.pid)))
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
lower_priority()
told()
match_children()
told()
restore_priority()
told()
child.kill()
"""


@pytest.mark.skipif(not GROUPED, reason="no groups by session here")
def test_sessions_restore_priority_again_when_the_study_has_ended() -> None:
    told = subprocess.run(
        [sys.executable, "-c", SESSIONS],
        check=True,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert told.stdout.split("\n") == [
        f"{SESSION_NICE} 0",
        f"{SESSION_NICE} {SESSION_NICE}",
        "0 0",
        "",
    ]


def test_the_mirror_begins_with_the_first_run_and_leaves_nothing_where_none_ended(
    store: RunStore,
) -> None:
    folder = make_study(store)
    mirror = Mirror(folder, store, OFFLINE, warn=pytest.fail)
    mirror.on_runs_planned([RUN])
    mirror.on_run_finished(RUN, RESULT, reused=True)
    assert mirror._process is None, "what was there before needs no process while others train"
    mirror.on_run_started(RUN, 1)
    mirror.on_run_started(RUN, 1)
    begun = mirror._process
    assert begun is not None
    mirror.close()
    wait_until_gone([str(begun.pid)])
    assert not list(folder.path.glob("wandb/offline-run-*"))
    mirror.on_run_started(RUN, 1)
    assert mirror._process is None, "closed is closed"


def test_the_printed_command_works_from_where_it_is_printed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = make_study(store)
    assert sync_command(folder, "online").endswith(f" --wandb online --runs {store.root}")
    monkeypatch.setenv("ANDREA_RUNS", str(store.root))
    assert sync_command(folder, "offline") == f"andrea sync {folder.path.name}"


def test_the_ledger_tells_servers_apart_however_they_were_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As wandb itself reads it: `wandb login --host` writes to its settings, WANDB_BASE_URL stands
    above them.
    """
    asked = "import wandb; print(wandb.setup().settings.base_url)"
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    to = Destination("online", "p", "e")
    assert to.where == "/e/p"
    (tmp_path / "settings").write_text(
        "[default]\nbase_url = http://wandb.example.org:8080/wandb\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", asked], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert to.where == f"{told.stdout.strip()}/e/p" == "http://wandb.example.org:8080/wandb/e/p"
    monkeypatch.setenv("WANDB_BASE_URL", "http://localhost:8080/")
    assert to.where == "http://localhost:8080/e/p"
    monkeypatch.delenv("WANDB_BASE_URL")
    for damaged in (
        b"\xff\x00 no settings",
        b"[default]\nbase_url=http://x:1\nentity=a\nentity=b\n",
    ):
        (tmp_path / "settings").write_bytes(damaged)
        assert to.where == "/e/p"
