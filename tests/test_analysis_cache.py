"""The columnar cache: the same tables with and without it, never stale, never in the way."""

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import stored
from analysis_store import Writer, finished, swept
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from waiting import PATIENT_S

from andrea.analysis.load import Study, load
from andrea.analysis.tables import cache, column_file, parsing
from andrea.errors import UserError, warn
from andrea.records.run import RunSpec
from andrea.store.files import write_json

TABLES = ("runs", "curves", "layers", "documents")


@pytest.fixture(autouse=True)
def _every_warning() -> None:
    warn.cache_clear()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Two arms; one replicate diverged, one stalled, one failed, one is missing."""
    fates = {"post": {0: "diverged", 1: "stalled", 2: "failed", 3: "missing"}}
    return finished(tmp_path_factory.mktemp("whole"), fates=fates)


@pytest.fixture
def copy(whole: Writer, tmp_path: Path) -> Writer:
    """The same study in a store of its own, without a cache."""
    shutil.copytree(whole.store.root, tmp_path / "runs", ignore=shutil.ignore_patterns("cache"))
    return writer_at(whole, tmp_path / "runs")


def writer_at(writer: Writer, root: Path) -> Writer:
    other = object.__new__(Writer)
    other.__dict__ |= writer.__dict__
    other.store = type(writer.store)(root)
    other.folder = type(writer.folder)(root / "studies" / writer.folder.path.name)
    return other


def read(writer: Writer) -> Study:
    return load(writer.folder, writer.store)


def logged(writer: Writer) -> pd.DataFrame:
    """The curves as the lines of metrics.jsonl say them, in the order of the plan."""
    rows = []
    for plan in {
        (run["arm"], run["phase"], run["run_id"]): run for run in stored.planned(writer.folder)
    }.values():
        for record in writer.store.metrics(plan["run_id"]):
            if record["kind"] in ("train", "eval"):
                told = {
                    key: record.get(key)
                    for key in ("kind", "step", "tokens", "loss", "bpb", "grad_norm")
                }
                rows.append(
                    {key: plan[key] for key in ("arm", "phase", "seed", "lr", "run_id")} | told
                )
    return pd.DataFrame(rows)


def files_of(writer: Writer) -> set[Path]:
    return set((writer.store.root / "cache").rglob("*.parquet"))


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The metrics.jsonl of finished runs that are read from now on."""
    seen: list[Path] = []
    real = parsing.parse_metrics

    def look(path: Path) -> object:
        if path.exists() and (path.parent / "result.json").exists():
            seen.append(path)
        return real(path)

    monkeypatch.setattr(parsing, "parse_metrics", look)
    return seen


def same(one: Study, other: Study) -> None:
    for table in TABLES:
        assert_frame_equal(getattr(one, table), getattr(other, table))
    assert one.environments == other.environments


