"""The leaderboard: every arm of every study on its row, with its regime, and nothing compared that
may not be.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import stored
from analysis_store import Writer, finished
from scipy import stats
from statsmodels.stats.multitest import multipletests

from andrea.analysis.chapters import sizes as growth
from andrea.analysis.figures import forest
from andrea.analysis.formats.build import ReportJob, load_script
from andrea.analysis.load import load_all
from andrea.analysis.report import Report, Table
from andrea.analysis.tables import leaderboard as board
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder

SCRIPT = Path(__file__).parents[1] / "reports" / "leaderboard.py"
pytestmark = pytest.mark.usefixtures("undrawn")


def grown(writer: Writer, times: int) -> Writer:
    """The study as one of models `times` as large."""
    resolved = stored.study_json(writer.folder, "resolved.json")
    for arm in resolved["arms"].values():
        arm["parameters"] = {name: n * times for name, n in arm["parameters"].items()}
    writer.folder.write("resolved.json", resolved)
    return writer


def told_exploratory(writer: Writer) -> None:
    """Judged with runs that are older than the protocol."""
    verdict = stored.study_json(writer.folder, "verdict.json") | {"exploratory": True}
    for row in verdict["verdicts"]:
        row["tags"].append("exploratory")
    writer.folder.write("verdict.json", verdict)


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Writer]:
    """A store with eight studies: one ablation at three sizes, three others, one exploratory, one
    half finished.
    """
    root = tmp_path_factory.mktemp("board")
    shifts = {"small": 0.09, "middle": 0.05, "large": 0.02}
    made = {
        name: grown(finished(root, digest=name, effects={"post": shift}), 4**i)
        for i, (name, shift) in enumerate(shifts.items())
    }
    for i, writer in enumerate(made.values()):  # other noise at every size, as trainings have it
        rejudged(writer, np.random.default_rng(i).normal(0, 0.003, 5))
    made["optimizer"] = finished(
        root,
        name="optimizer",
        digest="optimizer",
        arms=("adamw", "sgd", "muon"),
        effects={"sgd": 1.2, "muon": -0.07},
        factor="train.optimizer",
        protocol={"m": 0.03},
    )
    fates = {"none": {1: "stalled", 2: "diverged"}}
    made["norm"] = finished(
        root, name="norm", digest="norm", arms=("layer", "none"), effects={}, fates=fates
    )
    made["early"] = finished(
        root, name="early", digest="early", arms=("a", "b"), effects={"b": 0.2}
    )
    told_exploratory(made["early"])
    half = made["half"] = Writer(root, name="half", digest="half", arms=("a", "b"))
    half.tune()
    half.replicate({"b": 0.1}, b={3: "missing"})
    return made


def rejudged(writer: Writer, noise: Any) -> None:
    """The study with noise of its own on the arm's losses, in the runs' results and in the
    verdict.
    """
    for (arm, seed), loss in list(writer.losses.items()):
        if arm == "post":
            changed = loss + float(noise[seed % len(noise)])
            run = next(
                r
                for r in stored.planned(writer.folder)
                if (r["arm"], r["phase"], r["seed"]) == (arm, "replicate", seed)
            )
            path = writer.store.folder(run["run_id"]) / "result.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"loss": changed}))
            writer.losses[arm, seed] = changed
            writer.replicates[arm][seed] = type(writer.replicates[arm][seed])(
                changed, "completed", False, "e" * 64
            )
    writer.judge()


@pytest.fixture(scope="module")
def rows(writers: dict[str, Writer]) -> pd.DataFrame:
    """The board of all of them."""
    return board.board_table(load_all(writers["small"].store))


@pytest.fixture(scope="module")
def report(writers: dict[str, Writer]) -> Report:
    """The report on all of them."""
    built: Report = load_script(SCRIPT).build(load_all(writers["small"].store))
    return built


def shown(report: Report, name: str) -> list[dict[str, str]]:
    """A table as it is read: the text of every cell by its header."""
    [table] = [item for item in report.items() if isinstance(item, Table) and item.name == name]
    headers = [column.header for column in table.columns]
    return [dict(zip(headers, (cell.text for cell in row), strict=True)) for row in table.rows()]


def text_of(report: Report) -> str:
    """Everything that is said in words."""
    return repr([report.question, report.answer, report.details, *report.items()])


def differences(writer: Writer, arm: str) -> dict[int, float]:
    base = writer.arms[0]
    return {s: writer.losses[arm, s] - writer.losses[base, s] for a, s in writer.losses if a == arm}


def row_of(rows: pd.DataFrame, study: str, effect: str) -> dict[Any, Any]:
    return rows[rows["study"].str.endswith(f"-{study}") & (rows["effect"] == effect)].to_dict(
        "records"
    )[0]


def test_a_rows_effect_and_interval_are_those_of_the_losses(
    writers: dict[str, Writer], rows: pd.DataFrame
) -> None:
    for name, arm, k in (("small", "post", 1), ("optimizer", "muon", 2), ("optimizer", "sgd", 2)):
        d = np.array(list(differences(writers[name], arm).values()))
        low, high = stats.ttest_1samp(d, 0).confidence_interval(1 - 0.05 / k)
        row = row_of(rows, name, arm)
        assert (row["mean"], row["low"], row["high"]) == pytest.approx(
            (d.mean(), low, high), abs=1e-9
        )
        assert row["n"] == 5


def test_p_of_the_whole_board_is_holms_over_all_its_rows(rows: pd.DataFrame) -> None:
    p = rows["p"].fillna(1.0)
    assert p.lt(1).sum() == 5  # three sizes and two optimizers were tested
    expected = multipletests(p, method="holm")[1]
    tested = rows["p"].notna()
    assert rows.loc[tested, "p_board"].to_numpy() == pytest.approx(expected[tested])
    assert rows.loc[~tested, "p_board"].isna().all()


def test_unstable_exploratory_and_unfinished_rows_are_shown_without_a_number(
    rows: pd.DataFrame, report: Report
) -> None:
    without = {
        ("norm", "none"): "unstable",
        ("early", "b"): "worse (exploratory)",
        ("half", "b"): "pending",
    }
    there = {(row["ablation"], row["arm"]): row for row in shown(report, "board")}
    for (study, effect), word in without.items():
        row = row_of(rows, study, effect)
        assert pd.isna(row["mean"]) and pd.isna(row["low"]) and pd.isna(row["p"])
        read = there[study, effect]
        assert read["verdict"] == word and read["nats"] == read["interval"] == "–"
    assert "half-half: 23 of 24 planned runs done" in text_of(report)
    assert "; 1 of them exploratory, so without a number." in report.answer
    board = next(item for item in report.head if isinstance(item, Table) and item.name == "board")
    assert not [row[1].badge for row in board.rows() if not row[1].badge.isalpha()], (
        "a badge is the word alone"
    )


def test_studies_of_other_sizes_keep_rows_of_their_own_with_their_regime(
    rows: pd.DataFrame, report: Report
) -> None:
    mine = rows[rows["ablation"] == "norm-placement"]
    assert list(mine["parameters"]) == [185_088, 740_352, 2_961_408]  # from small to large
    assert mine["regime"].nunique() == 3
    regimes = [row["size, tokens, corpus"] for row in shown(report, "board")]
    assert "185 k, 205 k, sotu/byte" in regimes and "2.96 M, 205 k, sotu/byte" in regimes


def test_ablations_are_sorted_by_their_largest_effect(rows: pd.DataFrame) -> None:
    assert list(dict.fromkeys(rows["ablation"]))[:2] == ["optimizer", "norm-placement"]
    assert list(rows[rows["ablation"] == "optimizer"]["effect"]) == ["sgd", "muon"]


def test_the_caption_says_what_the_intervals_cover(report: Report) -> None:
    told = text_of(report)
    assert "not over the board, which has 7 families" in told and "8 rows" in told


def test_what_asks_the_same_is_counted_once_and_said(tmp_path: Path) -> None:
    finished(tmp_path, name="first", digest="same")
    finished(tmp_path, name="second", digest="same")
    kept, said = board.distinct_studies(load_all(RunStore(tmp_path)))
    assert len(kept) == 1 and len(said) == 1
    assert said[0].startswith("first-same asks the same as second-same")
    [page] = [
        p for p in ReportJob(RunStore(tmp_path), SCRIPT).make(["md"]) if p.name == "report.md"
    ]
    assert page.parent == tmp_path / "reports" / "leaderboard"
    assert "first-same asks the same as second-same" in page.read_text()


def test_the_slope_over_sizes_is_that_of_the_means_and_its_interval_that_of_the_seeds(
    writers: dict[str, Writer], report: Report
) -> None:
    names = ("small", "middle", "large")
    x = np.log10([185_088 * 4**i for i in range(3)])
    pairs = [differences(writers[name], "post") for name in names]
    means = [np.mean(list(d.values())) for d in pairs]
    weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    each = [sum(w * d[seed] for w, d in zip(weights, pairs, strict=True)) for seed in pairs[0]]
    low, high = stats.ttest_1samp(each, 0).confidence_interval(0.95)
    [told] = report.tables()["slopes"].to_dict("records")
    assert told["slope"] == pytest.approx(np.polyfit(x, means, 1)[0])
    assert (told["low"], told["high"]) == pytest.approx((low, high))
    assert told["word"] == "fades" and told["n"] == "5, 5, 5"
    assert "post (norm-placement): the effect fades with size" in text_of(report)


def test_other_tokens_or_another_corpus_are_no_sizes_of_one_ablation(tmp_path: Path) -> None:
    store = finished(tmp_path, digest="a").store
    grown(finished(tmp_path, digest="b"), 4)
    other = finished(tmp_path, digest="c")
    grown(other, 16)
    resolved = stored.study_json(other.folder, "resolved.json")
    for arm in resolved["arms"].values():
        arm["config"]["train"]["tokens"] *= 2
    other.folder.write("resolved.json", resolved)
    groups, _ = growth.group_by_question(load_all(store))
    assert [[growth.baseline_parameters(study) for study in group] for group in groups] == [
        [185_088, 740_352]
    ]
    folder = StudyFolder(store.root / "studies" / "norm-placement-b")
    folder.write(
        "resolved.json", stored.study_json(folder, "resolved.json") | {"fingerprint": "cd" * 32}
    )
    assert growth.group_by_question(load_all(store))[0] == []


def test_arms_of_one_name_that_are_set_otherwise_are_no_sizes_of_one_ablation(
    tmp_path: Path,
) -> None:
    store = finished(tmp_path, digest="a").store
    other = finished(tmp_path, digest="b", arms=("pre", "post"))
    grown(other, 4)
    assert len(growth.group_by_question(load_all(store))[0]) == 1
    other.asked["arms"]["post"]["set"]["model.final_norm"] = True
    other.save()
    assert growth.group_by_question(load_all(store))[0] == []


def test_an_unknown_regret_at_one_size_leaves_the_slope_open(tmp_path: Path) -> None:
    store = finished(tmp_path, digest="a", effects={"post": 0.09}).store
    large = grown(finished(tmp_path, digest="b", effects={"post": 0.02}), 4)
    rejudged(large, np.random.default_rng(0).normal(0, 0.003, 5))
    [group], _ = growth.group_by_question(load_all(store))
    assert list(growth.fit_slopes(group)["word"]) == ["fades"]
    verdict = stored.study_json(large.folder, "verdict.json")
    verdict["verdicts"][0]["regret"] = None
    large.folder.write("verdict.json", verdict)
    [group], _ = growth.group_by_question(load_all(store))
    assert (
        list(growth.fit_slopes(group)["word"]) == ["uncertain"]
        and growth.fit_slopes(group)["regret"].isna().all()
    )


def test_main_effects_of_a_factorial_design_have_rows(tmp_path: Path) -> None:
    factors = {
        "model.norm_placement": {"pre": {"set": {}}, "post": {"set": {}, "label": "post-norm"}},
        "train.warmup": {"warm": {"set": {}}, "cold": {"set": {}}},
    }
    arms = ("pre+warm", "pre+cold", "post+warm", "post+cold")
    shifts = {"pre+cold": 0.02, "post+warm": 0.06, "post+cold": 0.16}
    writer = finished(
        tmp_path, arms=arms, effects=shifts, factors=factors, factor="norm_placement × warmup"
    )
    told = board.board_table(load_all(writer.store))
    main = told[told["kind"] == "main effect"].set_index("effect")
    seeds = sorted({seed for _, seed in writer.losses})
    y = {arm: np.array([writer.losses[arm, seed] for seed in seeds]) for arm in arms}
    expected = (y["post+warm"] + y["post+cold"] - y["pre+warm"] - y["pre+cold"]).mean() / 2
    assert main.loc["post-norm instead of pre", "mean"] == pytest.approx(expected)
    assert (told["kind"] == "arm").sum() == 3 and len(main) == 2


def test_the_forest_has_a_line_per_row_and_study_and_stretches_far_effects(
    rows: pd.DataFrame,
) -> None:
    lines = forest.number_lines(rows)
    assert len(lines) == len(rows) + rows["study"].nunique()
    assert forest.needs_log_axis(rows)  # SGD is 1.2 nats off, m is 0.03
    assert not forest.needs_log_axis(rows[rows["ablation"] == "norm-placement"])
    assert "symlog" in json.dumps(forest.draw_forest(rows))
    assert "symlog" not in json.dumps(
        forest.draw_forest(rows[rows["ablation"] == "norm-placement"])
    )


def test_an_empty_store_gives_a_board_that_says_so() -> None:
    report = load_script(SCRIPT).build([])
    assert report.answer.startswith("Nothing to show") and not report.figures()
