"""Every format of a report: the same numbers in all, each readable by what reads such files,
nothing of it code.
"""

import io
import json
import math
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis_store import finished
from report_page import read_csv, read_page

from andrea.analysis.formats import latex, machine
from andrea.analysis.formats import pdf as pdfs
from andrea.analysis.formats.build import EVERY_FORMAT, FORMATS, make_report
from andrea.analysis.report import Callout, Column, Figure, Report, Section, Table, Text, numbers
from andrea.errors import UserError

SCRIPT = Path(__file__).parents[1] / "reports" / "comparison.py"
EVIL = "<script>alert(1)</script>"
HOSTILE = [
    "a_b^c~d\\e{f}$g%h&i#j",
    "x|y`z*[l](javascript:alert(1))",
    "−0.5 ≤ ±m → «é» ½",
    "\"--\" 'q'",
    EVIL,
]

Rows = list[list[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a judged ablation of two arms, one with a hostile label, in every format."""
    writer = finished(tmp_path_factory.mktemp("study"), fates={"post": {1: "stalled"}})
    arms = {"pre": {"label": HOSTILE[0], "set": {}}, "post": {"label": EVIL, "set": {}}}
    writer.asked["arms"] = arms
    writer.save()
    return make_report(writer.store, writer.folder, EVERY_FORMAT, SCRIPT, None)[0].parent


def flat(text: str) -> str:
    """Text with every kind of space as one blank."""
    return " ".join(text.split())


def html_tables(folder: Path) -> dict[str, Rows]:
    """Texts of the cells on the page, by table."""
    return {
        name: [[flat(t) for t, _ in row] for row in rows]
        for name, rows in read_page(folder / "report.html").tables.items()
    }


def tex_rows(text: str) -> Rows:
    """Texts of the cells of a LaTeX table."""
    signs = sorted(latex.SIGNS.items(), key=lambda pair: -len(pair[1]))
    back = {told: sign for sign, told in signs}
    known = re.compile("|".join(re.escape(told) for told in back))
    body = re.split(r"\\midrule|\\endhead|\\toprule\n(?!.*\\midrule)", text)[-1].split(
        r"\bottomrule"
    )[0]
    lines = [line.removesuffix(r" \\") for line in body.strip().splitlines()]
    return [
        [flat(known.sub(lambda m: back[m[0]], cell)) for cell in line.split(" & ")]
        for line in lines
    ]


def markdown_tables(text: str) -> list[Rows]:
    """Texts of the cells of every table in Markdown, in order."""
    found: list[Rows] = []
    for block in re.findall(r"(?m)(?:^\|.*\|$\n)+", re.sub(r"(?ms)^(`{3,}).*?^\1$", "", text)):
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        cells = [[flat(re.sub(r"\\(.)", r"\1", unescape(cell))) for cell in line] for line in lines]
        found.append(cells[2:])
    return found


def test_every_cell_of_every_table_is_the_same_text_in_html_markdown_latex_and_json(
    folder: Path,
) -> None:
    page = html_tables(folder)
    told = json.loads((folder / "report.json").read_text())
    assert [table["name"] for table in told["tables"]] == list(page)
    assert len(page) > 8 and page["verdicts"][1][0] == EVIL
    for table, in_markdown in zip(
        told["tables"], markdown_tables((folder / "report.md").read_text()), strict=True
    ):
        name = table["name"]
        assert [[flat(cell) for cell in row] for row in table["shown"]] == page[name], name
        assert in_markdown == page[name], name
        assert tex_rows((folder / f"{name}.tex").read_text()) == page[name], name


@pytest.mark.slow
def test_the_pdf_has_the_verdicts_cells_too(folder: Path) -> None:
    import pypdf

    reader = pypdf.PdfReader(folder / "report.pdf")
    text = re.sub(r"\s", "", "".join(page.extract_text() for page in reader.pages))
    for row in html_tables(folder)["verdicts"]:
        for cell in row:
            assert re.sub(r"\s", "", cell) in text
    first, last = reader.pages[0].extract_text(), reader.pages[-1].extract_text()
    pages = len(reader.pages)
    assert f"page 1 of {pages}" in first and f"page {pages} of {pages}" in last and pages > 3
    assert "norm-placement · ablation" in last, "the header names the report"
    assert reader.metadata is not None and "Does it matter" in str(reader.metadata.title)


def test_csv_and_parquet_hold_the_frames_values(folder: Path) -> None:
    told = json.loads((folder / "report.json").read_text())
    compared = 0
    for table in filter(lambda table: table["rows"], told["tables"]):
        typed = pd.read_parquet(folder / f"{table['name']}.parquet")
        plain = read_csv(folder / f"{table['name']}.csv")
        assert len(typed) == len(plain) >= len(table["rows"])
        whole = table["name"] in (
            "runs",
            "verdicts",
        )  # of `runs` the page may show other columns than the file
        for key, values in table["rows"][0].items():
            if isinstance(values, float) and key in typed and not whole:
                exact = [row[key] for row in table["rows"]]
                assert [None if pd.isna(v) else v for v in typed[key]] == exact
                assert [float(row[key]) if row[key] else None for row in plain] == exact
                compared += 1
    assert compared > 10


def strict(text: str) -> Any:
    """JSON without what Python's reader lets pass."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def test_json_is_strict_whatever_is_in_the_frames() -> None:
    frame = pd.DataFrame(
        {"x": [1.5, math.nan, math.inf], "n": pd.array([1, None, 3], dtype="Int64")}
    )
    frame["o"] = [
        np.float64("nan"),
        {"a": np.int64(3), "b": [math.nan, None]},
        pd.Timestamp("2026-11-30"),
    ]
    frame["b"] = [np.bool_(True), False, None]
    table = Table("odd", "Odd.", frame, [numbers("x", "x"), numbers("n", "n")])
    report = Report("t", "q?", "a.", [table], [], {}, verdicts=[{"arm": EVIL, "mean": math.nan}])
    told = strict(machine.format_json(report))
    assert told["format"] == 1 and told["verdicts"] == [{"arm": EVIL, "mean": None}]
    assert told["tables"][0]["rows"] == [
        {"x": 1.5, "n": 1, "o": None, "b": True},
        {"x": None, "n": None, "o": {"a": 3, "b": [None, None]}, "b": False},
        {"x": None, "n": 3, "o": "2026-11-30 00:00:00", "b": None},
    ]


def test_json_says_what_was_asked_judged_and_must_not_be_overlooked(folder: Path) -> None:
    told = strict((folder / "report.json").read_text())
    assert (
        told["question"].startswith("Does it matter")
        and told["title"] == "norm-placement · ablation"
    )
    assert {note["title"] for note in told["notes"]} >= {"Did not train."}
    verdicts = next(table for table in told["tables"] if table["name"] == "verdicts")
    assert verdicts["section"] is None and [row["verdict"] for row in verdicts["rows"]] == [
        "baseline",
        "unstable",
    ]
    assert verdicts["columns"][0] == {"header": "arm", "keys": ["label"], "numeric": False}
    assert {figure["name"] for figure in told["figures"]} >= {"learning-rates"}
    assert set(told["versions"]) >= {"python", "andrea", "pandas"}


def test_latex_sets_every_sign_as_it_stands_and_nothing_as_a_command() -> None:
    for text in HOSTILE:
        told = latex.escape(text)
        assert not re.search(r"(?<!\\)[$&#%_^~]", told.replace(r"\textasciitilde{}", "")), told
    assert latex.escape("\\input{/etc/passwd}") == r"\textbackslash{}input\{/etc/passwd\}"
    assert latex.escape("1 \N{NO-BREAK SPACE}%\n\0") == r"1 ~\% "
    frame = pd.DataFrame({"a": HOSTILE, "x": range(5)})
    table = latex.render_table(
        Table("evil", "C_aption.", frame, [Column("a", "a & b"), numbers("x", "x")])
    )
    assert r"\caption{C\_aption.}\label{tab:evil}" in table and r"a \& b & x \\" in table
    assert [row[0] for row in tex_rows(table)] == HOSTILE


def test_a_long_table_may_break_over_pages_in_latex() -> None:
    frame = pd.DataFrame({"a": [f"row {i}" for i in range(60)]})
    table = latex.render_table(Table("long", "Long.", frame, [Column("a", "a")]))
    assert r"\begin{longtable}" in table and r"\endhead" in table and len(tex_rows(table)) == 60
    again = table[table.index(r"\endfirsthead") : table.index(r"\endhead")]
    assert r"\label" not in again and r"\caption" not in again, (
        "a label on every page is defined several times"
    )


def test_a_table_in_latex_is_no_wider_than_the_text_and_its_label_names_the_study() -> None:
    frame = pd.DataFrame({"a": ["x"], "b": [0.5]})
    item = Table(
        "verdicts", "C.", frame, [Column("a", "arm"), numbers("b", "simultaneous interval of nats")]
    )
    table = latex.render_table(item, "Pre-norm, größer/2")
    assert (
        r"\label{tab:pre-norm-gr-er-2-verdicts}" in table
        and r"\label{tab:verdicts}" in latex.render_table(item, "规范")
    )
    assert r"\shortstack[r]{simultaneous\\interval of\\nats}" in table
    fitted = table[table.index(r"\resizebox") : table.index(r"\begin{tabular}")]
    assert (
        r"\ifdim\width>\linewidth\linewidth\else\width\fi" in fitted
        and "graphicx" in table.splitlines()[0]
    )


def test_drawings_that_stand_alone_take_labels_literally(folder: Path) -> None:
    from xml.etree import ElementTree

    for path in (folder / "figures").glob("*.svg"):
        tags = {part.tag.rpartition("}")[2] for part in ElementTree.parse(path).iter()}
        assert "script" not in tags and "image" not in tags
        assert "&lt;script&gt;alert(1)" in path.read_text()


def test_default_formats_need_no_extra_and_pdf_says_what_it_needs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(EVERY_FORMAT) - set(FORMATS) == {"pdf"}
    import sys

    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(
        UserError, match=r"^--format pdf needs weasyprint, .*: pip install 'andrea\[pdf\]'$"
    ):
        pdfs.require_weasyprint()


def test_a_pdf_fetches_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret.svg"
    secret.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><text y="20">secret words</text></svg>'
    )
    import pypdf

    made = pdfs.render_pdf(f'<p>seen</p><img src="{secret.as_uri()}" alt="not seen">')
    text = pypdf.PdfReader(io.BytesIO(made)).pages[0].extract_text()
    assert "seen" in text and "secret words" not in text


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a b", "<script>", "report"])
def test_a_name_that_is_no_files_is_refused(name: str) -> None:
    frame = pd.DataFrame({"a": [1]})
    with pytest.raises(UserError, match="its name becomes a file's"):
        Table(name, "", frame, [])
    with pytest.raises(UserError, match="its name becomes a file's"):
        Figure(name, "", {})


def test_a_name_that_is_given_twice_is_refused() -> None:
    table = Table("same", "", pd.DataFrame({"a": [1]}), [Column("a", "a")])
    with pytest.raises(UserError, match="two tables or figures named 'same'"):
        Report("t", "q?", "a.", [table], [Section("s", [Text("x"), Callout("c", "d"), table])], {})
