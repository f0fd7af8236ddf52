"""The report of an ablation: its numbers, its words, its files."""

import math
import re
import statistics
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
import stored
from analysis_store import Writer, finished
from report_page import Page, read_csv, read_page
from scipy import stats

from andrea.analysis.formats.build import FORMATS, make_report
from andrea.cli.show.verdict_table import verdict_table
from andrea.verdict.seeds import replication_seed

REPORTS = Path(__file__).parents[1] / "reports"
SCRIPT = REPORTS / "comparison.py"


def made(writer: Writer, *formats: str, out: Path | None = None) -> Path:
    """The folder of the report."""
    return make_report(writer.store, writer.folder, formats or FORMATS, SCRIPT, out)[0].parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Two arms, judged: post is worse, and stalled at two rates while tuning."""
    return finished(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def folder(whole: Writer) -> Path:
    """Its report in every format."""
    return made(whole)


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    """Its page."""
    return read_page(folder / "report.html")


def minus(text: str) -> float:
    """A shown number as a number."""
    return float(text.replace("−", "-").replace(",", ""))


def test_the_verdict_tables_numbers_are_those_of_an_independent_calculation(
    whole: Writer, page: Page
) -> None:
    pairs = [
        whole.losses["post", replication_seed(i)] - whole.losses["pre", replication_seed(i)]
        for i in range(5)
    ]
    mean, sd = statistics.fmean(pairs), statistics.stdev(pairs)
    half = stats.t.ppf(0.975, 4) * sd / math.sqrt(5)
    assert [text for text, _ in page.column("verdicts", "verdict")] == ["baseline", "worse"]
    shown, exact = page.column("verdicts", "difference (nats)")[1]
    assert minus(shown) == pytest.approx(mean, abs=5e-5) and float(exact) == pytest.approx(
        mean, abs=1e-12
    )
    low, high = page.column("verdicts", "simultaneous interval")[1][0].strip("[]").split(", ")
    assert (minus(low), minus(high)) == pytest.approx((mean - half, mean + half), abs=6e-5)
    assert page.column("verdicts", "pairs")[1][0] == "5"
    assert (
        f"post is worse than pre ({shown} nats of final loss, simultaneous 95\xa0% interval "
        f"[{low}, {high}]" in page.text
    )
    assert (
        "At the rate this protocol chose for each arm, on this corpus, at this size and budget, "
        "post" in page.text
    )
    base = [whole.losses["pre", replication_seed(i)] for i in range(5)]
    assert minus(page.column("final-losses", "final loss (nats)")[0][0]) == pytest.approx(
        statistics.fmean(base), abs=5e-5
    )
    assert minus(page.column("final-losses", "sd over seeds")[0][0]) == pytest.approx(
        statistics.stdev(base), abs=5e-5
    )


def test_csv_parquet_and_page_say_the_same_numbers(folder: Path, page: Page) -> None:
    for table, header, key in [
        ("verdicts", "difference (nats)", "mean"),
        ("verdicts", "rate chosen", "lr"),
        ("differences", "difference (nats)", "difference"),
        ("runs", "final loss (nats)", "loss"),
        ("rates", "regret (nats)", "regret"),
        ("power", "smallest effect these pairs see (nats)", "smallest_visible"),
        ("parameters", "total", "total"),
        ("costs", "FLOPs per training", "flops"),
    ]:
        shown = [exact for _, exact in page.column(table, header)]
        from_csv = [row[key] for row in read_csv(folder / f"{table}.csv")]
        assert [exact and float(exact) for exact in shown] == [
            value and float(value) for value in from_csv
        ], table
        columns = pd.read_parquet(folder / f"{table}.parquet")[key]
        assert [None if pd.isna(value) else float(value) for value in columns] == [
            float(exact) if exact else None for exact in shown
        ]


def test_every_number_has_a_file_and_every_figure_a_drawing(folder: Path, page: Page) -> None:
    for name in ("runs", "curves", "layers", "trials", "verdicts", "documents", "differences"):
        assert (folder / f"{name}.csv").exists() and (folder / f"{name}.parquet").exists()
    assert len(read_csv(folder / "curves.csv")) == 24 * 111
    drawings = {path.stem for path in (folder / "figures").glob("*.svg")}
    figures = [attributes["id"] for tag, attributes in page.elements if tag == "figure"]
    assert drawings == set(figures)
    assert {
        "learning-rates",
        "differences-per-seed",
        "evaluated-loss",
        "gradient-norm-by-layer",
    } <= drawings
    for path in (folder / "figures").glob("*.svg"):
        assert "var(--" not in path.read_text(), "a file that stands alone has plain colours"
        assert ">post</text>" in path.read_text() and "#d55e00" in path.read_text(), (
            "and its own legend"
        )
        ElementTree.parse(path)
    linked = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (folder / "report.md").read_text())
    assert {folder / link for link in linked} == set((folder / "figures").glob("*.svg"))


def test_the_markdown_has_the_same_rows_as_the_page(folder: Path, page: Page) -> None:
    lines = (folder / "report.md").read_text().replace("\\", "").splitlines()
    for row in page.tables["verdicts"]:
        cells = [text for text, _ in row]
        assert any([cell.strip() for cell in line.split("|")[1:-1]] == cells for line in lines), (
            cells
        )


def test_the_first_screen_says_what_stalled_and_the_caption_that_the_axis_bends(page: Page) -> None:
    first = page.text[: page.text.index("How it was done")]
    assert "post: 2 stalled of 7 runs in tuning, at learning rate 0.01 and 0.0316" in first
    assert first.count("final loss less than 1\N{NO-BREAK SPACE}% below the unigram loss") == 2
    assert "Above the dotted line, off the scale, stands what did not train" in first
    assert "m, the smallest effect of interest, is 0.05 nats" in first and "0.0187 epochs" in first
    assert "Rate hardly tuned" not in first and "Half finished" not in first


@pytest.mark.usefixtures("without_drawings")
def test_survivors_of_an_unstable_arm_are_shown_and_never_averaged(tmp_path: Path) -> None:
    writer = finished(tmp_path, {"post": -0.3}, fates={"post": {1: "stalled", 3: "diverged"}})
    where = made(writer, "html", "csv")
    page = read_page(where / "report.html")
    row = [text for text, _ in page.tables["verdicts"][1]]
    assert row[1] == "unstable" and row[2] == row[3] == "–" and "1, 1" in row
    assert read_csv(where / "verdicts.csv")[1]["mean"] == ""
    fates = [text for text, _ in page.column("differences", "arm's outcome")]
    assert fates == ["completed", "stalled", "completed", "diverged", "completed"]
    assert page.column("differences", "difference (nats)")[3] == ("–", "")
    assert page.column("final-losses", "final loss (nats)")[1] == ("–", "")
    assert "post: 1 diverged and 1 stalled of 5 replicates" in page.text


@pytest.mark.usefixtures("without_drawings")
@pytest.mark.parametrize("fate", ["failed", "missing"])
def test_no_mean_over_the_seeds_that_are_there_on_page_in_files_or_in_the_terminal(
    tmp_path: Path, fate: str
) -> None:
    writer = finished(tmp_path, {"post": -0.3}, fates={"post": {1: fate}})
    where = made(writer, "html", "csv")
    row = [text for text, _ in read_page(where / "report.html").tables["verdicts"][1]]
    assert row[1:5] == ["inconclusive (failed or missing run)", "–", "–", "4"]
    told = read_csv(where / "verdicts.csv")[1]
    assert {
        told[key] for key in ("mean", "low", "high", "sd", "pairs_needed", "smallest_visible")
    } == {""}
    said = verdict_table(writer.folder)[1]
    assert (said["difference"], said["interval"], said["n"]) == ("–", "–", "4")
    assert "4 of 5 pairs are whole" in read_page(where / "report.html").text


def test_the_page_asks_no_network(folder: Path, page: Page) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), f"<{tag} {name}={value}>"
    policy = next(a["content"] for t, a in page.elements if t == "meta" and a.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy
    assert "@import" not in (folder / "report.html").read_text().split("</style>")[0]
    assert not [t for t, _ in page.elements if t in ("link", "iframe", "object", "embed", "base")][
        1:
    ], "only the icon"


@pytest.mark.slow
def test_a_study_named_script_is_a_study_named_script(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    arms = {
        "pre": {"label": '"><img src=x onerror=alert(2)>', "set": {}},
        "post": {"label": "a|b`c`</script>", "set": {}},
    }
    writer = finished(tmp_path, name=evil, arms=("pre", "post"), question=f"{evil} & why?")
    writer.folder.write(
        "study.json", stored.study_json(writer.folder, "study.json") | {"name": evil}
    )
    protocol = writer.asked | {"arms": arms}
    import yaml

    (writer.folder.path / "protocol.yaml").write_text(yaml.safe_dump(protocol))
    where = made(writer, "html", "md")
    page = read_page(where / "report.html")
    assert evil in page.text and '"><img src=x onerror=alert(2)>' in page.text
    assert not [t for t, _ in page.elements if t == "img"]
    scripts = [a for t, a in page.elements if t == "script"]
    figures = [a for t, a in page.elements if t == "figure"]
    assert len(scripts) == len(figures) + 2, (
        "one specification per figure, the library and the page's own"
    )
    markdown = (where / "report.md").read_text()
    assert "<script" not in markdown.split("```")[0] and "<img" not in markdown.split("```")[0]
    cells = next(line for line in markdown.splitlines() if "| worse |" in line)
    assert "a\\|b\\`c\\`&lt;/script&gt;" in cells


@pytest.mark.usefixtures("without_drawings")
def test_a_half_finished_study_has_a_report_that_says_what_is_missing(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tune()
    writer.replicate({"post": 0.08}, seeds=2, post={1: "failed"})
    page = read_page(made(writer, "html") / "report.html")
    assert (
        "Half finished" in page.text
        and "Not decided yet: 17 of 18 planned runs are done, 1 failed" in page.text
    )
    assert "post: 3 replicates not planned yet" in page.text and "out of memory" in page.text
    assert [text for text, _ in page.column("verdicts", "verdict")] == ["baseline", "pending"]


@pytest.mark.usefixtures("without_drawings")
@pytest.mark.parametrize("stage", ["nothing", "one trial"])
def test_a_study_that_has_hardly_begun_has_a_report(tmp_path: Path, stage: str) -> None:
    writer = Writer(tmp_path)
    if stage == "one trial":
        writer.train(writer.plan("pre", "tune", "grid", 0.001, 1, trial=0), 2.6)
    page = read_page(made(writer, "html", "md", "csv", "parquet") / "report.html")
    assert "Half finished" in page.text and "Not decided yet" in page.text


@pytest.mark.usefixtures("without_drawings")
def test_rate_hardly_tuned_stands_in_the_head(tmp_path: Path) -> None:
    writer = finished(tmp_path, protocol={"trials": 3})
    text = read_page(made(writer, "html") / "report.html").text
    assert "Rate hardly tuned" in text[: text.index("How it was done")]


def test_configuration_and_environment_are_there_to_copy(page: Page) -> None:
    assert "norm_placement: post" in page.text and "lr: 0.000954" in page.text
    assert "torch: 2.13.0" in page.text and "dirty: true" in page.text and "Dirty tree" in page.text
    assert "Do not compare times" in page.text
    assert ("model.norm_placement", "model.norm_placement") in page.tables["settings-that-differ"][
        0
    ]


@pytest.mark.slow
def test_the_same_study_gives_the_same_files(whole: Writer, folder: Path, tmp_path: Path) -> None:
    again = made(whole, out=tmp_path / "again")
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert len(names) > 40
    assert [
        name for name in names if (again / name).read_bytes() != (folder / name).read_bytes()
    ] == []
