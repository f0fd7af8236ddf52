"""The report on a sweep: what mattered, all parameters together, and what is not told of too few
trials.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis_store import swept

from andrea.analysis.figures import importances
from andrea.analysis.figures import parallel_coordinates as parallel
from andrea.analysis.figures.importances import reason_without_importance
from andrea.analysis.formats.build import load_script, make_report
from andrea.analysis.load import load
from andrea.analysis.report import Report
from andrea.analysis.tables import summaries
from andrea.records.study import SearchedRange

SCRIPT = Path(__file__).parents[1] / "reports" / "sweep.py"
CLIPS = [0.5, 1.0, None]
SPACE = {
    "train.lr": SearchedRange(low=1e-4, high=1e-1, log=True),
    "train.warmup": SearchedRange(low=0.0, high=1.0),
    "train.clip": SearchedRange(choices=CLIPS),
}


def searched(n: int, seed: int, curvature: float = 0.09) -> pd.DataFrame:
    """Random trials whose loss hangs on the rate alone, with noise of 0.003 nats."""
    draw = np.random.default_rng(seed)
    lr = 10 ** draw.uniform(-4, -1, n)
    table = pd.DataFrame({"trial": range(n), "train.lr": lr, "train.warmup": draw.uniform(size=n)})
    table["train.clip"] = [CLIPS[i] for i in draw.integers(0, 3, n)]
    table["loss"] = 2.5 + curvature * (np.log10(lr) + 2.5) ** 2 + draw.normal(0, 0.003, n)
    return table.assign(ok=True, outcome="completed", n=1)


def shares(trials: pd.DataFrame) -> dict[str, float]:
    """Importances without the resamples."""
    kinds = {name: importances.optuna_distribution(trials[name], SPACE[name]) for name in SPACE}
    rows = importances.optuna_parameters(trials, kinds)
    return dict(
        zip(SPACE, importances.ped_anova(rows, trials["loss"].to_numpy(), kinds), strict=True)
    )


def test_at_the_fewest_trials_the_parameter_that_decides_comes_first_and_idle_ones_get_little() -> (
    None
):
    found = [shares(searched(importances.FEWEST, seed)) for seed in range(40)]
    first = sum(max(one, key=lambda name: one[name]) == "train.lr" for one in found)
    assert first >= 36
    assert np.quantile([one["train.warmup"] for one in found], 0.9) < 0.4


def test_too_few_trials_or_a_single_parameter_have_no_importance() -> None:
    assert "needs 20 finished trials; there are 19" in reason_without_importance(
        searched(19, 0), list(SPACE)
    )
    assert reason_without_importance(searched(20, 0), list(SPACE)) == ""
    assert "needs two parameters" in reason_without_importance(searched(40, 0), ["train.lr"])
    assert reason_without_importance(searched(40, 0).assign(ok=False), list(SPACE)).endswith(
        "a trial that trained"
    )


def test_importances_are_the_same_every_time_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importances, "RESAMPLES", 10)
    trials = searched(32, 1)
    first, again = (importances.importance_shares(trials, list(SPACE), SPACE) for _ in range(2))
    pd.testing.assert_frame_equal(first, again)
    assert first["share"].sum() == pytest.approx(1) and first["parameter"].iloc[0] == "train.lr"
    assert ((first["low"] <= first["high"]) & (first["low"] >= 0) & (first["high"] <= 1)).all()


def test_what_a_stalled_trial_is_scored_with_changes_no_importance() -> None:
    trials = searched(30, 2)
    worst = trials["loss"].idxmax()
    far = trials.assign(loss=trials["loss"].where(trials.index != worst, 5.5451))
    assert shares(far) == pytest.approx(shares(trials))


def test_a_searched_range_keeps_its_kind() -> None:
    whole = importances.optuna_distribution(pd.Series([1, 2, 8]), SearchedRange(low=1, high=8))
    assert getattr(whole, "step", None) == 1 and getattr(whole, "high", None) == 8
    log = importances.optuna_distribution(pd.Series([1e-3]), SPACE["train.lr"])
    assert getattr(log, "log", False) and (getattr(log, "low", 0), getattr(log, "high", 0)) == (
        1e-4,
        1e-1,
    )
    chosen = importances.optuna_distribution(pd.Series([None, 0.5]), SPACE["train.clip"])
    assert getattr(chosen, "choices", ()) == ("0.5", "1", "none")


def test_the_best_quarter_is_that_of_all_finished_trials() -> None:
    trials = searched(20, 3)
    trials.loc[0, ["ok", "outcome"]] = [False, "stalled"]
    trials.loc[1, "loss"] = np.nan  # not there yet
    groups = parallel.trial_groups(trials)
    assert groups.value_counts().to_dict() == {
        parallel.REST: 13,
        parallel.BEST: 5,
        parallel.LOST: 1,
    }
    best = trials[trials["ok"]].nsmallest(5, "loss").index
    assert set(groups[groups == parallel.BEST].index) == set(best)


def test_axes_run_as_they_were_searched() -> None:
    trials = searched(24, 4)
    at, ticks = parallel.axis_positions(trials, "train.lr", SPACE)
    lr = np.log(trials["train.lr"])
    slope = np.diff(at.to_numpy()) / np.diff(lr.to_numpy())
    assert slope == pytest.approx(np.full(23, slope[0]))  # straight in the logarithm
    assert {"0.001", "0.01"} <= {label for _, label in ticks}
    places, labels = parallel.axis_positions(trials, "train.clip", SPACE)
    assert labels == [(0.0, "0.5"), (0.5, "1"), (1.0, "none")] and set(places) == {0.0, 0.5, 1.0}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of a sweep of 24 trials over a rate and a weight decay that does nothing; one stalled."""
    writer = swept(tmp_path_factory.mktemp("swept"), trials=24)
    built: Report = load_script(SCRIPT).build(load(writer.folder, writer.store))
    return built


def captions(report: Report) -> str:
    return " ".join(getattr(item, "caption", "") for item in report.items())


def test_the_report_says_how_many_trials_importance_stands_on(report: Report) -> None:
    table = report.tables()["importances"]
    assert table["parameter"].iloc[0] == "train.lr" and table["share"].iloc[0] > 0.8
    said = captions(report)
    assert "n = 24 finished trials, of which 1 did not train and count among the worst" in said
    assert "the best 6 trials" in said and "no test" in said


def test_a_line_per_trial_with_a_point_on_every_axis(report: Report) -> None:
    [figure] = [figure for figure in report.figures() if figure.name == "parallel-coordinates"]
    [points] = [
        drawn for drawn in figure.spec["datasets"].values() if drawn.startswith("place,axis")
    ]
    rows = points.strip().splitlines()[1:]
    assert len(rows) == 24 * 3  # the loss has an axis too
    assert set(figure.legend) == {parallel.BEST, parallel.REST, parallel.LOST}
    assert '"name": "over"' in repr(figure.spec).replace("'", '"')


def test_a_small_sweep_is_shown_without_importance(tmp_path: Path) -> None:
    writer = swept(tmp_path, trials=8, unfinished=2)
    told = make_report(writer.store, writer.folder, ["md"], SCRIPT)[0].read_text()
    assert "Parameter importance needs 20 finished trials; there are 6" in re.sub(
        r"\\(.)", r"\1", told
    )
    assert (writer.folder.path / "report" / "figures" / "parallel-coordinates.svg").exists()
    assert summaries.parameter_names(load(writer.folder, writer.store)) == [
        "train.lr",
        "train.weight_decay",
    ]
