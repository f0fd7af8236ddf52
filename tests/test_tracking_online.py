"""The mirror online: the real wandb against a server on loopback that keeps what it is sent."""

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import stored
from test_tracking_mirror import command_of
from tracking_study import (
    RESULT,
    RUN,
    curve,
    diverging_curve,
    finished,
    judged_study,
    make_study,
    plan,
    train,
)
from waiting import wait_until
from wandb_reader import read_offline_runs
from wandb_server import WandbServer, answering, slowly

from andrea.errors import StudyError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder, find_study
from andrea.tracking.dashboards import build_workspace, view_name, workspace_json
from andrea.tracking.destination import Destination
from andrea.tracking.mirror import Mirror, sync
from andrea.tracking.published import hold_mirror, scratch_folder
from andrea.tracking.study_run import load_planned_runs, study_tables
from andrea.tracking.writer import Writer, end_service

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")

OFFLINE, ONLINE = Destination("offline"), Destination("online", tags=("paper",))


def mirrored(folder: StudyFolder, store: RunStore) -> list[str]:
    """Mirror online with a process of its own; returns what the user was told."""
    lines: list[str] = []
    with closing(Mirror(folder, store, ONLINE, warn=lines.append)):
        pass
    return lines


def elsewhere(store: RunStore, tmp_path: Path) -> tuple[StudyFolder, RunStore]:
    """The store on another machine, without what wandb left."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(store.root, copy, ignore=shutil.ignore_patterns("wandb"))
    other = RunStore(copy, create=False)
    return find_study(other, "norm-placement"), other


def run_of(server: WandbServer, **wanted: Any) -> Any:
    """The one run with this arm, seed, phase."""
    [found] = [r for r in server.runs.values() if wanted.items() <= r.config.items()]
    return found


@pytest.mark.slow
def test_the_server_ends_with_the_study_however_often_and_from_wherever_it_is_sent(
    store: RunStore, server: WandbServer, tmp_path: Path
) -> None:
    folder = judged_study(store)
    [line] = mirrored(folder, store)
    assert line.startswith(f"W&B dashboard: {server.url}/me/andrea?nw=")

    assert len(server.runs) == 12
    assert {run.group for run in server.runs.values()} == {folder.path.name}
    assert (
        sorted(run.job_type for run in server.runs.values())
        == ["replicate"] * 7 + ["report"] + ["tune"] * 4
    )
    run = run_of(server, arm="post", seed=1)
    assert (run.project, run.name, run.state) == ("andrea", "post lr=0.00316 seed=1", "finished")
    assert run.tags == ["norm-placement", "ablation", "post", "tiny", "paper"]
    assert run.config["model.d_model"] == 48
    assert [row["tokens"] for row in run.rows] == [0, 512, 1024, 1536, 2048]
    assert [row["train/loss"] for row in run.rows if "train/loss" in row] == [5.0, 4.5, 4.0, 3.5]
    assert run.axes == dict.fromkeys(("step", "train/*", "eval/*", "layers/*"), "tokens")
    assert (run.summary["final_loss"], run.summary["best_loss"], run.summary["parameters"]) == (
        3.4,
        3.5,
        12_288,
    )
    assert "eval/loss" not in run_of(server, arm="pre", phase="tune", lr=0.001).rows[0]

    diverged, stalled = run_of(server, arm="post", seed=3), run_of(server, arm="pre", seed=3)
    assert (diverged.state, diverged.summary["outcome"], "final_loss" in diverged.summary) == (
        "failed",
        "diverged",
        False,
    )
    assert diverged.summary["diverged_at_tokens"] == 2048
    assert (stalled.state, stalled.summary["stalled_since_tokens"]) == ("finished", 2048)
    failed = run_of(server, arm="post", seed=4)
    assert (failed.state, failed.rows, failed.summary["reason"]) == ("failed", [], "out of memory")

    study = server.runs["study-0123456789ab"]
    assert (study.job_type, study.state, study.rows) == ("report", "finished", [])
    verdicts = {row["arm"]: row for row in study.table("verdicts")}
    assert (verdicts["post"]["verdict"], verdicts["post"]["mean"], verdicts["post"]["high"]) == (
        "worse",
        0.25,
        0.4,
    )
    outcomes = {
        (row["arm"], row["phase"], row["outcome"]): row["runs"] for row in study.table("outcomes")
    }
    assert (
        outcomes[("post", "replicate", "diverged")]
        == outcomes[("post", "replicate", "missing")]
        == 1
    )
    assert [row["seeds"] for row in study.table("layers")] == [2] * 8, (
        "arms, layers and checkpoints; good runs alone"
    )
    assert set(server.artifacts[f"{folder.path.name}-report"].files) == {"report.html", "runs.csv"}

    assert set(server.views) == {view_name(folder)}
    view = server.views[view_name(folder)]
    assert view["displayName"] == folder.path.name
    assert json.loads(view["spec"]) == json.loads(
        json.dumps(workspace_json(folder, Destination("online", entity="me"))["spec"])
    )

    first, asked = server.state(), len(server.asked)
    lines: list[str] = []
    assert sync(folder, store, ONLINE, lines.append) == 0
    assert lines == [line]
    assert not [request for request in server.asked[asked:] if "UpsertBucket" in request], (
        "nothing is sent again"
    )
    there, other = elsewhere(store, tmp_path)
    assert sync(there, other, ONLINE) == 12
    assert server.state() == first

    [open_run] = [run for run in folder.load_runs() if run.seed == 4]
    train(store, open_run, curve())
    assert sync(folder, store, ONLINE) == 2, "that run, and the table of outcomes"
    assert (failed.state, len(failed.rows), failed.summary["reason"]) == ("finished", 5, "")
    assert "failed" not in failed.tags


@pytest.mark.slow
def test_plain_wandb_sync_of_the_offline_folders_gives_the_same_runs_and_rows(
    store: RunStore, server: WandbServer, tmp_path: Path
) -> None:
    folder = judged_study(store)
    sync(folder, store, OFFLINE)
    copies = sorted(map(str, folder.path.glob("wandb/offline-run-*")))
    subprocess.run(
        [sys.executable, "-m", "wandb", "sync", *copies],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    sent = server.state()
    assert len(sent["runs"]) == 12
    assert run_of(server, arm="post", seed=3).state == "failed"
    assert server.runs["study-0123456789ab"].table("verdicts")[1]["verdict"] == "worse"
    assert set(server.artifacts[f"{folder.path.name}-report"].files) == {"report.html", "runs.csv"}
    there, other = elsewhere(store, tmp_path)
    sync(there, other, Destination("online"))
    again = server.state()
    assert again["runs"] == sent["runs"]
    assert again["artifacts"] == sent["artifacts"]


def small_study(store: RunStore) -> StudyFolder:
    """Two whole runs of 21 rows and one that diverged."""
    folder = make_study(store)
    for seed in (1, 2):
        train(store, plan(folder, "pre", seed), curve(steps=20))
    train(store, plan(folder, "post", 1), diverging_curve(), outcome="diverged", loss=None)
    return folder


def assert_each_row_once(server: WandbServer) -> None:
    """What a small study comes to on the server."""
    assert sorted(run.state for run in server.runs.values()) == ["failed", "finished", "finished"]
    for run in server.runs.values():
        steps = [row["_step"] for row in run.rows]
        assert steps == list(range(21 if run.state == "finished" else 4)), (
            "no row is missing, none there twice"
        )
        assert run.summary["outcome"] == ("completed" if run.state == "finished" else "diverged")


def torn(server: WandbServer) -> Callable[[str], int | None]:
    """Trouble: the server dies in the middle of what it is sent, again and again."""
    server.torn_after = 7
    return lambda request: None


@pytest.mark.slow
@pytest.mark.parametrize(
    "trouble",
    [
        lambda server: answering(500, "file_stream", after=3),
        lambda server: answering(0, "file_stream", after=3),
        lambda server: answering(403, "file_stream", after=3),
        lambda server: slowly(4, "file_stream"),
        torn,
    ],
    ids=["answers 500", "drops", "refuses", "stalls", "dies"],
)
def test_trouble_in_the_middle_costs_one_line_and_a_later_sync_completes(
    store: RunStore,
    server: WandbServer,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[WandbServer], Callable[[str], int | None]],
) -> None:
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "1.5")
    folder = small_study(store)
    before = {path: path.read_bytes() for path in store.root.glob("runs/**/*.json*")}
    lines: list[str] = []
    with (
        server.in_trouble(trouble(server)),
        hold_mirror(folder, wait_s=0),
        scratch_folder(folder),
    ):  # as the mirror's process does
        writer = Writer(folder, store, ONLINE, lines.append)
        writer.write_pending(failed=True)
        assert writer.write_dashboard() is None
        end_service()
    [line] = lines
    assert f"andrea sync {folder.path.name} --wandb online" in line
    assert {path: path.read_bytes() for path in store.root.glob("runs/**/*.json*")} == before
    half_sent = set(server.runs)
    assert len(half_sent) < 3
    assert not half_sent & set(read_offline_runs(folder.path)), (
        "a copy would be sent after the half that is there"
    )

    server.torn_after = None
    sync(folder, store, ONLINE)
    assert_each_row_once(server)
    assert not list(folder.path.glob("wandb/*run-*")), "what is published needs no copy"


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("victim", ["the mirror", "wandb's service"])
def test_killed_in_the_middle_and_started_again_the_server_has_each_row_once(
    store: RunStore, server: WandbServer, victim: str
) -> None:
    folder = small_study(store)
    server.torn_after = 7
    mirror = Mirror(folder, store, ONLINE, warn=lambda line: None)
    mirror.on_run_finished(RUN, RESULT, reused=False)
    # In how many requests rows come is the machine's affair.
    wait_until(lambda: any(len(run.lines) >= 7 for run in server.runs.values()))
    assert mirror._process is not None
    os.kill(
        mirror._process.pid if victim == "the mirror" else service_of(mirror._process.pid),
        signal.SIGKILL,
    )
    server.torn_after = None
    mirror.close()
    sync(folder, store, ONLINE)
    assert_each_row_once(server)


@pytest.mark.slow
def test_a_run_that_was_deleted_in_w_b_does_not_keep_the_others_from_it(
    store: RunStore, server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_study(store)
    server.deleted = {f"{folder.load_runs()[0].run_id[:12]}-012345"}
    with pytest.raises(StudyError, match="1 part of"):
        sync(folder, store, ONLINE)
    assert len(server.runs) == 2
    assert "it was deleted in W&B" in capsys.readouterr().err


@pytest.mark.slow
def test_an_artifact_that_was_refused_is_said_and_sent_again(
    store: RunStore, server: WandbServer
) -> None:
    folder = make_study(store, "a+b")
    folder.write("verdict.json", {"complete": True, "verdicts": []})
    (folder.path / "report").mkdir()
    (folder.path / "report" / "report.html").write_text("<h1>worse</h1>")
    with (
        server.in_trouble(answering(403, "PUT")),
        pytest.raises(StudyError, match="W&B refused some data"),
    ):
        sync(folder, store, ONLINE)
    assert not any(artifact.versions for artifact in server.artifacts.values())
    assert sync(folder, store, ONLINE) == 1
    assert server.artifacts["a-b-0123456789-report"].versions
    assert sync(folder, store, ONLINE) == 0


def service_of(pid: int) -> int:
    """The process of wandb's that serves this one."""
    [found] = [p for p in Path("/proc").glob("[0-9]*") if f"--pid {pid} " in command_of(p.name)]
    return int(found.name)


