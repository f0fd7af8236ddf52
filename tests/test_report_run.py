"""The report on one run: finished, diverged, stalled, half finished, and trained alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import stored
from analysis_store import INITIAL, LAYERS, TOKENS, UNIGRAM, Writer, finished
from typer.testing import CliRunner

from andrea.analysis.chapters import one_run as single
from andrea.analysis.formats.build import ReportJob, load_script
from andrea.analysis.load import load_run
from andrea.analysis.report import Report
from andrea.analysis.tables.run_view import RunView
from andrea.cli.app import app
from andrea.store.digest import digest
from andrea.store.runs import RunStore

SCRIPT = Path(__file__).parents[1] / "reports" / "run.py"


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """A study in which one replicate of post diverged, one stalled, one failed and one is
    missing.
    """
    made = Writer(tmp_path_factory.mktemp("runs"))
    made.tune()
    made.replicate({"post": 0.05}, post={1: "diverged", 2: "stalled", 3: "failed", 4: "missing"})
    return made


def replicate(writer: Writer, index: int) -> dict[str, Any]:
    """The index-th replicate of post."""
    return [
        run
        for run in stored.planned(writer.folder)
        if (run["arm"], run["phase"]) == ("post", "replicate")
    ][index]


def view(writer: Writer, index: int) -> RunView:
    return load_run(writer.store, replicate(writer, index)["run_id"])


def built(run: RunView) -> Report:
    report: Report = load_script(SCRIPT).build(run)
    return report


def records(writer: Writer, index: int, kind: str) -> list[dict[str, Any]]:
    """What the run's file says, read without the store."""
    path = writer.store.folder(replicate(writer, index)["run_id"]) / "metrics.jsonl"
    return [r for r in map(json.loads, path.read_text().splitlines()) if r["kind"] == kind]


def test_a_finished_run_says_its_loss_and_that_one_run_has_no_interval(writer: Writer) -> None:
    run = view(writer, 0)
    loss = writer.losses["post", run.row["seed"]]
    report = built(run)
    assert report.answer.startswith("Completed after 204,800 tokens at ")
    assert (
        f"{loss:.4f} nats per token ({loss * 1.4427:.3f} bits per byte) on 32,768 evaluated tokens"
        in report.answer
    )
    assert "n = 1 run, so no interval" in report.answer
    assert (
        dict(report.details)["of study"]
        == f"{writer.folder.path.name}: post, replicate (replicate)"
    )
    [title] = [section.title for section in report.sections if section.title == "Inside the layers"]
    assert title


def test_what_stands_out_is_what_the_file_says(writer: Writer) -> None:
    told = single.find_notable(view(writer, 0)).set_index("what")
    train, evals = records(writer, 0, "train"), records(writer, 0, "eval")
    losses = np.array([r["loss"] for r in train])
    jump = int(np.argmax(np.diff(losses)))
    assert told.loc["largest jump of the training loss", "value"] == pytest.approx(
        np.diff(losses)[jump]
    )
    assert told.loc["largest jump of the training loss", "tokens"] == train[jump + 1]["tokens"]
    lowest = min(evals, key=lambda r: r["loss"])
    assert told.loc["lowest evaluated loss", "tokens"] == lowest["tokens"]
    assert "first training loss that was not finite" not in told.index


def test_a_diverged_run_says_where(writer: Writer) -> None:
    run = view(writer, 1)
    told = single.find_notable(run).set_index("what")
    train = records(writer, 1, "train")
    first = next(i for i, r in enumerate(train) if r["loss"] is None)
    assert told.loc["first training loss that was not finite", "tokens"] == train[first]["tokens"]
    assert told.loc["the last one before it", "value"] == pytest.approx(train[first - 1]["loss"])
    report = built(run)
    assert (
        report.answer.startswith("Diverged after 102,400 tokens")
        and "no final loss" in report.answer
    )
    assert "not finite at step 200" in repr(report.head[0])


def test_a_stalled_run_says_what_that_means(writer: Writer) -> None:
    report = built(view(writer, 2))
    alone = f"It stalled: how often each token occurs alone gives {UNIGRAM:.4f} nats"
    assert report.answer.endswith(f"{alone}, and it ends no more than 1\N{NO-BREAK SPACE}% below.")
    assert f"{UNIGRAM + 0.02:.4f} nats, the unigram loss is {UNIGRAM:.4f}" in repr(report.head[0])


def test_a_failed_run_says_why_and_shows_what_is_logged(writer: Writer) -> None:
    report = built(view(writer, 3))
    assert report.answer.startswith("Failed: nothing is logged yet (out of memory: 12 GB asked")
    assert report.figures() == []


