"""The run store: one folder per run, claimed by a lease, finished by one rename.

runs/ab/<run_id>/        a finished run: config.json env.json metrics.jsonl result.json checkpoint
                         log.txt
runs/ab/<run_id>.<n>/    its n-th attempt, unfinished
runs/ab/<run_id>.lease   who is training it
"""

import contextlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from andrea.errors import AndreaError, UserError, warn
from andrea.records.run import Environment, Failure, RunResult, RunSettings
from andrea.store.files import locked, read_lines, read_mapping, write_atomic, write_json
from andrea.store.processes import started

FORMAT = 1
HEARTBEAT_S = 10.0
STALE_S = 120.0
CARRIED = ("checkpoint", "metrics.jsonl", "log.txt")

MIGRATIONS: dict[int, Callable[[Path], None]] = {}
"""From format n to n + 1, in place."""


class RunBusy(AndreaError):
    """Another live process holds the lease of this run."""


class RunStore:
    """The runs under one root folder. A store of an older format is migrated, step by step.

    Raises:
        UserError: the root is a file, cannot be written, is damaged, or is of a format that this
            andrea does not know.
    """

    def __init__(self, root: Path, *, create: bool = True) -> None:
        self.root = root.absolute()
        self.marker = self.root / "store.json"
        self.created = False
        """Whether this object made the store."""
        try:
            found = self._format()
            if found is None and create:
                self.root.mkdir(parents=True, exist_ok=True)
                write_json(self.marker, {"format": FORMAT})
                self.created = True
            elif found is not None and found < FORMAT:
                self._migrate()
        except OSError as error:
            raise UserError(
                f"--runs {root}: cannot be used as a runs folder ({error.strerror or error}); "
                "name a folder that can be written"
            ) from error

    def _migrate(self) -> None:
        with locked(self.root / "leases.lock"):
            for found in range(self._format() or 0, FORMAT):
                if found not in MIGRATIONS:
                    raise UserError(
                        f"--runs {self.root}: of format {found}, which this andrea (format "
                        f"{FORMAT}) no longer reads; "
                        "open it with an older andrea or name another folder"
                    )
                MIGRATIONS[found](self.root)
                write_json(self.marker, {"format": found + 1})

    def _format(self) -> int | None:
        """The number in store.json, or None where there is no store."""
        try:
            number = json.loads(self.marker.read_text(encoding="utf-8"))["format"]
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError):
            number = None
        if type(number) is not int:
            raise UserError(
                f"--runs {self.root}: its store.json is damaged; "
                f'write {{"format": {FORMAT}}} into it if the runs are andrea\'s, or name another '
                "folder"
            )
        if number > FORMAT:
            raise UserError(
                f"--runs {self.root}: written by a newer andrea (format {number}, this one knows "
                f"{FORMAT}); "
                "update andrea or name another folder"
            )
        return number

    def folder(self, run_id: str) -> Path:
        """Where the finished run lies or will lie."""
        return self.root / "runs" / run_id[:2] / run_id

    def ids(self) -> list[str]:
        """Ids of all runs that have a folder, finished or not, sorted."""
        return sorted(
            {
                path.name.partition(".")[0]
                for path in self.root.glob("runs/??/[!.]*")
                if path.is_dir()
            }
        )

    def beginning(self, prefix: str) -> list[str]:
        """Ids of all runs that have a folder, finished or not, and begin so."""
        return [run_id for run_id in self.ids() if run_id.startswith(prefix)]

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
        """The result of a finished run, or None. A run whose result is lost or damaged is not
        finished: it warns.
        """
        folder = self.folder(run_id)
        found = _result(folder)
        if found is None and folder.is_dir():
            found = _result(folder)  # it may have been finished between the two looks
            if found is None:
                warn(
                    f"{folder / 'result.json'}: missing or damaged; the next command that needs "
                    "this run finishes it"
                )
        return found

    def log(self, run_id: str) -> Path:
        """What the workers of an unfinished run print."""
        return self.folder(run_id).with_name(f"{run_id}.log")

    def failure(self, run_id: str) -> dict[str, Any] | None:
        """Why the latest attempt failed (`reason`, `log`), or None when it did not fail or the run
        is done.
        """
        current = self.current(run_id)
        return read_mapping(current / "failure.json") if current else None

    def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """The records written so far, oldest first, without a torn last line and damaged ones."""
        current = self.current(run_id)
        return read_lines(current / "metrics.jsonl") if current else []

    def config(self, run_id: str) -> dict[str, Any] | None:
        """config.json of the run: the resolved config and the identity that its id digests."""
        current = self.current(run_id)
        return read_mapping(current / "config.json") if current else None

    def env(self, run_id: str) -> dict[str, Any] | None:
        """env.json of the run: versions, git state, device."""
        current = self.current(run_id)
        return read_mapping(current / "env.json") if current else None

    def load_result(self, run_id: str) -> RunResult | None:
        """Return the result of a finished run; None where there is none, or a damaged one."""
        path = self.folder(run_id) / "result.json"
        return RunResult.from_json(self.result(run_id), path)

    def load_failure(self, run_id: str) -> Failure | None:
        """Return why the latest attempt failed; None when it did not fail or the run is done."""
        return Failure.from_json(self.failure(run_id), f"failure.json of run {run_id[:12]}")

    def load_settings(self, run_id: str) -> RunSettings | None:
        """Return the configuration of a run that was begun, with the identity its id digests."""
        return RunSettings.from_json(self.config(run_id), f"config.json of run {run_id[:12]}")

    def load_environment(self, run_id: str) -> Environment | None:
        """Return the versions, git state and device that trained a run."""
        return Environment.from_json(self.env(run_id), f"env.json of run {run_id[:12]}")

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
        self._lock = store.root / "leases.lock"
        self._mine = {**_identity(os.getpid()), "claim": os.urandom(8).hex()}
        self._stop = threading.Event()
        self._lease.parent.mkdir(parents=True, exist_ok=True)
        # One lock for all leases: reading a holder and replacing, refreshing or releasing it is one
        # step.
        with locked(self._lock):
            holder = _read_lease(self._lease)
            if holder and _alive(self._lease, holder):
                raise RunBusy(
                    f"run {run_id[:12]} is being trained by process {holder['pid']} on "
                    f"{holder['host']}"
                )
            write_atomic(self._lease, json.dumps(self._mine))
        self._heart = threading.Thread(target=self._beat, daemon=True, name=f"lease-{run_id[:6]}")
        try:
            self._recover()
            self._heart.start()
        except BaseException:
            self.release()
            raise

    def _recover(self) -> None:
        """Finish what a kill between the result and the rename left behind; make a run that lost
        its result an attempt again; drop what killed claims left half written.
        """
        folder = self._store.folder(self.run_id)
        # Nobody else writes such names while the lease is ours.
        for rubbish in folder.parent.glob(f".{self.run_id}.*"):
            _remove(rubbish)
        if folder.is_dir() and _result(folder) is None:
            folder.rename(self._next())
        for attempt in self._store.attempts(self.run_id):
            if _result(attempt) and not folder.exists():
                attempt.rename(folder)
            elif folder.exists():
                _remove(attempt)

    def _next(self) -> Path:
        """The name of the next attempt."""
        earlier = self._store.attempts(self.run_id)
        number = int(earlier[-1].suffix[1:]) + 1 if earlier else 1
        return self._store.folder(self.run_id).with_name(f"{self.run_id}.{number}")

    def _beat(self) -> None:
        """Show that the holder lives, until the lease is given back or somebody else has taken it
        for dead.
        """
        while not self._stop.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError), locked(self._lock):
                if _read_lease(self._lease) != self._mine:
                    return
                os.utime(self._lease)

    def attempt(self, config: dict[str, Any], env: dict[str, Any]) -> Path:
        """Open a new attempt, which starts with the last one's checkpoint and metrics where there
        are any.

        The metrics are as the last attempt left them: whoever loads the checkpoint truncates them
        to its offset.
        """
        earlier, final = self._store.attempts(self.run_id), self._next()
        fresh = final.with_name(f".{final.name}.new")
        _remove(fresh)
        fresh.mkdir(parents=True)
        for name in CARRIED if earlier else ():
            if (earlier[-1] / name).exists():
                shutil.copy2(earlier[-1] / name, fresh / name)
        write_json(fresh / "config.json", config)
        write_json(fresh / "env.json", env)
        fresh.rename(final)
        for old in earlier:
            _remove(old)
        return final

    def finish(self, attempt: Path, result: dict[str, Any]) -> Path:
        """Write the result and give the attempt the run's name: from here on the run is done."""
        (attempt / "failure.json").unlink(missing_ok=True)
        write_json(attempt / "result.json", result)
        folder = self._store.folder(self.run_id)
        attempt.rename(folder)
        return folder

    def fail(self, attempt: Path, reason: str, log: str = "") -> None:
        """Record why this attempt ended without a result; the run stays open for another
        attempt.
        """
        write_json(attempt / "failure.json", {"reason": reason, "log": log})

    def release(self) -> None:
        """Give the lease back, if it is still this claim's."""
        if not self._stop.is_set():
            self._stop.set()
            # Where the store itself is gone there is nothing to give back.
            with contextlib.suppress(FileNotFoundError), locked(self._lock):
                if _read_lease(self._lease) == self._mine:
                    self._lease.unlink()
            # A store with thousands of runs in one process must not wait for the scheduler to end
            # thousands of threads.
            if self._heart.is_alive():
                self._heart.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _lease_path(store: RunStore, run_id: str) -> Path:
    folder = store.folder(run_id)
    return folder.with_name(f"{folder.name}.lease")


def _read_lease(path: Path) -> dict[str, Any] | None:
    """Who wrote the lease; one that is damaged is nobody's."""
    holder = read_mapping(path)
    whole = (
        holder is not None
        and {"host", "boot", "pid", "started"} <= holder.keys()
        and type(holder["pid"]) is int
    )
    return holder if whole else None


def _result(folder: Path) -> dict[str, Any] | None:
    """The valid result in the folder of a run or attempt, or None."""
    return read_mapping(folder / "result.json") or None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _identity(pid: int) -> dict[str, Any]:
    return {"host": socket.gethostname(), "boot": _boot_id(), "pid": pid, "started": started(pid)}


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


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
    """The time by the clock of the file system, which two hosts share; this host's own where
    nothing can be written.
    """
    probe = folder / f".clock.{os.getpid()}.{threading.get_ident()}"
    try:
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()
    except OSError:
        return time.time()
