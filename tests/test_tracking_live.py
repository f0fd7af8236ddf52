"""The mirror online while runs are trained: rows as they come, and what is said meanwhile."""

import time
from contextlib import closing

import pytest
import stored
from tracking_study import RESULT, RUN, make_study, plan
from waiting import wait_until
from wandb_live import (
    OFFLINE,
    ONLINE,
    Training,
    has_rows,
    on,
    only,
    openings,
    sent_at_once,
)
from wandb_reader import read_offline_runs
from wandb_server import WandbServer

from andrea.store.digest import digest
from andrea.store.runs import RunStore
from andrea.tracking.mirror import Mirror, sync
from andrea.tracking.published import hold_mirror, scratch_folder
from andrea.tracking.subject import SingleRun, wandb_id
from andrea.tracking.writer import Writer


@pytest.mark.slow
def test_rows_are_there_while_a_run_is_trained_and_the_run_ends_as_if_sent_at_once(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wandb.sdk.lib.run_stopping._POLL_INTERVAL", 0.2)
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 900, phase="tune"), part="tune")
    server.stopped = (
        True  # which stops neither the training nor, by a Ctrl-C of its own, the mirror
    )
    lines: list[str] = []
    with hold_mirror(folder, wait_s=0), scratch_folder(folder):
        writer = Writer(folder, store, ONLINE, lines.append)
        training.record(1)
        assert not writer.follow([training.planned]), "the first row may not be whole"
        training.record(3)
        assert writer.follow([training.planned]) == 1
        training.dies(checkpoint=3)
        training.begin()
        training.record(3)
        assert writer.follow([training.planned]) == 0, "none that was not shown before"
        wait_until(has_rows(server, 4))
        run = only(server)
        assert (run.state, openings(server), run.name) == ("running", 1, "pre lr=0.00316 seed=900")
        assert [row["tokens"] for row in run.rows] == [0, 512, 1024, 1536]
        assert {"eval/tune_loss", "layers/grad_norm"} <= run.rows[0].keys()
        assert "eval/loss" not in run.rows[0], "the part is known before there is a result"
        assert run.axes["train/*"] == "tokens"
        time.sleep(1.0)
        training.ends(stalled=True)
        assert writer.write_pending() == 1
        writer.end()
    assert (run.state, openings(server), len(run.rows), run.tags[-1]) == (
        "finished",
        1,
        13,
        "stalled",
    )
    assert run.summary["final_loss"] == 3.4
    assert not lines
    assert sync(folder, store, ONLINE) == 0
    assert on(server) == sent_at_once(folder, store, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_mirror_shows_what_the_controller_says_is_trained(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 1))
    training.record(6)
    lines: list[str] = []
    mirror = Mirror(folder, store, ONLINE, warn=lines.append)
    mirror.on_run_started(training.planned, 1)
    wait_until(lambda: bool(lines) or bool(mirror.listen()))
    assert lines[0].startswith(f"W&B dashboard: {server.url}/me/andrea?nw="), "to look at meanwhile"
    assert server.views
    training.record(4)
    assert only(server).state == "running"
    training.ends()
    mirror.on_run_finished(RUN, RESULT, reused=False)
    wait_until(lambda: only(server).state == "finished")
    mirror.close()
    assert openings(server) == 1
    assert on(server) == sent_at_once(folder, store, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_run_of_no_study_says_where_it_is_when_it_begins(
    store: RunStore, server: WandbServer
) -> None:
    planned = plan(make_study(store), "", 1)
    subject = SingleRun(store, planned.run_id)
    lines: list[str] = []
    mirror = Mirror(subject, store, ONLINE, warn=lines.append)
    mirror.on_run_started(planned, 1)
    training = Training(store, planned)
    training.record(6)
    wait_until(lambda: bool(lines) or bool(mirror.listen()))
    run = wandb_id("train", planned.run_id)
    assert lines == [f"W&B run: {server.url}/me/andrea/runs/{run}"]
    training.ends()
    mirror.close()
    assert (only(server).name, only(server).state, len(only(server).rows)) == (
        "lr=0.00316 seed=1",
        "finished",
        13,
    )
    assert len(lines) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_wrong_key_is_said_while_the_first_run_is_trained(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "short")
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 1))
    training.record(6)
    lines: list[str] = []
    mirror = Mirror(folder, store, ONLINE, warn=lines.append)
    mirror.on_run_started(training.planned, 1)
    wait_until(lambda: bool(lines) or bool(mirror.listen()))
    assert lines[0].startswith("W&B was not asked (WANDB_API_KEY invalid")
    assert "mirroring offline, publish later with `andrea sync norm-placement-" in lines[0]
    training.ends()
    mirror.on_run_finished(RUN, RESULT, reused=False)
    mirror.close()
    assert len(lines) == 1
    assert len(read_offline_runs(folder.path)) == 1


@pytest.mark.slow
def test_an_interrupted_run_has_no_end_until_it_goes_on(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 1))
    training.record(6)
    for attempt in (1, 2):
        with hold_mirror(folder, wait_s=0), scratch_folder(folder):
            writer = Writer(folder, store, ONLINE, pytest.fail)
            assert writer.follow([training.planned])
            writer.end()
        assert (only(server).state, openings(server)) == ("running", attempt), (
            "W&B says crashed in a while"
        )
        training.dies(checkpoint=3)
        training.begin()
    training.ends()
    assert sync(folder, store, ONLINE) == 1
    assert on(server) == sent_at_once(folder, store, monkeypatch)


@pytest.mark.slow
def test_a_run_begun_online_and_ended_offline_is_not_forgotten(
    store: RunStore, server: WandbServer
) -> None:
    training = Training(store, plan(folder := make_study(store), "pre", 1))
    training.record(6)
    with hold_mirror(folder, wait_s=0), scratch_folder(folder):
        writer = Writer(folder, store, ONLINE, pytest.fail)
        writer.follow([training.planned])
        writer.end()
    training.ends()
    lines: list[str] = []
    for _ in range(2):
        with closing(Mirror(folder, store, OFFLINE, warn=lines.append)) as mirror:
            mirror.on_run_finished(RUN, RESULT, reused=True)
    assert lines == 2 * [
        "W&B: 1 run begun online and ended offline; complete with "
        f"`andrea sync {folder.path.name} --wandb online --runs {store.root}`"
    ]
    assert not read_offline_runs(folder.path)
    sync(folder, store, ONLINE)
    assert (only(server).state, len(only(server).rows)) == ("finished", 13)


@pytest.mark.slow
def test_one_protocol_under_two_names_is_two_studies(store: RunStore, server: WandbServer) -> None:
    folders = [make_study(store, name) for name in ("first", "second")]
    training = Training(store, planned := plan(folders[0], "pre", 1))
    folders[1].add_run(planned)
    training.ends()
    for folder in folders:
        folder.write(
            "study.json",
            {**stored.study_json(folder, "study.json"), "key": digest({"name": folder.path.name})},
        )
        sync(folder, store, ONLINE)
    assert sorted(run.group for run in server.runs.values()) == [
        folder.path.name for folder in folders
    ]
