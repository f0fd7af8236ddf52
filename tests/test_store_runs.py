"""The run store: what a kill, a second process or a newer version may find there."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import stored
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENT_S, wait_until

from andrea.errors import UserError
from andrea.store import leases
from andrea.store.digest import canonical_json, digest
from andrea.store.files import (
    append_line,
    cut_torn_line,
    locked,
    read_json,
    read_lines,
    write_atomic,
)
from andrea.store.runs import FORMAT, Claim, RunBusy, RunStore

RUN = "ab" + "0" * 62
CONFIG = {"config": {"seed": 1}}


@pytest.fixture
def runs(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


def test_a_run_is_an_attempt_until_one_rename_makes_it_done(runs: RunStore) -> None:
    with runs.claim(RUN) as claim:
        attempt = claim.attempt(CONFIG, {})
        assert attempt.name == f"{RUN}.1" and runs.load_result(RUN) is None
        claim.finish(attempt, {"loss": 2.5})
    assert stored.result(runs, RUN) == {"loss": 2.5}
    assert runs.attempts(RUN) == [] and runs.current(RUN) == runs.folder(RUN)
    assert stored.config(runs, RUN) == CONFIG and runs.lease(RUN) is None


def test_the_next_attempt_starts_from_the_last_ones_checkpoint_and_metrics(runs: RunStore) -> None:
    with runs.claim(RUN) as claim:
        first = claim.attempt(CONFIG, {})
        (first / "checkpoint").write_bytes(b"weights")
        append_line(first / "metrics.jsonl", {"step": 1})
    with runs.claim(RUN) as claim:
        second = claim.attempt(CONFIG, {})
    assert second.name == f"{RUN}.2" and (second / "checkpoint").read_bytes() == b"weights"
    assert runs.metrics(RUN) == [{"step": 1}] and runs.attempts(RUN) == [second]


def test_a_failed_attempt_is_never_a_result_and_the_run_stays_open(runs: RunStore) -> None:
    with runs.claim(RUN) as claim:
        claim.fail(claim.attempt(CONFIG, {}), "out of memory", "log")
    assert runs.load_result(RUN) is None
    assert stored.failure(runs, RUN) == {"reason": "out of memory", "log": "log"}
    with runs.claim(RUN) as claim:
        claim.finish(claim.attempt(CONFIG, {}), {"loss": 1.0})
    assert runs.load_failure(RUN) is None and stored.result(runs, RUN) == {"loss": 1.0}


def test_a_kill_between_the_result_and_the_rename_loses_nothing(runs: RunStore) -> None:
    with runs.claim(RUN) as claim:
        attempt = claim.attempt(CONFIG, {})
        (attempt / "result.json").write_text('{"loss": 3.0}')
    with runs.claim(RUN):
        pass
    assert stored.result(runs, RUN) == {"loss": 3.0}


def test_two_live_processes_cannot_hold_one_run(runs: RunStore) -> None:
    with runs.claim(RUN), pytest.raises(RunBusy, match=str(os.getpid())):
        runs.claim(RUN)


def test_the_lease_of_a_killed_process_is_nobodys(runs: RunStore) -> None:
    code = (
        "import sys; from pathlib import Path; from andrea.store.runs import RunStore\n"
        f"RunStore(Path(sys.argv[1])).claim('{RUN}'); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(runs.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    lease = runs.lease(RUN)
    assert lease is not None and lease.pid == holder.pid
    with pytest.raises(RunBusy):
        runs.claim(RUN)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert runs.lease(RUN) is None
    runs.claim(RUN).release()


def test_a_reused_pid_is_not_taken_for_its_predecessor(runs: RunStore) -> None:
    claim = runs.claim(RUN)
    lease = runs.folder(RUN).with_name(f"{RUN}.lease")
    lease.write_text(json.dumps({**json.loads(lease.read_text()), "started": "1"}))
    assert runs.lease(RUN) is None
    claim.release()


def test_a_lease_of_another_host_lives_as_long_as_its_heartbeat(runs: RunStore) -> None:
    claim = runs.claim(RUN)
    lease = runs.folder(RUN).with_name(f"{RUN}.lease")
    lease.write_text(json.dumps({"host": "elsewhere", "boot": "x", "pid": 1, "started": "1"}))
    assert runs.lease(RUN) is not None
    os.utime(lease, (0, 0))
    assert runs.lease(RUN) is None
    claim.release()


def test_a_holder_that_was_taken_for_dead_neither_refreshes_nor_releases_the_new_lease(
    runs: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.01)
    first = runs.claim(RUN)
    lease = runs.folder(RUN).with_name(f"{RUN}.lease")
    theirs = json.dumps({"host": "elsewhere", "boot": "x", "pid": 1, "started": "1"})
    with locked(runs.root / "leases.lock"):
        lease.write_text(theirs)
        os.utime(lease, (1, 1))
    beats = [thread for thread in threading.enumerate() if thread.name == f"lease-{RUN[:6]}"]
    for thread in beats:
        thread.join(PATIENT_S)
    assert not any(thread.is_alive() for thread in beats)
    first.release()
    assert lease.read_text() == theirs and lease.stat().st_mtime == 1


def test_a_held_lease_is_refreshed(runs: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.01)
    lease = runs.folder(RUN).with_name(f"{RUN}.lease")
    with runs.claim(RUN):
        os.utime(lease, (1, 1))
        wait_until(lambda: lease.stat().st_mtime != 1)
    assert not lease.exists()


def test_a_claim_that_cannot_recover_gives_its_lease_back(
    runs: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Claim, "_recover", broken)
        with pytest.raises(OSError, match="gone"):
            runs.claim(RUN)
    assert runs.lease(RUN) is None
    runs.claim(RUN).release()


def test_looking_at_a_lease_writes_nothing_here_and_needs_no_writing_elsewhere(
    runs: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "touch", read_only)
    lease = runs.folder(RUN).with_name(f"{RUN}.lease")
    claim = runs.claim(RUN)
    assert runs.lease(RUN) is not None  # of this host: the process is asked, no clock
    lease.write_text(json.dumps({"host": "elsewhere", "boot": "x", "pid": 1, "started": "1"}))
    assert runs.lease(RUN) is not None
    os.utime(lease, (1, 1))
    assert runs.lease(RUN) is None
    claim.release()


def test_a_store_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    RunStore(root)
    (root / "store.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(UserError, match="newer andrea"):
        RunStore(root)
    assert read_json(root / "store.json") == {"format": FORMAT + 1}


@pytest.mark.parametrize(
    "content", ["{}", "[]", '"x"', "null", '{"format": "1"}', "not JSON", b"\xff"]
)
def test_a_damaged_store_is_named_and_left_alone(tmp_path: Path, content: str | bytes) -> None:
    marker = tmp_path / "store.json"
    marker.write_bytes(content.encode() if isinstance(content, str) else content)
    before = marker.read_bytes()
    for create in (True, False):
        with pytest.raises(UserError, match=r"store\.json is damaged"):
            RunStore(tmp_path, create=create)
    assert marker.read_bytes() == before


def test_a_store_too_old_to_be_read_is_a_line_and_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text(json.dumps({"format": FORMAT - 1}))
    with pytest.raises(
        UserError, match=f"of format {FORMAT - 1}, which this andrea .* no longer reads"
    ):
        RunStore(tmp_path)


@pytest.mark.parametrize("root", ["file", "file/below", "/proc/andrea-runs"])
def test_a_runs_folder_that_cannot_be_is_one_line(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used as a runs folder"):
        RunStore(tmp_path / root)


def test_looking_at_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    RunStore(tmp_path / "runs", create=False)
    assert not (tmp_path / "runs").exists()


@given(st.binary(max_size=40).filter(lambda tail: b"\n" not in tail))
def test_a_torn_last_line_is_dropped_and_then_overwritten(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    append_line(path, {"step": 1})
    with path.open("ab") as file:
        file.write(tail)
    assert read_lines(path) == [{"step": 1}]
    append_line(path, {"step": 2})
    assert read_lines(path) == [{"step": 1}, {"step": 2}]


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"{}\n" + b"x" * 10_000)
    assert cut_torn_line(path) == 3 and path.read_bytes() == b"{}\n"
    path.write_bytes(b"x" * 10_000)
    assert cut_torn_line(path) == 0


def test_an_atomic_write_that_fails_leaves_the_old_content_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_lock_is_free_again_when_its_holder_is_done(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock"),
        pytest.raises(BlockingIOError),
        locked(tmp_path / "lock", wait=False),
    ):
        pass
    with locked(tmp_path / "lock", wait=False):
        pass


@given(
    st.dictionaries(
        st.text(), st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)
    )
)
def test_the_digest_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    assert digest(value) == digest(dict(reversed(value.items())))
    assert json.loads(canonical_json(value)) == value


def test_nan_has_no_digest() -> None:
    with pytest.raises(ValueError):
        digest({"loss": float("nan")})
