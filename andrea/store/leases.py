"""Leases: which process trains a run, and whether it still lives.

A lease is a JSON file beside the run's folder. Its holder touches it every few seconds. On one
machine the process itself is looked for; a holder on another machine lives as long as its lease is
touched.
"""

import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from andrea.store.files import read_mapping, write_json
from andrea.store.processes import start_time

HEARTBEAT_S = 10.0
STALE_S = 120.0


@dataclass(frozen=True)
class Lease:
    """The process that trains a run."""

    host: str
    boot: str
    """Identifies the running system: after a restart pids begin anew. Empty where it is unknown."""
    pid: int
    started: str | None
    """Start time of the process, so that a reused pid is not taken for its predecessor."""
    claim: str = ""
    """A random number of its own for every claim."""

    @classmethod
    def of_process(cls, pid: int, claim: str = "") -> Self:
        """Return the lease that a process of this machine would write."""
        return cls(socket.gethostname(), _boot_id(), pid, start_time(pid), claim)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the lease in a file; None where there is none, or a damaged one."""
        values = read_mapping(path) or {}
        try:
            pid = values["pid"]
            claim = values.get("claim", "")
            lease = cls(values["host"], values["boot"], pid, values["started"], claim)
        except KeyError:
            return None
        return lease if type(pid) is int else None

    def write(self, path: Path) -> None:
        """Write the lease, in place of an older one."""
        write_json(path, asdict(self))

    def is_live(self, path: Path) -> bool:
        """Return whether the holder still lives, where the lease was read from `path`."""
        here = Lease.of_process(self.pid)
        if self.host == here.host:
            if self.boot != here.boot:
                return False
            if self.boot:
                return self.started is not None and self.started == here.started
        try:
            age = _file_system_time(path.parent) - path.stat().st_mtime
        except FileNotFoundError:
            return False
        return age < STALE_S


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _file_system_time(folder: Path) -> float:
    """Return the time by the clock of the file system, which two hosts share; this host's own where
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
