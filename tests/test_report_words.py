"""What a report says in words: many arms, runs that did not train, budgets that are short."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import analysis_store
import pandas as pd
import pytest
import stored
import yaml
from analysis_store import Writer, finished, swept
from evidence_store import with_evidence
from report_page import Page, read_page

from andrea.analysis.chapters import controls, stability
from andrea.analysis.chapters import sentences as words
from andrea.analysis.figures import learning_rates as rate_curves
from andrea.analysis.formats.build import load_script, make_report
from andrea.analysis.load import Study, load
from andrea.analysis.report import Callout, Figure, Report, Table
from andrea.analysis.tables.summaries import count_still_falling
from andrea.records.study import Choice
from andrea.verdict.judge import judge_arms
from andrea.verdict.protocol import Protocol
from andrea.verdict.rates import rate_grid
from andrea.verdict.replicates import ArmData

REPORTS = Path(__file__).parents[1] / "reports"
pytestmark = pytest.mark.usefixtures("undrawn")


def made(writer: Writer, script: str = "comparison.py") -> Page:
    """The page of the report."""
    return read_page(make_report(writer.store, writer.folder, ["html"], REPORTS / script, None)[0])


def built(writer: Writer) -> Report:
    """The report before it is any file."""
    report: Report = load_script(REPORTS / "comparison.py").build(load(writer.folder, writer.store))
    return report


def head(page: Page) -> str:
    """What stands on the first screen, in one line."""
    return " ".join(page.text[: page.text.index("How it was done")].split())


def asked_again(writer: Writer, **asked: object) -> Writer:
    """The same study with another protocol.yaml."""
    (writer.folder.path / "protocol.yaml").write_text(yaml.safe_dump(writer.asked | asked))
    return writer


@pytest.fixture(scope="module")
def ratios(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Four arms whose labels are bare numbers, two of them worse; all stall at the highest rate,
    two already before.
    """
    labels = {"r4": "4", "r1": "1", "r2": "2", "r8": "8/3"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis_store, "CLIFF", {"r4": 0.02, "r1": 0.008, "r2": 0.008, "r8": 0.02})
        writer = finished(
            tmp_path_factory.mktemp("ratios"),
            {"r1": 0.2, "r2": 0.3},
            name="mlp-ratio",
            arms=tuple(labels),
        )
    arms = {arm: {"label": label, "set": {}} for arm, label in labels.items()}
    return asked_again(writer, arms=arms, factor="mlp_ratio")


def never_trained(root: Path) -> Writer:
    """A study of which no tuning run trained."""
    writer = Writer(root)
    writer.tuning_loss = lambda arm, lr: None  # type: ignore[method-assign]
    rates = rate_grid(7, writer.rules["center"])
    points = {
        arm: [writer._trial(arm, lr, "grid", i, {}) for i, lr in enumerate(rates)]
        for arm in writer.arms
    }
    told = {
        "lr": None,
        "method": None,
        "note": "no good trial",
        "edge": None,
        "fit": None,
        "grid": rates,
    }
    told |= {"hardly_tuned": False, "regret": None, "untrainable": True}
    writer.folder.write(
        "choices.json", {arm: {**told, "points": points[arm]} for arm in writer.arms}
    )
    pre, post = (ArmData(arm, untrainable=True) for arm in writer.arms)
    verdicts = [verdict.to_dict() for verdict in judge_arms(Protocol(**writer.rules), pre, [post])]
    writer.folder.write(
        "verdict.json", {"verdicts": verdicts, "baseline": {}, "method": 1, "complete": True}
    )
    return writer


@pytest.mark.slow
def test_several_arms_are_told_by_verdict_and_bare_numbers_have_their_factor(
    ratios: Writer,
) -> None:
    said = head(made(ratios))
    assert (
        "mlp_ratio 1 and 2 are worse than mlp_ratio 4; mlp_ratio 8/3 is equivalent to mlp_ratio 4 "
        "within" in said
    )
    assert "mlp_ratio 1 and 2, each: 2 stalled of 7 runs in tuning" in said
    assert "Final loss against mlp_ratio 4, paired by seed" in said


