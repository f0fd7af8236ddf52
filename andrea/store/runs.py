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
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from andrea.errors import AndreaError, UserError, warn
from andrea.records.base import Record
from andrea.records.run import Environment, Failure, MetricRecord, RunResult, RunSettings
from andrea.store import leases
from andrea.store.files import locked, read_lines, read_mapping, write_json
from andrea.store.leases import Lease

FORMAT = 1
CARRIED = ("checkpoint", "metrics.jsonl", "log.txt")
"""Files that a new attempt takes over from the last one."""
RecordT = TypeVar("RecordT", bound=Record)


class RunBusy(AndreaError):
    """Another live process holds the lease of this run."""


class RunStore:
    """The runs under one root folder.

    Raises:
        UserError: the root is a file, cannot be written, is damaged, or is of a format that this
            andrea does not know.
    """

    def __init__(self, root: Path, *, create: bool = True) -> None:
        self.root = root.absolute()
        self.marker = self.root / "store.json"
        self.created = False
        """True if this object made the store."""
        try:
            if self._is_marked() or not create:
                return
            self.root.mkdir(parents=True, exist_ok=True)
            write_json(self.marker, {"format": FORMAT})
            self.created = True
        except OSError as error:
            raise UserError(
                f"--runs {root}: cannot be used as a runs folder ({error.strerror or error}); "
                "name a folder that can be written"
            ) from error

    def _is_marked(self) -> bool:
        """Return whether there is a store here, of the format that is read.

        Raises:
            UserError: it is damaged, or of another format.
        """
        try:
            number = json.loads(self.marker.read_text(encoding="utf-8"))["format"]
        except FileNotFoundError:
            return False
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
        if number < FORMAT:
            raise UserError(
                f"--runs {self.root}: of format {number}, which this andrea (format {FORMAT}) no "
                "longer reads; open it with an older andrea or name another folder"
            )
        return True

    def folder(self, run_id: str) -> Path:
        """Return the folder of the run once it is finished."""
        return self.root / "runs" / run_id[:2] / run_id

    def ids(self, prefix: str = "") -> list[str]:
        """Return the ids of all runs that have a folder, finished or not, sorted.

        Args:
            prefix: only of those whose id begins so.
        """
        folders = (path for path in self.root.glob("runs/??/[!.]*") if path.is_dir())
        ids = {path.name.partition(".")[0] for path in folders}
        return sorted(run_id for run_id in ids if run_id.startswith(prefix))

    def attempts(self, run_id: str) -> list[Path]:
        """Return the folders of unfinished attempts, oldest first."""
        candidates = self.folder(run_id).parent.glob(f"{run_id}.*")
        attempts = [path for path in candidates if path.suffix[1:].isdigit() and path.is_dir()]
        return sorted(attempts, key=lambda path: int(path.suffix[1:]))

    def current(self, run_id: str) -> Path | None:
        """The finished run's folder, else its latest attempt's, else None."""
        folder = self.folder(run_id)
        if folder.is_dir():
            return folder
        attempts = self.attempts(run_id)
        return attempts[-1] if attempts else None

    def log(self, run_id: str) -> Path:
        """Return the file to which the workers of an unfinished run print."""
        return self.folder(run_id).with_name(f"{run_id}.log")

    def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """Return the records written so far, oldest first, without damaged and torn lines."""
        current = self.current(run_id)
        return read_lines(current / "metrics.jsonl") if current else []

    def load_metrics(self, run_id: str) -> list[MetricRecord]:
        """Return the records written so far, oldest first, without damaged and torn lines."""
        where = f"metrics.jsonl of run {run_id[:12]}"
        records = (MetricRecord.from_json(line, where) for line in self.metrics(run_id))
        return [record for record in records if record is not None]

    def load_result(self, run_id: str) -> RunResult | None:
        """Return the result of a finished run, or None.

        A run whose result is lost or damaged is not finished: there is a warning.
        """
        folder = self.folder(run_id)
        path = folder / "result.json"
        values = _read_result(folder)
        if values is None and folder.is_dir():
            # Read again: it may have been finished between the two looks.
            values = _read_result(folder)
            if values is None:
                warn(
                    f"{path}: missing or damaged; the next command that needs this run finishes it"
                )
        return RunResult.from_json(values, path)

    def load_failure(self, run_id: str) -> Failure | None:
        """Return why the latest attempt failed; None when it did not fail or the run is done."""
        return self._load(Failure, run_id, "failure.json")

    def load_settings(self, run_id: str) -> RunSettings | None:
        """Return the configuration of a run that was begun, with the identity its id digests."""
        return self._load(RunSettings, run_id, "config.json")

    def load_environment(self, run_id: str) -> Environment | None:
        """Return the versions, git state and device that trained a run."""
        return self._load(Environment, run_id, "env.json")

    def _load(self, record: type[RecordT], run_id: str, name: str) -> RecordT | None:
        current = self.current(run_id)
        if current is None:
            return None
        return record.from_json(read_mapping(current / name), current / name)

    def lease_path(self, run_id: str) -> Path:
        """Return the file that says who trains a run."""
        return self.folder(run_id).with_name(f"{run_id}.lease")

    def lease(self, run_id: str) -> Lease | None:
        """Return who trains the run now; None where nobody does, or the holder is dead."""
        path = self.lease_path(run_id)
        holder = Lease.read(path)
        return holder if holder and holder.is_live(path) else None

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
        self._path = store.lease_path(run_id)
        self._lock = store.root / "leases.lock"
        self._mine = Lease.of_process(os.getpid(), os.urandom(8).hex())
        self._stop = threading.Event()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # One lock for all leases: reading a holder and replacing, refreshing or releasing it is one
        # step.
        with locked(self._lock):
            holder = store.lease(run_id)
            if holder:
                raise RunBusy(
                    f"run {run_id[:12]} is being trained by process {holder.pid} on {holder.host}"
                )
            self._mine.write(self._path)
        self._heart = threading.Thread(
            target=self._keep_alive, daemon=True, name=f"lease-{run_id[:6]}"
        )
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
        for leftover in folder.parent.glob(f".{self.run_id}.*"):
            _remove(leftover)
        if folder.is_dir() and _read_result(folder) is None:
            folder.rename(self._next_attempt())
        for attempt in self._store.attempts(self.run_id):
            if _read_result(attempt) and not folder.exists():
                attempt.rename(folder)
            elif folder.exists():
                _remove(attempt)

    def _next_attempt(self) -> Path:
        """Return the folder of the next attempt."""
        earlier = self._store.attempts(self.run_id)
        number = int(earlier[-1].suffix[1:]) + 1 if earlier else 1
        return self._store.folder(self.run_id).with_name(f"{self.run_id}.{number}")

    def _keep_alive(self) -> None:
        """Touch the lease now and then, until it is given back or another process has taken it."""
        while not self._stop.wait(leases.HEARTBEAT_S):
            with contextlib.suppress(OSError), locked(self._lock):
                if Lease.read(self._path) != self._mine:
                    return
                os.utime(self._path)

    def attempt(self, config: dict[str, Any], env: dict[str, Any]) -> Path:
        """Open a new attempt, which starts with the last one's checkpoint and metrics where there
        are any.

        The metrics are as the last attempt left them: whoever loads the checkpoint truncates them
        to its offset.
        """
        earlier, final = self._store.attempts(self.run_id), self._next_attempt()
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
                if Lease.read(self._path) == self._mine:
                    self._path.unlink()
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


def _read_result(folder: Path) -> dict[str, Any] | None:
    """Return the valid result in the folder of a run or attempt, or None."""
    return read_mapping(folder / "result.json") or None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
