"""A training that records when it is told to, and what became of it on a W&B server."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tracking_study import COMPLETED, curve
from wandb_server import ServerRun, WandbServer

from andrea.records.run import RunSpec
from andrea.store.files import append_line, read_lines, write_lines
from andrea.store.runs import Claim, RunStore
from andrea.store.studies import StudyFolder
from andrea.tracking.destination import Destination
from andrea.tracking.mirror import sync

OFFLINE, ONLINE = Destination("offline"), Destination("online")


class Training:
    """A run that records when it is told to, dies, and goes on from where its checkpoint was."""

    def __init__(
        self, store: RunStore, planned: RunSpec, steps: int = 12, part: str = "verdict"
    ) -> None:
        self._store, self.planned, self.steps, self._part = store, planned, steps, part
        self._records = curve(steps)
        self._claim: Claim | None = None
        self._attempts = 0
        self.begin()

    def begin(self, carried: int | None = None) -> None:
        """Begin an attempt, with the records of the one before, or so many of them as there were at
        a checkpoint.
        """
        self._claim = self._store.claim(self.planned.run_id)
        config = {
            "config": {"train": {"lr": 0.00316}, "seed": 1, "data": {"eval_part": self._part}}
        }
        self._attempts += 1
        self._attempt = self._claim.attempt(config, {"device": f"host {self._attempts}"})
        if carried is not None:
            write_lines(
                self._attempt / "metrics.jsonl",
                read_lines(self._attempt / "metrics.jsonl")[:carried],
            )

    def record(self, count: int) -> None:
        """Record so many lines more."""
        at = len(read_lines(self._attempt / "metrics.jsonl"))
        for line in self._records[at : at + count]:
            append_line(self._attempt / "metrics.jsonl", line)

    def dies(self, checkpoint: int, reason: str | None = None) -> None:
        """End the attempt: killed, or failed for a reason; the next one goes on after so many
        lines.
        """
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
        told = {
            **COMPLETED,
            "steps": self.steps,
            "tokens": self.steps * 512,
            "eval_part": self._part,
            **result,
        }
        self._claim.finish(self._attempt, told)
        self._claim.release()


def has_rows(server: WandbServer, count: int) -> Callable[[], bool]:
    """Whether the one run on the server has so many."""
    return lambda: [len(run.lines) for run in server.runs.values()] == [count]


def only(server: WandbServer) -> ServerRun:
    [run] = server.runs.values()
    return run


def rows(server: WandbServer) -> int:
    """Of all runs."""
    return sum(len(run.lines) for run in server.runs.values())


def openings(server: WandbServer) -> int:
    """How often a client has begun to write a run."""
    return sum("RunResumeStatus" in request for request in server.asked)


def sent_at_once(
    folder: StudyFolder, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What another server has after one sync of the finished study."""
    with WandbServer() as other, monkeypatch.context() as patch:
        patch.setenv("WANDB_BASE_URL", other.url)
        sync(folder, store, Destination("online", "elsewhere"), lambda line: None)
        state = other.state()["runs"]
    return {run: {**told, "about": told["about"][1:]} for run, told in state.items()}


def on(server: WandbServer) -> dict[str, Any]:
    """The same of this server."""
    return {
        run: {**told, "about": told["about"][1:]} for run, told in server.state()["runs"].items()
    }


QUICK = """
import sys
import andrea.tracking.__main__ as mirror
mirror.AFTER_S = mirror.EVERY_S = 0.1
mirror.AGAIN_S = 3600
mirror.lower_priority = lambda: None
mirror.main(sys.argv[1])
"""


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mirrors show a run as soon as it is trained, at their full priority."""
    run_instead(monkeypatch, QUICK)


def run_instead(monkeypatch: pytest.MonkeyPatch, mirroring: str) -> None:
    """Let the processes of mirrors run this program, which gets their order as its argument."""
    popen = subprocess.Popen

    def begin(command: list[str], **how: Any) -> "subprocess.Popen[bytes]":
        program = (
            [sys.executable, "-P", "-c", mirroring]
            if "andrea.tracking" in command
            else command[:-1]
        )
        return popen([*program, command[-1]], **how)

    monkeypatch.setattr("andrea.tracking.mirror.subprocess.Popen", begin)