@pytest.mark.parametrize("make", [finished, swept])
def test_the_cache_gives_the_tables_that_the_runs_files_give(
    make: Callable[[Path], Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make(tmp_path)
    built = read(writer)
    for table in TABLES:
        getattr(built, table)  # tables are read, and their files written, when first asked for
    expected = logged(writer)
    told = built.curves[list(expected.columns)]
    assert told.astype(expected.dtypes.to_dict()).equals(expected), "bit for bit what the lines say"
    seen = watched(monkeypatch)
    same(built, read(writer))
    assert not seen, "the second time no line is read"
    for path in files_of(writer):
        file = column_file.ColumnFile.open(path)
        assert file is not None and all(rows.sound for rows in file._runs.values())
    shutil.rmtree(writer.store.root / "cache")
    monkeypatch.setattr(column_file, "GROUP_ROWS", 300)
    same(built, read(writer))
    same(built, read(writer))
    direct = read(writer)
    direct.logs.cached = False
    same(built, direct)


def test_a_part_is_the_whole_filtered(whole: Writer) -> None:
    study = read(whole)
    every = study.curves
    part = study.part("curves", ["arm", "tokens", "loss"], phase="replicate", kind="eval")
    expected = every[(every["phase"] == "replicate") & (every["kind"] == "eval")][
        ["arm", "tokens", "loss"]
    ]
    assert_frame_equal(part, expected.reset_index(drop=True))
    some = every["run_id"].unique()[[5, 2]]
    assert set(study.part("curves", ["run_id"], run_id=some)["run_id"]) == set(some)
    seed = every["seed"].iloc[0]  # numpy's, as a table gives it
    assert (
        len(study.part("curves", seed=seed, arm=["post"]))
        == ((every["seed"] == seed) & (every["arm"] == "post")).sum()
    )
    layers = study.part("layers", quantity=["attn_rms", "mlp_rms"])
    assert set(layers["quantity"]) == {"attn_rms", "mlp_rms"}
    assert study.part("documents", document="speech-1")["document"].eq("speech-1").all()
    assert study.part("curves", arm="nobody").columns.tolist() == every.columns.tolist()
    assert study.part("curves", arm="nobody").dtypes.equals(every.dtypes), (
        "an empty part has the same kinds of columns"
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("curve",), "no table is called 'curve'; did you mean 'curves'"),
        (("curves", ["los"]), "no column of curves is called 'los'; did you mean 'loss'"),
    ],
)
def test_a_part_that_there_is_not_is_told_with_the_nearest(
    whole: Writer, asked: tuple[object, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(whole).part(*asked)
    with pytest.raises(UserError, match="no column of curves is called 'quantity'"):
        read(whole).part("curves", quantity="attn_rms")


def test_columns_of_whole_runs_are_the_same_for_a_run_that_stands_in_the_plan_twice(
    copy: Writer,
) -> None:
    plan = next(run for run in stored.planned(copy.folder) if run["phase"] == "replicate")
    moved = plan | {"phase": "budget", "why": "equal flops"}
    copy.folder.add_run(RunSpec.model_validate(moved))
    curves = read(copy).curves
    twice = curves[curves["run_id"] == plan["run_id"]]
    assert twice["phase"].value_counts().to_dict() == {"replicate": 111, "budget": 111}
    one, other = (
        twice[twice["phase"] == phase]["loss"].tolist() for phase in ("replicate", "budget")
    )
    assert one == other


def test_only_a_changed_run_is_parsed_again(copy: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_file, "GROUP_ROWS", 300)
    before = read(copy).curves
    files = files_of(copy)
    run_id = stored.planned(copy.folder)[5]["run_id"]
    path = copy.store.folder(run_id) / "metrics.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[7]) | {"loss": 1.25}
    path.write_text("\n".join([*lines[:7], json.dumps(record), *lines[8:]]) + "\n")
    seen = watched(monkeypatch)
    after = read(copy).curves
    assert seen == [path], "the rows of all others are copied"
    changed = before["loss"].compare(after["loss"])
    assert changed["other"].tolist() == [1.25]
    assert files_of(copy) == files
    same(read(copy), read(copy))


def test_a_run_that_is_added_costs_itself_alone(
    copy: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_file, "GROUP_ROWS", 300)
    study = read(copy)
    assert len(study.curves)
    missing = study.runs[study.runs["outcome"] == "missing"]["run_id"].iloc[0]
    plan = next(run for run in stored.planned(copy.folder) if run["run_id"] == missing)
    copy.train(plan, 2.6)
    seen = watched(monkeypatch)
    grown = read(copy)
    expected = logged(copy)
    told = grown.curves[list(expected.columns)]
    assert seen == [copy.store.folder(missing) / "metrics.jsonl"]
    assert told.astype(expected.dtypes.to_dict()).equals(expected)
    shutil.rmtree(copy.store.root / "cache")
    same(grown, read(copy))


def test_a_run_that_finishes_is_in_the_tables_at_once(copy: Writer) -> None:
    study = read(copy)
    assert len(study.runs) == 24 and study.runs["outcome"].isin(["failed", "missing"]).sum() == 2
    missing = study.runs[study.runs["outcome"] == "missing"]["run_id"].iloc[0]
    plan = next(run for run in stored.planned(copy.folder) if run["run_id"] == missing)
    rows = len(study.curves)
    copy.train(plan, 2.6)
    again = read(copy)
    assert (again.runs["outcome"] == "missing").sum() == 0 and len(again.curves) == rows + 111
    assert len(study.curves) == rows, "what was loaded before stays as it was"


def test_a_run_on_its_way_is_read_anew_every_time_and_not_cached(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    run = writer.plan("pre", "tune", "grid", 0.001, 1)
    with writer.store.claim(run["run_id"]) as claim:
        attempt = claim.attempt({}, {})
        for rows in (1, 2):
            with (attempt / "metrics.jsonl").open("a") as file:
                file.write('{"kind": "eval", "step": 0, "tokens": 0, "loss": 5.5}\n')
            assert len(read(writer).curves) == rows
    assert not files_of(writer)


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
def test_a_cache_file_that_is_damaged_or_gone_is_made_again(
    copy: Writer, content: bytes | None
) -> None:
    built = read(copy)
    assert len(built.curves) and len(built.documents)
    for path in files_of(copy):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    same(built, read(copy))
    assert all(path.stat().st_size > 4 for path in files_of(copy))


def test_no_byte_of_a_cache_file_can_change_a_number_unseen(tmp_path: Path) -> None:
    writer = Writer(tmp_path, arms=("pre",))
    writer.points = {"evals": 4, "logs": 8}
    for seed in range(3):
        writer.train(writer.plan("pre", "replicate", "replicate", 0.001, seed), 2.5)
    built = read(writer)
    assert len(built.curves) == 39
    path = next(path for path in files_of(writer) if path.name == "curves.parquet")
    good = path.read_bytes()
    damaged = [good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :] for at in range(len(good))]
    assert column_file.ColumnFile.open(path) is not None
    for content in [*damaged, b"", good[:-1], good[4:]]:
        path.write_bytes(content)
        assert column_file.ColumnFile.open(path) is None
    path.write_bytes(damaged[len(good) // 2])
    assert_frame_equal(read(writer).curves, built.curves)
    assert path.read_bytes() == good, "what is made again is the same to the byte"


def test_a_store_that_cannot_be_written_is_read_and_left_alone(
    copy: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy.store.root / "cache").write_text(
        "a file where the folder would be: nothing can be written, not even by root"
    )
    before = sorted(copy.store.root.rglob("*"))
    study = read(copy)
    assert len(study.curves) == len(logged(copy))
    seen = watched(monkeypatch)
    assert len(study.layers) and len(study.part("curves", kind="eval"))
    assert not seen, "the files stand in a temporary folder while the study is in use"
    temporary = study.logs.temporary
    assert list(temporary.glob("curves.parquet"))
    assert sorted(copy.store.root.rglob("*")) == before
    del study
    gc.collect()
    assert not temporary.exists()


def test_a_read_only_mount_with_a_cache_uses_it(
    copy: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = read(copy)
    assert len(built.curves) and len(built.documents)

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache, "replacing", refuse)
    seen = watched(monkeypatch)
    same(built, read(copy))
    assert not seen


@pytest.mark.slow
def test_processes_that_build_at_once_read_the_same(copy: Writer) -> None:
    program = (
        "import sys; from andrea.analysis.tables import column_file; "
        "from andrea.analysis.load import load; column_file.GROUP_ROWS = 200\n"
        "study = load(sys.argv[1], sys.argv[2]); curves = study.curves\n"
        "print(len(curves), repr(float(curves['loss'].sum())), len(study.layers), "
        "len(study.documents))"
    )
    command = [sys.executable, "-c", program, copy.folder.path.name, str(copy.store.root)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=PATIENT_S)[0] for process in started}
    study = read(copy)
    told = (
        f"{len(study.curves)} {float(study.curves['loss'].sum())!r} {len(study.layers)} "
        f"{len(study.documents)}\n"
    )
    assert answers == {told}
    assert not list((copy.store.root / "cache").rglob("*.partial"))


def test_what_killed_builds_and_deleted_studies_left_is_removed(copy: Writer) -> None:
    orphan = copy.store.root / "cache" / "gone-0000000000"
    orphan.mkdir(parents=True)
    mine = copy.store.root / "cache" / copy.folder.path.name
    mine.mkdir()
    old, fresh = mine / ".a.parquet.1.partial", mine / ".b.parquet.2.partial"
    earlier = mine / "0123.curves.shard"
    for path in (old, fresh, earlier):
        path.write_text("")
    os.utime(old, (0, 0))
    assert len(read(copy).curves)
    assert not orphan.exists() and not old.exists() and not earlier.exists() and fresh.exists()


def test_damage_is_said_every_time_and_costs_what_is_damaged_alone(
    copy: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = read(copy)
    assert len(whole.curves) and len(whole.layers) and len(whole.documents)
    plans = stored.planned(copy.folder)
    torn, numberless, lost, nameless = (copy.store.folder(plan["run_id"]) for plan in plans[:4])
    with (torn / "metrics.jsonl").open("ab") as file:
        file.write(b'garbage\n{"kind": "train", "step": 1')
    with (numberless / "metrics.jsonl").open("ab") as file:
        file.write(
            b'{"kind": "eval", "step": "x", "tokens": 1, "loss": 2}\n{"kind": "layers", '
            b'"grad_norm": 3}\n'
        )
    (lost / "result.json").write_text("{")
    write_json(
        nameless / "result.json",
        stored.result(copy.store, plans[3]["run_id"]) | {"documents": [{"tokens": 5}]},
    )
    for _ in range(2):
        warn.cache_clear()
        study = read(copy)
        assert_frame_equal(study.curves, whole.curves)
        assert_frame_equal(study.layers, whole.layers)
        assert study.runs["outcome"].iloc[2] == "missing" and len(study.curves)
        assert set(whole.documents["run_id"]) - set(study.documents["run_id"]) == {
            lost.name,
            nameless.name,
        }
        said = capsys.readouterr().err
        assert f"{torn / 'metrics.jsonl'}: damaged lines skipped: 1" in said
        assert f"{numberless / 'metrics.jsonl'}: records without numbers skipped: 2" in said
        assert f"{lost / 'result.json'}: missing or damaged" in said
        assert f"{nameless / 'result.json'}: damaged in documents; treated as absent" in said


NUMBERS = st.none() | st.floats(allow_nan=True, allow_infinity=False) | st.integers(-(2**53), 2**53)
RECORDS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["train", "eval", "speed"]),
        "step": st.integers(0, 2**40),
        "tokens": st.integers(0, 2**50),
    },
    optional=dict.fromkeys(("loss", "bpb", "grad_norm", "tokens_per_s", "lr"), NUMBERS),
)
LINES = RECORDS.map(json.dumps) | st.sampled_from(
    ["null", "[1]", "{}", "{} {}", '{"kind": 3}', "x", '{"kind": "eval"}']
)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, max_size=6), st.sampled_from(["", '{"kind": "tra']))
def test_lines_read_at_once_and_one_by_one_agree_to_the_bit(lines: list[str], torn: str) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "metrics.jsonl"
        path.write_text("".join(line + "\n" for line in lines) + torn)
        tables, sound = parsing.parse_metrics(path)
        patch.setattr(parsing, "_parse_all_lines", lambda lines: None)
        slowly, slowly_sound = parsing.parse_metrics(path)
    assert sound == slowly_sound
    for table in ("curves", "layers"):
        assert_frame_equal(tables[table].to_pandas(), slowly[table].to_pandas())


def test_ordinary_lines_take_the_quick_way(whole: Writer) -> None:
    for plan in stored.planned(whole.folder)[:3]:
        lines = (
            (whole.store.folder(plan["run_id"]) / "metrics.jsonl")
            .read_bytes()
            .splitlines(keepends=True)
        )
        assert parsing._parse_all_lines(lines) is not None
