"""A study as tables: every planned run, numbers as they were logged, nothing hidden."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import stored
from analysis_store import INITIAL, TOKENS, Writer, finished, swept

from andrea.analysis import load
from andrea.analysis.chapters import sentences as words
from andrea.analysis.figures import replicates as figures
from andrea.analysis.tables import curves, frames, summaries
from andrea.cli.show.verdict_table import verdict_table
from andrea.errors import StudyError
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.text import numbers as text
from andrea.verdict.seeds import replication_seed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Two arms, tuned, replicated, judged."""
    return finished(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """post loses one replicate to a stall and one to NaN, although its survivors are far below the
    baseline.
    """
    fates = {"post": {1: "stalled", 3: "diverged"}}
    return finished(
        tmp_path_factory.mktemp("lossy"),
        {"post": -0.3, "third": 0.0},
        arms=("pre", "post", "third"),
        fates=fates,
    )


def test_every_planned_run_is_a_row_in_the_order_of_the_plan(whole: Writer) -> None:
    study = load.load(whole.folder, whole.store)
    assert study.runs["run_id"].tolist() == [run["run_id"] for run in stored.planned(whole.folder)]
    assert (study.runs["outcome"] == "completed").all()
    assert len(study.trials) == 14
    assert list(study.runs.columns) == list(frames.RUNS)
    assert list(study.curves.columns) == list(frames.CURVES)
    assert list(study.layers.columns) == list(frames.LAYERS)
    assert list(study.documents.columns) == list(frames.DOCUMENTS)
    assert list(study.verdicts.columns) == list(load.VERDICTS)
    assert list(study.differences.columns) == list(load.DIFFERENCES)


def test_curves_are_the_logged_records_and_nothing_between_them(whole: Writer) -> None:
    study = load.load(whole.folder, whole.store)
    run_id = study.runs["run_id"].iloc[0]
    logged = [r for r in whole.store.metrics(run_id) if r["kind"] in ("train", "eval")]
    mine = study.curves[study.curves["run_id"] == run_id]
    assert mine["tokens"].tolist() == [r["tokens"] for r in logged]
    assert mine["loss"].tolist() == [r["loss"] for r in logged]


def test_layers_are_counted_from_the_embedding(whole: Writer) -> None:
    study = load.load(whole.folder, whole.store)
    norms = study.layers[(study.layers["quantity"] == "grad_norm") & (study.layers["tokens"] == 0)]
    one = norms[norms["run_id"] == norms["run_id"].iloc[0]].set_index("layer")["value"]
    assert one.index.tolist() == list(range(7))
    assert one[0] == 0.8, "0 is the embedding"
    stream = study.layers[study.layers["quantity"] == "residual_rms"]
    assert sorted(stream["layer"].unique()) == list(range(7))


def test_differences_are_arm_minus_baseline_at_the_same_seed(whole: Writer) -> None:
    study = load.load(whole.folder, whole.store)
    expected = [
        whole.losses["post", replication_seed(i)] - whole.losses["pre", replication_seed(i)]
        for i in range(5)
    ]
    assert study.differences["difference"].tolist() == pytest.approx(expected, abs=1e-12)
    judged = study.verdicts.set_index("arm").loc["post"]
    assert judged["mean"] == pytest.approx(np.mean(expected), abs=1e-12)


def test_an_arm_with_lost_seeds_has_no_mean_over_the_survivors(lossy: Writer) -> None:
    study = load.load(lossy.folder, lossy.store)
    row = study.verdicts.set_index("arm").loc["post"]
    assert (row["verdict"], row["diverged"], row["stalled"], row["completed"]) == (
        "unstable",
        1,
        1,
        3,
    )
    assert math.isnan(row["mean"]) and math.isnan(row["low"])
    losses = summaries.final_losses(study).set_index("arm")
    assert math.isnan(losses.loc["post", "mean"]) and losses.loc["post", "n"] == 3
    assert losses.loc["third", "mean"] == pytest.approx(
        np.mean([lossy.losses["third", replication_seed(i)] for i in range(5)])
    )
    answer = words.write_answer(study)
    assert (
        "post is unstable (2 of 5 replicates diverged or stalled)" in answer
        and "post is better" not in answer
    )
    terminal = {row["arm"]: row for row in verdict_table(lossy.folder)}
    assert (
        terminal["post"]["verdict"] == "unstable" and terminal["post"]["difference"] == text.NOTHING
    )


def test_the_mean_curve_ends_where_a_seed_has_no_finite_loss(lossy: Writer) -> None:
    study = load.load(lossy.folder, lossy.store)
    evaluated = study.curves[
        (study.curves["phase"] == "replicate") & (study.curves["kind"] == "eval")
    ]
    assert evaluated["loss"].isna().sum() == 5, "the diverged run's records are kept, as NaN"
    mean = curves.over_seeds(evaluated)
    post = mean[mean["arm"] == "post"].set_index("tokens")
    assert post["mean"].notna().tolist() == [True] * 6 + [False] * 5
    assert post["n"].tolist() == [5] * 6 + [4] * 5
    marks = curves.last_of_lost(evaluated, study.runs)
    assert sorted(marks["state"]) == ["diverged", "stalled"]


def test_grouped_curves_stand_at_logged_steps_only() -> None:
    rows = [("a", "r1", 0, 3.0), ("a", "r1", 10, 2.0), ("a", "r2", 0, 3.2), ("a", "r2", 15, 1.0)]
    told = curves.over_seeds(pd.DataFrame(rows, columns=["arm", "run_id", "tokens", "loss"]))
    assert told["tokens"].tolist() == [0, 10, 15], "no step is made up"
    assert told["n"].tolist() == [2, 1, 1]
    assert told["mean"].iloc[0] == pytest.approx(3.1)
    assert told["mean"].iloc[1:].isna().all(), (
        "one seed of two is no mean, and nothing is filled in"
    )


def test_differences_along_training_pair_logged_steps_of_one_seed() -> None:
    rows = [
        ("a", 1, "x", 0, 3.0),
        ("a", 1, "x", 10, 2.0),
        ("b", 1, "y", 0, 3.5),
        ("b", 1, "y", 20, 1.0),
    ]
    told = curves.paired_differences(
        pd.DataFrame(rows, columns=["arm", "seed", "run_id", "tokens", "loss"]), "a"
    )
    assert told[["arm", "tokens", "loss"]].to_numpy().tolist() == [["b", 0, 0.5]]


def test_thinning_selects_points_and_never_loses_a_spike_or_the_end() -> None:
    tokens = np.arange(2000)
    loss = 5 - tokens / 1000
    loss[777] = 9.0
    loss[1500:] = np.nan
    frame = pd.DataFrame({"arm": "a", "run_id": "r", "tokens": tokens, "loss": loss})
    thin = curves.thin_curves(frame, 100)
    assert len(thin) <= 105
    assert {0, 777, 1500, 1999} <= set(thin["tokens"])
    merged = thin.merge(frame, on="tokens")
    assert merged["loss_x"].equals(merged["loss_y"]), "every drawn value is a logged one"


@pytest.mark.parametrize("points", [50, 200, 201, 2000])
def test_nothing_is_smoothed_however_many_points_there_are(points: int) -> None:
    draw, tokens = np.random.default_rng(1), np.linspace(0, 1_000_000, points).round().astype(int)
    runs = [
        {"arm": "a", "run_id": run, "tokens": tokens, "loss": 3 + draw.normal(size=points)}
        for run in ("x", "y")
    ]
    frame = pd.concat(map(pd.DataFrame, runs), ignore_index=True)
    told = curves.over_seeds(curves.thin_curves(frame)).set_index("tokens")
    for step, values in frame.groupby("tokens")["loss"]:
        if step in told.index:
            assert told.loc[step, ["mean", "low", "high"]].tolist() == [
                values.mean(),
                values.min(),
                values.max(),
            ]
    assert {tokens[0], tokens[-1]} <= set(told.index) and len(told) >= min(points, 200)
    ended = pd.DataFrame({"run_id": ["x", "y"], "outcome": "completed", "stalled": False})
    figure = str(figures.draw_loss_curves(frame.assign(seed=1), ended, ["a"], "loss"))
    assert not [
        word for word in ("loess", "regression", "window", "monotone", "basis") if word in figure
    ]


def test_a_half_finished_study_says_what_is_missing(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tune()
    writer.replicate({"post": 0.08}, seeds=3, pre={2: "missing"}, post={1: "failed"})
    study = load.load(writer.folder, writer.store)
    assert study.runs["outcome"].value_counts().to_dict() == {
        "completed": 18,
        "missing": 1,
        "failed": 1,
    }
    assert not study.complete
    assert (study.verdicts["verdict"] == ["baseline", "pending"]).all()
    missing = "\n".join(words.list_missing(study))
    assert "pre, replicate: 1 missing of 3 planned runs" in missing
    assert "out of memory" in missing
    assert "post: 2 replicates not planned yet" in missing
    assert words.write_answer(study).startswith(
        "Not decided yet: 18 of 20 planned runs are done, 1 failed"
    )


def test_a_study_with_nothing_but_its_protocol_loads(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    (writer.folder.path / "resolved.json").unlink()
    study = load.load(writer.folder, writer.store)
    assert study.runs.empty and study.arms == ["pre", "post"] and not study.complete


def test_a_running_run_is_seen_as_far_as_it_is(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    run = writer.plan("pre", "tune", "grid", 0.001, 1)
    with writer.store.claim(run["run_id"]) as claim:
        attempt = claim.attempt({}, {})
        (attempt / "metrics.jsonl").write_text(
            '{"kind":"eval","step":0,"tokens":0,"loss":5.5,"bpb":8.0}\n{"kind":"tr'
        )
        study = load.load(writer.folder, writer.store)
        assert study.runs["outcome"].tolist() == ["running"]
        assert study.curves["loss"].tolist() == [5.5], "the torn line is dropped"


def test_a_folder_without_a_protocol_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"protocol\.yaml"):
        load.load(StudyFolder(tmp_path), RunStore(tmp_path / "runs"))


def test_a_sweeps_repeated_trial_keeps_its_row_and_shares_its_run(tmp_path: Path) -> None:
    writer = swept(tmp_path)
    study = load.load(writer.folder, writer.store)
    trials = summaries.sweep_trials(study)
    assert trials["trial"].tolist() == list(range(12))
    assert trials["loss"].tolist() == pytest.approx(
        [row["loss"] for row in stored.study_json(writer.folder, "best.json")["trials"]]
    )
    assert trials.loc[3, ["outcome", "ok", "loss"]].tolist() == ["stalled", False, INITIAL]
    once = study.curves[(study.curves["kind"] == "eval") & (study.curves["tokens"] == TOKENS)]
    assert len(once) == 11, "the shared run's curve is there once"


def test_intervals_agree_with_scipy() -> None:
    from scipy import stats

    values = pd.Series([2.51, 2.55, 2.53, 2.60])
    expected = stats.t.interval(0.95, 3, loc=values.mean(), scale=values.std(ddof=1) / 2)
    assert summaries.mean_interval(values) == pytest.approx(expected)
    low, high = summaries.sd_interval(1.0, 5)
    assert (low, high) == pytest.approx((0.5991, 2.8736), abs=1e-3), (
        "the textbook's factors for n = 5"
    )


def test_numbers_are_written_as_a_reader_can_copy_them() -> None:
    assert [text.rate(x) for x in (0.00316, 0.0316, 3.16e-5, 1e-6)] == [
        "0.00316",
        "0.0316",
        "3.16e-5",
        "1.0e-6",
    ]
    assert text.interval(-0.01234, 0.5) == "[−0.0123, +0.5000]"
    assert text.signed(float("nan")) == text.NOTHING == text.count(pd.NA)
    assert [text.seconds(s) for s in (0.41, 24, 303, 7800)] == [
        "0.4 s",
        "24 s",
        "5 min 3 s",
        "2 h 10 min",
    ]
    assert [text.small(x) for x in (0.00003212, 0.02)] == ["0.000032", "0.0200"]


@pytest.mark.slow
def test_loading_a_study_needs_neither_torch_nor_altair() -> None:
    program = (
        "import andrea.analysis.formats.build, sys; print([name in sys.modules for name in "
        "('torch', 'altair')])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[False, False]"
    program = "import andrea.text.numbers, sys; print('pandas' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "False", "the terminal's table is quick"
