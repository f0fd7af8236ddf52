"""What stands beside the verdicts on the page: controls, confirmation, tokens, budgets,
sensitivity, documents.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from analysis_store import Writer, finished
from evidence_store import ASKED, confirmed, with_evidence
from report_page import Page, read_page

from andrea.analysis.chapters import confirmation, controls, documents, pairs, stability
from andrea.analysis.chapters import equal_cost as budgets
from andrea.analysis.chapters import sentences as words
from andrea.analysis.formats.build import load_script, make_report
from andrea.analysis.load import Study, load
from andrea.analysis.report import Bullets, Callout, Figure, Item, Report, Section, Table, Text
from andrea.records.extras import Extras
from andrea.records.study import AskedStudy
from andrea.records.verdict import StudyVerdict
from andrea.verdict.seeds import replication_seed

SCRIPT = Path(__file__).parents[1] / "reports" / "comparison.py"
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """A study with everything beside its verdicts."""
    return with_evidence(finished(tmp_path_factory.mktemp("evidence")))


@pytest.fixture(scope="module")
def study(writer: Writer) -> Study:
    """The same, loaded."""
    return load(writer.folder, writer.store)


@pytest.fixture(scope="module")
def page(writer: Writer) -> Page:
    """Its page."""
    return read_page(make_report(writer.store, writer.folder, ["html"], SCRIPT, None)[0])


def built(writer: Writer) -> Report:
    """The report before it is any file."""
    report: Report = load_script(SCRIPT).build(load(writer.folder, writer.store))
    return report


def other(study: Study, **verdict: Any) -> Study:
    """The study with another verdict.json."""
    return replace(study, verdict=StudyVerdict.model_validate(study.verdict.to_json() | verdict))


def said(items: Sequence[Item]) -> str:
    """The words of a chapter."""
    parts = []
    for item in items:
        if isinstance(item, Text):
            parts.append(item.body)
        elif isinstance(item, Bullets):
            parts += item.items
        elif isinstance(item, Callout):
            parts += [item.title, item.body]
        elif isinstance(item, Table | Figure):
            parts.append(item.caption)
    return " ".join(parts)


def cells(items: Sequence[Item], name: str) -> list[dict[str, str]]:
    """The shown rows of a table of a chapter, by header."""
    table = next(item for item in items if isinstance(item, Table) and item.name == name)
    headers = [column.header for column in table.columns]
    return [dict(zip(headers, (cell.text for cell in row), strict=True)) for row in table.rows()]


def test_the_chapters_stand_in_reading_order_after_how_it_was_done(page: Page) -> None:
    order = [
        "How it was done",
        "Controls",
        "Confirmation",
        "Over documents",
        "Tokens saved",
        "Equal budgets",
    ]
    order += ["What is not matched", "Learning-rate sensitivity", "Stability", "Every run"]
    headings = [attributes["id"] for tag, attributes in page.elements if tag == "h2"]
    places = [headings.index(Section(title, []).anchor) for title in order]
    assert places == sorted(places) and Section("What was not done", []).anchor not in headings


def test_a_control_says_what_was_done_what_came_out_and_what_follows(study: Study) -> None:
    chapter = controls.chapter(study)
    rows = cells(chapter, "controls")
    assert [row["control"] for row in rows] == ["repeat", "A/A", "ruler, ½ the tokens"]
    assert rows[1] | {"p": ""} == {
        "control": "A/A",
        "outcome": "pass",
        "difference (nats)": "+0.0010",
        "95 % interval": "[−0.0030, +0.0050]",
        "n": "5",
        "p": "",
        "what was done": "the baseline with other initial weights, on the same batches",
    }
    assert rows[0]["n"] == "1" and rows[0]["95 % interval"] == "–"
    assert (
        "A/A: the baseline does not differ from itself: a mean within m; so the procedure invents "
        "no" in said(chapter)
    )
    figure = next(item for item in chapter if isinstance(item, Figure))
    assert list(figure.legend) == ["post", "A/A", "ruler, ½ the tokens"]
    assert len(controls.control_pairs(study)) == 10


@pytest.mark.parametrize("name", ["repeat", "a_a", "ruler"])
def test_a_failed_control_stands_on_the_first_screen(study: Study, name: str) -> None:
    told = study.verdict.to_json()["controls"]
    failed = other(
        study, controls=told | {name: told[name] | {"ok": False, "reason": "it came out otherwise"}}
    )
    callout = controls.failed_callouts(failed)
    assert "Control failed. " + controls.NAMES[name] + ": it came out otherwise; " in said(callout)
    what = (
        "equivalent and inconclusive are invalid" if name == "ruler" else "every verdict is invalid"
    )
    assert what in said(callout)
    assert [row["outcome"] for row in cells(controls.chapter(failed), "controls")].count(
        "fail"
    ) == 1
    assert controls.failed_callouts(study) == []


def test_a_failed_control_makes_the_page_say_that_the_study_cannot_answer(tmp_path: Path) -> None:
    report = built(with_evidence(finished(tmp_path), a_a=False))
    assert report.answer == "This study cannot answer: control failed: a_a.", (
        "and the confirmation is silent"
    )
    assert "Control failed." in said(report.head)
    verdicts = [row["verdict"] for row in cells(report.head, "verdicts")]
    assert verdicts == ["baseline", "invalid (control failed)"]


def test_an_unknown_control_passes_nothing_and_voids_nothing(study: Study) -> None:
    told = study.verdict.to_json()["controls"]
    unknown = other(
        study,
        controls=told
        | {"a_a": told["a_a"] | {"ok": None, "mean": None, "interval": None, "p": None}},
    )
    row = cells(controls.chapter(unknown), "controls")[1]
    assert (row["outcome"], row["difference (nats)"], row["95 % interval"]) == ("unknown", "–", "–")
    assert controls.failed_callouts(unknown) == []


def test_the_confirmation_stands_beside_the_first_verdict_and_in_the_answer(
    study: Study, page: Page
) -> None:
    rows = cells(confirmation.chapter(study), "confirmation")
    assert [(row["seeds"], row["verdict"], row["pairs"], row["confirmed"]) for row in rows] == [
        ("first", "worse", "5", ""),
        ("confirmation", "worse", "5", "agrees"),
    ]
    assert rows[1]["simultaneous interval"] == "[+0.0643, +0.0781]"
    assert [text for text, _ in page.column("verdicts", "confirmation")] == ["–", "agrees"]
    assert (
        "A confirmation on 5 fresh seeds agrees." in page.text[: page.text.index("How it was done")]
    )


@pytest.mark.parametrize(
    ("first", "word", "agrees", "told", "sentence"),
    [
        (
            "worse",
            "inconclusive",
            False,
            "not confirmed (inconclusive there)",
            "does not confirm the verdict on {} {}",
        ),
        (
            "worse",
            "unstable",
            False,
            "not confirmed (unstable there)",
            "does not confirm the verdict on {} {}",
        ),
        (
            "unstable",
            "worse",
            False,
            "not confirmed (worse there)",
            "does not confirm the verdict on {} {}",
        ),
        ("worse", "better", False, "disagrees (better there)", "contradicts the verdict on {} {}"),
        (
            "equivalent",
            "worse",
            False,
            "disagrees (worse there)",
            "contradicts the verdict on {} {}",
        ),
        (
            "inconclusive",
            "worse",
            False,
            "inconclusive at first (worse there)",
            "decides what was open for {} {}",
        ),
        ("inconclusive", "inconclusive", True, "inconclusive again", "leaves {} open again"),
        (
            "worse",
            "inconclusive",
            None,
            "not done",
            "The confirmation on 5 fresh seeds is not complete yet",
        ),
    ],
)
def test_a_confirmation_contradicts_only_where_both_blocks_decide(
    study: Study,
    writer: Writer,
    first: str,
    word: str,
    agrees: bool | None,
    told: str,
    sentence: str,
) -> None:
    verdicts = [verdict | {"verdict": first} for verdict in study.verdict.to_json()["verdicts"]]
    again = other(study, verdicts=verdicts, confirmation=confirmed(writer, word, agrees))
    whole = sentence.format("post", f"({word} there)")
    assert (
        confirmation.write_sentence(again)
        == f"{'' if agrees is None else 'A confirmation on 5 fresh seeds '}{whole}."
    )
    assert confirmation.words_by_arm(again) == {"post": told}


def test_an_arm_without_a_rate_has_no_confirmation(study: Study, writer: Writer) -> None:
    again = other(study, confirmation=confirmed(writer, "unstable", None) | {"complete": True})
    assert confirmation.words_by_arm(again) == {"post": "not trained"}
    assert (
        confirmation.write_sentence(again) == "A confirmation on 5 fresh seeds has no run of post."
    )


def test_tokens_saved_have_an_interval_or_a_reason(study: Study) -> None:
    row = cells(budgets.tokens_saved_table(study), "tokens-saved")[0]
    assert (
        row["tokens saved"].startswith("−")
        and row["interval"].count("%") == 2
        and row["pairs"] == "5"
    )
    # 0.0804 nats worse, half the tokens cost 0.12: 2^(0.67) of the tokens.
    mean = study.verdicts.set_index("arm").loc["post", "mean"]
    assert float(row["tokens saved"][:-2].replace("−", "-")) == pytest.approx(
        100 * (1 - 2 ** (mean / 0.12)), abs=0.06
    )
    refused = {
        "saved": None,
        "interval": None,
        "level": 0.95,
        "n": 5,
        "tokens": None,
        "reason": "beyond the rulers",
    }
    row = cells(
        budgets.tokens_saved_table(other(study, tokens_saved={"post": refused})), "tokens-saved"
    )[0]
    assert row["tokens saved"] == "–" and row["why not told"] == "beyond the rulers"


def test_equal_budgets_are_told_from_runs_that_end_there_or_not_at_all(study: Study) -> None:
    rows = cells(budgets.equal_budget_table(study), "equal-budgets")
    assert [(row["compared at"], row["verdict"], row["tokens of the arm"]) for row in rows] == [
        ("equal tokens", "worse", "204,800"),
        ("equal FLOPs", "worse", "184,320"),
        ("equal wall-clock time", "n/a", "–"),
    ]
    assert rows[1]["interval"] == "[+0.0842, +0.0980]" and rows[1]["pairs"] == "5"
    assert rows[2]["difference (nats)"] == "–" and "--equal time" in rows[2]["remark"]


def test_speed_is_measured_apart_and_the_runs_own_times_stay_no_benchmark(
    study: Study, page: Page
) -> None:
    rows = cells(budgets.speed_table(study), "speed")
    assert rows[1]["step (ms)"] == "54.00" and rows[1]["step time / baseline's"] == "0.900"
    assert rows[1]["its interval"] == "[0.880, 0.930]" and rows[0]["its interval"] == "–"
    assert "compilation, apart" not in rows[0], "nothing was compiled"
    one = replace(study, speed=study.speed.model_copy(update={"threads": 1}))
    assert "1 thread: all arms warm" in said(budgets.speed_table(one))
    assert "taking turns round by round" in page.text and "Do not compare times" in page.text


def test_what_is_not_matched_has_a_row_per_arm_and_quantity(study: Study) -> None:
    rows = {row["quantity"]: row for row in cells(budgets.not_matched_table(study), "not-matched")}
    assert rows["parameters"]["baseline"] == "185,088" and rows["parameters"]["arm's"] == "184,992"
    assert rows["learning rate"]["how it came about"] == "tuned, by the same rule"
    assert (
        rows["tokens per second"]["95 % interval"]
        == "[+7.53\N{NO-BREAK SPACE}%, +13.64\N{NO-BREAK SPACE}%]"
    )


def test_rates_of_failed_training_have_wilsons_interval_per_arm_and_phase(study: Study) -> None:
    from statsmodels.stats.proportion import proportion_confint

    table = stability.stability_table(study).set_index(["arm", "phase"])
    assert (table.loc[("post", "tune"), "stalled"], table.loc[("post", "tune"), "n"]) == (2, 7)
    for (arm, phase), bad, n in [(("post", "tune"), 2, 7), (("pre", "replicate"), 0, 5)]:
        low, high = proportion_confint(bad, n, method="wilson")
        row = table.loc[(arm, phase)]
        assert (row["rate"], row["low"], row["high"]) == pytest.approx((bad / n, low, high))


def test_the_sensitivity_has_its_curve(study: Study) -> None:
    items = stability.sensitivity_items(study)
    assert [row["sensitivity (nats)"] for row in cells(items, "sensitivity")] == [
        "0.1400",
        "1.2080",
    ]
    figure = next(item for item in items if isinstance(item, Figure))
    assert figure.name == "sensitivity-curve" and "5.5451" in json.dumps(figure.spec)
    assert len(stability.sensitivity_curve(study)) == 10


def test_documents_have_an_interval_beside_that_over_seeds(study: Study) -> None:
    row = cells(documents.chapter(study), "over-documents")[0]
    assert row["95 % interval over documents"] == "[+0.0700, +0.0900]" and row["documents"] == "2"
    low, high = study.verdicts.set_index("arm").loc["post", ["low", "high"]]
    assert row["simultaneous interval over seeds"] == f"[+{low:.4f}, +{high:.4f}]"
    each = documents.by_document(study)
    assert each["difference"].tolist() == pytest.approx(
        [study.differences["difference"].mean()] * 2
    )
    figure = documents._figure(study, each)
    titles = [layer["encoding"]["y"].get("title") for layer in figure.spec["layer"]]
    assert titles == ["difference to pre (nats)"] * 3, (
        "a layer without a title takes it from the whole axis"
    )


@pytest.mark.parametrize(
    ("name", "year"),
    [
        ("1790-Washington-1.txt", 1790),
        ("speech-3", None),
        ("1861 to 1865", None),
        ("x-12019", None),
    ],
)
def test_a_year_is_read_from_a_documents_name_where_there_is_one(
    name: str, year: int | None
) -> None:
    found = documents.find_year(name)
    assert found == year if year else found != found


def test_documents_are_thinned_by_selection_with_both_ends() -> None:
    effects = pd.DataFrame(
        {
            "arm": ["a"] * 1000,
            "document": [f"d{i}" for i in range(1000)],
            "difference": [(i * 7 % 1000) for i in range(1000)],
        }
    )
    drawn = documents.choose_documents(effects, {})
    assert len(drawn) == documents.DRAWN and drawn["x"].min() == 1 and drawn["x"].max() == 1000
    kept = effects.set_index("document").loc[drawn["document"], "difference"]
    assert kept.tolist() == drawn["difference"].tolist(), "values as they are"
    few = documents.choose_documents(effects.head(5), {f"d{i}": 1990.0 + i for i in range(5)})
    assert sorted(few["x"]) == [1990, 1991, 1992, 1993, 1994]


def test_a_study_that_was_asked_for_nothing_more_says_what_it_lacks(tmp_path: Path) -> None:
    plain = finished(tmp_path)
    bare = load(plain.folder, plain.store)
    for chapter in (
        controls.chapter,
        confirmation.chapter,
        budgets.tokens_saved_table,
        budgets.equal_budget_table,
        budgets.speed_table,
    ):
        assert chapter(bare) == []
    lines = " ".join(words.list_not_done(bare))
    assert "--controls" in lines and "--confirm" in lines and "--equal flops,time" in lines


def test_a_control_that_was_judged_stays_in_the_report_without_the_file_that_asked_for_it(
    study: Study,
) -> None:
    bare = replace(study, asked=Extras())
    assert len(cells(controls.chapter(bare), "controls")) == 3 and budgets.equal_budget_table(bare)
    assert words.list_not_done(bare) == []


def test_a_half_finished_study_says_what_of_this_is_missing(tmp_path: Path) -> None:
    half = Writer(tmp_path)
    half.tune()
    half.replicate({"post": 0.08})
    half.folder.write("asked.json", ASKED)
    run = half.plan("pre", "control", "a/a", 0.003, replication_seed(0))
    half.train(run, 2.56)
    half.plan("pre", "control", "a/a", 0.003, replication_seed(1))
    study = load(half.folder, half.store)
    missing = words.list_missing(study)
    assert (
        "the controls: asked for, not judged yet" in missing
        and "pre, control: 1 missing of 2 planned runs" in missing
    )
    assert (
        "the confirmation: asked for, not planned yet" in missing
        and "equal flops: asked for, not planned yet" in missing
    )
    rows = {row["control"]: row["outcome"] for row in cells(controls.chapter(study), "controls")}
    assert rows == {"repeat": "missing", "A/A": "missing", "ruler, ½ the tokens": "missing"}
    assert "A/A: 1 of 2 runs is done; so nothing is known yet." in said(controls.chapter(study))
    assert confirmation.write_sentence(study) == ""
    assert "Half finished." in said(built(half).head)
    assert "the controls: asked for, not judged yet" in said(built(half).head)


def test_notes_stand_below_the_table_and_do_not_repeat_its_numbers(tmp_path: Path) -> None:
    undecided = finished(tmp_path, {"post": 0.0}, protocol={"seeds": 3, "m": 0.001})
    study = load(undecided.folder, undecided.store)
    notes = words.verdict_notes(study)
    assert len(notes) == 1 and notes[0].startswith("post: would need about ")
    worse = finished(tmp_path / "worse")
    assert words.verdict_notes(load(worse.folder, worse.store)) == []


def test_figures_call_arms_by_their_labels(study: Study) -> None:
    arms = {arm: {"label": f"{arm}-norm </script>", "set": {}} for arm in study.arms}
    labelled = replace(
        study, protocol=AskedStudy.model_validate(study.protocol.to_json() | {"arms": arms})
    )
    figure = next(item for item in pairs.pair_items(labelled) if isinstance(item, Figure))
    told = json.dumps(figure.spec)
    assert (
        "difference to pre-norm </script> (nats)" in told
        and '\\"post\\": \\" post-norm </script>\\"' in told
    )
