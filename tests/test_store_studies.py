"""Study folders: finding them, and being the only one at work in one."""

import subprocess
import sys
from pathlib import Path

import pytest

from andrea.errors import StudyError, UserError
from andrea.records.run import RunSpec
from andrea.store.files import write_json
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder, find_study, list_studies


def make(store: RunStore, name: str, digest: str, created: str) -> StudyFolder:
    path = store.root / "studies" / f"{name}-{digest}"
    path.mkdir(parents=True)
    write_json(
        path / "study.json",
        {"name": name, "digest": digest, "created": created, "kind": "ablation"},
    )
    return StudyFolder(path)


def test_the_bare_name_means_the_latest_and_the_full_name_means_itself(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    make(store, "norm", "aaa", "2026-01-02")
    make(store, "norm", "bbb", "2026-01-01")
    assert find_study(store, "norm").path.name == "norm-aaa"
    assert find_study(store, "norm-bbb").path.name == "norm-bbb"
    assert [s.path.name for s in list_studies(store)] == ["norm-bbb", "norm-aaa"]


def test_an_unknown_study_gets_a_hint(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with pytest.raises(UserError, match="there are none"):
        find_study(store, "norm")
    make(store, "norm-placement", "aaa", "2026-01-01")
    with pytest.raises(UserError, match="did you mean 'norm-placement'"):
        find_study(store, "norm-placment")


def test_a_second_controller_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    study = make(RunStore(tmp_path), "norm", "aaa", "2026-01-01")
    assert not study.live
    with study.held():
        assert study.live
        with pytest.raises(UserError, match="another command"), StudyFolder(study.path).held():
            pass
    assert not study.live


@pytest.mark.slow
def test_a_status_that_polls_never_refuses_a_study(tmp_path: Path) -> None:
    study = make(RunStore(tmp_path), "norm", "aaa", "2026-01-01")
    code = (
        "import sys; from pathlib import Path; from andrea.store.studies import StudyFolder\n"
        "study = StudyFolder(Path(sys.argv[1])); print('looking', flush=True)\n"
        "while True: study.live"
    )
    with study.held():
        pass
    lookers = [
        subprocess.Popen([sys.executable, "-c", code, str(study.path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for looker in lookers:
            assert looker.stdout is not None and looker.stdout.readline() == b"looking\n"
        for _ in range(300):
            with study.held():
                assert study.live
                with (
                    pytest.raises(UserError, match="another command"),
                    StudyFolder(study.path).held(),
                ):
                    pass
    finally:
        for looker in lookers:
            looker.kill()
            looker.communicate()
    assert not study.live


def test_to_look_at_a_study_writes_nothing(tmp_path: Path) -> None:
    study = make(RunStore(tmp_path), "norm", "aaa", "2026-01-01")
    assert not study.live
    assert [path.name for path in study.path.iterdir()] == ["study.json"]


@pytest.mark.parametrize("content", [None, "", "[1]", "a: [", "\ud800"])
def test_a_study_without_its_protocol_is_no_study(tmp_path: Path, content: str | None) -> None:
    study = make(RunStore(tmp_path), "norm", "aaa", "2026-01-01")
    if content is not None:
        (study.path / "protocol.yaml").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(StudyError, match=r"(?s)protocol\.yaml: .*the study has lost what it asked"):
        study.load_question()


def test_planned_runs_keep_their_order(tmp_path: Path) -> None:
    study = make(RunStore(tmp_path), "norm", "aaa", "2026-01-01")
    for number in range(3):
        spec = RunSpec(run_id=str(number), arm="pre", phase="tune", why="grid", seed=1)
        study.add_run(spec)
    assert [run.run_id for run in study.load_runs()] == ["0", "1", "2"]
