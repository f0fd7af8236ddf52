"""The report of a factorial design: its words, its table, its figure, and what the terminal
says.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis_store import Writer
from report_page import Page, read_page

from andrea.analysis import load
from andrea.analysis.chapters import common as chapters
from andrea.analysis.chapters import effects
from andrea.analysis.formats.build import make_report
from andrea.analysis.report import Figure
from andrea.cli.show.results import results_as_json, results_as_text
from andrea.cli.show.verdict_table import effect_table
from andrea.records.study import AskedStudy
from andrea.verdict.design import cells
from andrea.verdict.seeds import replication_seed

SCRIPT = Path(__file__).parents[1] / "reports" / "comparison.py"
FACTORS = {
    "norm_placement": {"pre": {"label": "pre-norm"}, "post": {"label": "post-norm"}},
    "warmup": {"warm": {"label": "warmup"}, "cold": {"label": "no warmup"}},
}
CELLS = tuple(cells({factor: list(levels) for factor, levels in FACTORS.items()}))


def design(root: Path, **fates: dict[int, str]) -> Writer:
    """Two factors whose effects add up, but for what post-norm loses without warmup: 0.2 nats
    more.
    """
    labels = [
        ", ".join(FACTORS[f][level]["label"] for f, level in one.items())
        for one in cells(FACTORS).values()
    ]
    writer = Writer(
        root,
        name="norm-placement-warmup",
        arms=CELLS,
        factors=FACTORS,
        factor="norm_placement × warmup",
    )
    writer.asked["arms"] = {
        cell: {"label": label, "set": {}} for cell, label in zip(CELLS, labels, strict=True)
    }
    writer.save()
    writer.tune()
    writer.replicate({"post+warm": 0.1, "post+cold": 0.3}, **fates)
    writer.judge()
    return writer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    return design(tmp_path_factory.mktemp("design"))


@pytest.fixture(scope="module")
def folder(whole: Writer) -> Path:
    """The report."""
    return make_report(whole.store, whole.folder, ("html", "md", "csv"), SCRIPT, None)[0].parent


@pytest.fixture(scope="module")
def shown(folder: Path) -> Page:
    """Its page."""
    return read_page(folder / "report.html")


def test_the_table_has_every_effect_with_the_number_that_the_seeds_give(
    whole: Writer, shown: Page
) -> None:
    names = [text for text, _ in shown.column("effects", "effect")]
    assert names == [
        "post-norm instead of pre-norm, on average",
        "no warmup instead of warmup, on average",
        "post-norm instead of pre-norm, with warmup",
        "post-norm instead of pre-norm, with no warmup",
        "no warmup instead of warmup, with pre-norm",
        "no warmup instead of warmup, with post-norm",
        "post-norm × no warmup",
    ]
    loss = {
        cell: np.array([whole.losses[cell, replication_seed(i)] for i in range(5)])
        for cell in CELLS
    }
    crossed = (loss["post+cold"] - loss["pre+cold"] - loss["post+warm"] + loss["pre+warm"]).mean()
    assert float(shown.column("effects", "nats")[-1][1]) == pytest.approx(crossed, abs=1e-12)
    assert shown.column("effects", "verdict")[-1][0] == "present"
    assert "2 main effects at 97.5" in shown.text and "4 simple effects at 98.8" in shown.text


def test_the_answer_says_whether_the_factors_depend_on_each_other_and_a_sentence_what_each_does(
    whole: Writer, shown: Page
) -> None:
    first = shown.text[: shown.text.index("Effects of the factors")]
    assert "post-norm + warmup and post-norm + no warmup are worse than pre-norm + warmup" in first
    assert "nats more with no warmup than with warmup (simultaneous 95" in first
    study = load.load(whole.folder, whole.store)
    placement, warmup, crossed = effects.write_sentences(study)
    assert placement.startswith(
        "norm_placement. Post-norm instead of pre-norm: on average worse (+0."
    )
    assert " and with post-norm worse (+0." in warmup
    assert crossed.startswith(
        "Interaction of post-norm and no warmup: present, post-norm instead of pre-norm adds 0."
    )
    assert study.factor == "norm_placement × warmup" and list(study.effects.columns) == list(
        load.EFFECTS
    )


def test_the_figure_has_a_line_per_level_and_the_files_have_the_numbers(
    whole: Writer, folder: Path
) -> None:
    drawing = (folder / "figures" / "interaction-norm_placement-warmup.svg").read_text()
    for words in (">post-norm</text>", ">pre-norm</text>", ">no warmup</text>", ">warmup</text>"):
        assert words in drawing
    assert len(pd.read_csv(folder / "effects.csv")) == 7
    seeds, means = effects.cell_means(
        load.load(whole.folder, whole.store), "norm_placement", "warmup"
    )
    assert len(seeds) == 20 and (means["n"] == 5).all()
    cold = means[(means["line"] == "post") & (means["along"] == "cold")].iloc[0]
    assert cold["mean"] == pytest.approx(
        np.mean([whole.losses["post+cold", replication_seed(i)] for i in range(5)])
    )


def test_the_terminal_has_the_effects_below_the_arms(whole: Writer) -> None:
    assert effect_table(whole.folder)[-1]["verdict"] == "present"
    told = results_as_text(whole.folder, whole.store)
    assert told.index("m = 0.05 nats") < told.index("post-norm × no warmup")
    assert len(results_as_json(whole.folder, whole.store)["effects"]) == 7


def test_a_cell_that_stalled_has_no_mean_and_the_report_says_how_often(tmp_path: Path) -> None:
    writer = design(tmp_path, **{"post+cold": {0: "stalled", 2: "stalled", 3: "diverged"}})
    study = load.load(writer.folder, writer.store)
    assert "post+cold: 1 diverged and 2 stalled of 5 runs" in effects.write_answer(study)
    [figure] = [item for item in effects.chapter(study) if isinstance(item, Figure)]
    assert (
        "A cell of which a run did not train has no mean" in figure.caption and "▽" in figure.keys
    )
    seeds, means = effects.cell_means(study, "norm_placement", "warmup")
    lost = means[(means["line"] == "post") & (means["along"] == "cold")].iloc[0]
    assert np.isnan(lost["mean"]) and lost["n"] == 2
    assert (seeds["state"] == "stalled").sum() == 2 and len(seeds) == 19
    lines = results_as_text(writer.folder, writer.store).splitlines()
    note = next(i for i, line in enumerate(lines) if line.startswith("post+cold: 1 diverged"))
    assert "  post-norm × no warmup" in lines[note + 1 :]


def test_what_made_every_effect_invalid_is_said_once(tmp_path: Path) -> None:
    writer = design(tmp_path, **{"pre+warm": {0: "stalled"}})
    study = load.load(writer.folder, writer.store)
    cause = "1 of 5 baseline runs diverged or stalled"
    answer = effects.write_answer(study)
    assert answer.startswith(f"This study cannot answer: {cause}") and answer.count(cause) == 1
    [sentence] = effects.write_sentences(study)
    assert sentence.startswith(f"No effect can be judged: {cause}")
    told = results_as_text(writer.folder, writer.store)
    assert told.count(cause) == 1 and told.count("invalid (under-trained)") == 3 + 7


def test_before_the_verdict_there_are_cells_and_no_effects(whole: Writer) -> None:
    study = replace(load.load(whole.folder, whole.store), effect_rows=[])
    assert effects.write_sentences(study) == []
    assert [item.name for item in effects.chapter(study)] == ["interaction-norm_placement-warmup"]


def test_the_protocols_table_says_which_arms_have_a_grid_of_their_own(whole: Writer) -> None:
    study = load.load(whole.folder, whole.store)
    assert "half-decade grid common to all arms (0.000316," in chapters.describe_tuning(study)
    asked = study.protocol.to_json()
    asked["arms"]["post+cold"]["center"] = 0.001
    study = replace(study, protocol=AskedStudy.model_validate(asked))
    assert (
        "for every arm round 0.00316, but post-norm + no warmup round 0.001, as declared"
        in chapters.describe_tuning(study)
    )
