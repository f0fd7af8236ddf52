"""The mirror online while runs are trained and things fail: each row once whatever happens."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from test_tracking_online import service_of
from tracking_study import RESULT, RUN, finished, make_study, plan
from waiting import PATIENT_S, wait_until
from wandb_live import (
    OFFLINE,
    ONLINE,
    Training,
    on,
    only,
    openings,
    rows,
    sent_at_once,
)
from wandb_reader import read_offline_runs
from wandb_server import WandbServer, answering

from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.mirror import Mirror, sync
from andrea.tracking.published import hold_mirror, scratch_folder
from andrea.tracking.writer import Writer


@pytest.mark.slow
def test_a_run_that_failed_for_good_keeps_its_rows_and_says_why(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 1))
    training.record(6)
    with hold_mirror(folder, wait_s=0), scratch_folder(folder):
        writer = Writer(folder, store, ONLINE, pytest.fail)
        writer.follow([training.planned])
        training.dies(checkpoint=6, reason="out of memory")
        assert writer.write_pending() == 0, "there may be another attempt"
        assert writer.write_pending(failed=True) == 1
        writer.end()
    failed = only(server)
    assert (failed.state, failed.summary["reason"], len(failed.rows)) == (
        "failed",
        "out of memory",
        4,
    )
    assert "failed" in failed.tags
    lines: list[str] = []
    training.begin(carried=3)
    training.dies(checkpoint=3, reason="out of memory")
    assert sync(folder, store, ONLINE, lines.append) == 1
    assert not any("another version" in line for line in lines), "an attempt that came less far"
    assert (failed.state, len(failed.rows)) == ("failed", 4)
    training.begin()
    training.ends()
    assert sync(folder, store, ONLINE) == 1
    assert (failed.state, failed.summary["reason"], len(failed.rows)) == ("finished", "", 13)
    assert "failed" not in failed.tags
    assert on(server) == sent_at_once(folder, store, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("published", [True, False], ids=["after it was published", "offline"])
def test_a_run_that_failed_and_then_ended_well_has_each_row_once_with_plain_wandb_sync(
    store: RunStore, server: WandbServer, published: bool
) -> None:
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 1))
    training.record(6)
    training.dies(checkpoint=6, reason="out of memory")
    sync(folder, store, ONLINE if published else OFFLINE)
    plain_sync(folder)
    training.begin()
    training.ends()
    sync(folder, store, OFFLINE)
    plain_sync(folder)
    if published:
        sync(folder, store, ONLINE)
    assert [row["_step"] for row in only(server).rows] == list(range(13))
    assert only(server).state == "finished"


def plain_sync(folder: StudyFolder) -> None:
    copies = sorted(map(str, folder.path.glob("wandb/offline-run-*")))
    if copies:
        subprocess.run(
            [sys.executable, "-m", "wandb", "sync", *copies], cwd=folder.path, check=True
        )


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_failed_attempt_is_shown_as_one_until_the_next_begins(
    store: RunStore, server: WandbServer
) -> None:
    training = Training(store, plan(folder := make_study(store), "pre", 1))
    training.record(6)
    lines: list[str] = []
    mirror = Mirror(folder, store, ONLINE, warn=lines.append)
    mirror.on_run_started(training.planned, 1)
    wait_until(lambda: openings(server) == 1)
    training.dies(checkpoint=6, reason="out of memory")
    mirror.on_run_failed(training.planned, "out of memory", 1)
    wait_until(lambda: only(server).state == "failed")
    training.begin()
    mirror.on_run_started(training.planned, 1)
    wait_until(lambda: only(server).state == "running")
    training.ends()
    mirror.on_run_finished(RUN, RESULT, reused=False)
    mirror.close()
    assert (only(server).state, len(only(server).rows)) == ("finished", 13)
    assert len(lines) == 1, "the dashboard's address, although a run was opened twice"


@pytest.mark.slow
def test_what_a_server_refuses_while_a_run_is_trained_is_said_then(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(store, plan(folder := make_study(store), "pre", 1))
    training.record(6)
    lines: list[str] = []
    with (
        hold_mirror(folder, wait_s=0),
        scratch_folder(folder),
        server.in_trouble(answering(403, "file_stream")),
    ):
        writer = Writer(folder, store, ONLINE, lines.append)

        def refused() -> bool:
            writer.follow([training.planned])
            return bool(lines)

        wait_until(refused)
        writer.end()
    [line] = lines
    assert line.startswith("W&B refused some data (")
    training.ends()
    sync(folder, store, ONLINE)
    assert on(server) == sent_at_once(folder, store, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("status", [500, 403, 0], ids=["answers 500", "refuses", "drops"])
def test_a_server_that_fails_meanwhile_costs_one_line_and_a_later_sync_completes(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "1.5")
    folder = make_study(store)
    first, second = (
        Training(store, plan(folder, "pre", 1)),
        Training(store, plan(folder, "post", 1)),
    )
    first.record(6), second.record(6)
    lines: list[str] = []
    with hold_mirror(folder, wait_s=0), scratch_folder(folder):
        writer = Writer(folder, store, ONLINE, lines.append)
        assert writer.follow([first.planned, second.planned])
        with server.in_trouble(answering(status, "")):
            first.ends()
            writer.write_pending()
            assert not writer.follow([second.planned]), (
                "offline now, and an offline copy is of a whole run"
            )
            finished(store, folder, "pre", 2)
            second.ends()
            assert writer.write_pending() == 1
            assert writer.write_dashboard() is None
            writer.end()
    [line] = lines
    assert f"andrea sync {folder.path.name} --wandb online" in line
    assert len(read_offline_runs(folder.path)) == 1, "no copy of what the server has begun"
    assert sync(folder, store, ONLINE, lines.append) == 3
    assert on(server) == sent_at_once(folder, store, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_whatever_is_killed_and_whenever_the_server_ends_with_each_row_once(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several studies at once, each with a mirror, until rows have been sent."""
    chance = random.Random(6)
    folders = [make_study(store, f"study{n}") for n in range(4)]
    trainings = [
        Training(store, plan(folder, folder.path.name, n), 200)
        for folder in folders
        for n in (1, 2)
    ]
    mirrors = [Mirror(folder, store, ONLINE, warn=lambda line: None) for folder in folders]
    for at, training in enumerate(trainings):
        mirrors[at // 2].on_run_started(training.planned, 1)
    before, began = rows(server), time.monotonic()
    while rows(server) < before + 16:
        assert time.monotonic() < began + PATIENT_S
        time.sleep(0.5)
        for training in trainings:
            training.record(chance.randrange(4))
        server.torn_after = chance.choice([None, 2])
        if chance.random() < 0.2:
            training = chance.choice(trainings)
            training.dies(checkpoint=chance.randrange(20))
            training.begin()
    pids = [mirror._process.pid for mirror in mirrors if mirror._process]
    for pid in [pids[0], service_of(pids[1])]:
        os.kill(pid, signal.SIGKILL)
    server.torn_after = None
    for mirror in mirrors:
        mirror.close()
    for training in trainings:
        training.ends()
    for folder in folders:
        sync(folder, store, ONLINE, lambda line: None)
    sent = {
        run: told
        for folder in folders
        for run, told in sent_at_once(folder, store, monkeypatch).items()
    }
    assert on(server) == sent
