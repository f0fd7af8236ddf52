"""The run store: one folder per run, claimed by a lease, finished by one rename.

runs/ab/<run_id>/        a finished run: config.json env.json metrics.jsonl result.json checkpoint log.txt
runs/ab/<run_id>.<n>/    its n-th attempt, unfinished
runs/ab/<run_id>.lease   who is at it
"""

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from andrea.errors import AndreaError, UserError
from andrea.store.files import locked, read_json, read_lines, write_atomic, write_json

FORMAT = 1
HEARTBEAT_S = 10.0
STALE_S = 120.0
CARRIED = ("checkpoint", "metrics.jsonl", "log.txt")

MIGRATIONS: dict[int, Callable[[Path], None]] = {}
"""From format n to n + 1, in place."""


class RunBusy(AndreaError):
    """Another live process holds the lease of this run."""


class RunStore:
    """The runs under one root folder.

    Raises:
        UserError: the root is a file, cannot be written, or was written by a newer andrea.
    """

    def __init__(self, root: Path, *, create: bool = True) -> None:
        self.root = root.absolute()
        marker = self.root / "store.json"
        try:
            known = read_json(marker)
            if known is None and create:
                self.root.mkdir(parents=True, exist_ok=True)
                write_json(marker, {"format": FORMAT})
        except (OSError, json.JSONDecodeError) as error:
            raise UserError(
                f"--runs {root}: cannot be used as a runs folder ({_reason(error)}); name a folder that can be written"
            ) from error
        if known is not None:
            self._migrate(marker, known)

    def _migrate(self, marker: Path, known: dict[str, Any]) -> None:
        found = int(known.get("format", 0))
        if found > FORMAT:
            raise UserError(
                f"--runs {self.root}: written by a newer andrea (format {found}, this one knows {FORMAT}); "
                "update andrea or name another folder"
            )
        for number in range(found, FORMAT):
            MIGRATIONS[number](self.root)
            write_json(marker, {"format": number + 1})

    def folder(self, run_id: str) -> Path:
        """Where the finished run lies or will lie."""
        return self.root / "runs" / run_id[:2] / run_id

    def attempts(self, run_id: str) -> list[Path]:
        """Unfinished attempts, oldest first."""
        parent = self.folder(run_id).parent
        found = [p for p in parent.glob(f"{run_id}.*") if p.suffix[1:].isdigit() and p.is_dir()]
        return sorted(found, key=lambda p: int(p.suffix[1:]))

    def current(self, run_id: str) -> Path | None:
        """The finished run's folder, else its latest attempt's, else None."""
        folder = self.folder(run_id)
        if folder.is_dir():
            return folder
        attempts = self.attempts(run_id)
        return attempts[-1] if attempts else None

    def result(self, run_id: str) -> dict[str, Any] | None:
        """The result of a finished run, or None."""
        found: dict[str, Any] | None = read_json(self.folder(run_id) / "result.json")
        return found

    def failure(self, run_id: str) -> dict[str, Any] | None:
        """Why the latest attempt failed (`reason`, `log`), or None when it did not fail or the run is done."""
        current = self.current(run_id)
        found: dict[str, Any] | None = read_json(current / "failure.json") if current else None
        return found

    def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """The records written so far, oldest first; a torn last line is dropped."""
        current = self.current(run_id)
        return read_lines(current / "metrics.jsonl") if current else []

    def config(self, run_id: str) -> dict[str, Any] | None:
        """config.json of the run: the resolved config and the identity that its id digests."""
        current = self.current(run_id)
        found: dict[str, Any] | None = read_json(current / "config.json") if current else None
        return found

    def env(self, run_id: str) -> dict[str, Any] | None:
        """env.json of the run: versions, git state, device."""
        current = self.current(run_id)
        found: dict[str, Any] | None = read_json(current / "env.json") if current else None
        return found

    def lease(self, run_id: str) -> dict[str, Any] | None:
        """Who holds the run now (`host`, `pid`, …), or None; a dead holder is nobody."""
        path = _lease_path(self, run_id)
        holder = _read_lease(path)
        return holder if holder and _alive(path, holder) else None

    def claim(self, run_id: str) -> "Claim":
        """Take the lease of a run.

        Raises:
            RunBusy: another live process holds it.
        """
        return Claim(self, run_id)


