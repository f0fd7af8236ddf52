"""The mirror online while runs are trained: rows as they come, each of them once whatever happens."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_tracking_online import service_of
from tracking_study import COMPLETED, curve, finished, make_study, plan
from wandb_reader import read_offline_runs
from wandb_server import ServerRun, WandbServer, answering

from andrea.store.files import append_line, read_lines, write_lines
from andrea.store.runs import Claim, RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.ledger import alone, scratch
from andrea.tracking.mirror import Mirror, sync
from andrea.tracking.subject import Destination, SingleRun, wandb_id
from andrea.tracking.writer import Writer

OFFLINE, ONLINE = Destination("offline"), Destination("online")
PATIENT_S = 30.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A server that wandb takes for its own. It sends rows every fifteen seconds."""
    with WandbServer() as running:
        monkeypatch.setenv("WANDB_BASE_URL", running.url)
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
        yield running


class Training:
    """A run that records when it is told to, dies, and goes on from where its checkpoint was."""

    def __init__(self, store: RunStore, planned: dict[str, Any], steps: int = 12, part: str = "verdict") -> None:
        self._store, self.planned, self.steps, self._part = store, planned, steps, part
        self._records = curve(steps)
        self._claim: Claim | None = None
        self.begin()

    def begin(self) -> None:
        """Begin an attempt, with the records of the one before up to some checkpoint."""
        self._claim = self._store.claim(self.planned["run_id"])
        config = {"config": {"train": {"lr": 0.00316}, "seed": 1, "data": {"eval_part": self._part}}}
        self._attempt = self._claim.attempt(config, {"device": "cpu"})

    def record(self, count: int) -> None:
        """Record so many lines more."""
        at = len(read_lines(self._attempt / "metrics.jsonl"))
        for line in self._records[at : at + count]:
            append_line(self._attempt / "metrics.jsonl", line)

    def dies(self, checkpoint: int, reason: str | None = None) -> None:
        """End the attempt: killed, or failed for a reason; the next one goes on after so many lines."""
        assert self._claim is not None
        kept = read_lines(self._attempt / "metrics.jsonl")[:checkpoint]
        if reason is not None:
            self._claim.fail(self._attempt, reason)
        else:
            write_lines(self._attempt / "metrics.jsonl", kept)
        self._claim.release()

    def ends(self, **result: Any) -> None:
        """Record the rest, and have a result."""
        assert self._claim is not None
        self.record(len(self._records))
        told = {**COMPLETED, "steps": self.steps, "tokens": self.steps * 512, "eval_part": self._part, **result}
        self._claim.finish(self._attempt, told)
        self._claim.release()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_rows(server: WandbServer, count: int) -> Callable[[], bool]:
    """Whether the one run on the server has so many."""
    return lambda: [len(run.lines) for run in server.runs.values()] == [count]


def only(server: WandbServer) -> ServerRun:
    [run] = server.runs.values()
    return run


def openings(server: WandbServer) -> int:
    """How often a client has begun to write a run."""
    return sum("RunResumeStatus" in request for request in server.asked)