def test_a_dashboard_is_built_without_a_network_and_always_the_same(store: RunStore) -> None:
    folder = judged_study(store)
    first, second = workspace_json(folder, ONLINE), workspace_json(folder, ONLINE)
    assert first == second
    sections = first["spec"]["section"]["panelBankConfig"]["sections"]
    assert [s["name"] for s in sections] == [
        *("Verdicts", "Loss", "Learning rate", "Search", "Layers", "Throughput", "Outcomes"),
    ]
    panels = {(s["name"], p["viewType"]): p["config"] for s in sections for p in s["panels"]}
    loss = sections[1]["panels"][0]["config"]
    assert (loss["xAxis"], loss["metrics"], loss["groupBy"]) == (
        "tokens",
        ["eval/loss"],
        "series.value",
    )
    assert (loss["groupAgg"], loss["groupArea"]) == ("mean", "stddev"), "a band over seeds"
    assert ("Search", "Parallel Coordinates Plot") in panels
    assert panels[("Search", "Parameter Importance")]["targetKey"] == "final_tune_loss"
    assert "norm-placement-0123456789" in json.dumps(
        first["spec"]["section"]["runSets"][0]["filters"]
    )


def test_a_server_that_refuses_is_an_error_of_the_command(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    with (
        server.in_trouble(answering(403, "UpsertBucket")),
        pytest.raises(StudyError, match="may this account write"),
    ):
        sync(folder, store, ONLINE)


def test_a_variable_that_wandb_refuses_is_one_line_and_not_one_per_run(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_CONSOLE", "loud")
    folder = small_study(store)
    lines: list[str] = []
    with hold_mirror(folder, wait_s=0), scratch_folder(folder):
        writer = Writer(folder, store, OFFLINE, lines.append)
        assert writer.write_pending(failed=True) == 0
    with pytest.raises(StudyError, match="console: Input should be 'auto'"):
        sync(folder, store, OFFLINE)
    [line] = lines
    assert "console: Input should be" in line
    assert f"andrea sync {folder.path.name}" in line


def test_a_full_disk_is_one_line_and_not_one_per_run(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**about: Any) -> None:
        assert not logging.raiseExceptions, "wandb's own log would print a page of traceback"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("wandb.init", full)
    folder = small_study(store)
    lines: list[str] = []
    with hold_mirror(folder, wait_s=0), scratch_folder(folder):
        assert Writer(folder, store, OFFLINE, lines.append).write_pending(failed=True) == 0
    [line] = lines
    assert "No space left" in line
    with pytest.raises(OSError, match="No space left"):
        sync(folder, store, OFFLINE)


def test_a_dashboard_asks_for_no_table_that_nobody_writes(store: RunStore) -> None:
    folder = judged_study(store)
    about = stored.study_json(folder, "study.json")
    for kind in ("ablation", "sweep"):
        folder.write("study.json", {**about, "kind": kind})
        again = StudyFolder(folder.path)
        panels = [
            panel
            for section in build_workspace(again, "andrea").sections
            for panel in section.panels
        ]
        asked = {panel.table_name for panel in panels if hasattr(panel, "table_name")}
        assert asked
        assert asked <= set(study_tables(again, store, load_planned_runs(again, store))), kind