class Claim:
    """A held lease: a context in which one process writes one run."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store, self.run_id = store, run_id
        self._lease = _lease_path(store, run_id)
        self._stop = threading.Event()
        self._lease.parent.mkdir(parents=True, exist_ok=True)
        # One lock for all leases: reading a dead holder and replacing it is one step.
        with locked(store.root / "leases.lock"):
            holder = _read_lease(self._lease)
            if holder and _alive(self._lease, holder):
                raise RunBusy(f"run {run_id[:12]} is being trained by process {holder['pid']} on {holder['host']}")
            write_atomic(self._lease, json.dumps(_identity(os.getpid())))
        self._recover()
        threading.Thread(target=self._beat, daemon=True, name=f"lease-{run_id[:6]}").start()

    def _recover(self) -> None:
        """Finish what a kill between the result and the rename left behind."""
        for attempt in self._store.attempts(self.run_id):
            if (attempt / "result.json").exists() and not self._store.folder(self.run_id).exists():
                attempt.rename(self._store.folder(self.run_id))

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                os.utime(self._lease)
            except OSError:
                return

    def attempt(self, config: dict[str, Any], env: dict[str, Any]) -> Path:
        """Open a new attempt, which starts with the last one's checkpoint and metrics where there are any.

        The metrics are as the last attempt left them: whoever loads the checkpoint truncates them to its offset.
        """
        earlier = self._store.attempts(self.run_id)
        number = int(earlier[-1].suffix[1:]) + 1 if earlier else 1
        final = self._store.folder(self.run_id).with_name(f"{self.run_id}.{number}")
        fresh = final.with_name(f".{final.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for name in CARRIED if earlier else ():
            if (earlier[-1] / name).exists():
                shutil.copy2(earlier[-1] / name, fresh / name)
        write_json(fresh / "config.json", config)
        write_json(fresh / "env.json", env)
        fresh.rename(final)
        for old in earlier:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def finish(self, attempt: Path, result: dict[str, Any]) -> Path:
        """Write the result and give the attempt the run's name: from here on the run is done."""
        (attempt / "failure.json").unlink(missing_ok=True)
        write_json(attempt / "result.json", result)
        folder = self._store.folder(self.run_id)
        attempt.rename(folder)
        return folder

    def fail(self, attempt: Path, reason: str, log: str = "") -> None:
        """Record why this attempt ended without a result; the run stays open for another attempt."""
        write_json(attempt / "failure.json", {"reason": reason, "log": log})

    def release(self) -> None:
        """Give the lease back."""
        if not self._stop.is_set():
            self._stop.set()
            self._lease.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _lease_path(store: RunStore, run_id: str) -> Path:
    folder = store.folder(run_id)
    return folder.with_name(f"{folder.name}.lease")


def _read_lease(path: Path) -> dict[str, Any] | None:
    try:
        holder: dict[str, Any] | None = read_json(path)
    except json.JSONDecodeError:
        return None
    return holder


def _identity(pid: int) -> dict[str, Any]:
    return {"host": socket.gethostname(), "boot": _boot_id(), "pid": pid, "started": _started(pid)}


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot, so that a reused pid is not taken for its predecessor."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _alive(path: Path, holder: dict[str, Any]) -> bool:
    here = _identity(int(holder["pid"]))
    if holder["host"] == here["host"]:
        if holder["boot"] != here["boot"]:
            return False
        if holder["boot"]:
            return holder["started"] is not None and holder["started"] == here["started"]
    try:
        age = _now_of(path.parent) - path.stat().st_mtime
    except FileNotFoundError:
        return False
    return age < STALE_S


def _now_of(folder: Path) -> float:
    """The time by the clock of the file system, which two hosts share; their own clocks may differ."""
    probe = folder / f".clock.{os.getpid()}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"its store.json is not JSON: {error}"