def test_a_study_whose_baseline_never_trained_says_what_stalled_means_and_to_train_longer(
    tmp_path: Path,
) -> None:
    page = made(never_trained(tmp_path))
    said = head(page)
    assert "This study cannot answer: no tuning run of the baseline was good" in said
    assert (
        "pre and post, each: all 5 runs in tuning stalled. Stalled: final loss less than 1 % below "
        "the unigram loss, 2.97 nats. No rate trained even the baseline: train longer" in said
    )
    assert "with more --tokens than 204,800" in said
    assert "No learning-rate curves" in said and not [
        1 for tag, a in page.elements if a.get("id") == "learning-rates"
    ]
    assert [text for text, _ in page.column("verdicts", "replicates diverged, stalled")] == [
        "–",
        "–",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("reached", "short"), [(1.0, True), (0.5, False)])
def test_stalled_runs_that_were_still_falling_ask_for_more_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: float, short: bool
) -> None:
    records = Writer._records

    def straight(self: Writer, *run: Any) -> list[dict[str, Any]]:
        """The evaluated loss on a straight line to its end, which it reaches after that share of
        the tokens.
        """
        told = records(self, *run)
        ends = [row for row in told if row["kind"] == "eval"]
        for row in ends[1:-1]:
            share = min(1.0, row["tokens"] / ends[-1]["tokens"] / reached)
            row["loss"] = ends[0]["loss"] + share * (ends[-1]["loss"] - ends[0]["loss"])
        return told

    monkeypatch.setattr(Writer, "_records", straight)
    said = head(made(finished(tmp_path)))
    assert "2 stalled of 7 runs in tuning" in said and ("--tokens" in said) == short
    assert (
        "2 of 2 stalled runs was still falling, so the budget may be what is short: train longer"
        in said
    ) == short


@pytest.mark.slow
def test_a_rate_that_is_too_low_asks_for_no_more_tokens_and_warns_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Writer.tuning_loss
    monkeypatch.setattr(
        Writer, "tuning_loss", lambda self, arm, lr: None if lr < 5e-4 else usual(self, arm, lr)
    )
    monkeypatch.setattr(analysis_store, "CLIFF", {})
    study = load((writer := finished(tmp_path)).folder, writer.store)
    assert count_still_falling(study, study.runs["run_id"][study.runs["stalled"]]) == 2
    said = words.describe_untrained(study)
    assert "pre and post, each: 1 stalled of 7 runs in tuning, at learning rate 0.000316" in said
    assert "--tokens" not in said
    [callout] = [
        item
        for item in built(writer).head
        if isinstance(item, Callout) and item.title == "Did not train."
    ]
    assert callout.kind == "note"
    gone = finished(tmp_path / "gone", fates={"post": {2: "stalled"}})
    [callout] = [
        item
        for item in built(gone).head
        if isinstance(item, Callout) and item.title == "Did not train."
    ]
    assert callout.kind == "warning"


def test_an_arm_that_no_rate_trains_has_no_rate_to_be_judged_at_and_no_sensitivity(
    tmp_path: Path,
) -> None:
    writer = with_evidence(finished(tmp_path))
    study = load(writer.folder, writer.store)
    lost = {
        "verdict": "unstable",
        "cause": "no rate trains",
        "reason": "every tuning run diverged or stalled",
    }
    [pre, post] = study.judged
    post = replace(post, **lost, lr=None, mean=None, low=None, high=None)
    gone = replace(study, judged=[pre, post])
    gone.trials.loc[gone.trials["arm"] == "post", "ok"] = False
    gone.__dict__["differences"] = gone.differences.iloc[:0]
    gone.verdicts["planned"] = 0
    answer = words.write_answer(gone)
    assert (
        answer
        == "On this corpus, at this size and budget, post is unstable (every tuning run diverged "
        "or stalled)."
    )
    assert words.verdict_notes(gone) == [], "the answer and the callout say it"
    short = replace(gone, choices=study.choices | {"post": Choice(untrainable=True)})
    told = (
        "No rate trained post, which the budget may be too short for: train longer, with more "
        "--tokens than 204,800."
    )
    assert words.describe_untrained(short).endswith(told)
    [table, *_] = stability.sensitivity_items(gone)
    assert isinstance(table, Table)
    assert [[cell.text for cell in row][:2] for row in table.rows()] == [
        ["pre", "0.1400"],
        ["post", "–"],
    ]
    assert [row[-1].text for row in table.rows()] == ["", "trained at none of these rates"]
    [figure] = controls.scale_figure(gone)
    assert isinstance(figure, Figure)
    assert list(figure.legend) == [
        "A/A",
        "ruler, ½ the tokens",
    ] and '"domain": ["A/A", "ruler' in json.dumps(figure.spec, ensure_ascii=False)


