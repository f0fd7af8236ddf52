"""Files of the store that somebody deleted, emptied or scribbled into: a line that names the file,
and no dead end.
"""

import threading
from pathlib import Path

import pytest
import stored

from andrea.errors import StudyError, warn
from andrea.records.run import RunSpec
from andrea.store.files import append_line, read_json, write_json
from andrea.store.runs import RunBusy, RunStore
from andrea.store.studies import PROJECTIONS, StudyFolder, find_study, list_studies

RUN = "ab" + "0" * 62
DAMAGES = ["", '{"loss": 2.', "[]", "null", "{}", b"\x00\xff\xfe"]


@pytest.fixture(autouse=True)
def _every_warning() -> None:
    warn.cache_clear()


@pytest.fixture
def runs(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


def finished(runs: RunStore) -> Path:
    with runs.claim(RUN) as claim:
        attempt = claim.attempt({}, {})
        (attempt / "checkpoint").write_bytes(b"weights")
        append_line(attempt / "metrics.jsonl", {"step": 1})
        return claim.finish(attempt, {"loss": 2.5})


def scribble(path: Path, content: str | bytes | None) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize("content", [None, *DAMAGES])
def test_a_run_that_lost_its_result_is_finished_again_from_its_checkpoint(
    runs: RunStore, content: str | bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished(runs)
    scribble(folder / "result.json", content)
    for _ in range(3):
        assert runs.load_result(RUN) is None
    assert capsys.readouterr().err.count("result.json: missing or damaged") == 1
    with runs.claim(RUN) as claim:
        assert not folder.exists()
        attempt = claim.attempt({}, {})
        assert (attempt / "checkpoint").read_bytes() == b"weights" and runs.metrics(RUN) == [
            {"step": 1}
        ]
        claim.finish(attempt, {"loss": 2.5})
    assert stored.result(runs, RUN) == {"loss": 2.5} and runs.attempts(RUN) == []


def test_an_attempt_that_could_not_become_the_run_does_now(runs: RunStore) -> None:
    """As a store looks in which a lost result blocked the rename."""
    folder = finished(runs)
    (folder / "result.json").unlink()
    attempt = folder.with_name(f"{RUN}.4")
    attempt.mkdir()
    write_json(attempt / "result.json", {"loss": 3.0})
    with runs.claim(RUN):
        pass
    assert stored.result(runs, RUN) == {"loss": 3.0} and runs.attempts(RUN) == []


@pytest.mark.parametrize(
    "content", [*DAMAGES, '{"host": "h"}', '{"host":"h","boot":"","started":"1","pid":"x"}']
)
def test_a_damaged_lease_is_nobodys(runs: RunStore, content: str | bytes) -> None:
    lease = runs.folder(RUN).with_name(f"{RUN}.lease")
    lease.parent.mkdir(parents=True)
    scribble(lease, content)
    assert runs.lease(RUN) is None
    with runs.claim(RUN), pytest.raises(RunBusy):
        runs.claim(RUN)
    assert not lease.exists()


def test_a_claim_clears_away_what_killed_ones_left_half_written(runs: RunStore) -> None:
    parent = finished(runs).parent
    (parent / f".{RUN}.lease.4711.partial").write_text("{")
    (parent / f".{RUN}.3.new").mkdir()
    with runs.claim(RUN):
        pass
    assert [path.name for path in parent.iterdir()] == [RUN]


@pytest.mark.slow
def test_no_heartbeat_outlives_its_claim(runs: RunStore) -> None:
    before = threading.active_count()
    for number in range(1000):
        with runs.claim(f"{number:064x}"):
            assert threading.active_count() == before + 1
        assert threading.active_count() == before


def test_a_damaged_file_is_named_with_what_is_wrong_and_what_helps(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": }')
    with pytest.raises(
        StudyError, match=r"a\.json: damaged, not JSON \(Expecting value.*\); delete it and"
    ):
        read_json(tmp_path / "a.json")


def test_damaged_metrics_are_skipped_with_one_warning_that_counts(
    runs: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished(runs) / "metrics.jsonl"
    with path.open("ab") as file:
        file.write(b'garbage\n[1]\n\xff\xfe\n{"step": 2}\n')
    for _ in range(2):
        assert runs.metrics(RUN) == [{"step": 1}, {"step": 2}]
    assert capsys.readouterr().err == f"warning: {path}: damaged lines skipped: 3\n"


def study(runs: RunStore, name: str = "norm") -> StudyFolder:
    folder = StudyFolder(runs.root / "studies" / f"{name}-aaa")
    folder.path.mkdir(parents=True)
    folder.write(
        "study.json", {"name": name, "digest": "aaa", "created": "2026-01-01", "kind": "ablation"}
    )
    return folder


@pytest.mark.parametrize("content", DAMAGES[:4] + DAMAGES[5:])
def test_a_damaged_projection_is_as_good_as_missing_and_the_rest_is_not(
    runs: RunStore, content: str | bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study(runs)
    for name in PROJECTIONS:
        scribble(folder.path / name, content)
        assert folder.read_json(name) is None
        assert f"{name}: damaged, treated as missing" in capsys.readouterr().err
    assert not folder.complete
    scribble(folder.path / "resolved.json", content)
    with pytest.raises(
        StudyError, match=r"resolved\.json: damaged.*delete .*norm-aaa and give the command again"
    ):
        folder.read_json("resolved.json")


def test_one_damaged_study_hides_no_other(
    runs: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = study(runs), study(runs, "other")
    scribble(bad.path / "study.json", "{")
    assert [found.path for found in list_studies(runs)] == [good.path]
    assert "other-aaa/study.json: damaged" in capsys.readouterr().err
    assert find_study(runs, "norm").path == good.path
    with pytest.raises(StudyError, match=r"study\.json: damaged"):
        _ = find_study(runs, "other-aaa").load_info()


@pytest.mark.parametrize("damage", [b"\xff rubbish", b'{"id": 2'])
def test_planned_runs_are_cut_before_a_damaged_line(
    runs: RunStore, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study(runs)
    for number in range(4):
        folder.add_run(RunSpec(run_id=str(number), arm="pre", phase="tune", why="grid", seed=1))
    path = folder.path / "runs.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"run_id": "2"', damage))
    assert [run.run_id for run in folder.load_runs()] == ["0", "1", "3"]
    folder.mend_runs()
    assert [run.run_id for run in folder.load_runs()] == ["0", "1"]
    assert "line 3 was damaged" in capsys.readouterr().err
    folder.mend_runs()
    assert capsys.readouterr().err == ""


def test_who_holds_a_study_clears_away_what_a_killed_controller_left_half_written(
    runs: RunStore,
) -> None:
    folder = study(runs)
    (folder.path / ".verdict.json.4711.partial").write_text("{")
    with folder.held():
        assert not list(folder.path.glob(".*"))