def sent_at_once(folder: StudyFolder, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What another server has after one sync of the finished study."""
    with WandbServer() as other, monkeypatch.context() as patch:
        patch.setenv("WANDB_BASE_URL", other.url)
        sync(folder, store, Destination("online", "elsewhere"), lambda line: None)
        state = other.state()["runs"]
    return {run: {**told, "about": told["about"][1:]} for run, told in state.items()}


def on(server: WandbServer) -> dict[str, Any]:
    """The same of this server."""
    return {run: {**told, "about": told["about"][1:]} for run, told in server.state()["runs"].items()}


@pytest.mark.slow
def test_rows_are_there_while_a_run_is_trained_and_the_run_ends_as_if_sent_at_once(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 900, phase="tune"), part="tune")
    lines: list[str] = []
    with alone(folder, wait_s=0), scratch(folder):
        writer = Writer(folder, store, ONLINE, lines.append)
        training.record(1)
        assert not writer.follow([training.planned]), "the first row may not be whole"
        training.record(3)
        assert writer.follow([training.planned]) == 1
        training.record(2)
        assert writer.follow([training.planned]) == 1
        wait_until(has_rows(server, 4))
        run = only(server)
        assert (run.state, openings(server), run.name) == ("running", 1, "pre lr=0.00316 seed=900")
        assert [row["tokens"] for row in run.rows] == [0, 512, 1024, 1536]
        assert {"eval/tune_loss", "layers/grad_norm"} <= run.rows[0].keys()
        assert "eval/loss" not in run.rows[0], "the part is known before there is a result"
        assert run.axes["train/*"] == "tokens"
        training.ends(stalled=True)
        assert writer.write_pending() == 1
        writer.end()
    assert (run.state, openings(server), len(run.rows), run.tags[-1]) == ("finished", 1, 13, "stalled")
    assert run.summary["final_loss"] == 3.4
    assert not lines
    assert sync(folder, store, ONLINE) == 0
    assert on(server) == sent_at_once(folder, store, monkeypatch)


@pytest.mark.slow
def test_an_interrupted_run_has_no_end_until_it_goes_on(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 1))
    training.record(6)
    for attempt in (1, 2):
        with alone(folder, wait_s=0), scratch(folder):
            writer = Writer(folder, store, ONLINE, pytest.fail)
            assert writer.follow([training.planned])
            writer.end()
        assert (only(server).state, openings(server)) == ("running", attempt), "W&B says crashed in a while"
        training.dies(checkpoint=3)
        training.begin()
    training.ends()
    assert sync(folder, store, ONLINE) == 1
    assert on(server) == sent_at_once(folder, store, monkeypatch)


@pytest.mark.slow
def test_a_run_that_failed_for_good_keeps_its_rows_and_says_why(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 1))
    training.record(6)
    with alone(folder, wait_s=0), scratch(folder):
        writer = Writer(folder, store, ONLINE, pytest.fail)
        writer.follow([training.planned])
        training.dies(checkpoint=6, reason="out of memory")
        assert writer.write_pending() == 0, "there may be another attempt"
        assert writer.write_pending(failed=True) == 1
        writer.end()
    failed = only(server)
    assert (failed.state, failed.summary["reason"], len(failed.rows)) == ("failed", "out of memory", 4)
    assert "failed" in failed.tags
    assert on(server) == sent_at_once(folder, store, monkeypatch)
    training.begin()
    training.ends()
    assert sync(folder, store, ONLINE) == 1
    assert (failed.state, failed.summary["reason"], len(failed.rows)) == ("finished", "", 13)
    assert "failed" not in failed.tags


@pytest.mark.slow
@pytest.mark.parametrize("status", [500, 403, 0], ids=["answers 500", "refuses", "drops"])
def test_a_server_that_fails_meanwhile_costs_one_line_and_a_later_sync_completes(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "1.5")
    folder = make_study(store)
    first, second = Training(store, plan(folder, "pre", 1)), Training(store, plan(folder, "post", 1))
    first.record(6), second.record(6)
    lines: list[str] = []
    with alone(folder, wait_s=0), scratch(folder):
        writer = Writer(folder, store, ONLINE, lines.append)
        assert writer.follow([first.planned, second.planned])
        with server.in_trouble(answering(status, "")):
            first.ends()
            writer.write_pending()
            assert not writer.follow([second.planned]), "offline now, and an offline copy is of a whole run"
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


QUICK = """
import sys
import andrea.tracking.__main__ as mirror
mirror.AFTER_S = mirror.EVERY_S = 0.1
mirror.main(sys.argv[1])
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mirrors that show a run as soon as it is trained."""
    popen = subprocess.Popen

    def begin(command: list[str], **how: Any) -> "subprocess.Popen[bytes]":
        program = [sys.executable, "-P", "-c", QUICK] if "andrea.tracking" in command else command[:-1]
        return popen([*program, command[-1]], **how)

    monkeypatch.setattr("andrea.tracking.mirror.subprocess.Popen", begin)


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
    mirror.started(training.planned)
    wait_until(lambda: bool(lines) or bool(mirror.listen()))
    assert lines[0].startswith(f"W&B dashboard: {server.url}/me/andrea?nw="), "to look at meanwhile"
    assert server.views
    training.record(4)
    wait_until(has_rows(server, 8))
    assert only(server).state == "running"
    training.ends()
    mirror.finished({}, {})
    wait_until(lambda: only(server).state == "finished")
    mirror.close()
    assert openings(server) == 1
    assert on(server) == sent_at_once(folder, store, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_whatever_is_killed_and_whenever_the_server_ends_with_each_row_once(
    store: RunStore, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several studies at once, each with a mirror; both halves are longer than what wandb waits before it sends."""
    chance = random.Random(6)
    folders = [make_study(store, f"study{n}") for n in range(4)]
    trainings = [Training(store, plan(folder, folder.path.name, n), 200) for folder in folders for n in (1, 2)]
    for half in range(2):
        mirrors = [Mirror(folder, store, ONLINE, warn=lambda line: None) for folder in folders]
        for at, training in enumerate(trainings):
            mirrors[at // 2].started(training.planned)
        began = time.monotonic()
        while time.monotonic() < began + 20:
            time.sleep(0.5)
            for training in trainings:
                training.record(chance.randrange(4))
            server.torn_after = chance.choice([None, 2])
            if chance.random() < 0.2:
                training = chance.choice(trainings)
                training.dies(checkpoint=chance.randrange(20))
                training.begin()
        assert sum(len(run.lines) for run in server.runs.values()) > 8 * (1 + half)
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
    sent = {run: told for folder in folders for run, told in sent_at_once(folder, store, monkeypatch).items()}
    assert on(server) == sent


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_run_of_no_study_says_where_it_is_when_it_begins(store: RunStore, server: WandbServer) -> None:
    planned = {"run_id": plan(make_study(store), "", 1)["run_id"]}
    subject = SingleRun(store, planned["run_id"])
    lines: list[str] = []
    mirror = Mirror(subject, store, ONLINE, warn=lines.append)
    mirror.started(planned)
    training = Training(store, planned)
    training.record(6)
    wait_until(lambda: bool(lines) or bool(mirror.listen()))
    run = wandb_id(subject, planned["run_id"])
    assert lines == [f"W&B run: {server.url}/me/andrea/runs/{run}"]
    training.ends()
    mirror.close()
    assert (only(server).name, only(server).state, len(only(server).rows)) == ("lr=0.00316 seed=1", "finished", 13)
    assert len(lines) == 1


@pytest.mark.usefixtures("quick")
def test_a_wrong_key_is_said_while_the_first_run_is_trained(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "short")
    folder = make_study(store)
    training = Training(store, plan(folder, "pre", 1))
    training.record(6)
    lines: list[str] = []
    mirror = Mirror(folder, store, ONLINE, warn=lines.append)
    mirror.started(training.planned)
    wait_until(lambda: bool(lines) or bool(mirror.listen()))
    assert lines[0].startswith("W&B was not asked (WANDB_API_KEY invalid")
    assert "mirroring offline, publish later with `andrea sync norm-placement-" in lines[0]
    training.ends()
    mirror.finished({}, {})
    mirror.close()
    assert len(lines) == 1
    assert len(read_offline_runs(folder.path)) == 1