def test_inconclusive_is_said_of_the_question_and_exploratory_once(tmp_path: Path) -> None:
    writer = finished(
        tmp_path, {"post": 0.08, "third": 0.0}, arms=("pre", "post", "third"), protocol={"m": 0.001}
    )
    study = load(writer.folder, writer.store)
    told = "post is worse than pre; whether third differs from pre is inconclusive."
    assert words.write_answer(study).endswith(told)
    tagged = [replace(row, tags=["exploratory"]) for row in study.judged]
    early = replace(
        study, judged=tagged, verdict=study.verdict.model_copy(update={"exploratory": True})
    )
    assert [note for note in words.verdict_notes(early) if "exploratory" in note] == []
    assert [
        note
        for note in words.verdict_notes(replace(study, judged=tagged))
        if note.endswith("exploratory.")
    ]


def test_midpoints_that_are_not_planned_yet_are_missing(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tuning_loss = lambda arm, lr: 2.6 if arm == "pre" else None  # type: ignore[method-assign]
    for number, lr in enumerate(rate_grid(7, writer.rules["center"])):
        for arm in writer.arms:
            writer._trial(arm, lr, "grid", number, {})
    missing = words.list_missing(load(writer.folder, writer.store))
    assert missing[:2] == [
        "pre: 2 runs in tuning not planned yet",
        "pre: 5 replicates not planned yet",
    ]
    assert not [line for line in missing if line.startswith("post: 2 runs")], (
        "what never trained has no midpoints"
    )


def drawn(study: Study) -> tuple[dict[str, Any], pd.DataFrame]:
    """The specification of the learning-rate figure, and its trials."""
    spec = rate_curves.draw_learning_rates(study.trials, study.choices, study.arms)
    layer = next(la for la in spec["layer"] if la["encoding"].get("shape"))
    data = layer["data"].get("values") or spec["datasets"][layer["data"]["name"]]
    return spec, pd.read_csv(io.StringIO(data))


def test_runs_that_failed_at_one_rate_stand_in_rows_of_their_arms_under_one_tick(
    ratios: Writer,
) -> None:
    spec, trials = drawn(load(ratios.folder, ratios.store))
    failed, good = trials[trials["state"] == "stalled"], trials[trials["state"] == "completed"]
    assert failed.groupby("lr")["arm"].nunique().max() == 4, "all four stall at the highest rate"
    assert (
        not failed.duplicated(["lr", "drawn"]).any() and failed["drawn"].min() > good["drawn"].max()
    )
    assert "'loss at init'" in json.dumps(spec)
    y = next(la["encoding"]["y"] for la in spec["layer"] if la["encoding"].get("shape"))
    bend = y["scale"]["domain"][1]
    assert sum(value > bend for value in y["axis"]["values"]) == 1 and failed["drawn"].min() > bend


def test_one_run_that_trained_still_has_an_axis_to_read(ratios: Writer) -> None:
    study = load(ratios.folder, ratios.store)
    lowest = study.trials["score"].idxmin()
    trials = study.trials.assign(ok=False, stalled=True)
    trials.loc[lowest, "ok"], trials.loc[lowest, "stalled"] = True, False
    spec = rate_curves.draw_learning_rates(trials, {}, study.arms)
    low, bend, _ = spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert bend - low >= rate_curves.LEAST


def test_exploratory_is_explained_and_each_regret_has_its_name(tmp_path: Path) -> None:
    writer = finished(tmp_path)
    writer.folder.write(
        "resolved.json", stored.study_json(writer.folder, "resolved.json") | {"exploratory": True}
    )
    page = made(writer)
    assert "Some runs were made before this protocol was frozen, by another study" in head(page)
    assert (
        "regret (nats)" in page.headers["rates"]
        and "regret of both (nats)" in page.headers["power"]
    )
    assert [text for text, _ in page.column("costs", "peak memory")] == ["296 MiB", "296 MiB"]


def test_a_sweep_over_one_parameter_has_no_others_that_vary(tmp_path: Path) -> None:
    two = swept(tmp_path / "two")
    assert "The other parameters vary too" in made(two, "sweep.py").text
    one = swept(tmp_path / "one")
    runs = one.folder.path / "runs.jsonl"
    lines = [json.loads(line) for line in runs.read_text().splitlines()]
    for line in lines:
        del line["params"]["train.weight_decay"]
    runs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "The other parameters" not in made(one, "sweep.py").text