def test_a_run_at_work_says_how_far_it_is(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    run_id = digest("alone")
    config = {
        "config": {
            "model": {"context": 64},
            "train": {"tokens": TOKENS, "batch_size": 8, "lr": 1e-3},
            "seed": 3,
        }
    }
    with writer.store.claim(run_id) as claim:
        attempt = claim.attempt(config, {})
        logged = writer._records({"arm": "pre", "seed": 3, "lr": 1e-3}, 2.5, False)
        half = [r for r in logged if r["tokens"] <= TOKENS // 2]
        (attempt / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in half))
        report = built(load_run(writer.store, run_id[:8]))
    assert report.answer.startswith(
        "Still running: 102,400 tokens of 204,800 (50\N{NO-BREAK SPACE}%) are logged"
    )
    assert dict(report.details)["of study"] == "none: a single training"
    assert {figure.name for figure in report.figures()} >= {
        "loss",
        "gradient-norm",
        "layers-grad-norm",
    }


def test_the_learning_rate_is_the_logged_one(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    run = {"arm": "pre", "seed": 3, "lr": 1e-3, "phase": "train", "run_id": digest("alone")}
    with writer.store.claim(run["run_id"]) as claim:
        attempt = claim.attempt({"config": {"train": {"lr": 1e-3}}}, {})
        rates = [
            {"kind": "train", "step": i, "tokens": 512 * i, "loss": 3.0, "lr": 1e-4 * i}
            for i in (1, 2, 3)
        ]
        (attempt / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rates))
        claim.finish(attempt, writer._result(run, 2.5, False, False))
    told = single.rate_curve(load_run(writer.store, run["run_id"]))
    assert list(told["lr"]) == pytest.approx([1e-4, 2e-4, 3e-4]) and list(told["tokens"]) == [
        512,
        1024,
        1536,
    ]


def test_the_map_of_the_layers_has_a_tile_per_block_and_logged_step(writer: Writer) -> None:
    run = view(writer, 0)
    logged = records(writer, 0, "layers")
    spec = single.draw_heat(run.layers, "grad_norm")
    assert spec is not None
    [drawn] = spec["datasets"].values()
    tiles = drawn.strip().splitlines()[1:]
    assert len(tiles) == len(logged) * (LAYERS + 1)  # the embedding too
    assert spec["encoding"]["color"]["scale"]["type"] == "log"
    assert single.draw_heat(run.layers.assign(value=0.0), "grad_norm") is None


def test_documents_are_weighed_alike_and_have_an_interval(writer: Writer) -> None:
    run = view(writer, 0)
    run.__dict__["documents"] = pd.DataFrame(
        {"document": ["a", "b", "c"], "tokens": [10, 20, 30], "loss": [2.0, 3.0, 2.5]}
    )
    [section] = [section for section in built(run).sections if section.title == "Documents"]
    # t = 4.3027 at two degrees of freedom: 2.5 ± 4.3027 · 0.5 / √3
    said = "95\N{NO-BREAK SPACE}% interval over documents [1.2579, 3.7421], n = 3"
    assert f"mean 2.5000 nats (documents weighed alike, {said})" in repr(section).replace(
        "\\xa0", "\xa0"
    )


def test_the_page_of_a_run_is_written_by_the_beginning_of_its_id(writer: Writer) -> None:
    run_id = replicate(writer, 0)["run_id"]
    page = ReportJob(writer.store, SCRIPT, run=run_id[:7]).make(["md"])[0]
    assert page == writer.store.root / "reports" / f"run-{run_id[:12]}" / "report.md"
    told = page.read_text()
    assert (
        f"{INITIAL:.4f} nats" in told
        and (page.parent / "figures" / "layers-residual-rms.svg").exists()
    )


def test_status_lists_the_runs_that_no_study_planned(writer: Writer, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    run = {"arm": "run", "seed": 1, "lr": 1e-3, "phase": "train", "run_id": digest("single")}
    with store.claim(run["run_id"]) as claim:
        claim.finish(claim.attempt({}, {}), writer._result(run, 2.5, False, False))
    with store.claim(digest("broken")) as claim:
        claim.fail(claim.attempt({}, {}), "out of memory")
    arguments = ["status", "--runs", str(store.root)]
    lines = CliRunner().invoke(app, arguments).stdout.splitlines()
    assert lines[2].split()[:2] == ["single", "run"]
    assert lines[3].split()[:4] == [run["run_id"][:12], "completed", "2.5000", "204,800"]
    assert lines[4].split()[:2] == [digest("broken")[:12], "failed"]
    single_runs = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert [(told["kind"], told["outcome"], told["reason"]) for told in single_runs] == [
        ("run", "completed", None),
        ("run", "failed", "out of memory"),
    ]


def test_runs_of_a_study_are_no_single_runs(tmp_path: Path) -> None:
    writer = finished(tmp_path)
    assert (
        "single run"
        not in CliRunner().invoke(app, ["status", "--runs", str(writer.store.root)]).stdout
    )
