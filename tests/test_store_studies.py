"""Study folders: finding them, and being the only one at work in one."""

from pathlib import Path

import pytest

from andrea.errors import UserError
from andrea.store.files import write_json
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder, find, studies


def make(store: RunStore, name: str, digest: str, created: str) -> StudyFolder:
    path = store.root / "studies" / f"{name}-{digest}"
    path.mkdir(parents=True)
    write_json(path / "study.json", {"name": name, "digest": digest, "created": created, "kind": "ablation"})
    return StudyFolder(path)


def test_the_bare_name_means_the_latest_and_the_full_name_means_itself(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    make(store, "norm", "aaa", "2026-01-02")
    make(store, "norm", "bbb", "2026-01-01")
    assert find(store, "norm").path.name == "norm-aaa"
    assert find(store, "norm-bbb").path.name == "norm-bbb"
    assert [s.path.name for s in studies(store)] == ["norm-bbb", "norm-aaa"]


def test_an_unknown_study_gets_a_hint(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with pytest.raises(UserError, match="none yet"):
        find(store, "norm")
    make(store, "norm-placement", "aaa", "2026-01-01")
    with pytest.raises(UserError, match="did you mean 'norm-placement'"):
        find(store, "norm-placment")


def test_a_second_controller_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    study = make(RunStore(tmp_path), "norm", "aaa", "2026-01-01")
    assert not study.live
    with study.held():
        assert study.live
        with pytest.raises(UserError, match="another command"), StudyFolder(study.path).held():
            pass
    assert not study.live


def test_planned_runs_keep_their_order(tmp_path: Path) -> None:
    study = make(RunStore(tmp_path), "norm", "aaa", "2026-01-01")
    for number in range(3):
        study.add_run({"run_id": str(number)})
    assert [run["run_id"] for run in study.runs()] == ["0", "1", "2"]
