"""Opening studies and runs by the names that people have for them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from analysis_store import Writer, finished

import andrea.analysis.load
from andrea.analysis.load import load, load_all, load_run
from andrea.analysis.tables import frames, judged
from andrea.errors import UserError, warn
from andrea.store.runs import RunStore

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Two arms, one replicate failed, in `andrea-runs` of some folder."""
    return finished(
        tmp_path_factory.mktemp("project") / "andrea-runs", fates={"post": {2: "failed"}}
    )


@pytest.fixture
def project(whole: Writer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, as the working one."""
    monkeypatch.chdir(whole.store.root.parent)
    return whole.store.root.parent


def test_a_study_is_opened_by_its_name_its_folders_name_or_its_folder(
    whole: Writer, project: Path
) -> None:
    path = whole.folder.path
    ways = [
        load("norm-placement"),
        load(path.name),
        load(path),
        load(str(path.relative_to(project))),
        load("norm-placement", "andrea-runs"),
        load(path, whole.store),
        load(whole.folder),
        andrea.analysis.load("norm-placement"),
    ]
    assert {study.path.resolve() for study in ways} == {path.resolve()}
    assert all(len(study.runs) == 24 for study in ways)


def test_a_study_that_there_is_not_is_told_with_the_nearest(whole: Writer, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no study 'norm-placment' in .*; did you mean 'norm-placement'"
    ):
        load("norm-placment", whole.store)
    with pytest.raises(UserError, match=r"no study 'x' in .*there are none"):
        load("x", tmp_path)
    assert not list(tmp_path.iterdir()), "looking makes nothing"


def test_all_studies_of_a_store_and_one_that_is_damaged_hides_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warn.cache_clear()
    writers = [Writer(tmp_path, name=name) for name in ("one", "two", "three")]
    (writers[1].folder.path / "protocol.yaml").write_text("[")
    assert [study.name for study in load_all(tmp_path)] == ["one", "three"]
    assert "two-0123456789/protocol.yaml: cannot be read" in capsys.readouterr().err
    assert load_all(RunStore(tmp_path / "none", create=False)) == []


def test_a_run_is_opened_by_the_beginning_of_its_id(whole: Writer) -> None:
    study = load(whole.folder, whole.store)
    row = study.runs.iloc[-1]
    view = load_run(whole.store, row["run_id"][:8].upper())
    assert view.run_id == row["run_id"] and view.path == whole.store.folder(view.run_id)
    assert view.result == whole.store.load_result(view.run_id) and view.env.git.dirty is True
    assert view.config == {"train": {"lr": row["lr"]}} and view.identity == {"arm": row["arm"]}
    assert view.planned == [(whole.folder.path.name, whole.folder.load_runs()[-1])]
    assert view.row["outcome"] == "completed" and view.row["loss"] == row["loss"]
    for name in ("curves", "layers", "documents"):
        of_study = getattr(study, name)
        mine = of_study[of_study["run_id"] == view.run_id].reset_index(drop=True)
        pd.testing.assert_frame_equal(getattr(view, name), mine)
    assert not (whole.store.root / "cache" / f"run-{view.run_id}").exists()


def test_a_run_without_a_result_and_one_of_no_study_are_opened_too(
    whole: Writer, tmp_path: Path
) -> None:
    failed = load(whole.folder, whole.store).runs.query("outcome == 'failed'")["run_id"].iloc[0]
    view = load_run(whole.store, failed)
    assert view.result is None and view.path.name == f"{failed}.1"
    assert (
        view.row["outcome"] == "failed"
        and "out of memory" in view.row["reason"]
        and view.curves.empty
    )
    writer = Writer(tmp_path)
    run = {"arm": "pre", "phase": "tune", "lr": 0.001, "seed": 1, "run_id": "ab" * 32}
    writer.train(run, 2.5)
    alone = load_run(writer.store, "ababab")
    assert alone.planned == [] and alone.row["arm"] == "run" and alone.row["lr"] == 0.001
    assert len(alone.curves) == 111 and set(alone.curves["phase"]) == {"train"}


def test_a_prefix_that_names_no_run_or_several_is_refused(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for run_id in ("abcdef" + "0" * 58, "abcdef" + "1" * 58):
        store.folder(run_id).mkdir(parents=True)
    store.folder("abcdef" + "1" * 58).with_name("abcdef" + "1" * 58 + ".log").write_text("")
    with pytest.raises(
        UserError,
        match=r"'abcdef': 2 runs begin so \(abcdef0000000000, abcdef1111111111\); give more",
    ):
        load_run(store, "abcdef")
    with pytest.raises(UserError, match=r"begins with 'abcdee'; did you mean 'abcdef'\?"):
        load_run(store, "abcdee")
    with pytest.raises(UserError, match=r"begins with '123456'; a study's report lists"):
        load_run(store, "123456")
    for bad in ("abcde", "", "../../etc", "abcdeg", "a" * 65):
        with pytest.raises(
            UserError, match=f"run {re.escape(repr(bad))}: no run id; give the first 6"
        ):
            load_run(store, bad)
    assert load_run(store, "abcdef0").result is None


def test_the_examples_of_the_documentation_run(project: Path, tmp_path: Path) -> None:
    section = (
        (DOCS / "reports.md")
        .read_text(encoding="utf-8")
        .partition("## Reading results in pandas")[2]
    )
    section = section.partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/reports.md", "exec"), names)
    assert {"study", "run"} <= names.keys()
    for columns in (
        frames.RUNS,
        frames.CURVES,
        frames.LAYERS,
        frames.DOCUMENTS,
        judged.DIFFERENCES,
    ):
        assert any(f"`{name}`" in section for name in columns)


SCALE = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import report_scale
from andrea.analysis.load import load
report_scale.generate(Path(sys.argv[2]), int(sys.argv[3]), 300)
import pyarrow.parquet, pandas
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
study = load("scale", sys.argv[2])
rows = len(study.part("curves", ["arm", "tokens", "loss"], phase="replicate", kind="eval"))
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_not_asked_for(tmp_path: Path) -> None:
    """Building the cache of 400 runs takes no more than that of 100, but for the rows that were
    asked for.
    """
    peaks = {}
    for runs in (100, 400):
        command = [
            sys.executable,
            "-c",
            SCALE,
            str(DOCS.parent / "benchmarks"),
            str(tmp_path / str(runs)),
            str(runs),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        )
        rows, peaks[runs] = int(answer.stdout.split()[0]), float(answer.stdout.split()[1])
        assert rows == runs * 4 // 5 * 30
    assert peaks[400] < peaks[100] + 20, "MB: the 90,000 records more would be a hundred"
